"""Opening trees with a bar, and modules of the user's own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter.replay.open_tree import OpenTree
from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter.evaluation.policies import OwnPolicy
    from hierrouter.learning.baselines.arms import Baseline
    from hierrouter.replay.tree import Tree

DERIVATIONS = {"embed": "embed states", "score": "score responses"}


def make_importable(folder: Path) -> None:
    """Let `module:name` on the command line find a module there, after all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def own_policies(paths: Sequence[str] | None) -> tuple[OwnPolicy, ...]:
    """The policies of the user's own at these import paths."""
    from hierrouter.evaluation.policies import own_policies as own

    if paths:
        make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        return own(paths or ())


def named_baselines(names: str | None) -> tuple[Baseline, ...]:
    """The baselines of `--baselines`, the user's own among them; None is all that are built in."""
    from hierrouter.learning.baselines.registry import baselines

    make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        return baselines(options.split_names(names))


def open_trees(opening: OpenTree) -> dict[str, Tree]:
    """Open a tree under each price list, with a bar; say what a reader should know of it."""
    if ":" in opening.scorer:
        make_importable(Path.cwd())
    with console.bar("open") as show:
        return opening.run_each(
            lambda label, done, total: show(done, total, label=DERIVATIONS[label]), console.say
        )


def open_tree(opening: OpenTree) -> Tree:
    """Open a tree, with a bar; say what a reader should know of it."""
    if ":" in opening.scorer:
        make_importable(Path.cwd())
    with console.bar("open") as show:
        return opening.run(
            lambda label, done, total: show(done, total, label=DERIVATIONS[label]), console.say
        )

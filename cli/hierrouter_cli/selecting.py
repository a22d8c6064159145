"""Opening trees with a bar, and modules of the user's own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter.replay.open_tree import OpenTree
from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.replay.tree import Tree
    from hierrouter.reports.jobs import Compare, Explore, Report

DERIVATIONS = {"embed": "embed states", "score": "score responses"}


def make_importable(folder: Path) -> None:
    """Let `module:name` on the command line find a module there, after all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def check_job(job: Report | Compare | Explore) -> None:
    """Check a job before a cache is read; policies and baselines of the user are imported."""
    has_own_code = bool(job.policies) or bool(getattr(job, "baselines", None))
    if has_own_code:
        make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        job.check()


@contextmanager
def quiet_bar(label: str) -> Iterator[Callable[..., None]]:
    """Show a bar, and print to stderr whatever is printed meanwhile.

    A policy or a baseline of the user may print, and that is no result of the command.
    """
    with console.bar(label) as on_progress, contextlib.redirect_stdout(sys.stderr):
        yield on_progress


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

"""Run jobs of the library with a bar: open trees, and check jobs that import modules of users."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter.declarations.declaration import OnTask
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.replay.tree import Tree
    from hierrouter.reports.jobs import Compare, Explore, Report

DERIVATION_LABELS = {"embed": "embed states", "score": "score responses"}


def make_importable(*names: str | None) -> None:
    """Let `module:name` on the command line find modules in this folder, after installed ones.

    Args:
        names: given by the user; others than `module:name` need no modules.
    """
    folder = str(Path.cwd())
    if any(":" in (name or "") for name in names) and folder not in sys.path:
        sys.path.append(folder)


def check_job(job: Report | Compare | Explore) -> None:
    """Check a job before a cache is read; this imports policies and baselines of the user."""
    make_importable(*job.policies, *(getattr(job, "baselines", None) or ()))
    with console.foreign_output_on_stderr():
        job.check()


@contextmanager
def quiet_bar(label: str) -> Iterator[Callable[..., None]]:
    """Show a bar, and send to stderr whatever is printed meanwhile."""
    with console.bar(label) as on_progress, console.foreign_output_on_stderr():
        yield on_progress


def open_trees(opening: OpenTree) -> dict[str, Tree]:
    """Open a tree under each price list, with a bar; print the notes for readers of its figures."""
    with _opening_bar(opening) as on_derive:
        return opening.run_each(on_derive, console.say)


def open_tree(opening: OpenTree) -> Tree:
    """Open a tree, with a bar; print the notes for readers of its figures."""
    with _opening_bar(opening) as on_derive:
        return opening.run(on_derive, console.say)


def _opening_bar(opening: OpenTree) -> AbstractContextManager[OnTask]:
    """Return the bar of an opening; let a scorer of the user's be imported."""
    make_importable(opening.scorer)
    return labelled_bar("open", DERIVATION_LABELS)


@contextmanager
def labelled_bar(label: str, labels: Mapping[str, str]) -> Iterator[OnTask]:
    """Show a bar whose label tells which task of a job is under way.

    Args:
        label: before the first task.
        labels: by the names that the library calls the tasks.

    Returns:
        A context whose value is called with the name of a task, how much is done, and how much
        there is in all.
    """
    with console.bar(label) as move:
        yield lambda task, done, total: move(done, total, label=labels[task])

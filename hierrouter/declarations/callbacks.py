"""What jobs call while they are at work, and functions that do nothing with it."""

from __future__ import annotations

from collections.abc import Callable

# Called with a line that a person should know.
OnNote = Callable[[str], None]
# Called with the name of a task of the job, how much of it is done, and how much there is in all.
OnTask = Callable[[str, int, int], None]
# Called with how much is done, and how much there is in all.
OnCount = Callable[[int, int], None]


def ignore_note(note: str) -> None:
    """Do nothing with a note: the `OnNote` of a caller that prints none."""


def ignore_task(task: str, done: int, total: int) -> None:
    """Do nothing: the `OnTask` of a caller without a progress bar."""


def ignore_count(done: int, total: int) -> None:
    """Do nothing: the `OnCount` of a caller without a progress bar."""

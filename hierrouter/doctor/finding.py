"""One thing that a doctor says.

In: what was looked at, and how it stands. Out: a plain value. Not covered: how it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hierrouter_cache.errors import HierRouterError

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """How one thing stands.

    Attributes:
        subject: what was looked at, a word or two.
        state: a "note" is good to know; with a "problem" something does not work.
        text: what was found; of notes and problems also what to do.
        error: of a problem, what a command would raise that met it.
    """

    subject: str
    state: State
    text: str
    error: HierRouterError | None = None

    @classmethod
    def of_error(cls, subject: str, error: HierRouterError) -> Finding:
        """The problem that this error is."""
        return cls(subject, "problem", str(error), error)

"""A model that answers one prompt at a time: the seam.

In: a prompt. Out: its answer, whole or as it grows, or `CallFailed`. Not covered: the two kinds
there are (`batched`, `served`), which model is called (`router`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hierrouter.collect.generator import Response
from hierrouter_cache.errors import WorldError

# Told what comes next of an answer.
OnText = Callable[[str], None]


class CallFailed(WorldError):
    """A live call has no answer, after as many attempts as it takes.

    Args:
        model: who was called.
        reason: why.
        status: of `hierrouter.collect.generator.STATUSES`.

    Attributes:
        was_begun: whether a part of the answer was told before.
        earlier: the failed calls in whose place this one was made, oldest first.
    """

    was_begun = False
    earlier: tuple[CallFailed, ...] = ()

    def __init__(self, model: str, reason: str, status: str = "error") -> None:
        super().__init__(f"{model} gave no answer: {reason}")
        self.model = model
        self.reason = reason
        self.status = status


class LiveModel(Protocol):
    """A model that can be asked now."""

    async def answer(self, prompt: str, on_text: OnText | None = None) -> Response:
        """The answer to one prompt.

        Args:
            on_text: told the text as it grows; all that it is told is the answer's text, but for
                white space at both ends.

        Raises:
            CallFailed: there is none; perhaps after a part of it was told.
        """
        ...

    def count(self, prompt: str) -> int | None:
        """Tokens of a prompt as the model counts them; None where nobody here can count."""
        ...

    async def close(self) -> None:
        """Take no more prompts, and let go of threads and connections."""
        ...

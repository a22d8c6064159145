"""What any engine gives and takes: the seam.

In: prompts for one model. Out: a `Response` with token counts, or a `Failure` that says why there
is none. An engine is given all prompts of a level at once and orders and batches them as it does
best; it delivers each answer when it is finished. Not covered: the engines (`backends`), asking
again after a failure and writing answers down (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hierrouter.pool import Identity, ModelSpec
from hierrouter.query import storable
from hierrouter_cache.errors import WorldError

# Why a call has no answer, and whether asking again may bring one.
STATUSES = {
    "too_long": False,  # prompt and response do not fit the model's window
    "filtered": True,  # the engine refused the prompt or withheld the response
    "error": True,  # this one call failed: a timeout, a malformed reply
}


@dataclass(frozen=True)
class Response:
    """What one call gave.

    Attributes:
        text: the generated text, special tokens removed, outer white space stripped, and what no
            file takes replaced, before any answer of a batch is paid for in vain.
        tokens_in: tokens of the prompt as the model saw it, chat template included.
        tokens_out: generated tokens, the end token included.
        finish_reason: "stop", or "length" where the response was cut.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", storable(self.text))


@dataclass(frozen=True)
class Failure:
    """Why one call gave nothing; it is never scored and never read as an answer.

    Attributes:
        status: one of `STATUSES`.
        detail: what a person should know.

    Raises:
        ValueError: a status that is not known.
    """

    status: str
    detail: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", " ".join(storable(self.detail).split()))
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; known: {', '.join(STATUSES)}")

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed when it is made again."""
        return STATUSES[self.status]


def too_long(length: int, new_tokens: int, window: int) -> Failure:
    """The failure of a prompt that leaves no room for its response.

    Args:
        length: tokens of the prompt as the model sees it.
        new_tokens: the most that it may generate.
        window: tokens that the model takes in all.
    """
    return Failure(
        "too_long",
        f"{length} tokens of prompt and {new_tokens} new ones exceed the window of {window}",
    )


Answer = Response | Failure
Stop = Callable[[], bool]


def never() -> bool:
    """The `Stop` of work that nobody interrupts."""
    return False


class Outage(WorldError):
    """One model's engine cannot be reached; the other models may go on."""


class Generator(Protocol):
    """A loaded model."""

    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        """(place in `prompts`, answer) of each prompt, as they are finished.

        The same prompt always gets the same response. Once `stop()` is true no further prompt is
        taken up; what has begun is still delivered.

        Raises:
            RuntimeError, OSError: the model as a whole failed, e.g. for lack of memory; what was
                delivered before stands.
            Outage: its server cannot be reached.
        """
        ...


class Backend(Protocol):
    """An engine: names what a model resolves to, then loads it."""

    def identify(self, spec: ModelSpec) -> Identity:
        """What decides the model's answers: weights, tokenizer, template, dtype, engine."""
        ...

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Memory of this machine that the loaded model takes; 0 for one that a server holds."""
        ...

    def load(self, spec: ModelSpec) -> Generator:
        """The model, ready to answer."""
        ...


# The engine of a name; tests pass others.
Engines = Callable[[str], Backend]


def answers_in_order(generator: Generator, prompts: Sequence[str]) -> list[Answer]:
    """One answer a prompt, in the order of the prompts."""
    answers = dict(generator.generate(prompts))
    return [answers[place] for place in range(len(prompts))]

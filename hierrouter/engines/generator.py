"""The seam of all engines: a `Backend` loads a model, and its `Generator` answers prompts.

Then what engines share: the prompt of a call, its tokens, and which models stay loaded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter.questions.query import storable
from hierrouter_cache.errors import WorldError, named_reason

# Why a call has no answer, and whether asking again may bring one.
STATUSES = {
    "too_long": False,  # prompt and response do not fit the model's window
    "filtered": True,  # the engine refused the prompt or withheld the response
    "error": True,  # this one call failed: a timeout, a malformed reply
}


@dataclass(frozen=True)
class Confidence:
    """How sure a model was of its answer, before temperature or top_p change what is drawn.

    Attributes:
        total: sum of the log-probabilities of the generated tokens, in nats.
        tokens: how many tokens that are: all, the end token included, or all but that one where
            the engine does not tell its own.
    """

    total: float
    lowest: float
    tokens: int

    @classmethod
    def of(cls, logprobs: Sequence[Any], tokens_out: int, has_end: bool) -> Confidence | None:
        """What an engine says of each token, in nats; None where that cannot be.

        Servers send fewer than there are tokens, NaN, or -9999 for what they do not know.

        `tokens_out`: generated tokens; `has_end`: whether an end token is one of them.
        """
        if not logprobs or len(logprobs) not in (tokens_out, tokens_out - has_end):
            return None
        if not all(isinstance(one, int | float) and UNLIKELY < one < 1e-3 for one in logprobs):
            return None
        total, lowest = math.fsum(logprobs), float(min(logprobs))
        return cls(min(total, 0.0), min(lowest, 0.0), len(logprobs))  # rounding may leave more


UNLIKELY = -1000.0  # no token is chosen whose log-probability is below


@dataclass(frozen=True)
class Response:
    """What one call gave.

    Attributes:
        text: the generated text, special tokens removed, outer white space stripped, and what no
            file takes replaced, before any answer of a batch is paid for in vain.
        tokens_in: tokens of the prompt as the model saw it, chat template included.
        tokens_out: generated tokens, the end token included.
        finish_reason: "stop", or "length" where the response was cut.
        confidence: None where the engine does not tell. Its last digits depend on the batch, so
            two answers are equal whatever it is.
        tool_calls: of a model that was given tools, as OpenAI has them.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: str
    confidence: Confidence | None = field(default=None, compare=False)
    tool_calls: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", storable(self.text))


@dataclass(frozen=True)
class Wanted:
    """What one call is to heed beside the text of its prompt, as OpenAI's clients ask for it.

    Attributes:
        settings: of chat completions, by name; they go before those of the pool.
        images: parts of the message.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Mapping[str, Any], ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """What not every model takes, see `hierrouter.pools.pool.Ability`."""
        asked = self.settings.keys() & {"tools", "response_format"}
        return frozenset(asked | {"images"} if self.images else asked)


PLAIN = Wanted()


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


Answer = Response | Failure
Stop = Callable[[], bool]


def never() -> bool:
    """The `Stop` of work that nobody interrupts."""
    return False


class Outage(WorldError):
    """One model's engine cannot be reached; the other models may go on."""


class Feed:
    """Prompts that one thread puts and another one takes, until it is closed.

    `woken` is set whenever there may be more to do.
    """

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._due = deque(enumerate(prompts))
        self._put = len(self._due)
        self.closed = self.cancelled = False
        self.woken = Event()

    def put(self, prompt: str) -> int:
        """Add a prompt; returns its place."""
        place, self._put = self._put, self._put + 1
        self._due.append((place, prompt))
        self.woken.set()
        return place

    def close(self) -> None:
        """No more will come."""
        self.closed = True
        self.woken.set()

    def cancel(self) -> None:
        """Nobody waits for an answer any more."""
        self.cancelled = True
        self.close()

    def take(self) -> tuple[int, str] | None:
        """(place, prompt) of the next one; None where none is due now."""
        return self._due.popleft() if self._due else None


class Generator(Protocol):
    """A loaded model."""

    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        """(place in `prompts`, answer) of each prompt, as they are finished.

        The same prompt always gets the same response. Once `stop()` is true no further prompt is
        taken up; what has begun is still delivered. Raises RuntimeError, OSError: the model as a
        whole failed, e.g. for lack of memory; what was delivered before stands; Outage: its server
        cannot be reached.
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


PART_BREAK = "\n\n"


def context_text(question: str, responses: Sequence[str]) -> str:
    """The context c_t: the question and every response so far, newest last."""
    return PART_BREAK.join([question, *responses])


def prompt_text(question: str, responses: Sequence[str], instruction: str) -> str:
    """The user message of one call: the context, then the stage instruction if there is one."""
    context = context_text(question, responses)
    return PART_BREAK.join([context, instruction]) if instruction else context


def message_of(prompt: str) -> list[dict[str, str]]:
    """The conversation that a prompt is."""
    return [{"role": "user", "content": prompt}]


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens that a model is given; see `prompts_tokens`."""
    return prompts_tokens(tokenizer, [prompt])[0]


def prompts_tokens(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """The tokens that a model is given for each prompt, chat template included.

    Raises RuntimeError: the template fails.
    """
    if not prompts:
        return []
    try:
        encoded = tokenizer.apply_chat_template(
            [message_of(prompt) for prompt in prompts],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
    except Exception as error:  # it is a program of others, in a sandbox
        raise RuntimeError(f"its chat template fails: {named_reason(error)}") from error
    return [list(tokens) for tokens in encoded["input_ids"]]


def split_by_window(
    tokenizer: Any, prompts: Sequence[str], new_tokens: int, window: int | None
) -> tuple[dict[int, list[int]], dict[int, Failure]]:
    """Tokens of each prompt that leaves room for its response; why the others have none; by place.

    Raises RuntimeError: the chat template fails.

    Args:
        new_tokens: the most that a response may have.
        window: tokens that the model takes in all; None where it does not tell.
    """
    fitting: dict[int, list[int]] = {}
    failures: dict[int, Failure] = {}
    for place, tokens in enumerate(prompts_tokens(tokenizer, prompts)):
        if window is None or len(tokens) + new_tokens <= window:
            fitting[place] = tokens
        else:
            failures[place] = Failure(
                "too_long",
                f"{len(tokens)} tokens of prompt and {new_tokens} new ones exceed the window of "
                f"{window}",
            )
    return fitting, failures


Room = Callable[[ModelSpec], int]
# Of a device's memory, for the keys and values of batches: models that leave less are too many.
BATCHES_SHARE = 0.25


def room_for_weights(spec: ModelSpec) -> int:
    """Bytes that weights may take now on the devices of this model."""
    from hierrouter.engines.devices import candidates, memory

    free, total = memory(candidates(spec))
    return int(free - BATCHES_SHARE * total)


class Residency:
    """The loaded models, the one called longest ago first.

    Args:
        room: bytes that weights may take now, on the devices of a model.
    """

    def __init__(self, engines: Engines, room: Room = room_for_weights) -> None:
        self.engines = engines
        self._room = room
        self._loaded: dict[str, Generator] = {}
        self._bytes: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a model of this name is loaded: call such models first at each level."""
        return name in self._loaded

    def generator(self, spec: ModelSpec) -> Generator:
        """The model, loaded now unless it is already.

        Do not keep it: a generator that somebody holds is not freed when it is let go. Raises
        InputError, WorldError: it cannot be loaded, see its backend.
        """
        if spec.name in self._loaded:
            self._loaded[spec.name] = self._loaded.pop(spec.name)
            return self._loaded[spec.name]
        engine = self.engines(spec.backend)
        self._bytes[spec.name] = engine.weight_bytes(spec)
        self._make_room(spec)
        self._loaded[spec.name] = engine.load(spec)
        return self._loaded[spec.name]

    def release(self, name: str) -> None:
        """Let a model go, loaded or not: it is called no more."""
        if self._loaded.pop(name, None) and self._bytes[name]:
            from hierrouter.engines.devices import give_back_memory

            give_back_memory()

    def _make_room(self, spec: ModelSpec) -> None:
        """Where it is too large for an empty device it is tried all the same: this is a guess."""
        needed = self._bytes[spec.name]
        if not needed:
            return
        for name in [name for name in self._loaded if self._bytes[name]]:
            if needed <= self._room(spec):
                return
            self.release(name)

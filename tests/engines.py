"""Test doubles for the seam `Backend`: one counts real calls, one has scripted answers."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hierrouter.engines import backend
from hierrouter.engines.generator import (
    AdjustableGenerator,
    Answer,
    Failure,
    Feed,
    Generator,
    Response,
    Stop,
    never,
)
from hierrouter.pools.pool import Generation, Identity, ModelSpec
from hierrouter_cache.keys import digest

WINDOW = 2_000  # characters that a scripted model takes


@dataclass
class Counting:
    """The transformers engine; it counts the calls of each model and prompt.

    Use it as `collect(..., engines=counting)`.

    Attributes:
        asked: number of calls by model and prompt.
    """

    asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __call__(self, name: str) -> "Counting":
        assert name == "transformers"
        return self

    def identify(self, spec: ModelSpec) -> Identity:
        return backend("transformers").identify(spec)

    def weight_bytes(self, spec: ModelSpec) -> int:
        return backend("transformers").weight_bytes(spec)

    def load(self, spec: ModelSpec) -> Generator:
        is_shipped = spec.model.startswith("testbed:")
        model = _MemoisedModel(spec) if is_shipped else backend("transformers").load(spec)
        return _CountedModel(spec.name, model, self.asked)


@dataclass
class _MemoisedModel:
    """A shipped model; prompts that it has answered in this process are not computed again."""

    spec: ModelSpec

    def with_generation(self, generation: Generation) -> Generator:
        return _MemoisedModel(replace(self.spec, generation=generation))

    @cached_property
    def model(self) -> Generator:
        return backend("transformers").load(self.spec)

    def generate(
        self, prompts: Sequence[str], stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        draws = draws or [0] * len(prompts)
        keys = [(self.spec, *call) for call in zip(prompts, draws, strict=True)]
        new_positions: list[int] = []
        for position, key in enumerate(keys):
            if key not in _ANSWERS:
                new_positions.append(position)
        for position in sorted({*range(len(prompts))}.difference(new_positions)):
            if stop():
                return
            yield position, _ANSWERS[keys[position]]
        if new_positions:
            new_prompts = [prompts[position] for position in new_positions]
            new_draws = [draws[position] for position in new_positions]
            for number, answer in self.model.generate(new_prompts, stop, new_draws):
                _ANSWERS[keys[new_positions[number]]] = answer
                yield new_positions[number], answer


_ANSWERS: dict[tuple[ModelSpec, str, int], Answer] = {}


def scripted_answer(model: str, prompt: str) -> Response:
    """Return the usual answer of a scripted model: a different text for each prompt."""
    return Response(digest([model, prompt])[:6], len(prompt), 6, "stop")


@dataclass
class Scripted:
    """An engine whose models answer by a script, without any weights.

    Attributes:
        script: returns or raises the answer to (model, prompt); the models of further draws are
            `drawn_model`.
        asked: number of calls by model and prompt.
    """

    script: Callable[[str, str], Answer] = scripted_answer
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __call__(self, name: str) -> "Scripted":
        return self

    def identify(self, spec: ModelSpec) -> Identity:
        return {"engine": "scripted", "weights": spec.model, "dtype": spec.dtype}

    def weight_bytes(self, spec: ModelSpec) -> int:
        return 0

    def load(self, spec: ModelSpec) -> Generator:
        return _CountedModel(spec.name, _ScriptedModel(spec.name, self.script), self.asked)


@dataclass
class _ScriptedModel:
    name: str
    script: Callable[[str, str], Answer]

    def generate(
        self, prompts: Sequence[str], stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        for position, prompt in enumerate(prompts):
            if stop():
                return
            if len(prompt) <= WINDOW:
                name = drawn_model(self.name, draws[position] if draws else 0)
                yield position, self.script(name, prompt)
            else:
                yield position, Failure("too_long", f"{len(prompt)} characters, not {WINDOW}")


@dataclass
class _CountedModel:
    """A model that also takes a feed, and counts its calls."""

    name: str
    model: Generator
    asked: Counter[tuple[str, str]]

    def with_generation(self, generation: Generation) -> Generator:
        return replace(self, model=with_settings(self.model, generation))

    def generate(
        self, prompts: Sequence[str] | Feed, stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        if not isinstance(prompts, Feed):
            for position, answer in self.model.generate(prompts, stop, draws):
                name = drawn_model(self.name, draws[position] if draws else 0)
                self.asked[name, prompts[position]] += 1
                yield position, answer
            return
        for position, prompt, draw in prompts_of(prompts):
            if stop():
                return
            for _, answer in self.model.generate([prompt], stop, [draw]):
                self.asked[drawn_model(self.name, draw), prompt] += 1
                yield position, answer


def with_settings(model: Generator, generation: Generation) -> Generator:
    """Return a model with other settings; a script answers as it does without them."""
    return model.with_generation(generation) if isinstance(model, AdjustableGenerator) else model


def drawn_model(name: str, draw: int) -> str:
    """Return how scripts and counts name a model that makes a further draw of a call."""
    return f"{name}, draw {draw}" if draw else name


def prompts_of(feed: Feed) -> Iterator[tuple[int, str, int]]:
    """Yield (position, prompt, draw) from a feed as they are added, until it is closed."""
    while not feed.cancelled:
        entry = feed.take()
        if entry:
            yield entry[:3]
        elif feed.closed:
            return
        else:
            feed.changed.wait(0.01)


def answers_in_order(generator: Generator, prompts: Sequence[str]) -> list[Answer]:
    """Return one answer for each prompt, in the order of the prompts."""
    answers = dict(generator.generate(prompts))
    return [answers[position] for position in range(len(prompts))]

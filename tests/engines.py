"""Doubles for the seam `Backend`: one that counts real calls, one whose answers are scripted."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hierrouter.engines import backend
from hierrouter.engines.generator import Answer, Failure, Feed, Generator, Response, Stop, never
from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter_cache.keys import digest

WINDOW = 2_000  # characters that a scripted model takes


@dataclass
class Counting:
    """The transformers engine, every prompt that a model answered written down.

    Use it as `collect(..., engines=counting)`.
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
        shipped = spec.model.startswith("testbed:")
        model = _Remembering(spec) if shipped else backend("transformers").load(spec)
        return _Noting(spec.name, model, self.asked)


@dataclass
class _Remembering:
    """A shipped model: what it has answered in this process it says again without thinking."""

    spec: ModelSpec

    @cached_property
    def model(self) -> Generator:
        return backend("transformers").load(self.spec)

    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        new = [place for place, prompt in enumerate(prompts) if (self.spec, prompt) not in _ANSWERS]
        for place in sorted({*range(len(prompts))}.difference(new)):
            if stop():
                return
            yield place, _ANSWERS[self.spec, prompts[place]]
        if new:
            asked = [prompts[place] for place in new]
            for number, answer in self.model.generate(asked, stop):
                _ANSWERS[self.spec, asked[number]] = answer
                yield new[number], answer


_ANSWERS: dict[tuple[ModelSpec, str], Answer] = {}


def told(model: str, prompt: str) -> Response:
    """What a scripted model answers when nothing is wrong: another text for each prompt."""
    return Response(digest([model, prompt])[:6], len(prompt), 6, "stop")


@dataclass
class Scripted:
    """Models that say what `script(model, prompt)` returns or raises, without any weights."""

    script: Callable[[str, str], Answer] = told
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __call__(self, name: str) -> "Scripted":
        return self

    def identify(self, spec: ModelSpec) -> Identity:
        return {"engine": "scripted", "weights": spec.model, "dtype": spec.dtype}

    def weight_bytes(self, spec: ModelSpec) -> int:
        return 0

    def load(self, spec: ModelSpec) -> Generator:
        return _Noting(spec.name, _Speaking(spec.name, self.script), self.asked)


@dataclass
class _Speaking:
    name: str
    script: Callable[[str, str], Answer]

    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        for place, prompt in enumerate(prompts):
            if stop():
                return
            if len(prompt) <= WINDOW:
                yield place, self.script(self.name, prompt)
            else:
                yield place, Failure("too_long", f"{len(prompt)} characters, not {WINDOW}")


@dataclass
class _Noting:
    name: str
    model: Generator
    asked: Counter[tuple[str, str]]

    def generate(
        self, prompts: Sequence[str] | Feed, stop: Stop = never
    ) -> Iterator[tuple[int, Answer]]:
        if not isinstance(prompts, Feed):
            for place, answer in self.model.generate(prompts, stop):
                self.asked[self.name, prompts[place]] += 1
                yield place, answer
            return
        for place, prompt in taken(prompts):
            if stop():
                return
            for _, answer in self.model.generate([prompt], stop):
                self.asked[self.name, prompt] += 1
                yield place, answer


def taken(prompts: Sequence[str] | Feed) -> Iterator[tuple[int, str]]:
    """Each prompt with its place, from a feed as they come."""
    if not isinstance(prompts, Feed):
        yield from enumerate(prompts)
        return
    while not prompts.cancelled:
        if item := prompts.take():
            yield item
        elif prompts.closed:
            return
        else:
            prompts.changed.wait(0.01)


def answers_in_order(generator: Generator, prompts: Sequence[str]) -> list[Answer]:
    """One answer a prompt, in the order of the prompts."""
    answers = dict(generator.generate(prompts))
    return [answers[place] for place in range(len(prompts))]

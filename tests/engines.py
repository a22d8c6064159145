"""Doubles for the seam `Backend`: one that counts real calls, one whose answers are scripted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hierrouter.collect.backends import Failure, Generator, Response, backend
from hierrouter.pool import Identity, ModelSpec
from hierrouter_cache.fingerprint import digest

Answer = Response | Failure
WINDOW = 2_000  # characters that a scripted model takes


@dataclass
class Counting:
    """The transformers engine, every prompt that a model was shown written down.

    Use it as `collect(..., engines=counting)`.
    """

    asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __call__(self, name: str) -> "Counting":
        assert name == "transformers"
        return self

    def identify(self, spec: ModelSpec) -> Identity:
        return backend("transformers").identify(spec)

    def load(self, spec: ModelSpec) -> Generator:
        return _Noting(spec.name, backend("transformers").load(spec), self.asked)


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

    def load(self, spec: ModelSpec) -> Generator:
        return _Noting(spec.name, _Speaking(spec.name, self.script), self.asked)


@dataclass
class _Speaking:
    name: str
    script: Callable[[str, str], Answer]

    def generate(self, prompts: Sequence[str]) -> list[Answer]:
        return [
            self.script(self.name, prompt)
            if len(prompt) <= WINDOW
            else Failure("too_long", f"{len(prompt)} characters, the window is {WINDOW}")
            for prompt in prompts
        ]


@dataclass
class _Noting:
    name: str
    model: Generator
    asked: Counter[tuple[str, str]]

    def generate(self, prompts: Sequence[str]) -> Sequence[Answer]:
        self.asked.update((self.name, prompt) for prompt in prompts)
        return self.model.generate(prompts)

"""Who answers: one seam, one file an engine.

In: a `ModelSpec`. Out: something that turns prompts into responses with token counts. A new engine
is a new file here, one entry in `BACKENDS`, and a run of the conformance suite in tests/contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hierrouter.pool import Identity, ModelSpec


@dataclass(frozen=True)
class Response:
    """What one call gave.

    Attributes:
        text: the generated text, special tokens removed, outer white space stripped.
        tokens_in: tokens of the prompt as the model saw it, chat template included.
        tokens_out: generated tokens, the end token included.
        finish_reason: "stop", or "length" where the response was cut.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: str


class Generator(Protocol):
    """A loaded model."""

    def generate(self, prompts: Sequence[str]) -> list[Response]:
        """One response a prompt, in order; the same prompt always gets the same response."""
        ...


class Backend(Protocol):
    """An engine: names what a model resolves to, then loads it."""

    def identify(self, spec: ModelSpec) -> Identity:
        """What decides the model's answers: weights, tokenizer, template, dtype, engine."""
        ...

    def load(self, spec: ModelSpec) -> Generator:
        """The model, ready to answer."""
        ...


def backend(name: str) -> Backend:
    """The engine of this name; heavy imports happen here and not before."""
    if name != "transformers":
        raise KeyError(name)
    from hierrouter.collect.backends.local import TransformersBackend

    return TransformersBackend()

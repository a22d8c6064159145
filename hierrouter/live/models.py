"""The models of a pool, ready for one prompt at a time.

In: a pool. Out: `LiveModel`s: a prompt in, its answer out, whole or as it grows. All are loaded and
asked for at the start, so that what is missing is known before the first question. A local model
answers what waits for it in one batch (`batched`), a served one is called once for each prompt
(`served`). Not covered: which model is called (`router`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hierrouter.collect.backends import Engines, Response
from hierrouter.endpoint import OPENAI
from hierrouter.pool import ModelSpec, Pool
from hierrouter_cache.errors import WorldError

# Told what comes next of an answer.
OnText = Callable[[str], None]


class CallFailed(WorldError):
    """A live call has no answer, after as many attempts as it takes.

    Args:
        model: who was called.
        reason: why.
        status: of `hierrouter.collect.backends.STATUSES`.

    Attributes:
        was_begun: whether a part of the answer was told before.
    """

    was_begun = False

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


def load_models(pool: Pool, engines: Engines) -> dict[str, LiveModel]:
    """Every model of the pool, by name, in the order of its actions; references are not called.

    Raises:
        InputError, WorldError: one cannot be loaded or reached; see its backend.
    """
    return {spec.name: _live(spec, engines) for spec in pool.models}


def _live(spec: ModelSpec, engines: Engines) -> LiveModel:
    generator = engines(spec.backend).load(spec)  # a served model is asked for here, too
    if spec.backend == OPENAI:
        from hierrouter.collect.backends.endpoint.engine import EndpointGenerator
        from hierrouter.live.served import ServedModel

        assert isinstance(generator, EndpointGenerator)
        return ServedModel(spec, generator.caller)
    from hierrouter.live.batched import BatchedModel

    return BatchedModel(spec.name, generator)

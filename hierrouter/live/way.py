"""One question on its way.

In: a question, how it is to be routed, the policy, models that answer. Out: the calls of its route,
one by one. A model that fails fails the question, unless another one was asked for. Not covered:
where policy and models come from (`router`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from hierrouter.collect.prompts import prompt_text
from hierrouter.learn.trained import TrainedRouter
from hierrouter.live.models import CallFailed, LiveModel, OnText
from hierrouter.live.policy import Decision, LiveState
from hierrouter.live.routed import Hop, Routed
from hierrouter.live.together import Together
from hierrouter.pool import ModelSpec, Pool
from hierrouter_cache.errors import InputError


@dataclass(frozen=True)
class Asked:
    """How one question is to be routed.

    Attributes:
        alpha: cost penalty; None is the one that the policy was trained for.
        max_cost: what the whole route may cost at most, in price * token, as far as the ceilings of
            the train fold hold; None is what the policy was trained with.
        rng: draw actions from the stochastic policy, for logs that other policies can be judged
            on; None takes the likeliest.
        reroute: where a model gives no answer, take the next likeliest action instead of failing.
    """

    alpha: float | None = None
    max_cost: float | None = None
    rng: np.random.Generator | None = None
    reroute: bool = False


@dataclass(frozen=True)
class Follow:
    """Who wants to know what happens on the way; both are called in the router's event loop.

    Attributes:
        on_text: told the answer as it grows: the text of the last call, once it is known that it is
            the last.
        on_hop: told each call when it is answered.
    """

    on_text: OnText | None = None
    on_hop: Callable[[Hop], None] = lambda hop: None


@dataclass
class Way:
    """A route in the making.

    Attributes:
        question: as the models see it.
        trained: who decides.
        asked, follow: how it is routed, and who wants to know.
        pool: the models, in the order of the policy's actions.
        models: the same, ready to be asked, by name.
        deciding: works out decisions, for many questions together.
        hops: the calls so far.
    """

    question: str
    trained: TrainedRouter
    asked: Asked
    follow: Follow
    pool: Pool
    models: Mapping[str, LiveModel]
    deciding: Together
    hops: list[Hop] = field(default_factory=list)

    async def to_its_end(self) -> Routed:
        """Make all calls.

        Raises:
            InputError: a limit on cost, and nobody counts tokens.
            CallFailed: a model gave no answer, or, where others may be taken, none of them did: the
                last failure, with those before it.
        """
        while not await self.hop():
            pass
        limit = self.trained.objective.max_cost
        return Routed(self.question, self.trained.alpha, tuple(self.hops), limit)

    async def hop(self) -> bool:
        """Make one more call; whether it was the last."""
        decision, seconds = await self.decide()
        failures: list[CallFailed] = []
        for action in self._order(decision):
            if self._model(action).name in {failed.model for failed in failures}:
                continue
            try:
                hop, is_last = await self._called(decision, action, seconds, failures)
            except CallFailed as error:
                error.earlier = tuple(failures)
                failures.append(error)
                if error.was_begun:
                    break
                continue
            self.hops.append(hop)
            self.follow.on_hop(hop)
            return is_last
        raise failures[-1]

    async def decide(self) -> tuple[Decision, float]:
        """The decision at the present state, and the seconds it took.

        Raises:
            InputError: a limit on cost, and nobody counts tokens.
        """
        state = LiveState(
            trained=self.trained,
            question=self.question,
            responses=tuple(hop.response for hop in self.hops),
            path=tuple(self.trained.origin.models.index(hop.model) for hop in self.hops),
            cost=sum(hop.cost for hop in self.hops),
            prompts=await self._prompt_tokens(),
            rng=self.asked.rng,
        )
        return await self.deciding.decision(state)

    def _order(self, decision: Decision) -> list[int]:
        """The action that was decided on; where others may be taken, then these."""
        others = [action for action in decision.order if action != decision.action]
        return [decision.action, *(others if self.asked.reroute else ())]

    async def _called(
        self, decision: Decision, action: int, seconds: float, failures: list[CallFailed]
    ) -> tuple[Hop, bool]:
        """The call of an action, and whether it is the last one.

        Raises:
            CallFailed: it has no answer.
        """
        spec, stops = self._model(action), action >= len(self.pool.models)
        is_last = stops or len(self.hops) + 1 == self.pool.hops
        told = _Told(self.follow.on_text) if is_last and self.follow.on_text else None
        started = perf_counter()
        try:
            found = await self.models[spec.name].answer(self._prompt(), told)
        except CallFailed as error:
            error.was_begun = told is not None and told.anything
            raise
        rate_in, rate_out = self.trained.origin.rate[self.pool.models.index(spec)]
        hop = Hop(
            model=spec.name,
            propensity=None if failures else decision.propensity,
            chances=tuple(decision.chances.tolist()),
            stops=stops,
            response=found.text,
            finish_reason=found.finish_reason,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            cost=found.tokens_in * rate_in + found.tokens_out * rate_out,
            router_s=seconds,
            model_s=perf_counter() - started,
            instead_of=tuple((failed.model, failed.reason) for failed in failures),
        )
        return hop, is_last

    def _prompt(self) -> str:
        said = [hop.response for hop in self.hops]
        return prompt_text(self.question, said, self.pool.instruction(len(self.hops)))

    async def _prompt_tokens(self) -> NDArray[np.int64] | None:
        """int64[M], where a limit needs them; long prompts take seconds, so in a thread."""
        if self.trained.objective.max_cost is None:
            return None
        return await to_thread.run_sync(self._counted, self._prompt())

    def _counted(self, prompt: str) -> NDArray[np.int64]:
        counts = []
        for spec in self.pool.models:
            count = self.models[spec.name].count(prompt)
            if count is None:
                raise InputError(
                    f"a limit on cost needs the tokens of each prompt: model {spec.name}; "
                    "name a tokenizer in its endpoint"
                )
            counts.append(count)
        return np.array(counts, dtype=np.int64)

    def _model(self, action: int) -> ModelSpec:
        return self.pool.models[action % len(self.pool.models)]


class _Told:
    """Hands texts on, and knows whether there was any."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self.anything = False

    def __call__(self, text: str) -> None:
        self.anything = True
        self._on_text(text)

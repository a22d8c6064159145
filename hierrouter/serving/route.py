"""One question on its way through the models: each decision, each call, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from hierrouter.engines.devices import lone_thread
from hierrouter.engines.encoders import Encoder
from hierrouter.engines.generator import prompt_text
from hierrouter.evaluation.budget import Ceilings
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.sweep import Policy
from hierrouter.learning.trained import TrainedRouter
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.replay.opening import state_texts
from hierrouter.serving.models import CallFailed, LiveModel, OnText
from hierrouter.tables import significant
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import SEPARATOR

ROUTERS_KEPT = 64  # of a policy for every alpha; each is the size of the policy

T = TypeVar("T")


@dataclass(frozen=True)
class RouteOptions:
    """How one question is to be routed.

    Attributes:
        alpha: cost penalty; None is the one that the policy was trained for.
        max_cost: what the whole route may cost at most, in price * token, as far as the ceilings of
            the train fold hold; None is what the policy was trained with.
        rng: draw actions from the stochastic policy, for logs that other policies can be judged
            on; None takes the likeliest.
        reroute: where a model gives no answer, take the next likeliest action instead of failing.
        on_text: told the answer as it grows: the text of the last call, once it is known that it is
            the last; called in the router's event loop, like `on_hop`.
        on_hop: told each call when it is answered.
    """

    alpha: float | None = None
    max_cost: float | None = None
    rng: np.random.Generator | None = None
    reroute: bool = False
    on_text: OnText | None = None
    on_hop: Callable[[Hop], None] = lambda hop: None


@dataclass(frozen=True)
class Hop:
    """One call of a route.

    Attributes:
        model: who was called.
        propensity: probability with which the policy does this here: 1 where it is greedy; None
            where it did something else, because a model gave no answer.
        chances: of each action, as the policy sees them; model by model, then model by model with
            stopping, where it may stop.
        stops: whether the policy chose to end with this call; not where it had to.
        response: the answer.
        finish_reason: "stop", or "length" where it was cut.
        tokens_in, tokens_out: of the call.
        cost: of the call, in price * token.
        router_s: seconds that encoder and policy took to decide, for this question and those that
            were decided together with it; what was waited before is in neither of the two.
        model_s: seconds until the answer was there.
        instead_of: the models that were to be called and failed, and why each did.
    """

    model: str
    propensity: float | None
    chances: tuple[float, ...]
    stops: bool
    response: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    cost: float
    router_s: float
    model_s: float
    instead_of: tuple[tuple[str, str], ...] = ()

    def as_object(self) -> dict[str, Any]:
        """JSON values, under the names that logs of episodes have (`hierrouter.serving.logs`)."""
        found = {
            "model": self.model,
            "propensity": self.propensity,
            "chances": list(self.chances),
            "stop": self.stops,
            "cost": significant(self.cost),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish_reason": self.finish_reason,
            "router_s": round(self.router_s, 6),
            "model_s": round(self.model_s, 6),
            "response": self.response,
        }
        failed = [{"model": model, "reason": reason} for model, reason in self.instead_of]
        return {**found, "instead_of": failed} if failed else found


@dataclass(frozen=True)
class RouteResult:
    """An answered question: the calls that were made for it.

    Attributes:
        question: as the models saw it.
        alpha: the cost penalty that it was routed for.
        hops: the calls, 1 to L.
        max_cost: the limit that was set; None where none was.
    """

    question: str
    alpha: float
    hops: tuple[Hop, ...]
    max_cost: float | None = None

    @property
    def route(self) -> str:
        """The models in order, `first>second`."""
        return SEPARATOR.join(hop.model for hop in self.hops)

    @property
    def answer(self) -> str:
        """The last response."""
        return self.hops[-1].response

    @property
    def tokens_in(self) -> int:
        """Of all calls."""
        return sum(hop.tokens_in for hop in self.hops)

    @property
    def tokens_out(self) -> int:
        """Of all calls."""
        return sum(hop.tokens_out for hop in self.hops)

    @property
    def cost(self) -> float:
        """C of all calls, in price * token."""
        return sum(hop.cost for hop in self.hops)

    @property
    def is_over_limit(self) -> bool:
        """Whether it cost more than it may: an answer is owed, even where no route is cheap enough,
        and an answer may be longer than any of the train fold."""
        return self.max_cost is not None and self.cost > self.max_cost

    def as_object(self) -> dict[str, Any]:
        """JSON values: the route, what it cost, and each call of it."""
        return {
            "question": self.question,
            "answer": self.answer,
            "route": self.route,
            "alpha": self.alpha,
            "max_cost": self.max_cost,
            "over_limit": self.is_over_limit,
            "cost": significant(self.cost),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish_reason": self.hops[-1].finish_reason,
            "steps": [hop.as_object() for hop in self.hops],
        }


@dataclass
class Routing:
    """One question while it is routed.

    Attributes:
        question: as the models see it.
        trained: who decides.
        options: how it is routed, and who is told.
        pool: the models, in the order of the policy's actions.
        models: the same, ready to be asked, by name.
        batcher: works out decisions, for many questions together.
        hops: the calls so far.
    """

    question: str
    trained: TrainedRouter
    options: RouteOptions
    pool: Pool
    models: Mapping[str, LiveModel]
    batcher: DecisionBatcher
    hops: list[Hop] = field(default_factory=list)

    async def run(self) -> RouteResult:
        """Make all calls.

        Raises:
            InputError: a limit on cost, and nobody counts tokens.
            CallFailed: a model gave no answer, or, where others may be taken, none of them did: the
                last failure, with those before it.
        """
        while True:
            hop = await self._hop()
            self.hops.append(hop)
            self.options.on_hop(hop)
            if hop.stops or len(self.hops) == self.pool.hops:
                limit = self.trained.objective.max_cost
                return RouteResult(self.question, self.trained.alpha, tuple(self.hops), limit)

    async def decide(self) -> TimedDecision:
        """The decision at the present state, and the seconds it took.

        Raises:
            InputError: a limit on cost, and nobody counts tokens.
        """
        limited = self.trained.objective.max_cost is not None
        state = LiveState(
            trained=self.trained,
            question=self.question,
            responses=tuple(hop.response for hop in self.hops),
            path=tuple(self.trained.origin.models.index(hop.model) for hop in self.hops),
            cost=sum(hop.cost for hop in self.hops),
            # Long prompts take seconds to count, so in a thread.
            prompts=await to_thread.run_sync(self._prompt_tokens) if limited else None,
            rng=self.options.rng,
        )
        return await self.batcher.decide(state)

    async def _hop(self) -> Hop:
        """Decide, and make the call; where that fails and others may be taken, another one."""
        decision, router_s = await self.decide()
        others = decision.order if self.options.reroute else ()
        failures: list[CallFailed] = []
        for action in dict.fromkeys((decision.action, *others)):
            if self._model(action).name in {failed.model for failed in failures}:
                continue
            try:
                return await self._call(action, decision, router_s, failures)
            except CallFailed as error:
                error.earlier = tuple(failures)
                failures.append(error)
                if error.was_begun:
                    break
        raise failures[-1]

    async def _call(
        self, action: int, decision: Decision, router_s: float, failures: list[CallFailed]
    ) -> Hop:
        """The call of an action.

        Args:
            failures: of the calls in whose place this one is made.

        Raises:
            CallFailed: it has no answer.
        """
        spec, stops = self._model(action), action >= len(self.pool.models)
        is_last = stops or len(self.hops) + 1 == self.pool.hops
        on_text, was_begun = self.options.on_text, False

        def followed(text: str) -> None:
            nonlocal was_begun
            was_begun = True
            assert on_text
            on_text(text)

        started = perf_counter()
        try:
            answer = self.models[spec.name].answer
            found = await answer(self._prompt(), followed if is_last and on_text else None)
        except CallFailed as error:
            error.was_begun = was_begun
            raise
        rate_in, rate_out = self.trained.origin.rate[self.pool.models.index(spec)]
        return Hop(
            model=spec.name,
            propensity=None if failures else decision.propensity,
            chances=tuple(decision.chances.tolist()),
            stops=stops,
            response=found.text,
            finish_reason=found.finish_reason,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            cost=found.tokens_in * rate_in + found.tokens_out * rate_out,
            router_s=router_s,
            model_s=perf_counter() - started,
            instead_of=tuple((failed.model, failed.reason) for failed in failures),
        )

    def _prompt(self) -> str:
        responses = [hop.response for hop in self.hops]
        return prompt_text(self.question, responses, self.pool.instruction(len(self.hops)))

    def _prompt_tokens(self) -> NDArray[np.int64]:
        """int64[M]: of the next prompt, as each model counts them."""
        prompt, counts = self._prompt(), []
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


@dataclass(frozen=True)
class Decision:
    """What to do at one state.

    Attributes:
        action: its number.
        propensity: the probability with which it is taken.
        chances: float64[A], the stochastic policy.
        order: all legal actions, the likeliest first.
    """

    action: int
    propensity: float
    chances: NDArray[np.float64]
    order: tuple[int, ...]


TimedDecision = tuple[Decision, float]  # and the seconds it took


@dataclass(frozen=True)
class LiveState:
    """Where one question stands.

    Attributes:
        trained: who decides, of `LivePolicy.at`.
        question: as the models see it.
        responses: the answers so far, oldest first.
        path: the models called so far, by number.
        cost: C so far, in price * token.
        prompts: int64[M], tokens of the next prompt as each model counts them; needed where there
            is a limit.
        rng: draws the action from the stochastic policy; None takes the greedy one.
    """

    trained: TrainedRouter
    question: str
    responses: tuple[str, ...] = ()
    path: tuple[int, ...] = ()
    cost: float = 0.0
    prompts: NDArray[np.int64] | None = None
    rng: np.random.Generator | None = None


class LivePolicy:
    """One checkpoint, for every alpha and limit that it can be asked for.

    Args:
        policy: the checkpoint.
        encoder: the one that it reads.
        ceilings: what calls cost at most; needed for a limit that it was not trained with.

    Raises:
        InputError: the encoder gives vectors of another length than the policy reads.
    """

    def __init__(self, policy: Policy, encoder: Encoder, ceilings: Ceilings | None = None) -> None:
        self.origin = policy.origin
        self._policy = policy
        self._encoder = encoder
        self._ceilings = ceilings
        self.at: Callable[[float | None, float | None], TrainedRouter]
        self.at = lru_cache(ROUTERS_KEPT)(self._at)
        trained = self.at(None, None)
        wanted, given = trained.router.shape.dim, self.embed([LiveState(trained, "")]).shape[1]
        if given != wanted:
            raise InputError(
                f"the policy reads embeddings of {wanted} numbers ({self.origin.encoder}), "
                f"the encoder gives {given}; train again with this encoder"
            )

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alpha it was trained for; of a policy for every alpha, the grid it was chosen on."""
        policy = self._policy
        return (policy.alpha,) if isinstance(policy, TrainedRouter) else policy.alphas

    @property
    def any_alpha(self) -> bool:
        """Whether it can be asked for any alpha."""
        return not isinstance(self._policy, TrainedRouter)

    @property
    def action_names(self) -> tuple[str, ...]:
        """The name of each action: a model, or `model>stop`."""
        return self.at(None, None).actions.names(self.origin.models)

    def embed(self, states: Sequence[LiveState]) -> NDArray[np.float32]:
        """float32[n, dim]: what the policy sees of each state."""
        texts = [
            text
            for state in states
            for text in state_texts(self.origin.view, state.question, state.responses)
        ]
        if not texts:
            return np.empty((len(states), 0), dtype=np.float32)
        vectors: NDArray[np.float32] = self._encoder.encode(texts).reshape(len(states), -1)
        return vectors

    def decide(self, states: Sequence[LiveState], embedded: NDArray[np.float32]) -> list[Decision]:
        """The next action at each of some live states, worked out together.

        It is the greedy one, or one that is drawn where the state has a generator.

        Args:
            states: any number.
            embedded: float32[n, dim], see `embed`.
        """
        decisions: dict[int, Decision] = {}
        for trained in {id(state.trained): state.trained for state in states}.values():
            places = [place for place, state in enumerate(states) if state.trained is trained]
            chances = trained.decide_each(
                embedded[places],
                [states[place].path for place in places],
                [states[place].cost for place in places],
                [states[place].prompts for place in places],
            )
            likeliest = greedy(chances, self.origin.base_rate).argmax(axis=1).tolist()
            orders = np.argsort(-chances, axis=1, kind="stable").tolist()
            for place, action, row, order in zip(places, likeliest, chances, orders, strict=True):
                propensity, rng = 1.0, states[place].rng
                if rng is not None:
                    action = int(rng.choice(len(row), p=row / row.sum()))
                    propensity = float(row[action])
                legal = tuple(action for action in order if row[action] > 0)
                decisions[place] = Decision(action, propensity, row, legal)
        return [decisions[place] for place in range(len(states))]

    def _at(self, alpha: float | None, max_cost: float | None) -> TrainedRouter:
        """The router for one alpha, with a limit on the cost of a query.

        Args:
            alpha: None is the one it was trained for; of a policy for every alpha, the smallest of
                its grid.
            max_cost: None is what it was trained with.

        Raises:
            InputError: it was trained for another alpha, or there are no ceilings.
        """
        policy = self._policy
        if not isinstance(policy, TrainedRouter):
            trained = policy.at(policy.alphas[0] if alpha is None else alpha)
        elif alpha in (None, policy.alpha):
            trained = policy
        else:
            raise InputError(
                f"this policy was trained for alpha {policy.alpha:g} alone, asked for was "
                f"{alpha:g}; that of `sweep-alpha` answers any"
            )
        if max_cost is None:
            return trained
        ceilings = trained.ceilings or self._ceilings
        if ceilings is None:
            raise InputError(
                "max_cost needs live.json in the policy's folder, which `train` writes"
            )
        objective = replace(trained.objective, max_cost=max_cost)
        return replace(trained, objective=objective, ceilings=ceilings)


class DecisionBatcher:
    """Decides for all questions that wait, together.

    The encoder takes the threads it gets; the network is small, and has one to itself.

    Args:
        policy: decides.
    """

    def __init__(self, policy: LivePolicy) -> None:
        self._policy = policy
        self._thread = lone_thread("router")
        self._waiting: list[tuple[LiveState, asyncio.Future[TimedDecision]]] = []
        self._work: asyncio.Task[None] | None = None

    async def decide(self, state: LiveState) -> TimedDecision:
        """What to do at one state, and the seconds that it took to work it out.

        Raises:
            Exception: whatever the policy raises.
        """
        future: asyncio.Future[TimedDecision] = asyncio.get_running_loop().create_future()
        self._waiting.append((state, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._until_nobody_waits())
        return await future

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False)

    async def _until_nobody_waits(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            if not await self._settle(batch):  # one by one, to find out whose the error is
                for one in batch:
                    await self._settle([one])

    async def _settle(
        self, batch: Sequence[tuple[LiveState, asyncio.Future[TimedDecision]]]
    ) -> bool:
        """Give each its decision; whether it is known whose fault it is where that fails."""
        try:
            decisions = await self._decisions([state for state, _ in batch])
        except Exception as error:
            [(_, future), *others] = batch
            if not others and not future.done():
                future.set_exception(error)
            return not others
        for (_, future), decision in zip(batch, decisions, strict=True):
            if not future.done():
                future.set_result(decision)
        return True

    async def _decisions(self, states: Sequence[LiveState]) -> list[TimedDecision]:
        embedded, encoder_s = await to_thread.run_sync(_timed, lambda: self._policy.embed(states))
        loop = asyncio.get_running_loop()
        decisions, network_s = await loop.run_in_executor(
            self._thread, _timed, lambda: self._policy.decide(states, embedded)
        )
        return [(decision, encoder_s + network_s) for decision in decisions]


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the seconds it took."""
    started = perf_counter()
    found = work()
    return found, perf_counter() - started

"""Route live questions through the models of a pool.

In: a run of `train` or `sweep-alpha`. Out: `Router`: a question in, the route, its answer and what
it cost out, hop by hop as in the tree that the policy learned from. Models, encoder and policy are
loaded at the start; what is missing is an error then, never another model's answer later. Not
covered: HTTP, see the command `serve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter
from types import TracebackType

import numpy as np
from anyio.from_thread import BlockingPortal, start_blocking_portal
from numpy.typing import NDArray

from hierrouter.collect.backends import Engines, Response, backend
from hierrouter.collect.encoders import load_encoder
from hierrouter.collect.prompts import prompt_text
from hierrouter.evaluate.outcome import STOP
from hierrouter.learn.checkpoint import load_checkpoint
from hierrouter.learn.trained import TrainedRouter
from hierrouter.live.bundle import load_bundle
from hierrouter.live.conversation import Message, question_of
from hierrouter.live.models import CallFailed, LiveModel, OnText, load_models
from hierrouter.live.policy import Decision, LivePolicy, LiveState
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
class _Way:
    """A route in the making."""

    question: str
    trained: TrainedRouter
    hops: list[Hop] = field(default_factory=list)
    path: tuple[int, ...] = ()

    @property
    def responses(self) -> list[str]:
        return [hop.response for hop in self.hops]

    @property
    def cost(self) -> float:
        return sum(hop.cost for hop in self.hops)


class Router:
    """A trained policy with its models at hand; `from_run` makes one.

    Use it in one event loop by `aroute`, or without one by `route`. Close it, or use it in a
    `with` block.

    Args:
        policy: decides.
        pool: the models that it learned with, in the order of its actions.
        models: the same, ready to be asked, by name.

    Raises:
        InputError: the pool is not the policy's.
    """

    def __init__(self, policy: LivePolicy, pool: Pool, models: Mapping[str, LiveModel]) -> None:
        _check_pool(policy, pool)
        self.policy = policy
        self.pool = pool
        self._models = models
        self._deciding = Together(policy.decide)
        self._lock = Lock()
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None

    @classmethod
    def from_run(
        cls,
        run: str | Path,
        pool: Pool | None = None,
        engines: Engines = backend,
        calls: bool = True,
    ) -> Router:
        """The router that a run of `train` or `sweep-alpha` left, with all its models loaded.

        Args:
            run: folder of the run, of an export, or of one seed of a sweep.
            pool: call these models instead of those in the run's `live.json`; same names and order.
            engines: the backend of a name.
            calls: load the models; without them it can only tell what it would do first.

        Raises:
            InputError: there is no policy, or no pool, or they do not fit together.
            WorldError: a model or the encoder cannot be loaded, or a server does not answer.
        """
        folder = Path(run)
        checkpoint = load_checkpoint(folder)
        bundle = load_bundle(folder if folder.is_dir() else folder.parent)
        pool = pool or (bundle.pool if bundle else None)
        if pool is None:
            raise InputError(f"no live.json, so no pool: {folder}; give the pool it learned with")
        encoder = load_encoder(checkpoint.origin.encoder)
        policy = LivePolicy(checkpoint, encoder, bundle.ceilings if bundle else None)
        _check_pool(policy, pool)  # before gigabytes are loaded
        return cls(policy, pool, load_models(pool, engines) if calls else {})

    async def aroute(
        self,
        messages: str | Sequence[Message],
        asked: Asked | None = None,
        follow: Follow | None = None,
    ) -> Routed:
        """Answer a question.

        Args:
            messages: the question, or messages as OpenAI's chat completions have them.
            asked: how it is to be routed.
            follow: told what happens on the way.

        Raises:
            InputError: no question, or an alpha or limit that the policy cannot be asked for.
            CallFailed: a model gave no answer.
        """
        asked, follow = asked or Asked(), follow or Follow()
        trained = self.policy.at(asked.alpha, asked.max_cost)
        way = _Way(question_of(messages), trained)
        over = False
        while not over:
            over = await self._hop(way, asked, follow)
        return Routed(way.question, trained.alpha, tuple(way.hops), trained.objective.max_cost)

    def route(
        self,
        messages: str | Sequence[Message],
        asked: Asked | None = None,
        follow: Follow | None = None,
    ) -> Routed:
        """As `aroute`, from a thread without an event loop; any number of threads may call it."""
        with self._lock:
            if self._portal is None:
                self._portal = self._loop.enter_context(
                    start_blocking_portal("asyncio", name="router")
                )
        return self._portal.call(self.aroute, messages, asked, follow)

    async def first(
        self, messages: str | Sequence[Message], asked: Asked | None = None
    ) -> Decision:
        """What the policy would do first; no model is called."""
        asked = asked or Asked()
        way = _Way(question_of(messages), self.policy.at(asked.alpha, asked.max_cost))
        return (await self._decide(way, asked))[0]

    async def aclose(self) -> None:
        """Let go of all models."""
        for model in self._models.values():
            await model.close()

    def close(self) -> None:
        """As `aclose`, for who used `route`."""
        with self._lock:
            if self._portal is not None:
                self._portal.call(self.aclose)
            self._loop.close()
            self._portal = None

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _hop(self, way: _Way, asked: Asked, follow: Follow) -> bool:
        """Make one more call; whether it was the last."""
        decision, seconds = await self._decide(way, asked)
        order = [decision.action]
        if asked.reroute:
            order += [action for action in decision.order if action != decision.action]
        failed: CallFailed | None = None
        for action in order:
            if failed and self._model(action).name == failed.model:
                continue
            try:
                return await self._called(way, decision, action, seconds, failed, follow)
            except CallFailed as error:
                failed = failed or error
        assert failed is not None
        raise failed

    async def _called(
        self,
        way: _Way,
        decision: Decision,
        action: int,
        seconds: float,
        failed: CallFailed | None,
        follow: Follow,
    ) -> bool:
        """Call the model of an action and note it; whether the route is over."""
        spec, stops = self._model(action), action >= len(self.pool.models)
        is_last = stops or len(way.hops) + 1 == self.pool.hops
        prompt = self._prompt(way)
        started = perf_counter()
        found = await self._models[spec.name].answer(prompt, follow.on_text if is_last else None)
        way.hops.append(
            Hop(
                model=spec.name,
                propensity=None if failed else decision.propensity,
                chances=tuple(decision.chances.tolist()),
                stops=stops,
                response=found.text,
                finish_reason=found.finish_reason,
                tokens_in=found.tokens_in,
                tokens_out=found.tokens_out,
                cost=self._cost(spec, found),
                router_s=seconds,
                model_s=perf_counter() - started,
                instead_of=f"{failed.model}: {failed.reason}" if failed else None,
            )
        )
        follow.on_hop(way.hops[-1])
        way.path = (*way.path, self.pool.models.index(spec))
        return is_last

    async def _decide(self, way: _Way, asked: Asked) -> tuple[Decision, float]:
        """The decision at the present state, and the seconds it took."""
        started = perf_counter()
        state = LiveState(
            trained=way.trained,
            question=way.question,
            responses=tuple(way.responses),
            path=way.path,
            cost=way.cost,
            prompts=self._prompt_tokens(way),
            rng=asked.rng,
        )
        decision = await self._deciding.decision(state)
        return decision, perf_counter() - started

    def _prompt(self, way: _Way) -> str:
        return prompt_text(way.question, way.responses, self.pool.instruction(len(way.hops)))

    def _prompt_tokens(self, way: _Way) -> NDArray[np.int64] | None:
        """int64[M], where a limit needs them.

        Raises:
            InputError: nobody here can count for one of the models.
        """
        if way.trained.objective.max_cost is None:
            return None
        prompt = self._prompt(way)
        counts = {name: model.count(prompt) for name, model in self._models.items()}
        for name, count in counts.items():
            if count is None:
                raise InputError(
                    f"a limit on cost needs the tokens of each prompt: model {name}; "
                    "name a tokenizer in its endpoint"
                )
        return np.array(list(counts.values()), dtype=np.int64)

    def _model(self, action: int) -> ModelSpec:
        return self.pool.models[action % len(self.pool.models)]

    def _cost(self, spec: ModelSpec, found: Response) -> float:
        rate_in, rate_out = self.policy.origin.rate[self.pool.models.index(spec)]
        return found.tokens_in * rate_in + found.tokens_out * rate_out


def action_names(pool: Pool, count: int) -> tuple[str, ...]:
    """The name of each action: a model, then `model>stop` where a policy may stop."""
    names = tuple(model.name for model in pool.models)
    return (*names, *(f"{name}{STOP}" for name in names))[:count]


def _check_pool(policy: LivePolicy, pool: Pool) -> None:
    """Refuse a pool whose models are not those that the policy's actions mean.

    Raises:
        InputError: other names, another order or another number of hops.
    """
    names = tuple(model.name for model in pool.models)
    if names != policy.origin.models or pool.hops != policy.origin.hops:
        wanted = f"{', '.join(policy.origin.models)}; {policy.origin.hops} hops"
        raise InputError(
            f"the pool is not the policy's: {', '.join(names)}; {pool.hops} hops, "
            f"it learned with {wanted}; give that pool, or train again"
        )

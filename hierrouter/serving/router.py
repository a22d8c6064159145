"""Route live questions through the models of a pool: one question hop by hop, or many at once."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import anyio
import numpy as np
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from hierrouter.engines import backend
from hierrouter.engines.encoders import Encoder, load_encoder
from hierrouter.engines.generator import (
    NO_OPTIONS,
    CallOptions,
    Confidence,
    Engines,
    Outage,
    Response,
    prompt_text,
)
from hierrouter.engines.identity import endpoint_of
from hierrouter.learning.deferral import calibrate
from hierrouter.learning.training import TrainedRouter
from hierrouter.paper import PAPER_SCORER
from hierrouter.pools.pool import IMPORTED, OPENAI, ModelSpec, Pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.states import LiveAnswer
from hierrouter.runs import bundle
from hierrouter.runs.checkpoint import load_checkpoint, member_folder
from hierrouter.runs.folders import LIVE, find_run, finished_runs
from hierrouter.serving.decisions import Decision, DecisionBatcher, HandOver, LivePolicy, LiveState
from hierrouter.serving.messages import Question, question_of
from hierrouter.serving.models import BatchedModel, CallFailed, LiveModel, OnText
from hierrouter.tables import significant
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import route_name

TOO_LONG = "too_long"  # of `hierrouter.engines.generator.STATUSES`
WIDTH = 16  # questions of many that are under way
HAND_OVER = -1  # the action that is no policy's own


class Router:
    """A trained policy with its models at hand.

    Use it in one event loop by `aroute`, or without one by `route`. Close it, or use it in a
    `with` block.

    Args:
        run: of `train`, or the folder of a run of `train` or `sweep-alpha`, or of one seed of a
            sweep.
        pool: call these models instead of those in the run's `live.json`; same names and order.
        engines: the backend of a name.
        allow_endpoints: hosts on this machine or a private network that `live.json` may name.
        load: whether to load the models now; until `load_models` it can only tell what it would do
            first.
        encoder: one that is loaded, and its name; taken where it is the policy's.

    Attributes:
        policy: decides.
        pool: the models that it learned with, in the order of its actions.
        models: the same, ready to be asked, by name.

    Raises:
        InputError: there is no policy, or no pool, or they do not fit together; or the run wants a
            key from the environment; or a model has other weights than the one that the policy
            learned with.
        WorldError: a model or the encoder cannot be loaded, or a server does not answer.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        pool: Pool | None = None,
        engines: Engines = backend,
        *,
        load: bool = True,
        allow_endpoints: Collection[str] = (),
        encoder: tuple[str, Encoder] | None = None,
    ) -> None:
        folder = find_run(run)
        checkpoint = load_checkpoint(folder)
        self._bundle = bundle.load_bundle(folder if folder.is_dir() else folder.parent)
        if self._bundle and pool is None:
            pool = bundle.called_pool(self._bundle, folder, allow_endpoints)
        if pool is None:
            raise InputError(f"no live.json, so no pool: {folder}; give the pool it learned with")
        bundle.require_pool(checkpoint.origin, pool)
        name = checkpoint.origin.encoder
        if encoder is None or encoder[0] != name:
            encoder = name, load_encoder(name)
        self._encoder = encoder
        self.policy = LivePolicy(checkpoint, encoder[1])
        self.pool = pool
        self.models: Mapping[str, LiveModel] = {}
        self._engines = engines
        self._batcher = DecisionBatcher(self.policy)
        self._lock = Lock()
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None
        if load:
            self.load_models()

    def load_models(
        self, on_down: Callable[[str], None] | None = None, reference: str | None = None
    ) -> None:
        """Load every model of the pool; of references only who is handed over to.

        Raises InputError: a model has other weights than the one that the policy learned with, or
        its server does not say how sure it is and the policy reads that; WorldError: a model cannot
        be loaded, or a server does not answer.

        `on_down`: told why a server does not answer, which is no error then, unless none does;
        `reference`: name of one that is loaded as well.
        """
        more = {reference, self.policy.handing and self.policy.handing.model.name}
        specs = self.pool.models + tuple(one for one in self.pool.references if one.name in more)
        if self._bundle:
            loaded = replace(self.pool, models=specs)
            bundle.require_same_weights(loaded, self._bundle, self._engines)
        must_tell = self.policy.must_tell
        models: dict[str, LiveModel] = {}
        for spec in specs:
            try:
                models[spec.name] = _live_model(spec, self._engines, spec.name in must_tell)
            except Outage as error:
                all_down = all(model.fault for model in models.values())
                if on_down is None or (spec is self.pool.models[-1] and all_down):
                    raise
                from hierrouter.engines.endpoint import Caller
                from hierrouter.serving.served import ServedModel

                models[spec.name] = ServedModel(spec, Caller(spec, endpoint_of(spec)), str(error))
                on_down(f"{spec.name} cannot be asked now: {error}")
        self.models = models

    def hand_over(
        self,
        name: str,
        cache: Path,
        alphas: Iterable[float | None],
        *,
        share: float | None = None,
        scorer: str = PAPER_SCORER,
        pool: str | None = None,
        allow_endpoints: Collection[str] = (),
    ) -> None:
        """Let a model answer what the policy doubts, as `report --defer-to` would; before loading.

        Raises CacheError: the cache has not what this is calibrated on; InputError: it has no
        direct calls of this model, or nobody can ask it, or see `calibrate`.

        `cache`: with the questions; `alphas`: that will be asked for; `share`: see `calibrate`;
        `scorer`, `pool`: that the cache is opened with; `allow_endpoints`: as of the router.
        """
        origin = self.policy.origin
        tree = OpenTree(
            cache=cache,
            pool=pool,
            models=origin.models,
            hops=origin.hops,
            encoder=origin.encoder,
            state=origin.view,
            scorer=scorer,
            price_of_second=origin.second,
        ).run()
        routers = [self.policy.at(alpha) for alpha in dict.fromkeys(alphas)]
        deferrals = {one.alpha: calibrate(one, tree, name, share) for one in routers}
        column = tree.direct.models.index(name)
        known = {model.name: model for model in self.pool.everyone}
        if name not in known:  # collected since the training
            found = bundle.called_pool(bundle.bundle_of(cache, tree, pool), cache, allow_endpoints)
            known |= {model.name: model for model in found.references}
            self.pool = replace(self.pool, references=(*self.pool.references, known[name]))
        if known[name].backend == IMPORTED:
            raise InputError(
                f"model {name} cannot be asked: its answers were imported; give --pool with a "
                "server for it, or another --defer-to"
            )
        tokens_in, tokens_out = tree.direct.rate[column].tolist()
        self.policy.handing = HandOver(known[name], (tokens_in, tokens_out), deferrals)

    async def aroute(self, question: Question, options: RouteOptions | None = None) -> RouteResult:
        """Answer a question.

        Raises InputError: no question, or an alpha that the policy cannot be asked for; CallFailed:
        a model gave no answer, or, where others may be taken, none of them did: the last failure,
        with those before it.

        `question`: its text, or messages as OpenAI's chat completions have them; `options`: how it
        is to be routed, and who is told on the way.
        """
        return await self._routing(question, options).run()

    def route(self, question: Question, options: RouteOptions | None = None) -> RouteResult:
        """As `aroute`, from a thread without an event loop; any number of threads may call it."""
        with self._lock:
            if self._portal is None:
                self._portal = self._loop.enter_context(
                    start_blocking_portal("asyncio", name="router")
                )
        return self._portal.call(self.aroute, question, options)

    async def decide(
        self,
        question: Question,
        answers: Sequence[Answered] = (),
        options: RouteOptions | None = None,
    ) -> Decision:
        """What the policy would do after these answers, and what it expects; no model is called.

        Raises InputError: as `aroute`; an answer of an unknown model, or after the last decision.
        """
        routing = self._routing(question, options)
        models, actions = routing.trained.origin.models, routing.trained.actions
        if len(answers) >= actions.steps:
            raise InputError(f"{len(answers)} answers: nothing is left to decide; give fewer")
        for answer in answers:
            if answer.model not in models:
                raise InputError(
                    f"no model of the router: {answer.model:.40}; "
                    f"{suggestion(answer.model, models)}".rstrip("; ")
                )
        return await routing.decide(answers, explained=True)

    def prompt(
        self, question: Question, answers: Sequence[Answered] = (), hands_to: str = ""
    ) -> str:
        """What the next model is to be asked after these answers; `hands_to`: see `Decision`."""
        if hands_to:
            return question_of(question)
        texts = [answer.response for answer in answers]
        return prompt_text(question_of(question), texts, self.pool.instruction(len(answers)))

    @property
    def canaries(self) -> dict[str, tuple[bundle.Canary, ...]]:
        """By model that a server answers for and that does not draw, what it is to be asked again.

        Weights that are loaded here cannot become others.
        """
        kept = self._bundle.canaries if self._bundle else {}
        served = [one for one in self.pool.models if one.backend == OPENAI]
        return {
            one.name: kept.get(one.name, ()) for one in served if not one.generation.temperature
        }

    def beside(self, run: str | os.PathLike[str]) -> Router:
        """The router of another run, which calls the models that this one has loaded.

        Close only this one; of the other `stop_deciding` is enough.

        Raises InputError: it has other models, or learned from other weights, or reads how sure
        models are where they do not say; WorldError: its encoder cannot be loaded.
        """
        other = Router(run, self.pool, self._engines, load=False, encoder=self._encoder)
        if self._bundle and other._bundle:
            ours, theirs = self._bundle.identities, other._bundle.identities
            for name in (model.name for model in self.pool.models):
                if ours.get(name) != theirs.get(name):
                    raise InputError(
                        f"{run} learned with another model {name}: {theirs.get(name)!r:.80}; "
                        "start a server of its own for it"
                    )
        if more := set(other.policy.must_tell) - set(self.policy.must_tell):
            raise InputError(
                f"{run} reads how sure {', '.join(sorted(more))} are, which was not asked for at "
                "the start; start the server anew"
            )
        other.models = self.models
        return other

    def stop_deciding(self) -> None:
        """Let go of the thread that decides, and of nothing else."""
        self._batcher.close()

    async def aclose(self) -> None:
        """Let go of all models; one that fails at it keeps none of the others."""
        async with AsyncExitStack() as held:
            held.callback(self._batcher.close)
            for model in self.models.values():
                held.push_async_callback(model.close)

    def close(self) -> None:
        """As `aclose`, for who used `route`."""
        with self._lock:
            portal, self._portal = self._portal, None
            with self._loop:
                if portal is None:
                    anyio.run(self.aclose)
                else:
                    portal.call(self.aclose)

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _routing(self, question: Question, options: RouteOptions | None) -> _Routing:
        options = options or RouteOptions()
        trained, handing = self.policy.at(options.alpha), self.policy.handing
        if handing:
            handing.at(trained.alpha)  # refused before anything is called
        return _Routing(self, question_of(question), trained, options)


def _live_model(spec: ModelSpec, engines: Engines, must_tell: bool) -> LiveModel:
    generator = engines(spec.backend).load(spec)  # a served model is asked for here, too
    if spec.backend != OPENAI:
        return BatchedModel(spec.name, generator)
    from hierrouter.engines.endpoint import PROBE_PROMPT, EndpointGenerator
    from hierrouter.serving.served import ServedModel

    for _, answer in generator.generate([PROBE_PROMPT]) if must_tell else ():
        if isinstance(answer, Response) and answer.confidence is None:
            raise InputError(
                f"model {spec.name} does not say how sure it is of an answer, which this router "
                "reads; ask a server that sends log-probabilities, or train with another --state"
            )
    assert isinstance(generator, EndpointGenerator)
    return ServedModel(spec, generator.caller)


@dataclass(frozen=True)
class RouteOptions:
    """How one question is to be routed.

    Attributes:
        alpha: cost penalty; None is the one that the policy was trained for.
        rng: draw actions from the stochastic policy, for logs that other policies can be judged
            on; None takes the likeliest.
        reroute: where a model gives no answer, take the next likeliest action instead of failing;
            without it this is done only where the prompt is longer than the model's window.
        wanted: what the call that gives the answer is to heed.
        on_text: told the answer as it grows: the text of the last call, once it is known that it is
            the last; called in the router's event loop, like `on_hop`. An answer that was chosen
            among those that are there comes at once.
        on_hop: told each call when it is answered.
    """

    alpha: float | None = None
    rng: np.random.Generator | None = None
    reroute: bool = False
    wanted: CallOptions = NO_OPTIONS
    on_text: OnText | None = None
    on_hop: Callable[[Hop], None] = lambda hop: None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """An answer on the route so far, whoever made the call.

    Attributes:
        model: who was called.
        response: the answer.
        finish_reason: "stop", or "length" where it was cut.
        tokens_in, tokens_out: of the call.
        confidence: how sure the model was; None where its engine does not tell.
        tool_calls: of a model that was given tools, as OpenAI has them.
    """

    model: str
    response: str
    tokens_in: int
    tokens_out: int
    finish_reason: str = "stop"
    confidence: Confidence | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hop(Answered):
    """One call of a route that the router made.

    Attributes:
        propensity: probability with which the policy does this here: 1 where it is greedy; None
            where it did something else, because a model gave no answer.
        chances: of each action, as the policy sees them; model by model, then model by model with
            stopping, where it may stop, then answer by answer, where it may return one.
        stops: whether the policy chose to end with this call; not where it had to.
        cost: of the call, in money.
        router_s: seconds that encoder and policy took to decide, for this question and those that
            were decided together with it; what was waited before is in neither of the two.
        model_s: seconds until the answer was there.
        instead_of: the models that were to be called and failed, and why each did.
        deferred: whether the question was handed over by this call, because the policy was in
            doubt; its propensity is 1, for that is not drawn.
    """

    propensity: float | None
    chances: tuple[float, ...]
    stops: bool
    cost: float
    router_s: float
    model_s: float
    instead_of: tuple[tuple[str, str], ...] = ()
    deferred: bool = False

    def as_object(self) -> dict[str, Any]:
        """JSON values, under the names that logs of episodes have (`hierrouter.serving.logs`)."""
        found: dict[str, Any] = {
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
        if sure := self.confidence:
            found |= {"logprob_sum": round(sure.total, 6), "logprob_min": round(sure.lowest, 6)}
            found |= {"logprob_tokens": sure.tokens}
        if self.tool_calls:
            found |= {"tool_calls": list(self.tool_calls)}
        if self.deferred:
            found["deferred"] = True
        return {**found, **_failed(self.instead_of)}


@dataclass(frozen=True)
class Returned:
    """The choice to end with an answer that is there.

    Attributes:
        answer: its number, 1 is that of the first call.
        propensity, chances, router_s, instead_of: as of a `Hop`.
    """

    answer: int
    propensity: float | None
    chances: tuple[float, ...]
    router_s: float
    instead_of: tuple[tuple[str, str], ...] = ()

    def as_object(self) -> dict[str, Any]:
        """JSON values, as those of a `Hop`."""
        found = {name: value for name, value in asdict(self).items() if name != "instead_of"}
        return {**found, "router_s": round(self.router_s, 6), **_failed(self.instead_of)}


def _failed(instead_of: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    failed = [{"model": model, "reason": reason} for model, reason in instead_of]
    return {"instead_of": failed} if failed else {}


@dataclass(frozen=True)
class RouteResult:
    """An answered question: the calls that were made for it.

    Attributes:
        question: as the models saw it.
        alpha: the cost penalty that it was routed for.
        hops: the calls, 1 to L.
        returned: the choice of the answer; None where the last call was to be the end.
    """

    question: str
    alpha: float
    hops: tuple[Hop, ...]
    returned: Returned | None = None

    @property
    def route(self) -> str:
        """The models in order, `first>second`, or `>first`."""
        return route_name([hop.model for hop in self.hops])

    @property
    def given(self) -> Hop:
        """The call whose response is the answer: the last one, but where another was chosen."""
        return self.hops[self.returned.answer - 1 if self.returned else -1]

    @property
    def answer(self) -> str:
        """The response that is given."""
        return self.given.response

    @property
    def deferred_to(self) -> str:
        """Name of the model that the question was handed over to; "" where it was not."""
        return self.hops[-1].model if self.hops[-1].deferred else ""

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
        """C of all calls, in money."""
        return sum(hop.cost for hop in self.hops)

    def as_object(self) -> dict[str, Any]:
        """JSON values: the route, what it cost, and each call of it."""
        return {
            "question": self.question,
            "answer": self.answer,
            "route": self.route,
            "alpha": self.alpha,
            "cost": significant(self.cost),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish_reason": self.given.finish_reason,
            "steps": [hop.as_object() for hop in self.hops],
            **({"returned": self.returned.as_object()} if self.returned else {}),
            **({"deferred_to": self.deferred_to} if self.deferred_to else {}),
        }


@dataclass
class _Routing:
    """One question while it is routed: who decides, who is called, and the calls so far."""

    router: Router
    question: str  # as models see it
    trained: TrainedRouter
    options: RouteOptions
    hops: list[Hop] = field(default_factory=list)

    async def run(self) -> RouteResult:
        while isinstance(made := await self._next(), Hop):
            self.hops.append(made)
            self.options.on_hop(made)
            if self._ends(made.stops, len(self.hops)):
                break
        returned = None if isinstance(made, Hop) else made
        found = RouteResult(self.question, self.trained.alpha, tuple(self.hops), returned)
        if returned and self.options.on_text:
            self.options.on_text(found.answer)
        return found

    async def decide(self, answers: Sequence[Answered], explained: bool = False) -> Decision:
        origin, seen, cost = self.trained.origin, list[LiveAnswer](), 0.0
        for said in answers:
            place, is_cut = origin.models.index(said.model), said.finish_reason == "length"
            answer = LiveAnswer(place, said.response, said.tokens_out, is_cut, said.confidence)
            seen.append(answer)
            cost += self._cost(said, origin.rate[place], getattr(said, "model_s", 0.0))
        state = LiveState(
            self.trained, self.question, tuple(seen), cost, self.options.rng, explained
        )
        return await self.router._batcher.decide(state)

    def _cost(self, call: Answered | Response, rate: tuple[float, float], seconds: float) -> float:
        """C of one call, in money."""
        tokens = call.tokens_in * rate[0] + call.tokens_out * rate[1]
        return tokens + self.trained.origin.second * seconds

    async def _next(self) -> Hop | Returned:
        """Decide, and make the call; where that fails and others may be taken, another one."""
        decision = self._fit(await self.decide(self.hops))
        failures: list[CallFailed] = []
        hands = decision.hands_to and self._gives(HAND_OVER)
        first = (HAND_OVER,) if hands else ()
        for action in dict.fromkeys((*first, decision.action, *decision.order)):
            if failures and not (self.options.reroute or failures[-1].status == TOO_LONG):
                break
            answer = action - self.trained.actions.calls
            if answer >= 0:
                return Returned(
                    answer=answer + 1,
                    propensity=None if failures else decision.propensity,
                    chances=tuple(decision.chances.tolist()),
                    router_s=decision.router_s,
                    instead_of=tuple((failed.model, failed.reason) for failed in failures),
                )
            if self._model(action).name in {failed.model for failed in failures}:
                continue
            try:
                return await self._call(action, decision, failures)
            except CallFailed as error:
                error.earlier = tuple(failures)
                failures.append(error)
                if error.was_begun:
                    break
        raise failures[-1]

    def _fit(self, decision: Decision) -> Decision:
        """The decision among what can give what is wanted."""
        everything = decision.order
        if all(map(self._gives, everything)):
            return decision
        fitting = [action for action in everything if self._gives(action)]
        fitting = fitting or [at for at in range(self.trained.actions.calls) if self._gives(at)]
        chances = decision.chances[fitting]
        at, rng, propensity = 0, self.options.rng, 1.0
        if rng is not None and chances.sum() > 0:
            chances = chances / chances.sum()
            at = int(rng.choice(len(fitting), p=chances))
            propensity = float(chances[at])
        return replace(decision, action=fitting[at], propensity=propensity, order=tuple(fitting))

    def _gives(self, action: int) -> bool:
        """Whether an action may be taken where the answer needs more than a text."""
        needs, takes = self.options.wanted.needs, self.router.models[self._model(action).name].takes
        is_call = action < self.trained.actions.calls  # what is returned is a text
        return not needs or (is_call and (needs <= takes or not self._is_last(action)))

    def _is_last(self, action: int) -> bool:
        stops = action == HAND_OVER or action >= len(self.router.pool.models)
        return self._ends(stops, len(self.hops) + 1)

    def _ends(self, stops: bool, calls: int) -> bool:
        """Whether so many calls are all; a choice among answers is made of texts alone."""
        most = self.router.pool.hops if self.options.wanted.needs else self.trained.actions.steps
        return stops or calls == most

    async def _call(self, action: int, decision: Decision, failures: list[CallFailed]) -> Hop:
        """The call of an action, in the place of those that failed."""
        spec, stops = self._model(action), action >= len(self.router.pool.models)
        hands, propensity = action == HAND_OVER, decision.propensity
        is_last = self._is_last(action)
        on_text, was_begun = self.options.on_text, False

        def followed(text: str) -> None:
            nonlocal was_begun
            was_begun = True
            assert on_text
            on_text(text)

        started = perf_counter()
        try:
            answer = self.router.models[spec.name].answer
            follows = followed if is_last and on_text else None
            # Where any answer may be given, each call is to heed what is wanted of it.
            heeds = is_last or (self.trained.actions.returns and not self.options.wanted.needs)
            prompt = self.router.prompt(self.question, self.hops, spec.name if hands else "")
            found = await answer(prompt, follows, self.options.wanted if heeds else NO_OPTIONS)
        except CallFailed as error:
            error.was_begun = was_begun
            raise
        model_s = perf_counter() - started
        if hands and (handing := self.router.policy.handing):
            stops, propensity, rate = True, 1.0, handing.rate
        else:
            rate = self.trained.origin.rate[action % len(self.router.pool.models)]
        return Hop(
            model=spec.name,
            propensity=None if failures else propensity,
            chances=tuple(decision.chances.tolist()),
            stops=stops,
            response=found.text,
            finish_reason=found.finish_reason,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            cost=self._cost(found, rate, model_s),
            router_s=decision.router_s,
            model_s=model_s,
            confidence=found.confidence,
            tool_calls=found.tool_calls,
            instead_of=tuple((failed.model, failed.reason) for failed in failures),
            deferred=hands,
        )

    def _model(self, action: int) -> ModelSpec:
        if action == HAND_OVER and (handing := self.router.policy.handing):
            return handing.model
        return self.router.pool.models[action % len(self.router.pool.models)]


async def route_all(
    router: Router, questions: Iterable[Question], options: RouteOptions
) -> AsyncGenerator[RouteResult | CallFailed]:
    """What each question came to, in their order; one that fails stops no other.

    At most `WIDTH` are under way. Who ends early closes it, and takes along what is. Raises
    InputError: a question that cannot be asked, after those before it.

    `questions`: read as they are needed, in a thread that is waited for: who calls this off has to
    end a read that waits for somebody, see `piped_lines`.
    """
    under_way: deque[asyncio.Task[RouteResult | CallFailed]] = deque()
    coming = iter(questions)
    reading: asyncio.Task[Question | None] | None = None
    bad_question: InputError | None = None
    is_over = False
    try:
        while not is_over or under_way:
            if reading is None and not is_over and len(under_way) < WIDTH:
                # In a thread: a pipe may be waited for.
                reading = asyncio.create_task(to_thread.run_sync(next, coming, None))
            waited_for = {task for task in (reading, *list(under_way)[:1]) if task}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                try:
                    question = reading.result()
                except InputError as error:  # those before it are answered all the same
                    question, bad_question = None, error
                reading, is_over = None, question is None
                if question is not None:
                    under_way.append(asyncio.create_task(_route_one(router, question, options)))
            while under_way and under_way[0].done():
                yield under_way.popleft().result()
    finally:
        if reading is not None:  # nobody waits for it; what it says at its end is nobody's error
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if bad_question:
        raise bad_question


async def _route_one(
    router: Router, question: Question, options: RouteOptions
) -> RouteResult | CallFailed:
    try:
        return await router.aroute(question, options)
    except CallFailed as error:
        return error


def live_run(alpha: float | None = None) -> Path:
    """The newest run of `train` for this alpha; else the newest sweep.

    Raises InputError: there is none that can answer live questions.

    `alpha`: None takes the newest run of `train`, whatever its alpha.
    """
    for run in finished_runs("train"):
        its_alpha = run.result["objective"]["alpha"]
        if LIVE in run.files and alpha in (None, its_alpha):
            return run.folder
    for sweep in finished_runs("sweep-alpha"):
        if LIVE in sweep.files:  # it answers every alpha
            return member_folder(sweep.folder, sweep.result["seeds"][0])
    wanted = "" if alpha is None else f" for alpha {alpha:g}, and no sweep"
    remedy = "`hierrouter train`" if alpha is None else "`hierrouter sweep-alpha`, or --checkpoint"
    raise InputError(f"no trained router{wanted}: runs; {remedy}")

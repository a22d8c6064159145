"""Route live questions through the models of a pool: one question hop by hop, or many at once."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import perf_counter

import anyio
import numpy as np
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from hierrouter.engines import backend
from hierrouter.engines.dialects import MEMORY
from hierrouter.engines.encoder_names import with_commit
from hierrouter.engines.encoders import Encoder, load_encoder
from hierrouter.engines.generator import (
    NO_OPTIONS,
    CallOptions,
    Engines,
    Outage,
    Response,
    prompt_text,
    recorded_commits,
    visible_text,
    with_commits,
)
from hierrouter.engines.identity import endpoint_of
from hierrouter.learning.deferral import calibrate
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import Policy
from hierrouter.pools.pool import IMPORTED, KEEP_THOUGHTS, OPENAI, ModelSpec, Pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.runs import bundle
from hierrouter.runs.checkpoint import load_checkpoint, member_folder
from hierrouter.runs.folders import LIVE, find_run, finished_runs
from hierrouter.serving.decisions import (
    Decision,
    DecisionBatcher,
    LiveDeferral,
    LivePolicy,
    LiveState,
)
from hierrouter.serving.messages import Question, question_of
from hierrouter.serving.models import BatchedModel, CallFailed, LiveModel, OnText
from hierrouter.serving.results import Call, FailedCalls, Hop, ReturnAction, RouteResult
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import Rate, reprice

MAX_CONCURRENT_QUESTIONS = 16  # of `route_all`
# The action to defer. It has no number among the policy's own actions, so it must never be used as
# an index: `_Routing._model` and `_Routing._rate` ask for it first.
DEFER_ACTION = -1


class Router:
    """A trained policy together with its live models.

    Use `aroute` in one event loop, or `route` without one. Close it, or use it in a `with` block.

    Args:
        run: a run of `train`, the folder of a run of `train` or `sweep-alpha`, or that of one seed
            of a sweep.
        pool: call these models instead of those in the run's `live.json`; same names and order.
        engines: returns the backend of a name.
        load: whether to load the models now. Before `load_models` the router can decide, but not
            route.
        allow_endpoints: hosts on this machine or a private network that `live.json` may name.
        encoder: a loaded encoder and its name; used if it is the one that the policy reads.
        check_prices: refuse a pool with other prices than those that the policy learned with, in
            which it decides and bills.

    Attributes:
        policy: decides.
        pool: the models that it learned with, in the order of its actions.
        models: the same models, loaded or connected, by name.

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
        check_prices: bool = True,
    ) -> None:
        folder = find_run(run)
        checkpoint, self._bundle = _read_run(folder)
        if self._bundle and pool is None:
            pool = bundle.callable_pool(self._bundle, folder, allow_endpoints)
        pool = _require_pool_of(folder, checkpoint, self._bundle, pool, check_prices)
        encoder_name = checkpoint.origin.encoder
        if self._bundle:
            MEMORY.recall(self._bundle.identities.values())
            # Models and encoder are at the commits of the hub that the policy learned with.
            engines = with_commits(
                engines, recorded_commits(self._bundle.pool, self._bundle.identities)
            )
            encoder_name = with_commit(encoder_name, self._bundle.encoder_commit)
        if encoder is None or encoder[0] != encoder_name:
            encoder = (encoder_name, load_encoder(encoder_name))
        self._encoder = encoder
        self.policy = LivePolicy(checkpoint, encoder[1])
        self.pool = pool
        self.models: Mapping[str, LiveModel] = {}
        self._engines = engines
        self._batcher = DecisionBatcher(self.policy)
        self._lock = Lock()
        self._event_loop = ExitStack()
        self._portal: BlockingPortal | None = None
        self._checks = set[asyncio.Task[None]]()
        if load:
            self.load_models()

    def model_of(self, name: str) -> LiveModel:
        """Return the model that is called.

        Args:
            name: of an action, or of a model that is called directly.
        """
        callers = {action.name: action.model.name for action in self.pool.actions}
        return self.models[callers.get(name, name)]

    def load_models(
        self, on_outage: Callable[[str], None] | None = None, reference: str | None = None
    ) -> None:
        """Load every model of the pool; of its references only those that may be called.

        Args:
            on_outage: receives a message for each server that does not answer. Without it the first
                such server is an error; with it, only if none of the servers answers.
            reference: name of a reference to load as well. The one that questions are deferred to
                is always loaded.

        Raises:
            InputError: a model has other weights than the one that the policy learned with, or its
                server does not report its confidence and the policy reads that.
            WorldError: a model cannot be loaded, or a server does not answer.
        """
        references = {reference}
        if self.policy.deferral:
            references.add(self.policy.deferral.model.name)
        specs = self.pool.models
        specs += tuple(spec for spec in self.pool.references if spec.name in references)
        if self._bundle:
            called = replace(self.pool, models=specs)
            bundle.require_same_weights(called, self._bundle, self._engines)
        confidence_models = self.policy.confidence_models
        models: dict[str, LiveModel] = {}
        for spec in specs:
            needs_confidence = spec.name in confidence_models
            try:
                models[spec.name] = _live_model(spec, self._engines, needs_confidence)
            except Outage as error:
                is_last = spec is self.pool.models[-1]
                if on_outage is None or (is_last and all(model.fault for model in models.values())):
                    raise
                models[spec.name] = _unreachable_model(spec, str(error))
                on_outage(f"{spec.name} cannot be asked now: {error}")
        self.models = models

    def defer_to(
        self,
        name: str,
        cache: Path,
        alphas: Iterable[float | None],
        *,
        share: float | None = None,
        scorer: str | None = None,
        pool: str | None = None,
        allow_endpoints: Collection[str] = (),
    ) -> None:
        """Defer questions in doubt to a model, as `report --defer-to` would; call before loading.

        Args:
            name: of the model.
            cache: with the questions that the thresholds are calibrated on.
            alphas: that the router will be asked for; each gets a threshold.
            share: of the questions to defer at most; see `calibrate`.
            scorer: that the cache is opened with.
            pool: that the cache is opened with.
            allow_endpoints: as in the constructor.

        Raises:
            CacheError: the cache lacks what the thresholds are calibrated on.
            InputError: it has no direct calls of this model, the model cannot be called, or see
                `calibrate`.
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
        # The policy decides at the prices that it learned with, so it is calibrated at them.
        tree = reprice(tree, {**tree.direct.rates, **origin.rates}, origin.second)
        routers = [self.policy.at(alpha) for alpha in dict.fromkeys(alphas)]
        deferrals = {router.alpha: calibrate(router, tree, name, share) for router in routers}
        column = tree.direct.models.index(name)
        specs = {spec.name: spec for spec in self.pool.all_models}
        if name not in specs:
            # A reference that was collected after the training, so the run's bundle lacks it.
            newer = bundle.callable_pool(
                bundle.bundle_of(cache, tree, pool), cache, allow_endpoints
            )
            specs |= {spec.name: spec for spec in newer.references}
            self.pool = replace(self.pool, references=(*self.pool.references, specs[name]))
        if specs[name].backend == IMPORTED:
            raise InputError(
                f"model {name} cannot be asked: its answers were imported; give --pool with a "
                "server for it, or another --defer-to"
            )
        rate = tuple(tree.direct.rate[column].tolist())
        self.policy.deferral = LiveDeferral(specs[name], rate, deferrals)

    async def aroute(self, question: Question, options: RouteOptions | None = None) -> RouteResult:
        """Answer a question.

        Args:
            question: its text, or messages as in OpenAI's chat completions.
            options: how to route it, and callbacks for the progress.

        Raises:
            InputError: no question, or an alpha that the policy cannot be asked for.
            CallFailed: a model gave no response; if others may take its place, none of them did.
                The error is that of the last call and lists those before it.
        """
        return await self._routing(question, options).run()

    def route(self, question: Question, options: RouteOptions | None = None) -> RouteResult:
        """Answer a question from a thread without an event loop; any number of threads may call it.

        Args, returned value and errors are those of `aroute`.
        """
        with self._lock:
            if self._portal is None:
                self._portal = self._event_loop.enter_context(
                    start_blocking_portal("asyncio", name="router")
                )
        return self._portal.call(self.aroute, question, options)

    async def decide(
        self, question: Question, calls: Sequence[Call] = (), options: RouteOptions | None = None
    ) -> Decision:
        """Return what the policy would do after these calls, and what it expects; call no model.

        Args:
            question: as in `aroute`.
            calls: the route so far, oldest first.
            options: as in `aroute`.

        Raises:
            InputError: as in `aroute`; or a call of an unknown model, or one after the last
                decision.
        """
        routing = self._routing(question, options)
        models = routing.trained.origin.models
        if len(calls) >= routing.trained.actions.steps:
            raise InputError(f"{len(calls)} answers: nothing is left to decide; give fewer")
        for call in calls:
            if call.model not in models:
                hint = suggestion(call.model, models)
                raise InputError(f"no model of the router: {call.model:.40}; {hint}".rstrip("; "))
        try:
            node = routing.trained.actions.layout.node([models.index(call.model) for call in calls])
        except KeyError:
            names = " > ".join(call.model for call in calls)
            raise InputError(
                f"no route of the router: {names:.80}; each action must be offered after those "
                "before it"
            ) from None
        if node >= routing.trained.actions.states:
            raise InputError(f"{len(calls)} answers: nothing is left to decide; give fewer")
        unavailable = routing.options.unavailable or frozenset()
        if unavailable.issuperset(spec.name for spec in self.pool.models):
            raise InputError("unavailable: every model is; leave out one that can be called")
        return routing.restrict(await routing.decide(calls, explain=True))

    def remaining(self, trained: TrainedRouter, calls: Sequence[Call], action: int) -> int:
        """Return the most decisions that may follow an action.

        Args:
            trained: decides.
            calls: those so far, oldest first.
            action: of the policy.
        """
        layout = trained.actions.layout
        most = trained.actions.steps - len(calls) - 1
        if layout.is_full or action >= trained.actions.calls:
            return most
        models = trained.origin.models
        path = [*(models.index(call.model) for call in calls), action % len(models)]
        depth = layout.depth()
        deepest = max(
            int(depth[node])
            for node in range(1, layout.nodes)
            if layout.path(node)[: len(path)] == tuple(path)
        )
        return deepest - len(path) + layout.decides_at_leaves

    def prompt(
        self,
        question: Question,
        calls: Sequence[Call] = (),
        *,
        is_deferred: bool = False,
        action: int = 0,
    ) -> str:
        """Return the prompt of the next call.

        Args:
            question: as in `aroute`.
            calls: the route so far, oldest first.
            is_deferred: whether the next call is a deferral, which shows the question alone.
            action: the action of the policy that makes the call; it may have an instruction.
        """
        text = question_of(question)
        if is_deferred:
            return text
        responses = [call.response.complete_text for call in self.visible_calls(calls)]
        actions = self.pool.actions
        instruction = self.pool.instruction(len(calls), actions[action % len(actions)])
        return prompt_text(text, responses, instruction)

    def visible_calls(self, calls: Sequence[Call]) -> tuple[Call, ...]:
        """Return calls with what the next call and the policy read of their responses.

        Args:
            calls: of models of the pool.
        """
        if self.pool.thoughts == KEEP_THOUGHTS:
            return tuple(calls)
        visible = []
        for call in calls:
            text = visible_text(self.pool, call.model, call.response.complete_text)
            response = replace(call.response, text=text, thought="")
            visible.append(replace(call, response=response))
        return tuple(visible)

    def rate_of(self, name: str) -> Rate | None:
        """Return the prices of a model that can be called; None if nobody has set any.

        Args:
            name: of a model of the pool, or of one of its references.
        """
        origin = self.policy.origin
        if name in origin.models:
            return Rate(*origin.rate[origin.models.index(name)])
        deferral = self.policy.deferral
        if deferral and deferral.model.name == name:
            return Rate(*deferral.rate)
        others = replace(self.pool, models=self.pool.all_models, references=(), roles=())
        return bundle.given_rates(others).get(name)

    @property
    def canaries(self) -> dict[str, tuple[bundle.Canary, ...]]:
        """Calls of the collection to repeat, by the name of each served model that does not draw.

        Models loaded in this process have none: their weights cannot change behind a name.
        """
        canaries = self._bundle.canaries if self._bundle else {}
        return {
            spec.name: canaries.get(spec.name, ())
            for spec in self.pool.models
            if spec.backend == OPENAI and not spec.generation.temperature
        }

    def sibling(self, run: str | os.PathLike[str]) -> Router:
        """Return the router of another run that calls the models which this one has loaded.

        Close only this router; of the sibling, `stop_deciding` is enough.

        Args:
            run: as in the constructor.

        Raises:
            InputError: it has other models, or learned from other weights, or reads a confidence
                that its models do not report.
            WorldError: its encoder cannot be loaded.
        """
        # Each run decides and bills at the prices that it learned with.
        router = Router(
            run, self.pool, self._engines, load=False, encoder=self._encoder, check_prices=False
        )
        if self._bundle and router._bundle:
            loaded = self._bundle.identities
            expected = router._bundle.identities
            for spec in self.pool.models:
                if loaded.get(spec.name) != expected.get(spec.name):
                    raise InputError(
                        f"{run} learned with another model {spec.name}: "
                        f"{expected.get(spec.name)!r:.80}; start a server of its own for it"
                    )
        unchecked = set(router.policy.confidence_models) - set(self.policy.confidence_models)
        if unchecked:
            raise InputError(
                f"{run} reads how sure {', '.join(sorted(unchecked))} are, which was not asked for "
                "at the start; start the server anew"
            )
        router.models = self.models
        return router

    def unavailable_models(self) -> frozenset[str]:
        """Return the names of the models that cannot be called now, as far as is known.

        Those whose rest is over are tested meanwhile; call it in the router's event loop.
        """
        down = frozenset(name for name, model in self.models.items() if model.fault)
        for name in down:
            task = asyncio.ensure_future(self.models[name].check())
            self._checks.add(task)  # asyncio has only weak references
            task.add_done_callback(self._checks.discard)
        return down

    def stop_deciding(self) -> None:
        """End the thread that decides; the models stay loaded."""
        self._batcher.close()

    async def aclose(self) -> None:
        """Close all models; one that fails to close does not keep the others open."""
        for check in self._checks:
            check.cancel()
        async with AsyncExitStack() as stack:
            stack.callback(self._batcher.close)
            for model in self.models.values():
                stack.push_async_callback(model.close)

    def close(self) -> None:
        """Close all models, from a thread without an event loop."""
        with self._lock:
            portal = self._portal
            self._portal = None
            with self._event_loop:
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
        trained = self.policy.at(options.alpha)
        if self.policy.deferral:
            self.policy.deferral.at(trained.alpha)  # refuse the alpha before any model is called
        return _Routing(self, question_of(question), trained, options)


def require_live_run(run: Path, pool: Pool | None = None) -> str:
    """Refuse a run that could not answer live questions; no server is called, no model loaded.

    Args:
        run: its folder, or its checkpoint.
        pool: that servers will be given; None is that in the run's `live.json`.

    Returns:
        Name of the encoder that it reads.

    Raises:
        InputError: there is no policy, or no pool, or they do not fit together.
    """
    checkpoint, stored = _read_run(run)
    _require_pool_of(run, checkpoint, stored, pool or (stored.pool if stored else None))
    return checkpoint.origin.encoder


def _read_run(folder: Path) -> tuple[Policy, bundle.Bundle | None]:
    """Return the policy of a run, and its bundle if it has one.

    Raises:
        InputError: one of them is damaged, or there is no policy.
    """
    checkpoint = load_checkpoint(folder)
    return checkpoint, bundle.load_bundle(folder if folder.is_dir() else folder.parent)


def _require_pool_of(
    folder: Path,
    checkpoint: Policy,
    stored: bundle.Bundle | None,
    pool: Pool | None,
    check_prices: bool = True,
) -> Pool:
    """Return the pool that a policy is to call, if it is that which it learned with.

    Args:
        folder: of the run, for messages.
        checkpoint: its policy.
        stored: its bundle; None without one.
        pool: to be called.
        check_prices: see `Router`.

    Raises:
        InputError: there is no pool, or it does not fit.
    """
    if pool is None:
        raise InputError(f"no live.json, so no pool: {folder}; give the pool it learned with")
    bundle.require_pool(checkpoint.origin, pool)
    if check_prices:
        bundle.require_prices(checkpoint.origin, pool, stored.pool if stored else None)
    if stored:
        bundle.require_thoughts(stored, pool)
    return pool


def _live_model(spec: ModelSpec, engines: Engines, needs_confidence: bool) -> LiveModel:
    """Load a model, or connect to its server.

    Raises:
        InputError: its server does not report the confidence that is needed.
    """
    generator = engines(spec.backend).load(spec)  # checks that a served model is there
    if spec.backend != OPENAI:
        return BatchedModel(spec.name, generator)
    from hierrouter.engines.endpoint import PROBE_PROMPT, EndpointGenerator
    from hierrouter.serving.remote_model import ServedModel

    if needs_confidence:
        for _, response in generator.generate([PROBE_PROMPT]):
            if isinstance(response, Response) and response.confidence is None:
                raise InputError(
                    f"model {spec.name} does not say how sure it is of an answer, which this "
                    "router reads; ask a server that sends log-probabilities, or train with "
                    "another --state"
                )
    assert isinstance(generator, EndpointGenerator)
    return ServedModel(spec, generator.caller)


def _unreachable_model(spec: ModelSpec, fault: str) -> LiveModel:
    """Return a served model that does not answer yet; it is tried again at each call."""
    from hierrouter.engines.endpoint import Caller
    from hierrouter.serving.remote_model import ServedModel

    return ServedModel(spec, Caller(spec, endpoint_of(spec)), fault)


@dataclass(frozen=True)
class RouteOptions:
    """How to route one question.

    Attributes:
        alpha: cost penalty; None is the one that the policy was trained for.
        rng: draw actions from the stochastic policy, for a log that other policies can be evaluated
            on; None takes the likeliest.
        reroute: if a model gives no response, take the next likeliest action instead of failing.
            Without it this happens only if the prompt is longer than the model's window.
        call_options: what the client wants of the call that gives the answer.
        unavailable: models to leave out of decisions; None leaves out those that cannot be called,
            as far as this router knows. Where no other model can do, they are called all the same.
        on_text: receives the answer as it grows: the text of the last call, once it is certain that
            it is the last. An earlier answer that is returned comes in one piece. Called in the
            router's event loop, as is `on_hop`.
        on_hop: receives each call when its response is complete.
        group: data set or label of the question, for a router that has routes for some; "" if it is
            unknown.
    """

    alpha: float | None = None
    rng: np.random.Generator | None = None
    reroute: bool = False
    call_options: CallOptions = NO_OPTIONS
    unavailable: frozenset[str] | None = None
    on_text: OnText | None = None
    on_hop: Callable[[Hop], None] = lambda hop: None
    group: str = ""


@dataclass
class _Routing:
    """One question while it is routed.

    Attributes:
        router: calls the models.
        question: as the models see it.
        trained: decides.
        options: of the question.
        hops: the calls so far.
    """

    router: Router
    question: str
    trained: TrainedRouter
    options: RouteOptions
    hops: list[Hop] = field(default_factory=list)

    async def run(self) -> RouteResult:
        """Decide and call until the route ends; see `Router.aroute` for the errors."""
        returned: ReturnAction | None = None
        has_ended = False
        while not has_ended:
            action = await self._next_hop_with_fallback()
            if isinstance(action, ReturnAction):
                returned = action
                break
            self.hops.append(action)
            self.options.on_hop(action)
            is_leaf = not action.stops and self._is_leaf(self._node(self.hops))
            has_ended = self._ends(action.stops, len(self.hops), is_leaf)
        group = self.options.group
        result = RouteResult(
            self.question,
            self.trained.alpha,
            tuple(self.hops),
            returned,
            group,
            is_unknown_group=self.trained.lacks_group(group),
        )
        if returned and self.options.on_text:
            self.options.on_text(result.answer)
        return result

    async def decide(self, calls: Sequence[Call], explain: bool = False) -> Decision:
        """Decide after these calls; see `LiveState.explain`."""
        origin = self.trained.origin
        cost = 0.0
        for call in calls:
            rate = origin.rate[origin.models.index(call.model)]
            cost += self._cost(call.response, rate, call.model_s)
        state = LiveState(
            trained=self.trained,
            question=self.question,
            calls=self.router.visible_calls(calls),
            cost=cost,
            rng=self.options.rng,
            explain=explain,
            group=self.options.group,
        )
        return await self.router._batcher.decide(state)

    def _cost(self, response: Response, rate: Sequence[float], seconds: float) -> float:
        """C of one call, in money."""
        return response.cost(Rate(*rate)) + self.trained.origin.second * seconds

    async def _next_hop_with_fallback(self) -> Hop | ReturnAction:
        """Decide and make the next call; if it fails, perhaps call another model instead.

        Here a failed model is replaced, by the next action of `_attempts`: after any failure with
        `RouteOptions.reroute` (`--reroute`), and without it only if the prompt is too long for the
        model's window. A model that has failed in this hop is not called again.

        `--otherwise` comes in later, when the failure of the last attempt has left the router: then
        `hierrouter.serving.answering.ChatAnswer` passes the whole request on to a named model.

        Returns:
            The call with its response; or that an earlier answer is returned.

        Raises:
            CallFailed: no attempt gave a response; it lists the earlier ones.
        """
        decision = self.restrict(await self.decide(self.hops))
        failures: list[CallFailed] = []
        for action in self._attempts(decision):
            if failures and not (self.options.reroute or failures[-1].is_too_long):
                break
            answer = action - self.trained.actions.calls
            if answer >= 0:
                return ReturnAction(
                    answer=answer + 1,
                    propensity=None if failures else decision.propensity,
                    chances=tuple(decision.chances.tolist()),
                    router_s=decision.router_s,
                    instead_of=_failed_calls(failures),
                )
            if self._model(action).name in {failure.model for failure in failures}:
                continue
            try:
                return await self._call(action, decision, failures)
            except CallFailed as error:
                error.earlier = tuple(failures)
                failures.append(error)
                if error.has_begun:
                    break  # the client has read the beginning, so no other model may go on
        raise failures[-1]

    def _attempts(self, decision: Decision) -> Iterator[int]:
        """Yield the actions to try in turn, each once: deferral, decision, then the likeliest."""
        actions = (decision.action, *decision.order)
        if decision.deferred_to and self._can_satisfy(DEFER_ACTION):
            actions = (DEFER_ACTION, *actions)
        yield from dict.fromkeys(actions)

    def restrict(self, decision: Decision) -> Decision:
        """Restrict a decision to models that can be called, and give what the client wants."""
        unavailable = self.options.unavailable
        if unavailable is None:
            unavailable = self.router.unavailable_models()
        order = self._possible(decision.order, unavailable)
        if not order and unavailable:  # no other model can do
            unavailable = frozenset()
            order = self._possible(decision.order, unavailable)
        left_out = tuple(
            action.name
            for action in self.router.pool.actions
            if not unavailable.isdisjoint((action.name, action.model.name))
        )
        deferred_to = "" if decision.deferred_to in unavailable else decision.deferred_to
        decision = replace(decision, unavailable=left_out, deferred_to=deferred_to)
        if len(order) == len(decision.order):
            return decision
        chances = decision.chances[order]
        position = 0
        propensity = 1.0
        if self.options.rng is not None and chances.sum() > 0:
            chances = chances / chances.sum()
            position = int(self.options.rng.choice(len(order), p=chances))
            propensity = float(chances[position])
        action = order[position]
        return replace(
            decision,
            action=action,
            propensity=propensity,
            order=tuple(order),
            best_probability=decision.best_probability if action == decision.action else None,
        )

    def _possible(self, actions: Sequence[int], unavailable: Collection[str]) -> list[int]:
        """Return the actions that can be taken, of these or else of all; perhaps none."""

        def is_possible(action: int) -> bool:
            if action < self.trained.actions.calls:
                called = self.router.pool.actions[self._action_number(action)]
                if called.name in unavailable or called.model.name in unavailable:
                    return False
            return self._can_satisfy(action)

        possible = list(filter(is_possible, actions))
        # If nothing that the policy would do is possible, take any model that is.
        offered = np.flatnonzero(self.trained.actions.legal()[self._node(self.hops)])
        calls = [action for action in offered.tolist() if action < self.trained.actions.calls]
        return possible or list(filter(is_possible, calls))

    def _node(self, calls: Sequence[Call], action: int | None = None) -> int:
        """Return the node after these calls, and perhaps after the call of an action, too.

        Draws of a call have the same actions after them, so a live call is like the first draw.
        """
        names = self.trained.origin.models
        path = [names.index(call.model) for call in calls]
        if action is not None:
            path.append(self._action_number(action))
        return self.trained.actions.layout.node(path)

    def _can_satisfy(self, action: int) -> bool:
        """Whether an action may be taken if the client wants more than a text."""
        needs = self.options.call_options.needs
        if not needs:
            return True
        if action >= self.trained.actions.calls:
            return False  # an earlier answer is a text
        abilities = self.router.models[self._model(action).name].abilities
        return needs <= abilities or not self._is_last(action)

    def _is_last(self, action: int) -> bool:
        """Whether the call of an action ends the route."""
        stops = self._stops(action)
        is_leaf = action != DEFER_ACTION and self._is_leaf(self._node(self.hops, action))
        return self._ends(stops, len(self.hops) + 1, is_leaf)

    def _is_leaf(self, node: int) -> bool:
        """Whether no call is offered at a node."""
        return node >= self.trained.actions.layout.inner

    def _stops(self, action: int) -> bool:
        """Whether an action chooses to end with its call."""
        return action == DEFER_ACTION or action >= len(self.router.pool.actions)

    def _ends(self, stops: bool, calls: int, is_leaf: bool) -> bool:
        """Whether a route ends after this number of calls, perhaps at a leaf.

        With return, a router has one more decision after its last call. It chooses among texts, so
        that decision is left out if the client wants more than a text.
        """
        has_needs = bool(self.options.call_options.needs)
        max_calls = self.router.pool.hops if has_needs else self.trained.actions.steps
        decides_there = self.trained.actions.layout.decides_at_leaves and not has_needs
        return stops or calls == max_calls or (is_leaf and not decides_there)

    async def _call(self, action: int, decision: Decision, failures: list[CallFailed]) -> Hop:
        """Make the call of an action, after the calls that failed in this hop."""
        spec = self._model(action)
        is_deferred = action == DEFER_ACTION
        is_last = self._is_last(action)
        on_text = self.options.on_text if is_last else None
        has_begun = False

        def follow(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            assert on_text
            on_text(text)

        # If any answer may be returned, each of them has to heed what the client wants.
        may_be_answer = is_last or (
            self.trained.actions.returns > 0 and not self.options.call_options.needs
        )
        number = 0 if is_deferred else self._action_number(action)
        prompt = self.router.prompt(
            self.question, self.hops, is_deferred=is_deferred, action=number
        )
        options = self.options.call_options if may_be_answer else NO_OPTIONS
        called = self.router.pool.actions[number]
        if not is_deferred and (generation := self.router.pool.own_generation(called)):
            options = replace(options, generation=generation)
        started = perf_counter()
        try:
            response = await self.router.models[spec.name].answer(
                prompt, follow if on_text else None, options
            )
        except CallFailed as error:
            error.has_begun = has_begun
            raise
        model_s = perf_counter() - started
        propensity: float | None = decision.propensity
        if is_deferred:
            propensity = 1.0
        if failures:
            propensity = None
        visible = visible_text(self.router.pool, spec.name, response.complete_text)
        return Hop(
            model=spec.name if is_deferred else called.name,
            response=response,
            model_s=model_s,
            propensity=propensity,
            chances=tuple(decision.chances.tolist()),
            stops=self._stops(action),
            cost=self._cost(response, self._rate(action), model_s),
            router_s=decision.router_s,
            instead_of=_failed_calls(failures),
            is_deferred=is_deferred,
            unavailable=decision.unavailable,
            visible=None if visible == response.complete_text else visible,
        )

    def _model(self, action: int) -> ModelSpec:
        """Return the model that an action calls."""
        if action == DEFER_ACTION:
            return self._deferral.model
        return self.router.pool.actions[self._action_number(action)].model

    def _rate(self, action: int) -> Sequence[float]:
        """Return the prices of the model that an action calls, see `rate_table`."""
        if action == DEFER_ACTION:
            return self._deferral.rate
        return self.trained.origin.rate[self._action_number(action)]

    def _action_number(self, action: int) -> int:
        """Return the number of the pool's action that an action of the policy calls.

        With M of them, actions M to 2M - 1 call the same as 0 to M - 1, and stop.
        """
        assert action >= 0
        return action % len(self.router.pool.actions)

    @property
    def _deferral(self) -> LiveDeferral:
        deferral = self.router.policy.deferral
        assert deferral  # only a policy that defers has the action to defer
        return deferral


def _failed_calls(failures: Iterable[CallFailed]) -> FailedCalls:
    return tuple((failure.model, failure.reason) for failure in failures)


async def route_all(
    router: Router, questions: Iterable[tuple[Question, str]], options: RouteOptions
) -> AsyncGenerator[RouteResult | CallFailed]:
    """Yield the result or the failure of each question, in their order.

    At most `MAX_CONCURRENT_QUESTIONS` are under way. Closing the generator cancels these.

    Args:
        router: answers.
        questions: each with its group, as in `RouteOptions`, "" taking that of `options`; they are
            read one by one as they are needed, in a thread. Cancelling waits for a read in
            progress, so the caller has to end a read that blocks, see `piped_lines`.
        options: of each question.

    Raises:
        InputError: a question cannot be asked; raised after the results of those before it.
    """
    under_way: deque[asyncio.Task[RouteResult | CallFailed]] = deque()
    remaining = iter(questions)
    reading: asyncio.Task[tuple[Question, str] | None] | None = None
    bad_question: InputError | None = None
    has_read_all = False
    try:
        while not has_read_all or under_way:
            if reading is None and not has_read_all and len(under_way) < MAX_CONCURRENT_QUESTIONS:
                # In a thread, because reading from a pipe may block.
                reading = asyncio.create_task(to_thread.run_sync(next, remaining, None))
            pending: set[
                asyncio.Task[RouteResult | CallFailed] | asyncio.Task[tuple[Question, str] | None]
            ]
            pending = {task for task in (reading, *list(under_way)[:1]) if task}
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                line: tuple[Question, str] | None = None
                try:
                    line = reading.result()
                except InputError as error:
                    bad_question = error
                reading = None
                has_read_all = line is None
                if line is not None:
                    question, group = line
                    own = replace(options, group=group or options.group)
                    under_way.append(asyncio.create_task(_route_one(router, question, own)))
            while under_way and under_way[0].done():
                yield under_way.popleft().result()
    finally:
        if reading is not None:
            # Retrieve the exception of an abandoned read, or asyncio would log it.
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
    """Find the newest run of `train` for an alpha, else the newest sweep.

    Args:
        alpha: None takes the newest run of `train`, whatever its alpha.

    Returns:
        The folder of the run; of a sweep, that of its first seed.

    Raises:
        InputError: no run can answer live questions.
    """
    for run in finished_runs("train"):
        run_alpha = run.result["objective"]["alpha"]
        if LIVE in run.files and alpha in (None, run_alpha):
            return run.folder
    for sweep in finished_runs("sweep-alpha"):
        if LIVE in sweep.files:  # it answers every alpha
            return member_folder(sweep.folder, sweep.result["seeds"][0])
    condition = ""
    remedy = "`hierrouter train`"
    if alpha is not None:
        condition = f" for alpha {alpha:g}, and no sweep"
        remedy = "`hierrouter sweep-alpha`, or --checkpoint"
    raise InputError(f"no trained router{condition}: runs; {remedy}")

"""Walk the trees of queries level by level and make the calls that are missing.

Each model has a lane, see `lanes`. A model on this machine gets a whole level at once, because
batches are fast. A model behind a server gets each call as soon as its context is known, because
servers answer side by side. From there on both are treated alike: one method receives every answer,
repeats what failed, and commits what is due; `ledger` remembers the calls.

Levels count from 0: `levels[0]` holds the stages of the first hop, and a context at level l has l
responses. A request's level says when its answer is needed: before the next level begins. No level
begins after a direct call, so direct calls have the level after the last hop, `len(levels)`, and
only the end of the collection waits for them. A `Stage` is here a model at one level, see `plan`;
the stage l_t of the paper, the number of calls made so far, is the level of a context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter

from hierrouter.collection import plan
from hierrouter.collection.lanes import (
    Delivery,
    Event,
    Lane,
    LaneEnd,
    LocalLane,
    Request,
    ServedLane,
    blame_model,
)
from hierrouter.collection.ledger import Ledger
from hierrouter.collection.progress import Progress, Summary
from hierrouter.engines import backend, generator, identify_pool
from hierrouter.pools.pool import OPENAI, Identity, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.chain import seal_loose
from hierrouter_cache.errors import Interrupted, WorldError
from hierrouter_cache.keys import call_key, next_context, root_context
from hierrouter_cache.locks import collector_lock, shard_lock, start_lock
from hierrouter_cache.mirror import finish_pull
from hierrouter_cache.reader import CacheReader, StoredPlan, reader_of
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import OnPart, PartWriter, no_copy, sweep_drafts

MAX_ATTEMPTS = 3
PART_SECONDS = 20.0  # after that a part is committed, however few rows it has
EVENT_WAIT_S = 1.0  # between two looks at the clock and at `stop`


def fill_cache(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    progress: Progress | None = None,
    stop: generator.Stop = generator.never,
    engines: generator.Engines = backend,
    *,
    shard: plan.Shard | None = None,
    on_part: OnPart = no_copy,
    datasets: Mapping[str, str] | None = None,
) -> Summary:
    """Run every missing call of the trees of `queries` and commit it.

    A call that gives no answer ends nothing: see `Summary.failed` and `require_answers`.

    Args:
        pool: the models to call.
        queries: of all shards.
        root: the cache's folder, made if it does not exist.
        progress: notified of what is done.
        stop: asked again and again; once true, what has begun is finished and committed, and the
            collection ends there.
        engines: load the models, those of the hub at the commits that the last plan has recorded.
        shard: make the calls of this share of the queries only, beside other shards.
        on_part: called with each part after its commit, to copy it elsewhere.
        datasets: commits of the hub's repositories that the queries are from, see
            `plan.store_plan`.

    Returns:
        Counts of what was done.

    Raises:
        Interrupted: `stop` returned true; everything up to here is committed.
        CacheLocked: another collector is at work there.
        CacheError: the cache cannot be written or is damaged.
        WorldError: a model or the disk failed; what was committed is safe.
        InputError: other shards at work there have another plan.
    """
    engines = plan.engines_of_plan(root, engines)
    identities = identify_pool(pool, engines)
    progress = progress or Progress()
    writer = PartWriter(root, on_part=on_part)
    made: Summary | None = None  # before a model got another identity
    while True:
        with ExitStack() as locks:
            # One shard after the other begins, so that the second finds the first one's plan.
            with start_lock(root) if shard else nullcontext():
                lock = shard_lock(root, shard.index, shard.count) if shard else collector_lock(root)
                locks.enter_context(lock)
                collection = begin(
                    pool, queries, identities, writer, progress, stop, engines, shard, datasets
                )
            if made:
                collection.summary.take_over(made)
            try:
                collection.run(collection.queries)
            except generator.IdentityChange:
                made = collection.summary
                identities = identify_pool(pool, engines)
                continue
            collection.ledger.say_what_came()
            if collection.summary.failed:
                collection.count_missing()
        return collection.summary


def begin(
    pool: Pool,
    queries: Sequence[Query],
    identities: Mapping[str, Identity],
    writer: PartWriter,
    progress: Progress,
    stop: generator.Stop,
    engines: generator.Engines,
    shard: plan.Shard | None = None,
    datasets: Mapping[str, str] | None = None,
) -> Collection:
    """Store the plan of a collection that has made no call yet; the caller holds the lock.

    Args:
        pool: the models to call.
        queries: of all shards.
        identities: see `identify_pool`.
        writer: into the cache.
        progress, stop, engines, shard, datasets: as for `fill_cache`.

    Returns:
        The collection, ready to run.

    Raises:
        CacheError: the cache cannot be written or is damaged.
        InputError: other shards at work there have another plan.
    """
    root = writer.root
    sweep_drafts(root)
    finish_pull(root)
    seal_loose(root)
    reader = reader_of(root)
    if shard:
        keys = tuple(query.key for query in queries)
        plan.require_alike(reader, StoredPlan(pool.to_json(identities), keys), shard)
    changed = plan.changed_queries(reader, queries) if reader else []
    if changed:
        progress.on_changed(changed)
    plan.store_plan(writer, reader, pool, identities, queries, datasets)
    own_queries = shard.own(queries) if shard else queries
    spec = pool.tree_spec(identities)
    return Collection(pool, own_queries, spec, reader, writer, progress, stop, engines)


def begin_with(
    first: Sequence[Query],
    pool: Pool,
    queries: Sequence[Query],
    writer: PartWriter,
    progress: Progress,
    stop: generator.Stop,
    engines: generator.Engines,
    datasets: Mapping[str, str] | None = None,
) -> tuple[Collection, Mapping[str, Identity]]:
    """Begin a collection with some queries, anew whenever a model gets another identity.

    Args:
        first: the queries that are asked.
        pool: the models to call.
        queries: of the plan.
        writer: into the cache.
        progress, stop, engines, datasets: as for `fill_cache`.

    Returns:
        The collection with the answers to these queries, and the identities of the pool.

    Raises:
        HierRouterError: any error of `fill_cache`.
    """
    identities = identify_pool(pool, engines)
    made: Summary | None = None  # before a model got another identity
    while True:
        with collector_lock(writer.root):
            collection = begin(
                pool, queries, identities, writer, progress, stop, engines, datasets=datasets
            )
            if made:
                collection.summary.take_over(made)
            try:
                collection.run(first)
            except generator.IdentityChange:
                made = collection.summary
                identities = identify_pool(pool, engines)
                continue
        return collection, identities


class Collection:
    """A collection under way.

    Attributes:
        pool: the models to call.
        queries: whose trees are to be filled.
        direct: the stages of the direct calls, see `plan.stages_of`.
        levels: the stages of each hop.
        offered: which of them call at a context.
        per_query: nodes and direct calls of one query.
        ledger: what is known of each call.
        outages: by name, why a model's server cannot be reached.
    """

    def __init__(
        self,
        pool: Pool,
        queries: Sequence[Query],
        spec: TreeSpec,
        reader: CacheReader | None,
        writer: PartWriter,
        progress: Progress,
        stop: generator.Stop,
        engines: generator.Engines,
    ) -> None:
        """Begin with what is in the cache.

        Args:
            pool: the models to call.
            queries: whose trees are to be filled.
            spec: names each step of the trees.
            reader: of the cache; None if it does not exist yet.
            writer: into the cache.
            progress, stop, engines: as for `fill_cache`.
        """
        # The trees to be filled.
        self.pool = pool
        self.queries = queries
        self.direct, self.levels = plan.stages_of(pool, spec)
        self._spec = spec
        self.offered = plan.OfferedStages(pool, self.levels)
        if reader and pool.least_draws:
            decided = reader.sql("SELECT key FROM decisions WHERE made")
            self.offered.further.update(decided["key"].to_pylist())
        self._generations = {model.name: model.generation for model in pool.all_models}
        self.per_query = pool.calls_per_query
        # The state of each call, and reports on it.
        self.progress = progress
        progress.summary = Summary(len(queries), len(queries) * self.per_query)
        self.ledger = Ledger(pool, reader, writer, progress, progress.summary)
        self.ledger.callers = spec.action_by_step
        # The models, and the events of their lanes.
        self.outages: dict[str, generator.Outage] = {}
        self._stop = stop
        self._residency = generator.Residency(engines)
        self._lanes: dict[str, Lane] = {}
        self._has_servers = False
        self._events = SimpleQueue[Event]()
        # Requests without a final answer: their keys, and the number of them by level.
        self._requested = set[str]()
        self._outstanding = Counter[int]()
        # Servers are asked ahead of the models on this machine: the last level at which they are
        # asked, and the contexts at which they have been asked already, with the number of stages.
        self._last_level = 0
        self._visited = set[tuple[str, int]]()

    @property
    def summary(self) -> Summary:
        """Counts of what was done so far."""
        return self.ledger.summary

    def run(self, queries: Sequence[Query]) -> None:
        """Make every direct call and every node of the trees of these queries.

        Raises:
            Interrupted: `stop` returned true and calls are missing.
            CacheError: the cache cannot be written.
            IdentityChange: a model must be identified anew.
            WorldError: a model or the disk failed, or a server could not be reached.
        """
        contexts = plan.root_contexts(query.question for query in queries)
        with self._open_lanes(len(queries) * self.per_query, len(self.levels) - 1):
            self._ask_servers(contexts, 0, self.direct)
            # The references first: they are the large models, and not called again.
            for stage in sorted(self.direct, key=lambda stage: stage.model in self.pool.models):
                # Nothing waits for direct calls, so their level is the one after the last hop.
                self._run_batch(stage, contexts, len(self.levels))
                if stage.model in self.pool.references:
                    self._residency.release(stage.model.name)
            for level in range(len(self.levels)):
                contexts = self._run_level(level, contexts)
            self._settle(len(self.levels))  # of direct calls, too
        self.require_models()

    def run_level(self, level: int, contexts: plan.Contexts) -> plan.Contexts:
        """Make the calls of one hop at these contexts.

        Args:
            level: of the contexts, 0 before the first hop.
            contexts: where to call.

        Returns:
            The contexts after the hop.

        Raises:
            Interrupted: `stop` returned true and calls are missing.
            CacheError: the cache cannot be written.
            WorldError: a model or the disk failed.
        """
        with self._open_lanes(len(contexts) * len(self.levels[level]), level):
            self._ask_servers(contexts, level)
            return self._run_level(level, contexts)

    def require_models(self) -> None:
        """Require that every model could be reached.

        Raises:
            IdentityChange: a model must be identified anew.
            WorldError: a server could not be reached.
        """
        for outage in self.outages.values():
            if isinstance(outage, generator.IdentityChange):
                raise outage
        for outage in self.outages.values():
            raise WorldError(
                f"{outage}; {self.summary.calls} calls committed, the same command makes the rest"
            )

    # Making calls: a whole level at once on this machine, and by servers as soon as possible.

    @contextmanager
    def _open_lanes(self, max_calls: int, last_level: int) -> Iterator[None]:
        """Open a lane for each model that can be reached; at the end commit what was answered.

        Args:
            max_calls: an upper bound of the calls to make.
            last_level: of the contexts at which servers are asked.
        """
        self._last_level = last_level
        self._lanes = {
            model.name: self._open_lane(model)
            for model in self.pool.all_models
            if model.name not in self.outages
        }
        servers = sum(isinstance(lane, ServedLane) for lane in self._lanes.values())
        self._has_servers = servers > 0
        started = perf_counter()
        seconds_before = self.summary.seconds
        if self._has_servers:
            self.progress.on_level(f"{servers} servers", max_calls)
        try:
            yield
        finally:
            for lane in self._lanes.values():
                lane.end()
            self._store_late_responses()
            for lane in self._lanes.values():
                self._commit(lane)
            if self._has_servers:
                # They work side by side, so the seconds of their parts do not add up.
                self.summary.seconds = seconds_before + perf_counter() - started
            self._lanes = {}
            self._visited.clear()

    def _open_lane(self, model: ModelSpec) -> Lane:
        """Make the lane of one model: served if it is behind a server, else local."""
        count = self.ledger.count_response
        if model.backend == OPENAI:
            return ServedLane(model, self._residency.engines, self._stop, self._events, count)
        return LocalLane(model, self._residency, self._stop, self._events, count)

    def _ask_servers(
        self, contexts: plan.Contexts, level: int, direct: Sequence[plan.Stage] = ()
    ) -> None:
        """Ask the servers at these contexts, and at all that follow from known responses.

        Models on this machine are not asked here: `_run_batch` asks them, level by level.

        Args:
            contexts: where to ask.
            level: of the contexts.
            direct: stages of direct calls at these contexts.
        """
        if not self._may_ask_servers(level):
            return
        for context, texts in contexts.items():
            stages = self.offered.at(level, context)
            if (context, len(stages)) in self._visited:
                continue
            self._visited.add((context, len(stages)))
            for stage in stages:
                response = self._request(stage, context, texts, level, self._served_lane(stage))
                if response is not None:
                    following = self.offered.follow(level, context, stage.step, response)
                    self._ask_servers({following: (*texts, response)}, level + 1)
            for stage in direct:
                lane = self._served_lane(stage)
                self._request(stage, context, texts, len(self.levels), lane)

    def _may_ask_servers(self, level: int) -> bool:
        """Whether there are servers, and contexts of this level are to be called at."""
        return self._has_servers and level <= self._last_level

    def _run_level(self, level: int, contexts: plan.Contexts) -> plan.Contexts:
        """Make the calls of one hop: run the local models, wait for the servers.

        Args:
            level: of the contexts, 0 before the first hop.
            contexts: where to call.

        Returns:
            The contexts after the hop; the servers are asked at them already.

        Raises:
            Interrupted: `stop` returned true and calls are missing.
            CacheError: the cache cannot be written.
            WorldError: a model or the disk failed.
        """
        stages = self.levels[level]
        # Loaded models first: loading another one may push them out of memory.
        for stage in sorted(stages, key=lambda stage: stage.model.name not in self._residency):
            self._run_batch(stage, contexts, level)
        self._settle(level)
        following = self.offered.next_contexts(level, contexts, self.ledger.responses)
        self._ask_servers(following, level + 1)
        return following

    def _run_batch(self, stage: plan.Stage, contexts: plan.Contexts, level: int) -> None:
        """Make a stage's calls at all these contexts, if its model is on this machine.

        A server is not asked here, because `_ask_servers` has asked it already.
        """
        lane = self._lanes.get(stage.model.name)
        if not isinstance(lane, LocalLane):
            return
        # In the order of the queries: prompts that begin alike are neighbours, which prefix caches
        # like.
        is_direct = level == len(self.levels)
        for context, texts in contexts.items():
            if is_direct or self.offered.calls_at(level, context, stage):
                self._request(stage, context, texts, level, lane)
        if not lane.open:
            return
        if not self._has_servers:
            self.progress.on_level(stage.label, len(lane.open))
        for _ in lane.answers():
            while self._handle_event():
                pass
        self._commit(lane)
        self._forget_requests(lane)

    def _request(
        self, stage: plan.Stage, context: str, texts: tuple[str, ...], level: int, lane: Lane | None
    ) -> str | None:
        """Look up a model's response at a context; if there is none, ask for it, but only once.

        Args:
            stage: the model and its instruction.
            context: key of the context.
            texts: of the context: the question and all responses so far.
            level: of the request, see `Request.level`.
            lane: is asked; None to look up only.

        Returns:
            The response; None if it is not there yet.
        """
        key = call_key(stage.step, context)
        response = self.ledger.response(key)
        if response is not None or lane is None:
            return response
        if not (self.ledger.is_settled(key) or key in self._requested or self._stop()):
            self._requested.add(key)
            self._outstanding[level] += 1
            generation = stage.model.generation
            own = generation if generation != self._generations[stage.model.name] else None
            call = stage.call(context, texts)
            lane.ask(Request(call, level, texts, draw=stage.draw, generation=own))
        return None

    def _settle(self, level: int) -> None:
        """Wait until everything that was requested up to this level has its final answer.

        Raises:
            Interrupted: `stop` returned true and calls are missing.
        """
        while self._is_outstanding(level):
            self._handle_event(EVENT_WAIT_S)
        self._raise_if_stopped()

    def _is_outstanding(self, level: int) -> bool:
        """Whether an answer is outstanding up to this level; after a stop, at any level."""
        if self._stop():  # wait for everything under way, because it is paid for
            return self._outstanding.total() > 0
        return any(count > 0 for at_level, count in self._outstanding.items() if at_level <= level)

    def _raise_if_stopped(self) -> None:
        """Commit everything and count what is missing, if `stop` returned true.

        Raises:
            Interrupted: calls are missing.
        """
        if not self._stop():
            return
        for lane in self._lanes.values():
            self._commit(lane)
        self.count_missing()
        if self.summary.missing:
            raise Interrupted(
                f"interrupted: {self.summary.calls} calls committed; "
                "rerun the same command to resume"
            )

    def _served_lane(self, stage: plan.Stage) -> ServedLane | None:
        """The lane of the stage's model, if it is behind a server that still answers."""
        lane = self._lanes.get(stage.model.name)
        return lane if isinstance(lane, ServedLane) and not lane.has_ended else None

    # Receiving answers: the same for all lanes.

    def _handle_event(self, timeout_s: float = 0.0) -> bool:
        """Handle one event of a lane and commit the parts that are due.

        Args:
            timeout_s: how long to wait for an event.

        Returns:
            Whether there was one.
        """
        event: Event | None = None
        with suppress(Empty):
            event = self._events.get(timeout=timeout_s)
        if isinstance(event, Delivery):
            self._receive(event.lane, event.position, event.answer)
        elif isinstance(event, LaneEnd):
            self._end_lane(event.lane, event.error)
        now = perf_counter()
        for lane in self._lanes.values():
            if len(lane.part) >= self.ledger.part_rows or now - lane.began > PART_SECONDS:
                self._commit(lane)
        return event is not None

    def _receive(self, lane: Lane, position: int, answer: generator.Answer) -> None:
        """Keep an answer and ask what follows from it, or repeat the request if that may help."""
        request = lane.open.pop(position)
        if isinstance(answer, generator.Response):
            visible = self._store_response(lane, request, answer)
            self._follow(request, visible)
            self._outstanding[request.level] -= 1
        elif answer.is_retryable and request.attempt < MAX_ATTEMPTS:
            lane.retries.append(request)
        else:
            lane.failures.append((request, answer))
            self._outstanding[request.level] -= 1
        if not lane.open and lane.retries:
            # The second attempt comes after all the others: what was busy may be free by then.
            lane.ask_again()

    def _follow(self, request: Request, response: str) -> None:
        """Ask the servers at the context after what is visible of a response."""
        if self._may_ask_servers(request.level + 1):
            call = request.call
            context = self.offered.follow(request.level, call.context, call.step, response)
            self._ask_servers({context: (*request.texts, response)}, request.level + 1)

    def _store_response(self, lane: Lane, request: Request, response: generator.Response) -> str:
        """Add a response to its lane's part, which is committed later, and to the ledger.

        Returns:
            What the next call reads of the response.
        """
        lane.part.append((request.call, response))
        self._requested.discard(request.call.key)
        return self.ledger.record(lane.model, request.call, response)

    def _end_lane(self, lane: Lane, error: Exception | None) -> None:
        """Take note that a served lane has ended; the other models go on after an outage.

        Raises:
            WorldError: the model failed otherwise.
        """
        if isinstance(error, generator.Outage):
            self.outages[lane.model.name] = error
        elif error:
            with blame_model(lane.model):
                raise error
        if isinstance(lane, ServedLane):
            lane.has_ended = True
        self._forget_requests(lane)

    def _forget_requests(self, lane: Lane) -> None:
        """Expect no answer any more to what a lane has not answered."""
        for request in (*lane.open.values(), *lane.retries):
            self._outstanding[request.level] -= 1
            self._requested.discard(request.call.key)
        lane.open.clear()
        lane.retries.clear()

    def _store_late_responses(self) -> None:
        """Keep the responses that were not handled when the lanes ended: they are paid for."""
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                return
            if isinstance(event, Delivery) and isinstance(event.answer, generator.Response):
                request = event.lane.open.pop(event.position)
                self._outstanding[request.level] -= 1
                self._store_response(event.lane, request, event.answer)

    def _commit(self, lane: Lane) -> None:
        """Write the answers and the final failures of a lane to the cache; begin a new part."""
        now = perf_counter()
        seconds = now - lane.began
        part = lane.part
        failures = lane.failures
        lane.part = []
        lane.failures = []
        lane.began = now
        self.ledger.commit(lane.model, part, seconds)
        for attempt in sorted({request.attempt for request, _ in failures}):
            calls = [
                (request.call, failure)
                for request, failure in failures
                if request.attempt == attempt
            ]
            self.ledger.give_up(lane.model, calls, attempt)
            self._requested.difference_update(call.key for call, _ in calls)

    # Looking at the trees.

    def contexts_before(self, question: str, level: int) -> list[str | None]:
        """Key of the context of each node before a hop at which calls are offered, in their order.

        Args:
            question: at the root of the tree.
            level: 0 before the first hop.

        Returns:
            A key a node; None if a call above the node is not answered.
        """
        inner = self.pool.layout.levels[level].inner
        return self._node_contexts(question, inner.stop)[0][inner]

    def _node_contexts(
        self, question: str, nodes: int
    ) -> tuple[list[str | None], list[str | None]]:
        """The context after each of the first nodes of a tree, and the call that is absent there.

        Args:
            question: at the root of the tree.
            nodes: how many nodes.

        Returns:
            Keys of contexts, None if a call is not answered; and then the key of the first absent
            call on the way, else None; "" if that is a further draw which is not asked for.
        """
        least_draws = self.pool.least_draws or self.pool.draws
        draws = self._spec.layout.draw.tolist()
        responses = self.ledger.responses
        contexts: list[str | None] = [root_context(question)]
        absent: list[str | None] = [None]
        for node, (parent, step) in enumerate(self._node_steps[1:nodes], 1):
            context = contexts[parent]
            key = absent[parent] if context is None else call_key(step, context)
            if context is not None and draws[node] >= least_draws:
                key = key if key in self.offered.further else ""
            response = None if context is None else responses.get(str(key))
            is_there = context is not None and response is not None
            contexts.append(next_context(str(context), str(response)) if is_there else None)
            absent.append(None if is_there else key)
        return contexts, absent

    @cached_property
    def _node_steps(self) -> list[tuple[int, str]]:
        """The parent and the step of each node of a tree; those of the root mean nothing."""
        layout = self._spec.layout
        steps = ["", *(self._spec.step(node) for node in range(1, layout.nodes))]
        return list(zip(layout.parent.tolist(), steps, strict=True))

    def count_missing(self) -> None:
        """Count in the summary what is not there: after failed calls, and what was left out."""
        summary = self.summary
        summary.missing = 0
        summary.incomplete = 0
        summary.pruned = 0
        for query in self.queries:
            missing, pruned = self._count_absent(query.question)
            summary.missing += missing
            summary.incomplete += missing > 0
            summary.pruned += pruned

    def _count_absent(self, question: str) -> tuple[int, int]:
        """Count (missing, pruned) nodes and direct calls of one query."""
        absent = Counter[bool]()  # by whether the call was left out
        for stage in self.direct:
            key = call_key(stage.step, root_context(question))
            if key not in self.ledger.responses:
                absent[key in self.ledger.pruned] += 1
        # Without a call's response its node is absent, and so are all nodes below.
        for first_absent in self._node_contexts(question, len(self._node_steps))[1]:
            if first_absent:
                absent[first_absent in self.ledger.pruned] += 1
        return absent[False], absent[True]

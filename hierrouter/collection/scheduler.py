"""Walk the tree level by level and make the calls that are missing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import InitVar, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from time import perf_counter
from typing import Any

import pyarrow as pa

from hierrouter.collection import plan
from hierrouter.collection.lanes import Asked, Lane, News
from hierrouter.collection.progress import Progress, Spent, Summary
from hierrouter.engines import backend, generator, identify
from hierrouter.pools.pool import OPENAI, Identity, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.chain import seal_loose
from hierrouter_cache.errors import Interrupted, WorldError, reason_of
from hierrouter_cache.keys import call_key, next_context, root_context
from hierrouter_cache.locks import collector_lock, shard_lock, start_lock
from hierrouter_cache.mirror import finish_pull
from hierrouter_cache.parts import CALLS_SCHEMA, DECISIONS_SCHEMA
from hierrouter_cache.reader import CacheReader, StoredPlan, reader_of
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import OnPart, PartWriter, no_copy, sweep_drafts

# A part is small enough that an interruption costs little, large enough that reading stays fast.
FIRST_PART = 32  # rows; each part may have twice as many as the one before
LARGEST_PART = 2048
SECONDS_PER_PART = 20.0
ATTEMPTS = 3
# Of a model's answers: from so many on, a share that is out of the ordinary.
ENOUGH, ODD = 20, 0.5


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
) -> Summary:
    """Run every missing call of the trees of `queries` and commit it.

    A call that gives no answer ends nothing: see `Summary.failed` and `require_answers`. Raises
    Interrupted: `stop` said so; everything up to here is committed; CacheLocked: another collector
    is at work there; CacheError: the cache cannot be written or is damaged; WorldError: a model or
    the disk failed; what was committed is safe; InputError: other shards at work there have another
    plan.

    Args:
        stop: asked again and again; once true, what has begun is finished and committed, and the
            collection ends there.
        shard: make the calls of this share of the queries only, beside other shards.
        on_part: told each part after its commit, to copy it elsewhere.
    """
    identities = identify(pool.all_models, engines)
    progress, writer = progress or Progress(), PartWriter(root, on_part=on_part)
    with ExitStack() as held:
        # One shard after the other begins, so that the second finds the first one's plan.
        with start_lock(root) if shard else nullcontext():
            lock = shard_lock(root, shard.index, shard.count) if shard else collector_lock(root)
            held.enter_context(lock)
            collection = begin(pool, queries, identities, writer, progress, stop, engines, shard)
        collection.run(collection.queries)
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
) -> Collection:
    """A collection that has made no call yet; whoever begins it holds the lock.

    `identities`: of all models; `writer`: into the cache; the others are those of `fill_cache`.
    """
    root = writer.root
    sweep_drafts(root)
    finish_pull(root)
    seal_loose(root)
    reader = reader_of(root)
    if shard:
        keys = tuple(query.key for query in queries)
        plan.require_alike(reader, StoredPlan(pool.to_json(identities), keys), shard)
    if reader and (changed := plan.changed_queries(reader, queries)):
        progress.on_changed(changed)
    plan.store_plan(writer, reader, pool, identities, queries)
    ours = shard.own(queries) if shard else queries
    spec, residency = pool.tree_spec(identities), generator.Residency(engines)
    return Collection(pool, ours, spec, reader, writer, progress, stop, residency)


@dataclass
class Collection:
    """A collection under way: the pool's models, what is committed, and where to write.

    Attributes:
        levels: the stages of each hop, see `plan.stages_of`.
        responses: of every answered call, by key.
        pruned: keys of calls that are not to be made.
    """

    pool: Pool
    queries: Sequence[Query]
    spec: InitVar[TreeSpec]
    reader: InitVar[CacheReader | None]
    writer: PartWriter
    progress: Progress
    stop: generator.Stop
    residency: generator.Residency

    def __post_init__(self, spec: TreeSpec, reader: CacheReader | None) -> None:
        self.direct, self.levels = plan.stages_of(self.pool, spec)
        self.rates = self.pool.rates()
        self.responses = reader.responses() if reader else {}
        self.pruned = set[str]()
        self.earlier = set(self.responses)
        self.failures = reader.failures() if reader else {}
        self.per_query = self.pool.routes.calls + len(self.pool.all_models)
        self.summary = Summary(len(self.queries), len(self.queries) * self.per_query)
        self.progress.summary = self.summary
        self.outages: dict[str, generator.Outage] = {}
        self.lanes: dict[str, Lane] = {}
        self.lost: set[str] = set()
        self.seen: Counter[tuple[str, str]] = Counter()
        self.counting = Lock()
        self.part_rows = FIRST_PART

    def run(self, queries: Sequence[Query]) -> None:
        """Make every direct call and every node of the trees of these queries.

        Servers are asked side by side, and what follows an answer at once; models on this machine
        one after the other. Raises WorldError: a model failed, or was not to be reached.
        """
        contexts = plan.root_contexts(query.question for query in queries)
        with self._side_by_side(len(queries) * self.per_query, len(self.levels) - 1):
            self._follow(contexts, 0, self.direct)
            # The references first: they are the large ones, and called no more.
            for stage in sorted(self.direct, key=lambda stage: stage.model in self.pool.models):
                self._answer(stage, contexts)
                if stage.model in self.pool.references:
                    self.residency.release(stage.model.name)
            for level in range(len(self.levels)):
                contexts = self._go_on(level, contexts)
            self._settle(len(self.levels))
        self.require_models()

    def go_on(self, level: int, contexts: plan.Contexts) -> plan.Contexts:
        """Make the calls of one hop at these contexts; returns those after it."""
        with self._side_by_side(len(contexts) * len(self.levels[level]), level):
            self._follow(contexts, level)
            return self._go_on(level, contexts)

    def _go_on(self, level: int, contexts: plan.Contexts) -> plan.Contexts:
        stages = self.levels[level]
        for stage in sorted(stages, key=lambda stage: stage.model.name not in self.residency):
            self._answer(stage, contexts)
        self._settle(level)
        after = plan.next_contexts(stages, contexts, self.responses)
        self._follow(after, level + 1)
        return after

    @contextmanager
    def _side_by_side(self, most: int, last: int) -> Iterator[None]:
        """A lane for each model behind a server, until all that they answered is committed.

        `most`: of the calls; `last`: level of the contexts after which nothing is asked.
        """
        self.last, self.news = last, SimpleQueue[News]()
        self.followed, self.under_way = set[str](), set[str]()
        self.owed = Counter[int]()
        self.lanes = {
            model.name: Lane(model, self.residency.engines, self.stop, self.news, self._count)
            for model in self.pool.all_models
            if model.backend == OPENAI and model.name not in self.outages
        }
        started, seconds = perf_counter(), self.summary.seconds
        if self.lanes:
            self.progress.on_level(f"{len(self.lanes)} servers", most)
        try:
            yield
        finally:
            for lane in self.lanes.values():
                lane.end()
            for lane in self.lanes.values():
                self._commit_lane(lane)
            if self.lanes:
                self.summary.seconds = seconds + perf_counter() - started
            self.lanes = {}

    def _follow(
        self, contexts: plan.Contexts, level: int, direct: Sequence[plan.Stage] = ()
    ) -> None:
        """Ask the servers at these contexts, and at all that follow from answers that are there.

        `level`: of the contexts; `direct`: stages of direct calls at these contexts.
        """
        if not self.lanes or level > self.last:
            return
        for context, texts in contexts.items():
            if context in self.followed:
                continue
            self.followed.add(context)
            for stage in self.levels[level]:
                if (said := self._said(stage, context, texts, level)) is not None:
                    self._follow({next_context(context, said): (*texts, said)}, level + 1)
            for stage in direct:
                self._said(stage, context, texts, len(self.levels))

    def _said(
        self, stage: plan.Stage, context: str, texts: tuple[str, ...], level: int
    ) -> str | None:
        """What a model has answered there; None where it has not: if a server can, it is asked."""
        key, lane = call_key(stage.step, context), self.lanes.get(stage.model.name)
        if lane and key in self.earlier:
            self.earlier.discard(key)
            self.summary.earlier += 1
        if key in self.responses:
            return self.responses[key]
        settled = self.under_way, self.lost, self.pruned
        goes = lane and lane.model.name not in self.outages and not self.stop()
        if lane and goes and not any(key in at for at in settled):
            self.under_way.add(key)
            self.owed[level] += 1
            [call] = stage.calls({context: texts})
            lane.ask(Asked(call, level, texts))
        return None

    def _settle(self, level: int) -> None:
        """Wait for the servers, until what they owe at contexts up to this level is there.

        Once it is to stop, for all that is under way: nothing that is paid for is let go.
        """
        while any(count for at, count in self.owed.items() if at <= level or self.stop()):
            with suppress(Empty):
                self._take(*self.news.get(timeout=1.0))
            for lane in self.lanes.values():
                if self._is_due(lane.part, lane.began):
                    self._commit_lane(lane)
        self._require_going()

    def _take(self, lane: Lane, place: int, answer: generator.Answer | Exception | None) -> None:
        """What a lane has to tell."""
        if answer is None or isinstance(answer, Exception):  # it has ended
            if isinstance(answer, generator.Outage):
                self.outages[lane.model.name] = answer
            elif answer:
                with blaming(lane.model):
                    raise answer
            for asked in (*lane.open.values(), *lane.again):
                self.owed[asked.level] -= 1
            return
        asked = lane.open.pop(place)
        if isinstance(answer, generator.Response):
            lane.part.append((asked.call, answer))
            after = {next_context(asked.call.context, answer.text): (*asked.texts, answer.text)}
            self._follow(after, asked.level + 1)
            self.owed[asked.level] -= 1
        elif answer.is_retryable and asked.attempt < ATTEMPTS:
            lane.again.append(asked)
        else:
            lane.lost.append((asked, answer))
            self.owed[asked.level] -= 1
        if not lane.open and lane.again:
            # The second attempt comes after all the others: what was busy may be free by then.
            lane.ask_again()

    def _commit_lane(self, lane: Lane) -> None:
        """Write down what a lane has answered, and what it has not."""
        (part, lane.part), (lost, lane.lost) = (lane.part, []), (lane.lost, [])
        began, lane.began = lane.began, perf_counter()
        self._commit(lane.model, part, began)
        for attempt in sorted({asked.attempt for asked, _ in lost}):
            failed = [(asked.call, why) for asked, why in lost if asked.attempt == attempt]
            self._give_up(lane.model, failed, attempt)

    def _is_due(self, part: Sequence[Any], began: float) -> bool:
        """Whether a part is to be committed now."""
        return len(part) >= self.part_rows or perf_counter() - began > SECONDS_PER_PART

    def _require_going(self) -> None:
        """Raises Interrupted: it is to stop, and something is missing."""
        if not self.stop():
            return
        for lane in self.lanes.values():
            self._commit_lane(lane)
        self.count_missing()
        if self.summary.missing:
            raise Interrupted(
                f"interrupted: {self.summary.calls} calls committed; "
                "rerun the same command to resume"
            )

    def _count(self, model: ModelSpec, answer: generator.Response) -> None:
        """One more answer for those who look on; lanes call it, too, each in its thread."""
        rate, tokens_in, tokens_out = self.rates[model.name], answer.tokens_in, answer.tokens_out
        cost = rate.tokens_in * tokens_in + rate.tokens_out * tokens_out
        with self.counting:
            self.summary.spend(model.name, Spent(1, 0, tokens_in, tokens_out, cost))
            self.progress.on_calls(1, tokens_in + tokens_out, cost)

    def decide(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write down which calls are to be made, rows of `decisions`; the others are left out."""
        self.writer.append("decisions", pa.Table.from_pylist(rows, schema=DECISIONS_SCHEMA))
        for row in rows:
            (self.pruned.discard if row["made"] else self.pruned.add)(row["key"])

    def contexts(self, question: str, level: int) -> list[str | None]:
        """Of each node before a hop, in the order of the nodes; None where it is not there."""
        found: list[str | None] = [root_context(question)]
        for stages in self.levels[:level]:
            calls = [
                (where, where and call_key(at.step, where)) for where in found for at in stages
            ]
            found = [
                next_context(where, self.responses[key])
                if where and key in self.responses
                else None
                for where, key in calls
            ]
        return found

    def require_models(self) -> None:
        """Raises WorldError: a model was not to be reached."""
        for outage in self.outages.values():
            raise WorldError(
                f"{outage}; {self.summary.calls} calls committed, the same command makes the rest"
            )

    def _answer(self, stage: plan.Stage, contexts: plan.Contexts) -> None:
        """Make a stage's calls by a model on this machine."""
        if stage.model.backend == OPENAI or not (due := self._due(stage, contexts)):
            return
        self._require_going()
        if not self.lanes:
            self.progress.on_level(stage.label, len(due))
        self._ask_until_final(stage.model, due)

    def _due(self, stage: plan.Stage, contexts: plan.Contexts) -> list[plan.Call]:
        """What nobody has answered yet, in the order of the queries.

        Prompts that begin alike so are neighbours, which prefix caches like.
        """
        calls = list(stage.calls(contexts))
        found = self.earlier.intersection(call.key for call in calls)
        self.summary.earlier += len(found)
        self.earlier -= found
        settled = self.responses, self.lost, self.pruned
        return [call for call in calls if not any(call.key in keys for keys in settled)]

    def _ask_until_final(self, model: ModelSpec, due: list[plan.Call]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            # The second attempt comes after the whole level: what was busy may be free by then.
            failed = self._ask(model, due)
            lost = [item for item in failed if attempt == ATTEMPTS or not item[1].is_retryable]
            self._give_up(model, lost, attempt)
            if len(lost) == len(failed):
                return
            due = [call for call, failure in failed if failure.is_retryable]

    def _ask(
        self, model: ModelSpec, due: list[plan.Call]
    ) -> list[tuple[plan.Call, generator.Failure]]:
        """Make these calls and commit the answers; returns those that have none."""
        failed: list[tuple[plan.Call, generator.Failure]] = []
        with blaming(model):
            self.residency.generator(model)
        part: list[tuple[plan.Call, generator.Response]] = []
        started = perf_counter()  # now: loading is not the time of a call
        try:
            for call, answer in self._answers(model, due):
                if isinstance(answer, generator.Failure):
                    failed.append((call, answer))
                    continue
                part.append((call, answer))
                self._count(model, answer)
                if self._is_due(part, started):
                    full, part = part, []
                    began, started = started, perf_counter()
                    self._commit(model, full, began)
        finally:
            self._commit(model, part, started)
        self._require_going()
        return failed

    def _answers(
        self, model: ModelSpec, due: Sequence[plan.Call]
    ) -> Iterator[tuple[plan.Call, generator.Answer]]:
        """What the model says, as it comes; not held, so that the model can be let go."""
        with blaming(model):
            prompts = [call.prompt for call in due]
            for place, answer in self.residency.generator(model).generate(prompts, self.stop):
                yield due[place], answer

    def _commit(
        self, model: ModelSpec, part: Sequence[tuple[plan.Call, generator.Response]], started: float
    ) -> None:
        """Write these answers down: what an interruption does not take away."""
        if not part:
            return
        seconds = perf_counter() - started
        each = seconds / len(part)
        rows = [plan.call_row(model.name, call, answer, each) for call, answer in part]
        self.writer.append("calls", pa.Table.from_pylist(rows, schema=CALLS_SCHEMA))
        self.part_rows = min(2 * self.part_rows, LARGEST_PART)
        self.responses.update((call.key, answer.text) for call, answer in part)
        self._look_at(model.name, [answer for _, answer in part])
        self.summary.calls += len(part)
        self.summary.tokens_in += sum(answer.tokens_in for _, answer in part)
        self.summary.tokens_out += sum(answer.tokens_out for _, answer in part)
        self.summary.seconds += seconds

    def _look_at(self, name: str, answers: Sequence[generator.Response]) -> None:
        """Say at once, and once for each model, that its answers are not as they should be."""
        seen = self.seen
        seen[name, "all"] += len(answers)
        for what, is_so, remedy in REMARKABLE:
            seen[name, what] += sum(map(is_so, answers))
            share = seen[name, what] / seen[name, "all"]
            if seen[name, "all"] >= ENOUGH and share >= ODD and not seen[name, f"said {what}"]:
                seen[name, f"said {what}"] += 1
                logging.getLogger(__name__).warning(
                    "%.0f%% of the answers of %s are %s; %s", *(100 * share, name, what, remedy)
                )

    def _give_up(
        self, model: ModelSpec, failed: list[tuple[plan.Call, generator.Failure]], attempts: int
    ) -> None:
        """Write down what has failed for good, so that nobody takes it for not yet asked."""
        if not failed:
            return
        news = [item for item in failed if self.failures.get(item[0].key) != item[1].status]
        if news:
            self.writer.append("failures", plan.failures_table(model.name, news, attempts))
        self.summary.failed.update(failure.status for _, failure in failed)
        self.summary.spend(model.name, Spent(failed=len(failed)))
        self.summary.example = self.summary.example or f"{model.name}: {failed[0][1].detail}"
        self.lost.update(call.key for call, _ in failed)
        self.progress.on_lost(len(failed))

    def count_missing(self) -> None:
        """How much of the trees is not there because a call failed, and how much was left out."""
        depth, told = len(self.levels), self.summary
        told.missing = told.incomplete = told.pruned = 0
        for query in self.queries:
            contexts, gone = [root_context(query.question)], Counter[bool]()
            direct = [call_key(stage.step, contexts[0]) for stage in self.direct]
            gone.update(key in self.pruned for key in direct if key not in self.responses)
            for level, stages in enumerate(self.levels):
                below = sum(len(stages) ** hop for hop in range(depth - level))
                calls = [(call_key(at.step, where), where) for where in contexts for at in stages]
                contexts = []
                for key, where in calls:
                    if key in self.responses:
                        contexts.append(next_context(where, self.responses[key]))
                    else:
                        gone[key in self.pruned] += below
            told.missing += gone[False]
            told.incomplete += gone[False] > 0
            told.pruned += gone[True]


REMARKABLE: tuple[tuple[str, Callable[[generator.Response], bool], str], ...] = (
    ("empty", lambda answer: not answer.text, "look at its settings and template"),
    ("cut at the cap", lambda answer: answer.finish_reason == "length", "look at its settings"),
    (
        "without log-probabilities",
        lambda answer: answer.confidence is None,
        "no router can see how sure it is",
    ),
)


@contextmanager
def blaming(model: ModelSpec) -> Iterator[None]:
    """What an engine raises, with the name of the model."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"model {model.name} failed: {model.model}: {reason}; "
            "what was committed is safe, rerun the same command to resume"
        ) from error

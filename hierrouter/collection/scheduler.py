"""Walk the tree level by level and make the calls that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from hierrouter.collection.plan import (
    Call,
    Contexts,
    Stage,
    calls_of,
    calls_table,
    changed_queries,
    direct_stages,
    failures_table,
    hop_stages,
    next_contexts,
    responses_to,
    root_contexts,
    store_plan,
)
from hierrouter.collection.progress import Progress, Summary
from hierrouter.collection.shards import Shard, held, require_alike, starting
from hierrouter.engines import backend, identify
from hierrouter.engines.generator import (
    Answer,
    Engines,
    Failure,
    Outage,
    Residency,
    Response,
    Stop,
    never,
)
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.errors import Interrupted, WorldError, reason_of
from hierrouter_cache.keys import next_context, root_context
from hierrouter_cache.mirror import finish_pull
from hierrouter_cache.reader import StoredPlan, reader_of
from hierrouter_cache.tree import Rate
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import OnPart, PartWriter, no_copy, sweep_drafts

# A part is small enough that an interruption costs little, large enough that reading stays fast.
FIRST_PART = 32  # rows; each part may have twice as many as the one before
LARGEST_PART = 2048
SECONDS_PER_PART = 20.0
ATTEMPTS = 3


@dataclass
class _Part:
    """Answers that are not written down yet."""

    rows: list[tuple[Call, Response]] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.started


@dataclass
class Collection:
    """A collection under way: the pool's models, what is committed, and where to write.

    Use `collect()`; the class keeps together what its steps share.
    """

    pool: Pool
    queries: Sequence[Query]
    spec: TreeSpec
    writer: PartWriter
    responses: dict[str, str]
    progress: Progress
    summary: Summary
    earlier: set[str]
    failures: Mapping[str, str]
    stop: Stop
    residency: Residency
    rates: Mapping[str, Rate]
    outages: dict[str, Outage] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    part_rows: int = FIRST_PART

    def run(self) -> None:
        """Make every direct call and every node of every tree."""
        contexts = root_contexts(query.question for query in self.queries)
        # The references first: they are the large ones, and called no more.
        direct = direct_stages(self.pool, self.spec)
        for stage in sorted(direct, key=lambda stage: stage.model in self.pool.models):
            self._answer(stage, contexts)
            if stage.model in self.pool.references:
                self.residency.release(stage.model.name)
        for level in range(self.pool.hops):
            stages = hop_stages(self.pool, self.spec, level)
            for stage in sorted(stages, key=lambda stage: stage.model.name not in self.residency):
                self._answer(stage, contexts)
            contexts = next_contexts(stages, contexts, self.responses)
        for outage in self.outages.values():
            raise WorldError(
                f"{outage}; {self.summary.calls} calls committed, the same command makes the rest"
            )

    def _answer(self, stage: Stage, contexts: Contexts) -> None:
        due = self._due(stage, contexts)
        if not due or stage.model.name in self.outages:
            return
        self.progress.on_level(stage.label, len(due))
        try:
            self._ask_until_final(stage.model, due)
        except Outage as error:
            self.outages[stage.model.name] = error
            self.residency.release_served()  # the same server is not waited for again

    def _ask_until_final(self, model: ModelSpec, due: list[Call]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            # The second attempt comes after the whole level: what was busy may be free by then.
            failed = self._ask(model, due)
            lost = [item for item in failed if attempt == ATTEMPTS or not item[1].may_pass]
            self._give_up(model, lost, attempt)
            if len(lost) == len(failed):
                return
            due = [call for call, failure in failed if failure.may_pass]

    def _due(self, stage: Stage, contexts: Contexts) -> list[Call]:
        """What nobody has answered yet, in the order of the queries.

        Prompts that begin alike so are neighbours, which prefix caches like.
        """
        calls = list(calls_of(stage, contexts))
        found = self.earlier.intersection(call.key for call in calls)
        self.summary.earlier += len(found)
        self.earlier -= found
        return [
            call for call in calls if call.key not in self.responses and call.key not in self.lost
        ]

    def _ask(self, model: ModelSpec, due: list[Call]) -> list[tuple[Call, Failure]]:
        """Make these calls and commit the answers; returns those that have none."""
        failed: list[tuple[Call, Failure]] = []
        with _blaming(model):
            self.residency.generator(model)
        part = _Part()  # begins now: loading is not the time of a call
        try:
            for call, answer in self._answers(model, due):
                if isinstance(answer, Failure):
                    failed.append((call, answer))
                    continue
                part.rows.append((call, answer))
                self._tell(model, answer)
                if len(part.rows) >= self.part_rows or part.seconds > SECONDS_PER_PART:
                    done, part = part, _Part()
                    self._commit(model, done)
        finally:
            self._commit(model, part)
        if self.stop():
            raise Interrupted(
                f"interrupted: {self.summary.calls} calls committed; "
                "rerun the same command to resume"
            )
        return failed

    def _answers(self, model: ModelSpec, due: Sequence[Call]) -> Iterator[tuple[Call, Answer]]:
        """What the model says, as it comes; not held, so that the model can be let go."""
        with _blaming(model):
            prompts = [call.prompt for call in due]
            for place, answer in self.residency.generator(model).generate(prompts, self.stop):
                yield due[place], answer

    def _tell(self, model: ModelSpec, answer: Response) -> None:
        rate = self.rates[model.name]
        tokens_in, tokens_out = answer.tokens_in, answer.tokens_out
        cost = rate.tokens_in * tokens_in + rate.tokens_out * tokens_out
        self.progress.on_calls(1, tokens_in + tokens_out, cost)

    def _commit(self, model: ModelSpec, part: _Part) -> None:
        """Write these answers down: what an interruption does not take away."""
        if not part.rows:
            return
        seconds = part.seconds
        self.writer.append("calls", calls_table(model.name, part.rows, seconds / len(part.rows)))
        self.part_rows = min(2 * self.part_rows, LARGEST_PART)
        for call, answer in part.rows:
            self.responses[call.key] = answer.text
        self.summary.calls += len(part.rows)
        self.summary.tokens_in += sum(answer.tokens_in for _, answer in part.rows)
        self.summary.tokens_out += sum(answer.tokens_out for _, answer in part.rows)
        self.summary.seconds += seconds

    def _give_up(self, model: ModelSpec, failed: list[tuple[Call, Failure]], attempts: int) -> None:
        """Write down what has failed for good, so that nobody takes it for not yet asked."""
        if not failed:
            return
        news = [item for item in failed if self.failures.get(item[0].key) != item[1].status]
        if news:
            self.writer.append("failures", failures_table(model.name, news, attempts))
        self.summary.failed.update(failure.status for _, failure in failed)
        self.summary.example = self.summary.example or f"{model.name}: {failed[0][1].detail}"
        self.lost.update(call.key for call, _ in failed)
        self.progress.on_lost(len(failed))

    def count_missing(self) -> None:
        """How much of the trees is not there because a call failed."""
        for query in self.queries:
            missing = self.summary.wanted // len(self.queries) - self._reached(query)
            self.summary.missing += missing
            self.summary.incomplete += missing > 0

    def _reached(self, query: Query) -> int:
        """How many of the query's nodes and direct calls have an answer."""
        root = root_context(query.question)
        count = len(responses_to(direct_stages(self.pool, self.spec), root, self.responses))
        contexts = [root]
        for level in range(self.pool.hops):
            stages = hop_stages(self.pool, self.spec, level)
            contexts = [
                next_context(context, response)
                for context in contexts
                for response in responses_to(stages, context, self.responses)
            ]
            count += len(contexts)
        return count


@contextmanager
def _blaming(model: ModelSpec) -> Iterator[None]:
    """What an engine raises, with the name of the model."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"model {model.name} failed: {model.model}: {reason}; "
            "what was committed is safe, rerun the same command to resume"
        ) from error


def collect(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    progress: Progress | None = None,
    stop: Stop = never,
    engines: Engines = backend,
    *,
    shard: Shard | None = None,
    on_part: OnPart = no_copy,
) -> Summary:
    """Run every missing call of the trees of `queries` and commit it.

    A call that gives no answer ends nothing: see `Summary.failed` and `require_answers`.

    Args:
        pool: the models, hops and stage instructions.
        queries: what to ask.
        root: the cache's folder, made where it does not exist.
        progress: told of each level and each answer.
        stop: asked again and again; once true, what has begun is finished and committed, and the
            collection ends there.
        engines: the backend of a name.
        shard: make the calls of this share of the queries only, beside other shards.
        on_part: told each part after its commit, to copy it elsewhere.

    Raises:
        Interrupted: `stop` said so; everything up to here is committed.
        CacheLocked: another collector is at work there.
        CacheError: the cache cannot be written or is damaged.
        WorldError: a model or the disk failed; what was committed is safe.
        InputError: other shards at work there have another plan.
    """
    identities = identify(pool.everyone, engines)
    plan = StoredPlan(pool.to_json(identities), tuple(query.key for query in queries))
    progress = progress or Progress()
    writer = PartWriter(root, on_part=on_part)
    ours = shard.own(queries) if shard else queries
    with held(root, shard):
        sweep_drafts(root)
        finish_pull(root)
        with starting(root, shard):
            reader = reader_of(root)
            require_alike(reader, plan, shard)
            if reader and (changed := changed_queries(reader, queries)):
                progress.on_changed(changed)
            store_plan(writer, reader, pool, identities, queries)
        responses = reader.responses() if reader else {}
        collection = Collection(
            pool=pool,
            queries=ours,
            spec=pool.tree_spec(identities),
            writer=writer,
            responses=responses,
            progress=progress,
            summary=Summary(len(ours), len(ours) * (pool.routes.calls + len(pool.everyone))),
            earlier=set(responses),
            failures=reader.failures() if reader else {},
            stop=stop,
            residency=Residency(engines),
            rates=pool.rates(),
        )
        collection.run()
        if collection.summary.failed:
            collection.count_missing()
    return collection.summary

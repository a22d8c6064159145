"""Walk the tree level by level, asking only for calls that are missing.

In: a pool, queries, a cache folder. Out: committed calls, scores and the plan. All prompts of a
level are known once the level above is there, so each model answers them in a few large batches.
Calls are content-addressed: two nodes that show a model the same text are one call, and a rerun
after any interruption asks for nothing twice. Not covered: embeddings (`embed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import pyarrow as pa

from hierrouter.collect.backends import Generator, Response, backend
from hierrouter.collect.prompts import prompt_text
from hierrouter.pool import Identity, ModelSpec, Pool
from hierrouter.query import Query
from hierrouter.scoring import SCORERS
from hierrouter_cache.errors import Interrupted, NoCache, WorldError
from hierrouter_cache.fingerprint import (
    call_key,
    digest,
    next_context,
    references_key,
    root_context,
)
from hierrouter_cache.reader import CacheReader, StoredPlan, TreeSpec
from hierrouter_cache.schema import CALLS, PLANS, QUERIES, SCORES
from hierrouter_cache.writer import PartWriter, collector_lock, sweep_drafts

# A part is small enough that an interruption costs little, large enough that reading stays fast.
FIRST_PART = 32
LARGEST_PART = 2048
SECONDS_PER_PART = 20.0


@dataclass(frozen=True)
class Call:
    """One distinct call that is due."""

    key: str
    step: str
    context: str
    prompt: str


@dataclass
class Progress:
    """What a collection reports while it runs; the default ignores it all."""

    on_level: Callable[[str, int], None] = lambda label, calls: None
    on_calls: Callable[[int, int], None] = lambda calls, tokens: None


@dataclass
class Summary:
    """What a collection did.

    Attributes:
        queries: queries in the plan.
        wanted: nodes and direct calls of all their trees.
        calls: model calls made now.
        earlier: distinct calls that were in the cache before; the rest of `wanted` are nodes whose
            prompt is that of another node.
        tokens_in, tokens_out: of the calls made now.
        seconds: wall time in the models.
    """

    queries: int
    wanted: int
    calls: int = 0
    earlier: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0


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
    stop: Callable[[], bool]
    loaded: dict[str, Generator] = field(default_factory=dict)
    part_size: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Make every direct call and every node of every tree."""
        contexts: dict[str, tuple[str, ...]] = {
            root_context(query.question): (query.question,) for query in self.queries
        }
        for model, (_, step, _) in zip(self.pool.everyone, self.spec.direct, strict=True):
            self._answer(f"direct {model.name}", model, step, contexts, "")
            if model in self.pool.references:
                self.loaded.pop(model.name, None)  # called no more; these are the large ones
        for level in range(self.pool.hops):
            instruction = self.pool.instruction(level)
            for action, model in enumerate(self.pool.models):
                step = self.spec.steps[level][action]
                self._answer(f"hop {level + 1} {model.name}", model, step, contexts, instruction)
            contexts = self._next_level(level, contexts)

    def _answer(
        self,
        label: str,
        model: ModelSpec,
        step: str,
        contexts: Mapping[str, tuple[str, ...]],
        instruction: str,
    ) -> None:
        due = []
        for context, (question, *said) in contexts.items():
            key = call_key(step, context)
            if key in self.earlier:
                self.summary.earlier += 1
                self.earlier.remove(key)
            if key not in self.responses:
                due.append(Call(key, step, context, prompt_text(question, said, instruction)))
        if not due:
            return
        self.progress.on_level(label, len(due))
        generator = self._generator(model)
        # Neighbours in length share a batch; the longest come first, so memory runs out early.
        due.sort(key=lambda call: len(call.prompt), reverse=True)
        while due:
            size = self.part_size.get(model.name, FIRST_PART)
            part, due = due[:size], due[size:]
            seconds = self._commit(model, part, generator)
            fitting = round(len(part) * SECONDS_PER_PART / max(seconds, 1e-3))
            self.part_size[model.name] = min(LARGEST_PART, max(1, fitting))
            if self.stop():
                raise Interrupted(
                    f"interrupted: {self.summary.calls} nodes committed; "
                    "rerun the same command to resume"
                )

    def _commit(self, model: ModelSpec, calls: list[Call], generator: Generator) -> float:
        started = perf_counter()
        try:
            answers = generator.generate([call.prompt for call in calls])
        except (RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0][:120] or type(error).__name__
            raise WorldError(
                f"model {model.name} failed: {model.model}: {reason}; "
                "what was committed is safe, rerun the same command to resume"
            ) from error
        seconds = perf_counter() - started
        self.writer.append("calls", _calls_table(model, calls, answers, seconds))
        for call, answer in zip(calls, answers, strict=True):
            self.responses[call.key] = answer.text
        tokens_in = sum(answer.tokens_in for answer in answers)
        tokens_out = sum(answer.tokens_out for answer in answers)
        self.summary.calls += len(calls)
        self.summary.tokens_in += tokens_in
        self.summary.tokens_out += tokens_out
        self.summary.seconds += seconds
        self.progress.on_calls(len(calls), tokens_in + tokens_out)
        return seconds

    def _generator(self, model: ModelSpec) -> Generator:
        if model.name not in self.loaded:
            self.loaded[model.name] = backend(model.backend).load(model)
        return self.loaded[model.name]

    def _next_level(
        self, level: int, contexts: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        following = {}
        for context, said in contexts.items():
            for step in self.spec.steps[level]:
                response = self.responses[call_key(step, context)]
                following[next_context(context, response)] = (*said, response)
        return following

    def score(self, known: set[tuple[str, str, str]]) -> None:
        """Score every node and direct call that has no score yet; no model is called."""
        rows = []
        for query in self.queries:
            references = references_key(query.answers)
            for key in set(self._calls_of(query)):
                for name, scorer in SCORERS.items():
                    if (key, references, name) not in known:
                        value = scorer(self.responses[key], query.answers)
                        rows.append((key, references, name, value))
                        known.add((key, references, name))
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            self.writer.append("scores", pa.table(columns, schema=SCORES))

    def _calls_of(self, query: Query) -> Iterator[str]:
        contexts = [root_context(query.question)]
        for _, step, _ in self.spec.direct:
            yield call_key(step, contexts[0])
        for steps in self.spec.steps:
            keys = [call_key(step, context) for context in contexts for step in steps]
            yield from keys
            parents = [context for context in contexts for _ in steps]
            contexts = [
                next_context(parent, self.responses[key])
                for parent, key in zip(parents, keys, strict=True)
            ]


def collect(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Run every missing call of the trees of `queries` and commit it.

    Args:
        pool: the models, hops and stage instructions.
        queries: what to ask.
        root: the cache's folder, made where it does not exist.
        progress: told of each level and each committed part.
        stop: asked after each committed part; true ends the collection there.

    Raises:
        Interrupted: `stop` said so; everything up to here is committed.
        CacheLocked: another collector is at work there.
        CacheError: the cache cannot be written or is damaged.
        WorldError: a model or the disk failed; what was committed is safe.
    """
    identities = identify(pool)
    spec = pool.tree_spec(identities)
    writer = PartWriter(root)
    with collector_lock(root):
        sweep_drafts(root)
        try:
            reader = CacheReader(root)
            responses, scored = reader.responses(), reader.scored()
        except NoCache:
            reader, responses, scored = None, {}, set()
        _store_plan(writer, reader, pool, identities, queries)
        collection = Collection(
            pool=pool,
            queries=queries,
            spec=spec,
            writer=writer,
            responses=responses,
            progress=progress or Progress(),
            summary=Summary(len(queries), len(queries) * (pool.routes.calls + len(pool.everyone))),
            earlier=set(responses),
            stop=stop,
        )
        collection.run()
        collection.score(scored)
    return collection.summary


def identify(pool: Pool) -> dict[str, Identity]:
    """What every model of the pool resolves to, by name; loads none of them.

    Raises:
        InputError: a local folder that is not there.
        WorldError: a hub model that cannot be found.
    """
    return {model.name: backend(model.backend).identify(model) for model in pool.everyone}


def _store_plan(
    writer: PartWriter,
    reader: CacheReader | None,
    pool: Pool,
    identities: Mapping[str, Identity],
    queries: Sequence[Query],
) -> None:
    """Write the queries that are not there, then the plan, unless the last plan is the same."""
    keys = [query.key for query in queries]
    text = pool.to_json(identities)
    stored = reader.query_keys() if reader else set()
    missing = [query for query in queries if query.key not in stored]
    if missing:
        writer.append("queries", _queries_table(missing))
    if not (
        reader and reader.has("plans") and reader.latest_plan() == StoredPlan(text, tuple(keys))
    ):
        plan = digest(["plan", text, keys])
        writer.append("plans", pa.table([[plan], [text], [keys]], schema=PLANS))


def _queries_table(queries: Sequence[Query]) -> pa.Table:
    rows = [
        {
            "query": query.key,
            "context": root_context(query.question),
            "references": references_key(query.answers),
            "id": query.id,
            "dataset": query.dataset,
            "split": query.split,
            "question": query.question,
            "answers": list(query.answers),
        }
        for query in queries
    ]
    return pa.Table.from_pylist(rows, schema=QUERIES)


def _calls_table(
    model: ModelSpec, calls: Sequence[Call], answers: Sequence[Response], seconds: float
) -> pa.Table:
    rows = [
        {
            "key": call.key,
            "step": call.step,
            "context": call.context,
            "outcome": next_context(call.context, answer.text),
            "model": model.name,
            "prompt": call.prompt,
            "response": answer.text,
            "tokens_in": answer.tokens_in,
            "tokens_out": answer.tokens_out,
            "finish_reason": answer.finish_reason,
            "latency_s": seconds / len(calls),
        }
        for call, answer in zip(calls, answers, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=CALLS)

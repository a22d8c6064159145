"""What a collection is asked for: calls, the stages that make them, shares of them, and the plan.

The plan is the pool and the queries, as the cache keeps them. Contexts name what a call is asked
after: the question and the responses so far.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hierrouter.engines.generator import Failure, Response, prompt_text
from hierrouter.pools.files import stored_pool
from hierrouter.pools.pool import Identity, ModelSpec, Pool
from hierrouter.questions.query import Query, stored_choices
from hierrouter_cache.errors import CacheError, InputError
from hierrouter_cache.keys import call_key, next_context, plan_key, root_context
from hierrouter_cache.locks import shards_at_work
from hierrouter_cache.parts import FAILURES_SCHEMA, PLANS_SCHEMA, QUERIES_SCHEMA
from hierrouter_cache.reader import CacheReader, StoredPlan, reader_of
from hierrouter_cache.walk import TreeSpec, walk
from hierrouter_cache.writer import PartWriter

# The question and the responses so far, by the key of the context.
Contexts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Call:
    """One distinct call that is due.

    Attributes:
        key: names the call, see `hierrouter_cache.keys.call_key`.
        step: names model, settings and instruction.
        context: names the question and the responses before the call.
    """

    key: str
    step: str
    context: str
    prompt: str


@dataclass(frozen=True)
class Stage:
    """One model at one level.

    Attributes:
        label: how people call it, e.g. `hop 1 calc`.
        step: names model, settings and instruction.
        instruction: what stands below the context in the prompt.
    """

    label: str
    model: ModelSpec
    step: str
    instruction: str

    def calls(self, contexts: Contexts) -> Iterator[Call]:
        """The stage's call at each context, in the order of the contexts."""
        for context, (question, *responses) in contexts.items():
            yield Call(
                key=call_key(self.step, context),
                step=self.step,
                context=context,
                prompt=prompt_text(question, responses, self.instruction),
            )


def stages_of(pool: Pool, spec: TreeSpec) -> tuple[list[Stage], list[list[Stage]]]:
    """(direct calls of every model and reference, the pool's models at each level of the tree)."""
    direct = [
        Stage(f"direct {model.name}", model, step, "")
        for model, (_, step) in zip(pool.all_models, spec.direct, strict=True)
    ]
    levels = [
        [
            Stage(f"hop {level + 1} {model.name}", model, step, pool.instruction(level))
            for model, step in zip(pool.models, steps, strict=True)
        ]
        for level, steps in enumerate(spec.steps)
    ]
    return direct, levels


def root_contexts(questions: Iterable[str]) -> Contexts:
    """The contexts before the first hop; equal questions are one."""
    return {root_context(question): (question,) for question in questions}


def next_contexts(
    stages: Sequence[Stage], contexts: Contexts, responses: Mapping[str, str]
) -> Contexts:
    """The contexts after one more hop, as far as these calls are answered.

    `stages`: those of the level; `contexts`: before the hop; `responses`: of every answered call,
    by its key.
    """
    return {
        next_context(context, responses[key]): (*texts, responses[key])
        for context, texts in contexts.items()
        for stage in stages
        if (key := call_key(stage.step, context)) in responses
    }


def call_row(model: str, call: Call, answer: Response, seconds: float | None) -> dict[str, Any]:
    """One row of `calls`; `seconds` is what it took, None where nobody knows."""
    sure = answer.confidence
    return {
        **vars(call),
        "outcome": next_context(call.context, answer.text),
        "model": model,
        "response": answer.text,
        "tokens_in": answer.tokens_in,
        "tokens_out": answer.tokens_out,
        "finish_reason": answer.finish_reason,
        "latency_s": seconds,
        "logprob_sum": sure and sure.total,
        "logprob_min": sure and sure.lowest,
        "logprob_tokens": sure and sure.tokens,
    }


def failures_table(model: str, failed: Sequence[tuple[Call, Failure]], attempts: int) -> pa.Table:
    """Rows of `failures`, after so many attempts at each."""
    rows = [
        {**vars(call), "model": model, **vars(failure), "attempts": attempts}
        for call, failure in failed
    ]
    return pa.Table.from_pylist(rows, schema=FAILURES_SCHEMA)


def _queries_table(queries: Sequence[Query]) -> pa.Table:
    rows = [
        {
            "query": query.key,
            "context": root_context(query.question),
            "references": query.references,
            "id": query.id,
            "dataset": query.dataset,
            "split": query.split,
            "question": query.question,
            "answers": list(query.answers),
            "choices": [{"label": label, "text": text} for label, text in query.choices] or None,
        }
        for query in queries
    ]
    return pa.Table.from_pylist(rows, schema=QUERIES_SCHEMA)


QUERIES_A_PART = 131_072  # a part that is too large is refused


def store_plan(
    writer: PartWriter,
    reader: CacheReader | None,
    pool: Pool,
    identities: Mapping[str, Identity],
    queries: Sequence[Query],
) -> bool:
    """Write the queries that are not there, then the plan, unless the last plan is the same.

    Returns whether there is now another latest plan.
    """
    keys = [query.key for query in queries]
    text = pool.to_json(identities)
    stored = reader.query_keys() if reader else set()
    missing = [query for query, key in zip(queries, keys, strict=True) if key not in stored]
    for start in range(0, len(missing), QUERIES_A_PART):
        writer.append("queries", _queries_table(missing[start : start + QUERIES_A_PART]))
    if is_latest(reader, StoredPlan(text, tuple(keys))):
        return False
    writer.append("plans", pa.table([[plan_key(text, keys)], [text], [keys]], schema=PLANS_SCHEMA))
    return True


def is_latest(reader: CacheReader | None, plan: StoredPlan) -> bool:
    """Whether this is what the cache was asked for last."""
    try:
        return reader is not None and reader.latest_plan() == plan
    except CacheError:  # there is none, or the last one was moved aside
        return False


def last_plan(root: Path) -> tuple[Pool, tuple[Query, ...]] | None:
    """(pool, queries) that the cache at `root` was collected for last; None where no cache is.

    Raises CacheError: the cache is damaged, or holds no plan; InputError: the plan was imported:
    nobody can call its models.
    """
    reader = reader_of(root)
    if reader is None:
        return None
    stored = reader.latest_plan()
    pool = stored_pool(stored.pool, f"the last plan of {root}")[0]
    if pool.imported:
        raise InputError(
            f"what {root} holds was imported, and its models cannot be called; "
            "name --datasets and --pool to collect something else into it"
        )
    return pool, stored_queries(reader, stored.queries)


def stored_queries(reader: CacheReader, keys: Sequence[str]) -> tuple[Query, ...]:
    """The queries with these keys, in this order; raises CacheError: some are not there."""
    columns = ("id", "dataset", "question", "answers", "split", "choices")
    rows = reader.queries(keys, columns).to_pylist()
    for row in rows:
        row |= {"answers": tuple(row["answers"]), "choices": stored_choices(row["choices"])}
    return tuple(Query(**row) for row in rows)


def changed_queries(reader: CacheReader, queries: Sequence[Query]) -> list[str]:
    """The queries that are in the cache, but never with this text and these answers."""
    rows = reader.sql("SELECT dataset, id, context, answers FROM queries").to_pylist()
    stored: dict[tuple[str, str], set[tuple[str, tuple[str, ...]]]] = {}
    for row in rows:
        content = row["context"], tuple(row["answers"])
        stored.setdefault((row["dataset"], row["id"]), set()).add(content)
    return [
        f"{query.dataset}/{query.id}"
        for query in queries
        if (contents := stored.get((query.dataset, query.id)))
        and (root_context(query.question), query.answers) not in contents
    ]


@dataclass(frozen=True)
class Shard:
    """One of `count` equal shares of a plan's questions; `index` is 1 to `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def own(self, queries: Sequence[Query]) -> list[Query]:
        """The queries of this shard, in order; equal questions are in the same one."""
        contexts = [root_context(query.question) for query in queries]
        shards = _shards(contexts, self.count)
        return [
            query
            for query, context in zip(queries, contexts, strict=True)
            if shards[context] == self
        ]


def _shards(contexts: Sequence[str], count: int) -> dict[str, Shard]:
    """The shard of each distinct root context: dealt out in the order of the digests."""
    return {
        context: Shard(place % count + 1, count)
        for place, context in enumerate(sorted(set(contexts)))
    }


def parse_shard(text: str) -> Shard:
    """`i/n` as a shard; raises InputError: it is not a share like 2/8."""
    index, _, count = text.partition("/")
    if not (
        index.isdecimal() and count.isdecimal() and len(count) < 6 and 1 <= int(index) <= int(count)
    ):
        raise InputError(
            f"not a shard: --shard {text:.40}; i/n with i from 1 to n below 100,000, e.g. 1/4"
        )
    return Shard(int(index), int(count))


def require_alike(reader: CacheReader | None, plan: StoredPlan, shard: Shard) -> None:
    """Refuse a shard whose answers would not stand in the same tree as those of the others.

    That is a shard with other queries or models, and one on a machine whose versions or kind of
    device give its models another identity. What changes no answer may differ, such as prices and
    timeouts. Raises InputError: other shards are at work, for another plan than `plan`.
    """
    if reader is None or not reader.has("plans"):
        return
    if not set(shards_at_work(reader.root)) - {(shard.index, shard.count)}:
        return
    latest = reader.latest_plan()
    same_models = _spec(latest) == _spec(plan)
    if not same_models or latest.queries != plan.queries:
        what = "queries" if same_models else "models"
        raise InputError(
            f"shard {shard} has other {what} than the shards at work: {reader.root}; use the same "
            "flags, versions and kind of device for all shards, or wait until they are done"
        )


def _spec(plan: StoredPlan) -> TreeSpec:
    """What decides the keys of a plan's calls, besides its questions."""
    pool, identities = stored_pool(plan.pool, "the last plan")
    return pool.tree_spec(identities)


@dataclass(frozen=True)
class Standing:
    """How far the shards of the last plan are.

    Attributes:
        complete: the shards whose trees lack nothing.
        wanted: nodes and direct calls of all trees.
    """

    complete: tuple[Shard, ...]
    found: int
    wanted: int


def standing(root: Path, count: int) -> Standing:
    """What `count` shards have done of the plan that was collected for last.

    Raises CacheError: nothing there, or damaged.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    forest = walk(reader, _spec(plan), plan.queries)
    contexts = reader.queries(plan.queries, ("context",))["context"].to_pylist()
    shards = _shards(contexts, count)
    lacking = {shards[contexts[row]] for row in np.flatnonzero(~forest.complete)}
    everyone = (Shard(index, count) for index in range(1, count + 1))
    nodes, direct = forest.tree.present[:, 1:], forest.direct.present
    return Standing(
        complete=tuple(shard for shard in everyone if shard not in lacking),
        found=int(np.count_nonzero(nodes) + np.count_nonzero(direct)),
        wanted=nodes.size + direct.size,
    )

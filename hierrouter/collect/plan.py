"""The plan: what a collection is asked for.

In: a cache, a pool, queries. Out: the plan and its queries as committed parts, and which queries
are no longer what they were. Not covered: making the calls (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.collect.backends import IMPORTED
from hierrouter.collect.rows import queries_table
from hierrouter.pool import Identity, Pool, keys_sent
from hierrouter.pool_file import stored_pool
from hierrouter.query import Query, stored_choices
from hierrouter_cache.errors import CacheError, InputError
from hierrouter_cache.fingerprint import plan_key, root_context
from hierrouter_cache.reader import CacheReader, StoredPlan, reader_of
from hierrouter_cache.schema import PLANS
from hierrouter_cache.writer import PartWriter

QUERIES_A_PART = 131_072  # a part that is too large is refused


@dataclass(frozen=True)
class Plan:
    """The pool and the queries of one collection."""

    pool: Pool
    queries: tuple[Query, ...]


def planned(root: Path) -> Plan | None:
    """What the cache at `root` was collected for last, or None where there is no cache.

    Raises:
        CacheError: the cache is damaged, or holds no plan.
        InputError: the plan was imported: nobody can call its models.
    """
    reader = reader_of(root)
    if reader is None:
        return None
    stored = reader.latest_plan()
    pool = stored_pool(stored.pool, f"the last plan of {root}")[0]
    if any(model.backend == IMPORTED for model in pool.everyone):
        raise InputError(
            f"what {root} holds was imported, and its models cannot be called; "
            "name --datasets and --pool to collect something else into it"
        )
    return Plan(pool, stored_queries(reader, stored.queries))


def refuse_stored_keys(pool: Pool, root: Path) -> None:
    """A plan may come from others, see `keys_sent`.

    Raises:
        InputError: a model of the pool wants a key from the environment.
    """
    for name, address in keys_sent(pool.everyone):
        raise InputError(
            f"the stored plan would send {name} to {address}: {root}; "
            f"name --pool, or say --api-key-env {name}"
        )


def stored_queries(reader: CacheReader, keys: Sequence[str]) -> tuple[Query, ...]:
    """The queries with these keys, in this order.

    Raises:
        CacheError: some are not there.
    """
    columns = ("id", "dataset", "question", "answers", "split", "choices")
    return tuple(_stored_query(row) for row in reader.queries(keys, columns).to_pylist())


def _stored_query(row: dict[str, Any]) -> Query:
    return Query(
        id=row["id"],
        dataset=row["dataset"],
        question=row["question"],
        answers=tuple(row["answers"]),
        split=row["split"],
        choices=stored_choices(row["choices"]),
    )


def store_plan(
    writer: PartWriter,
    reader: CacheReader | None,
    pool: Pool,
    identities: Mapping[str, Identity],
    queries: Sequence[Query],
) -> bool:
    """Write the queries that are not there, then the plan, unless the last plan is the same.

    Returns:
        Whether there is now another latest plan.
    """
    keys = [query.key for query in queries]
    text = pool.to_json(identities)
    stored = reader.query_keys() if reader else set()
    missing = [query for query, key in zip(queries, keys, strict=True) if key not in stored]
    for start in range(0, len(missing), QUERIES_A_PART):
        writer.append("queries", queries_table(missing[start : start + QUERIES_A_PART]))
    if reader and is_latest(reader, StoredPlan(text, tuple(keys))):
        return False
    writer.append("plans", pa.table([[plan_key(text, keys)], [text], [keys]], schema=PLANS))
    return True


def is_latest(reader: CacheReader, plan: StoredPlan) -> bool:
    """Whether this is what the cache was asked for last."""
    try:
        return reader.latest_plan() == plan
    except CacheError:  # there is none, or the last one was moved aside
        return False


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
        if (found := stored.get((query.dataset, query.id)))
        and (root_context(query.question), query.answers) not in found
    ]

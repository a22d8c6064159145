"""The plan: what a collection is asked for.

In: a cache, a pool, queries. Out: the plan and its queries as committed parts, and which queries
are no longer what they were. Not covered: making the calls (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from hierrouter.collect.rows import queries_table
from hierrouter.pool import Identity, Pool
from hierrouter.query import Query
from hierrouter_cache.fingerprint import digest, references_key, root_context
from hierrouter_cache.reader import CacheReader, StoredPlan
from hierrouter_cache.schema import PLANS
from hierrouter_cache.writer import PartWriter


def store_plan(
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
        writer.append("queries", queries_table(missing))
    if not (
        reader and reader.has("plans") and reader.latest_plan() == StoredPlan(text, tuple(keys))
    ):
        plan = digest(["plan", text, keys])
        writer.append("plans", pa.table([[plan], [text], [keys]], schema=PLANS))


def changed_queries(reader: CacheReader, queries: Sequence[Query]) -> list[str]:
    """The queries that are in the cache, but never with this text and these answers."""
    rows = reader.sql('SELECT dataset, id, context, "references" FROM queries').to_pylist()
    stored: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for row in rows:
        content = row["context"], row["references"]
        stored.setdefault((row["dataset"], row["id"]), set()).add(content)
    return [
        f"{query.dataset}/{query.id}"
        for query in queries
        if (found := stored.get((query.dataset, query.id)))
        and (root_context(query.question), references_key(query.answers)) not in found
    ]

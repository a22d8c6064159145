"""What is in a cache, and is it sound?

In: a cache's folder. Out: plain values for `hierrouter cache info` and `verify`. Not covered:
repairing (`hierrouter_cache.repair`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.pool import pool_from_json
from hierrouter.scoring import SCORERS
from hierrouter_cache.embeddings import embedding_fault, embedding_files
from hierrouter_cache.errors import DamagedPart
from hierrouter_cache.fingerprint import digest
from hierrouter_cache.parts import examine
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.schema import FORMAT
from hierrouter_cache.views import ask
from hierrouter_cache.walk import walk


def cache_info(root: Path) -> dict[str, Any]:
    """Counts for the pool and queries of the last collection.

    Returns:
        format, queries, nodes (found of the trees, root excluded), direct (single-model calls
        found), complete_queries, missing_nodes, failed_calls (by status), calls (distinct model
        calls stored), parts, bytes, models, datasets, context_free (later hops saw no answer),
        and a fingerprint of pool and queries.

    Raises:
        CacheError: nothing there, or damaged.
    """
    return _counts(CacheReader(root))


def ask_cache(root: Path, question: str) -> pa.Table:
    """The answer to one SELECT over the pool and queries of the last collection.

    Raises:
        InputError: see `hierrouter_cache.views.ask`, which lists the views.
        CacheError: nothing there, or damaged.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    pool, identities = pool_from_json(plan.pool)
    return ask(reader, pool.tree_spec(identities), plan.queries, pool.rates(), question)


def _counts(reader: CacheReader) -> dict[str, Any]:
    plan = reader.latest_plan()
    pool, identities = pool_from_json(plan.pool)
    forest = walk(reader, pool.tree_spec(identities), plan.queries)
    per_query = forest.tree.found.sum(axis=1) - 1
    datasets = reader.queries(plan.queries, ("dataset",))["dataset"]
    return {
        "format": FORMAT,
        "queries": len(plan.queries),
        "nodes": int(per_query.sum()),
        "direct": int(forest.direct.found.sum()),
        "complete_queries": int((per_query == pool.routes.calls).sum()),
        "missing_nodes": int((pool.routes.calls - per_query).sum()),
        "failed_calls": failed_calls(reader),
        "calls": _one_number(reader, "SELECT count(DISTINCT key) AS n FROM calls_rows"),
        "parts": len(reader.parts),
        "bytes": sum(part.path.stat().st_size for part in reader.parts),
        "models": [model.name for model in pool.models],
        "datasets": sorted(set(datasets.to_pylist())),
        "context_free": pool.context_free,
        "fingerprint": digest([plan.pool, list(plan.queries)]),
    }


def failed_calls(reader: CacheReader) -> dict[str, int]:
    """How many calls have failed, by their last status, and were not answered since."""
    rows = reader.sql(
        "SELECT status, count(*) AS n FROM (SELECT key, max_by(status, filename) AS status "
        "FROM failures_rows GROUP BY key) f ANTI JOIN calls_rows c ON c.key = f.key "
        "GROUP BY status ORDER BY status"
    )
    return dict(zip(rows["status"].to_pylist(), rows["n"].to_pylist(), strict=True))


def damaged_files(root: Path) -> list[str]:
    """Name and fault of every damaged part and embedding file, a line each.

    Raises:
        NoCache: nothing was collected at `root`.
    """
    parts = [f"{part.path.name}: {why}" for part, why in examine(root).items() if why]
    return parts + [
        f"{file.path.name}: {why}"
        for file in embedding_files(root)
        if (why := embedding_fault(file))
    ]


def verify_cache(root: Path, rescore: bool = False) -> list[str]:
    """Check the meaning of a cache whose files are sound; see `damaged_files` for the files.

    Returns:
        What was checked and found, a line each.

    Raises:
        CacheError: a damaged part, or values that no collection writes.
    """
    reader = CacheReader(root)
    info = _counts(reader)
    orphans = _one_number(
        reader,
        "SELECT count(*) AS n FROM calls_rows c ANTI JOIN (SELECT outcome AS context FROM "
        "calls_rows UNION ALL SELECT context FROM queries_rows) p ON p.context = c.context",
    )
    lines = [
        f"{info['parts']} parts: every byte as its name says",
        f"{len(embedding_files(root))} embedding files: every byte as its name says",
        f"{info['complete_queries']} of {info['queries']} queries complete, "
        f"{info['missing_nodes']} nodes missing",
        f"{orphans} orphans: calls whose parent answer or question is not in the cache",
    ]
    if rescore:
        lines += _check_scores(reader)
    return lines


def _one_number(reader: CacheReader, query: str) -> int:
    return int(reader.sql(query)["n"][0].as_py())


def _check_scores(reader: CacheReader) -> list[str]:
    current = {scorer.key: scorer for scorer in SCORERS.values()}
    rows = reader.sql(
        "SELECT DISTINCT s.call, s.scorer, s.value, c.response, q.answers FROM scores s "
        'JOIN calls c ON c.key = s.call JOIN queries q ON q."references" = s."references"'
    ).to_pylist()
    ours = [row for row in rows if row["scorer"] in current]
    for row in ours:
        if current[row["scorer"]](row["response"], row["answers"]) != row["value"]:
            raise DamagedPart(
                f"score {row['scorer']} of call {row['call']} is {row['value']}, "
                "not what its response gives; no version of this program stored it"
            )
    lines = [f"{len(ours)} scores: as computed again from the responses"]
    if others := len(rows) - len(ours):
        lines.append(
            f"{others} scores of other versions, users' functions or imports: not computed again"
        )
    return lines

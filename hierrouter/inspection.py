"""What is in a cache, and is it sound?

In: a cache's folder. Out: plain values for `hierrouter cache info` and `verify`. Not covered:
repairing (`hierrouter_cache.repair`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hierrouter.pool import pool_from_json
from hierrouter.scoring import SCORERS
from hierrouter_cache.embeddings import verify_embeddings
from hierrouter_cache.errors import DamagedPart
from hierrouter_cache.fingerprint import digest
from hierrouter_cache.parts import fault, list_parts
from hierrouter_cache.reader import CacheReader, require_sane
from hierrouter_cache.schema import FORMAT


def cache_info(root: Path) -> dict[str, Any]:
    """Counts for the pool and queries of the last collection.

    Returns:
        format, queries, nodes (found of the trees, root excluded), direct (single-model calls
        found), complete_queries, missing_nodes, calls (distinct model calls stored), parts, bytes,
        models, datasets, and a fingerprint of pool and queries.

    Raises:
        CacheError: nothing there, or damaged.
    """
    return _counts(CacheReader(root))


def _counts(reader: CacheReader) -> dict[str, Any]:
    plan = reader.latest_plan()
    pool, identities = pool_from_json(plan.pool)
    spec = pool.tree_spec(identities)
    nodes = reader.nodes(spec, plan.queries, list(SCORERS))
    direct = reader.direct(spec, plan.queries, list(SCORERS))
    require_sane(nodes, "nodes")
    require_sane(direct, "direct calls")
    per_query = np.bincount(nodes.position, minlength=len(plan.queries)) - 1
    rows = reader.queries(plan.queries)
    return {
        "format": FORMAT,
        "queries": len(plan.queries),
        "nodes": int(per_query.sum()),
        "direct": len(direct.node),
        "complete_queries": int((per_query == pool.routes.calls).sum()),
        "missing_nodes": int((pool.routes.calls - per_query).sum()),
        "calls": reader.sql("SELECT count(*) AS n FROM calls")["n"][0].as_py(),
        "parts": len(reader.parts),
        "bytes": sum(part.path.stat().st_size for part in reader.parts),
        "models": [model.name for model in pool.models],
        "datasets": sorted({row["dataset"] for row in rows}),
        "fingerprint": digest([plan.pool, list(plan.queries)]),
    }


def damaged_parts(root: Path) -> list[str]:
    """Name and fault of every damaged part, a line each.

    Raises:
        NoCache: nothing was collected at `root`.
    """
    return [f"{part.path.name}: {why}" for part in list_parts(root) if (why := fault(part))]


def verify_cache(root: Path, rescore: bool = False) -> list[str]:
    """Check every part and every embedding and, where asked, compute every score again.

    Returns:
        What was checked and found, a line each.

    Raises:
        DamagedPart: a file is damaged; see `damaged_parts` for all of them.
        CacheError: values that no collection writes.
    """
    reader = CacheReader(root)
    info = _counts(reader)
    lines = [
        f"{info['parts']} parts: every byte as its name says",
        f"{verify_embeddings(root)} embedding files: every byte as its name says",
        f"{info['complete_queries']} of {info['queries']} queries complete, "
        f"{info['missing_nodes']} nodes missing",
    ]
    if rescore:
        lines.append(f"{_check_scores(reader)} scores: as computed again from the responses")
    return lines


def _check_scores(reader: CacheReader) -> int:
    rows = reader.sql(
        "SELECT DISTINCT s.call, s.scorer, s.value, c.response, q.answers FROM scores s "
        'JOIN calls c ON c.key = s.call JOIN queries q ON q."references" = s."references"'
    ).to_pylist()
    for row in rows:
        if SCORERS[row["scorer"]](row["response"], row["answers"]) != row["value"]:
            raise DamagedPart(
                f"score {row['scorer']} of call {row['call']} is {row['value']}, "
                "not what its response gives; it was stored by another version"
            )
    return len(rows)

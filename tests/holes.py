"""Caches with holes: calls taken out of their parts, everything else as it was."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.writer import PartWriter
from tests.cache.rows import take


def drop_calls(root: Path, keys: set[str]) -> None:
    """Write the parts of `calls` anew without these keys."""
    for path in list((root / "parts").glob("calls-*")):
        table = pq.read_table(path)
        kept = table.filter(pa.array([key not in keys for key in table["key"].to_pylist()]))
        if kept.num_rows < table.num_rows:
            take(path)
            if kept.num_rows:
                PartWriter(root).append("calls", kept)


def drop_five_leaves_of_three_queries(root: Path) -> None:
    """Take out five calls, each of them one leaf of one query."""
    rows = ask_cache(
        root,
        "SELECT call, any_value(query) AS query FROM nodes GROUP BY call "
        "HAVING count(*) = 1 AND any_value(hop) = 2 ORDER BY call",
    ).to_pylist()
    leaves: dict[str, list[str]] = {}
    for row in rows:
        leaves.setdefault(row["query"], []).append(row["call"])
    first, second, third = sorted(leaves.values(), key=len, reverse=True)[:3]
    drop_calls(root, {*first[:2], *second[:2], third[0]})

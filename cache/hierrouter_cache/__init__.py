"""The trajectory cache: every route, computed once.

`routes` numbers the nodes of a tree, `writer` appends immutable Parquet parts, `reader` serves
them through DuckDB, `tree` hands everybody downstream dense arrays. Knows numpy, pyarrow and
duckdb; no torch, and nothing of policies.
"""

from __future__ import annotations

from pathlib import Path

CACHE = Path("caches/default")

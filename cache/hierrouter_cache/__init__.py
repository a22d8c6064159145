"""The trajectory cache: every route, computed once.

`writer` appends immutable Parquet parts, `reader` serves them through DuckDB, `walk` finds the
calls of each query's tree, and `tree` holds them as dense arrays. Knows numpy, pyarrow and duckdb;
no torch, and nothing of policies.
"""

from pathlib import Path

CACHE = Path("caches/default")

"""The trajectory cache: every route of every query, computed once and kept on disk.

`writer` appends immutable Parquet parts. `reader` serves their rows through DuckDB. `walk` finds
the calls that make up each query's tree, and `tree` holds these trees as dense arrays. The package
depends on numpy, pyarrow and duckdb. It does not import torch, and it has no policies.
"""

from pathlib import Path

CACHE = Path("caches/default")
MAX_DRAWS = 64  # responses of one call

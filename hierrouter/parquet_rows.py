"""Rows of a Parquet file that others wrote.

In: a file. Out: its rows one after the other, each with its number, so that every complaint can
name it. Memory holds one batch. Not covered: what the columns mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import InputError, reason_of

MAX_ROWS = 50_000_000  # a file that declares more is damaged, or a trap
BATCH = 1024


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row by column) of each row; None where nothing stands.

    Raises:
        InputError: not a Parquet file, damaged, or of too many rows.
    """
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:
                raise InputError(
                    f"{file.metadata.num_rows:,} rows declared, the limit is {MAX_ROWS:,}: {path}; "
                    "split the file"
                )
            for batch in file.iter_batches(batch_size=BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        # The last three: Python has no such date, or no such time zone.
        place = f"{path}: after row {number}" if number else f"{path}"
        reason = reason_of(error).rstrip(".")
        raise InputError(f"not readable as parquet: {place}: {reason}; write it again") from None

"""Of rows with the same identity, the one that is served.

In: the parts of one kind. Out: which of their rows count: of equal identities the first one in name
order, or the last one (`schema.LAST_WINS`). Only the columns that name a row are read. Not covered:
what becomes of the others (`compact`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError, WorldError, reason_of
from hierrouter_cache.interrupts import interruptible
from hierrouter_cache.parts import Part, parts_folder
from hierrouter_cache.schema import IDENTITY, LAST_WINS

MEMORY = "2GB"  # for the identities; a million questions have 36 million rows
ROW_BITS = 32  # a row's place is its part's number, then its own in so many bits

Winners = Mapping[Part, NDArray[np.int64]]


def winners_of(root: Path, parts: Sequence[Part]) -> Winners:
    """For each part the positions of its rows that are served, ascending.

    What does not fit into `MEMORY` waits in the cache's tmp/.

    Args:
        root: the cache's folder.
        parts: all parts of one kind, in name order, their bytes proven.

    Raises:
        WorldError: there is no room for it.
        CacheError: rows cannot be read, or DuckDB names a file otherwise than it was given.
    """
    if not parts:
        return {}
    kind = parts[0].kind
    best = "max" if kind in LAST_WINS else "min"
    names = ", ".join(f'"{column}"' for column in IDENTITY[kind])
    # Each thread would want memory of its own.
    room = {"memory_limit": MEMORY, "temp_directory": str(root / "tmp"), "threads": 1}
    files = [str(part.path) for part in parts]
    try:
        with duckdb.connect(config=room) as connection:
            connection.execute("SET enable_progress_bar = false")
            query = (
                f"SELECT {best}((number << {ROW_BITS}) | file_row_number) AS place, "  # noqa: S608 - our own names
                "count(*) AS rivals "
                "FROM read_parquet($1, filename = true, file_row_number = true) "
                "JOIN (SELECT unnest($1) AS filename, unnest(range(len($1))) AS number) "
                f"USING (filename) GROUP BY {names}"
            )
            found = interruptible(
                connection, lambda: connection.execute(query, [files]).fetchnumpy()
            )
    except duckdb.Error as error:
        raise _not_compared(root, error) from error
    if found["rivals"].sum() != sum(part.rows for part in parts):  # a row unseen would be dropped
        raise CacheError(f"rows cannot be told apart by file: {root}; nothing was merged")
    places = np.sort(found["place"])
    cuts = np.searchsorted(places, np.arange(len(parts) + 1) << ROW_BITS)
    return {
        part: places[cuts[number] : cuts[number + 1]] - (number << ROW_BITS)
        for number, part in enumerate(parts)
    }


def _not_compared(root: Path, error: duckdb.Error) -> CacheError | WorldError:
    """No room, or a part that is gone, or whose bytes are as its name says and no rows of ours."""
    reason = reason_of(error, 80)
    of_a_part = str(parts_folder(root)) in str(error)
    if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException) and not of_a_part:
        return WorldError(f"no room to compare rows in {root}: {reason}; nothing was merged")
    return CacheError(
        f"a part cannot be read: {root}: {reason}; nothing was merged, "
        "find it with `hierrouter cache verify`"
    )

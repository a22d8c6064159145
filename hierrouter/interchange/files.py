"""Files that appear whole or not at all.

In: rows, a frame, or what a caller writes into an open file. Out: a file under a name that was
free. Not covered: what is in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hierrouter_cache.errors import InputError, WorldError


def require_free(out: Path) -> None:
    """Refuse to write over something, before any work is done for it.

    Raises:
        InputError: it exists, or its folder does not.
    """
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")
    if out.exists() or out.is_symlink():
        raise InputError(f"output exists: {out}; choose another --out or remove it")


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """An open file that gets its name when the block ends well; its folder is made.

    Raises:
        WorldError: the disk is full or failed; nothing stands under the name then.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise WorldError(f"cannot write: {path}: {error.strerror}; make room and retry") from error
    finally:
        draft.unlink(missing_ok=True)


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """One object a line.

    Raises:
        WorldError: the disk is full or failed.
    """
    with written(path) as file:
        for row in rows:
            file.write(json_line(row))


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON in UTF-8."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_frame(table: pa.Table, path: Path) -> None:
    """A frame as .parquet or .csv, by the end of the name.

    Raises:
        InputError: another kind of file.
        WorldError: the disk is full or failed.
    """
    writers = {".parquet": pq.write_table, ".csv": pa.csv.write_csv}
    if path.suffix not in writers:
        raise InputError(f"a frame is written as .parquet or .csv: --out {path}")
    with written(path) as file:
        writers[path.suffix](table, file)

"""Files and folders that appear whole or not at all.

In: rows, a frame, or what a caller writes into an open folder. Out: a name that was free, and
everything under it. Not covered: what is in it, and single files (`hierrouter_cache.writer`).
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hierrouter.report.text import csv_text
from hierrouter_cache.atomic_files import atomic_file, fsync_folder
from hierrouter_cache.errors import InputError, WorldError


def require_free(out: Path, flag: str = "--out") -> None:
    """Refuse to write over something, before any work is done for it.

    Args:
        flag: that gave the path, for the error.

    Raises:
        InputError: it exists, or its folder does not or cannot be written to.
    """
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise InputError(f"no permission to write: {out.parent}; choose another {flag}")
    if out.exists() or out.is_symlink():
        raise InputError(f"output exists: {out}; choose another {flag} or remove it")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write into; it is called `out` when the block ends well, and else is gone.

    Raises:
        WorldError: the disk is full or failed.
    """
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.mkdir()
        yield draft
        draft.rename(out)
        fsync_folder(out.parent)
    except OSError as error:
        raise WorldError(f"cannot write: {out}: {error.strerror}; {_hint(error)}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _hint(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "make room and retry" if full else "choose another --out"


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """One object a line.

    Raises:
        WorldError: the disk is full or failed.
    """
    with atomic_file(path) as file:
        for row in rows:
            file.write(json_line(row))


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON in UTF-8."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_frame(table: pa.Table, path: Path) -> None:
    """A frame as .parquet or .csv, by the end of the name; no cell of a CSV runs as a formula.

    Raises:
        InputError: another kind of file.
        WorldError: the disk is full or failed.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"a frame is written as .parquet or .csv: --out {path}; name such a file")
    with atomic_file(path) as file:
        if path.suffix == ".parquet":
            pq.write_table(table, file)
        else:
            pa.csv.write_csv(_inert(table), file)


def _inert(table: pa.Table) -> pa.Table:
    """The table with texts and names that no spreadsheet takes for a formula."""
    columns = [
        pa.array(map(csv_text, column.to_pylist())) if column.type == pa.string() else column
        for column in table.columns
    ]
    return pa.table(columns, names=[csv_text(name) for name in table.column_names])

"""Rows in files that others wrote: JSON lines and Parquet."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import InputError, reason_of

MAX_LINE = 1 << 24  # bytes
MAX_VALUES = 1_000_000  # on a line; an empty list takes 56 bytes of memory, two on the line


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line, object) of each line that is not blank.

    Raises InputError: a line that is too long, not UTF-8, not JSON, or no object.
    """
    for number, line in raw_lines(path):
        if line.strip():
            yield number, parse_object(line, f"{path}:{number}")


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line; a byte order mark is dropped.

    Raises InputError: the file cannot be read, or a line is too long.
    """
    number = 0
    try:
        require_plain(path)
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise InputError(
                        f"line longer than {MAX_LINE:,} bytes: {path}:{number}; "
                        "write one JSON object per line"
                    )
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except OSError as error:
        raise InputError(
            f"cannot be read: {path}: {error.strerror}; give a file of JSON lines"
        ) from None


def require_plain(path: Path) -> None:
    """Refuse what has no end, or never begins; raises InputError: a pipe, a device or a folder."""
    if path.exists() and not path.is_file():
        raise InputError(f"not a plain file: {path}; give one of JSON lines, or Parquet")


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """The object on one line; `where` names it in messages.

    Raises InputError: not UTF-8, not JSON, or no object.
    """
    if sum(map(line.count, (b"[", b"{", b","))) > MAX_VALUES:
        raise InputError(f"more than {MAX_VALUES:,} values: {where}; write one question per line")
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"not UTF-8: {where}; save it as text, not compressed or binary") from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise InputError(f"not JSON: {where}: {reason}; write one JSON object per line") from None
    if not isinstance(row, dict):
        raise InputError(f"not a JSON object: {where}; write one JSON object per line, no array")
    return row


MAX_ROWS = 50_000_000  # a file that declares more is damaged, or a trap
BATCH = 1024


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row by column) of each row; None where nothing stands.

    Raises InputError: not a Parquet file, damaged, or of too many rows.
    """
    number = 0
    try:
        require_plain(path)
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

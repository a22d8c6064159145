"""Rows in files that others wrote: JSON lines and Parquet."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
    try:
        require_plain(path)
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
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
BATCH = 1024  # rows at once, fewer where one has many values
TRAP = 1000  # times smaller than what it unpacks to is no text that people wrote


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row by column) of each row; None where nothing stands.

    A value that stands in many rows is kept once until its row comes: a file of kilobytes can
    repeat a long text often enough to fill any memory. Raises InputError: not a Parquet file,
    damaged, of too many rows, or a trap.
    """
    number = 0
    try:
        require_plain(path)
        found = pq.read_metadata(path)
        columns = [column.path for column in map(found.schema.column, range(found.num_columns))]
        unpacked, most = 0, max(4 * MAX_LINE, TRAP * path.stat().st_size)
        # Those of texts alone become dictionaries; JSON would be none as an extension.
        with pq.ParquetFile(path, read_dictionary=columns, arrow_extensions_enabled=False) as file:
            for batch in file.iter_batches(batch_size=_rows_at_once(found, path)):
                unpacked += sum(map(_bytes, batch.columns))
                if unpacked > most:
                    raise InputError(f"values of over {most:,} bytes: {path}; write it again")
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        # The last three: Python has no such date, or no such time zone.
        place = f"{path}: after row {number}" if number else f"{path}"
        reason = reason_of(error).rstrip(".")
        raise InputError(f"not readable as parquet: {place}: {reason}; write it again") from None


def _rows_at_once(found: pq.FileMetaData, path: Path) -> int:
    """How many rows are read together; raises InputError: see `parquet_rows`."""
    if found.num_rows > MAX_ROWS:
        raise InputError(
            f"{found.num_rows:,} rows declared, the limit is {MAX_ROWS:,}: {path}; split the file"
        )
    most = 1  # values of a row; one of a fixed length counts as so many
    for group in map(found.row_group, range(found.num_row_groups)):
        for number, column in enumerate(map(group.column, range(group.num_columns))):
            kind = found.schema.column(number)
            if kind.physical_type == "BYTE_ARRAY" and kind.logical_type.type == "DECIMAL":
                raise InputError(f"decimals of no fixed length: {path}; write it again")
            size, packed = column.total_uncompressed_size, column.total_compressed_size
            values = column.num_values * max(kind.length, 1)
            if kind.max_repetition_level:  # one row may hold them all
                size = max(size, values)
            if size > max(MAX_LINE, TRAP * packed):
                sizes = f"{packed:,} bytes that unpack to {size:,}"
                raise InputError(f"{sizes}: {path}; write it again")
            most = max(most, kind.length, values // max(group.num_rows, 1))
    if most > MAX_VALUES:
        raise InputError(f"more than {MAX_VALUES:,} values a row: {path}; write one question a row")
    return max(1, min(BATCH, MAX_VALUES // most))


TEXTS = (pa.StringArray, pa.BinaryArray, pa.LargeStringArray, pa.LargeBinaryArray)


def _bytes(column: pa.Array) -> int:
    """Bytes of all values of a column, each text as often as it stands there."""
    if pa.types.is_dictionary(column.type) and isinstance(column.dictionary, TEXTS):
        lengths = pc.binary_length(column.dictionary).take(column.indices)
        return int(pc.sum(lengths).as_py() or 0)
    if pa.types.is_map(column.type):
        return _bytes(column.keys) + _bytes(column.items)
    if pa.types.is_nested(column.type):
        inner = column.flatten()
        return sum(map(_bytes, inner if isinstance(inner, list) else [inner]))
    return int(column.nbytes)

"""Read rows from files that others wrote, JSON lines and Parquet, within limits.

A file may be damaged, or made to fill the memory: every reader checks sizes before it reads.
"""

import json
import re
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hierrouter_cache.errors import InputError, reason_of
from hierrouter_cache.keys import sound_json

MAX_LINE_BYTES = 1 << 24
MAX_SKIPPED_BYTES = 1 << 30  # of a line that is too long, to find the one after it
# An empty list takes two bytes on the line, and 56 bytes of memory.
MAX_ROW_VALUES = 1_000_000
UTF8_MARK = b"\xef\xbb\xbf"
VALUE_STARTS = (b"[", b"{", b",")  # each of these characters begins at most one value
# A text in JSON. Without backtracking, so that a line of megabytes takes no memory.
JSON_TEXT_PATTERN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a file of JSON lines.

    Returns:
        (number of the line, object) of each line that is not blank.

    Raises:
        InputError: the file cannot be read.
        InputError: a line is too long, not UTF-8, not JSON, or no object.
    """
    for number, line in raw_lines(path):
        if line.strip():
            yield number, parse_object(line, f"{path}:{number}")


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read the lines of a file; a byte order mark is dropped.

    Returns:
        (number from 1, bytes) of each line. A line that is too long is cut where `line_fault` sees
        it; nothing of its rest is kept in memory.

    Raises:
        InputError: the file cannot be read, or a line goes on for `MAX_SKIPPED_BYTES`.
    """
    try:
        require_plain(path)
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    yield number, line
                    _skip_line(file, line, f"{path}:{number}")
                    continue
                yield number, line.removeprefix(UTF8_MARK) if number == 1 else line
    except OSError as error:
        raise InputError(
            f"cannot be read: {path}: {error.strerror}; give a file of JSON lines"
        ) from None


def _skip_line(file: BufferedReader, line: bytes, where: str) -> None:
    """Read a line to its end, of which `line` has been read.

    Raises:
        InputError: it does not end soon.
    """
    for _ in range(MAX_SKIPPED_BYTES // MAX_LINE_BYTES):
        if not line or line.endswith(b"\n"):
            return
        line = file.readline(MAX_LINE_BYTES)
    raise InputError(f"line longer than {MAX_SKIPPED_BYTES:,} bytes: {where}; is it a text?")


def require_plain(path: Path) -> None:
    """Refuse a path that is not a plain file: reading a pipe or a device may never end.

    Raises:
        InputError: the path is a pipe, a device or a folder.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"not a plain file: {path}; give one of JSON lines, or Parquet")


def parse_object(
    line: bytes, where: str, parse: Callable[[str], Any] = sound_json
) -> dict[str, Any]:
    """Parse the JSON object on one line.

    Args:
        line: as read from the file.
        where: names the line in messages.
        parse: reads JSON. Only rows whose keys tell what their texts must be need no sound text.

    Raises:
        InputError: too long, too many values, not UTF-8, not JSON, or no object.
    """
    fault = line_fault(line)
    if fault:
        raise InputError(f"{fault}: {where}; write one question per line")
    try:
        row = parse(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"not UTF-8: {where}; save it as text, not compressed or binary") from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise InputError(f"not JSON: {where}: {reason}; write one JSON object per line") from None
    if not isinstance(row, dict):
        raise InputError(f"not a JSON object: {where}; write one JSON object per line, no array")
    return row


def line_fault(line: bytes) -> str:
    """Return which limit keeps a line of JSON from being read; "" if none does.

    Whoever writes lines that are to be read again asks this first.
    """
    if len(line) > MAX_LINE_BYTES:
        return f"line longer than {MAX_LINE_BYTES:,} bytes"
    if _values(line) <= MAX_ROW_VALUES:
        return ""
    if _values(JSON_TEXT_PATTERN.sub(b"", line)) > MAX_ROW_VALUES:
        return f"more than {MAX_ROW_VALUES:,} values"
    return ""


def _values(line: bytes) -> int:
    """Count the values of a line at most; characters in its texts count, too."""
    return sum(map(line.count, VALUE_STARTS))


MAX_PARQUET_ROWS = 50_000_000  # a file that declares more is damaged or malicious
PARQUET_BATCH_ROWS = 1024  # fewer if one row has many values
# Texts that people wrote are compressed to more than a thousandth.
MAX_COMPRESSION_RATIO = 1000


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a Parquet file.

    A text that many rows repeat is kept once until its row is read: a file of kilobytes can repeat
    a long text often enough to fill any memory.

    Returns:
        (number from 1, values by column) of each row; a value is None if the cell is null.

    Raises:
        InputError: not a Parquet file, damaged, too many rows, or sizes that no real file has.
    """
    number = 0
    try:
        require_plain(path)
        metadata = pq.read_metadata(path)
        columns = [
            metadata.schema.column(position).path for position in range(metadata.num_columns)
        ]
        max_bytes = max(4 * MAX_LINE_BYTES, MAX_COMPRESSION_RATIO * path.stat().st_size)
        unpacked_bytes = 0
        # Text columns are read as dictionaries. With extensions, JSON columns could not be.
        with pq.ParquetFile(path, read_dictionary=columns, arrow_extensions_enabled=False) as file:
            for batch in file.iter_batches(batch_size=_batch_rows(metadata, path)):
                unpacked_bytes += sum(_unpacked_bytes(column) for column in batch.columns)
                if unpacked_bytes > max_bytes:
                    raise InputError(f"values of over {max_bytes:,} bytes: {path}; write it again")
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        # ValueError, OverflowError and KeyError: Python has no such date, or no such time zone.
        position = f"{path}: after row {number}" if number else f"{path}"
        reason = reason_of(error).rstrip(".")
        raise InputError(f"not readable as parquet: {position}: {reason}; write it again") from None


def _batch_rows(metadata: pq.FileMetaData, path: Path) -> int:
    """The number of rows to read together, so that a batch has at most `MAX_ROW_VALUES` values.

    Raises:
        InputError: too many rows or values, or sizes that no real file has.
    """
    if metadata.num_rows > MAX_PARQUET_ROWS:
        raise InputError(
            f"{metadata.num_rows:,} rows declared, the limit is {MAX_PARQUET_ROWS:,}: {path}; "
            "split the file"
        )
    row_values = 1  # the most values of one row in one column
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for position in range(group.num_columns):
            column = group.column(position)
            schema = metadata.schema.column(position)
            if schema.physical_type == "BYTE_ARRAY" and schema.logical_type.type == "DECIMAL":
                raise InputError(f"decimals of no fixed length: {path}; write it again")
            # A value of a fixed length counts as that many values.
            values = column.num_values * max(schema.length, 1)
            unpacked_bytes = column.total_uncompressed_size
            if schema.max_repetition_level:  # a list: one row may have all values
                unpacked_bytes = max(unpacked_bytes, values)
            packed_bytes = column.total_compressed_size
            if unpacked_bytes > max(MAX_LINE_BYTES, MAX_COMPRESSION_RATIO * packed_bytes):
                sizes = f"{packed_bytes:,} bytes that unpack to {unpacked_bytes:,}"
                raise InputError(f"{sizes}: {path}; write it again")
            row_values = max(row_values, schema.length, values // max(group.num_rows, 1))
    if row_values > MAX_ROW_VALUES:
        raise InputError(
            f"more than {MAX_ROW_VALUES:,} values a row: {path}; write one question a row"
        )
    return max(1, min(PARQUET_BATCH_ROWS, MAX_ROW_VALUES // row_values))


TEXT_ARRAY_TYPES = (pa.StringArray, pa.BinaryArray, pa.LargeStringArray, pa.LargeBinaryArray)


def _unpacked_bytes(column: pa.Array) -> int:
    """Bytes of all values of a column; a text of a dictionary counts once for each row."""
    if pa.types.is_dictionary(column.type) and isinstance(column.dictionary, TEXT_ARRAY_TYPES):
        lengths = pc.binary_length(column.dictionary).take(column.indices)
        return int(pc.sum(lengths).as_py() or 0)
    if pa.types.is_map(column.type):
        return _unpacked_bytes(column.keys) + _unpacked_bytes(column.items)
    if pa.types.is_nested(column.type):
        children = column.flatten()
        if not isinstance(children, list):
            children = [children]
        return sum(_unpacked_bytes(child) for child in children)
    return int(column.nbytes)

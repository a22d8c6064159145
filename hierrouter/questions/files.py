"""Read rows from files that others wrote, JSON lines, JSON and Parquet, within limits.

A file may be damaged, or made to fill the memory: every reader checks sizes before it reads. A row
that readers would read in different ways is refused: one with two values of one name.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
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
ParseFloat = Callable[[str], Any]
UTF8_MARK = b"\xef\xbb\xbf"
VALUE_STARTS = (b"[", b"{", b",")  # each of these characters begins at most one value
# A text in JSON. Without backtracking, so that a line of megabytes takes no memory.
JSON_TEXT_PATTERN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def json_lines(path: Path, parse_float: ParseFloat = float) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a file of JSON lines.

    Args:
        path: of the file.
        parse_float: makes a value of the digits of each number with a fraction or an exponent.

    Returns:
        (number of the line, object) of each line that is not blank.

    Raises:
        InputError: the file cannot be read.
        InputError: a line is too long, not UTF-8, not JSON, or no object, or has a key twice.
    """
    for number, line in raw_lines(path):
        if line.strip():
            parse = partial(unambiguous_json, parse_float=parse_float)
            yield number, parse_object(line, f"{path}:{number}", parse)


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


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these pairs.

    Readers of JSON differ in which value of a repeated key they take (RFC 8259).

    Raises:
        KeyError: a key is there twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        raise KeyError(_repeated([key for key, _ in pairs]))
    return values


def _repeated(names: Iterable[str]) -> str | None:
    """A name that is there twice; None if all differ."""
    [(name, count)] = Counter(names).most_common(1) or [("", 0)]
    return name if count > 1 else None


def unambiguous_json(text: str, parse_float: ParseFloat = float) -> Any:
    """Parse JSON of others, see `sound_json`; no object may have a key twice.

    Args:
        text: JSON.
        parse_float: makes a value of the digits of each number with a fraction or an exponent.

    Raises:
        KeyError: an object has a key twice.
        ValueError: it is no JSON.
    """
    loads = partial(json.loads, object_pairs_hook=_object_of, parse_float=parse_float)
    return sound_json(text, loads)


def parse_object(
    line: bytes, where: str, parse: Callable[[str], Any] = unambiguous_json
) -> dict[str, Any]:
    """Parse the JSON object on one line.

    Args:
        line: as read from the file.
        where: names the line in messages.
        parse: reads JSON. Only rows whose keys tell what their texts must be need no sound text.

    Raises:
        InputError: too long, too many values, not UTF-8, not JSON, no object, or a key twice in one
            object.
    """
    fault = line_fault(line)
    if fault:
        raise InputError(f"{fault}: {where}; write one question per line")
    remedy = "write one JSON object per line"
    row = _parse_json(line, where, remedy, parse)
    if not isinstance(row, dict):
        raise InputError(f"not a JSON object: {where}; write one JSON object per line, no array")
    return row


def line_fault(line: bytes) -> str:
    """Return which limit keeps a line of JSON from being read; "" if none does.

    Whoever writes lines that are to be read again asks this first.
    """
    if len(line) > MAX_LINE_BYTES:
        return f"line longer than {MAX_LINE_BYTES:,} bytes"
    if _has_more_values(line, MAX_ROW_VALUES):
        return f"more than {MAX_ROW_VALUES:,} values"
    return ""


def _has_more_values(data: bytes, limit: int) -> bool:
    """Whether JSON has more values than that."""
    if _values(data) <= limit:
        return False
    return _values(JSON_TEXT_PATTERN.sub(b"", data)) > limit


def _values(data: bytes) -> int:
    """Count the values of JSON at most; characters in its texts count, too."""
    return sum(map(data.count, VALUE_STARTS))


def _parse_json(data: bytes, where: str, remedy: str, parse: Callable[[str], Any]) -> Any:
    """Parse one JSON value.

    Args:
        data: in UTF-8.
        where: names it in messages.
        remedy: what to do about text that is not JSON.
        parse: reads JSON.

    Raises:
        InputError: not UTF-8, not JSON, or a key twice in one object.
    """
    try:
        return parse(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"not UTF-8: {where}; save it as text, not compressed or binary") from None
    except KeyError as error:
        raise InputError(
            f"key {error.args[0]!r:.40} twice in one object: {where}; keep one of them"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise InputError(f"not JSON: {where}: {reason}; {remedy}") from None


MAX_JSON_FILE_BYTES = 1 << 26
MAX_JSON_FILE_VALUES = 2 * MAX_ROW_VALUES
ROWS_KEY = "data"  # of an object around the list of rows


def json_rows(path: Path, parse_float: ParseFloat = float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the objects of a JSON file: a list of them, `{"data": [...]}`, or one a line.

    Args:
        path: of the file.
        parse_float: makes a value of the digits of each number with a fraction or an exponent.

    Returns:
        (name of the row in messages, object) of each row.

    Raises:
        InputError: the file cannot be read, is too large or not UTF-8, or is not JSON.
        InputError: it is no list of objects, or an object has a key twice.
    """
    try:
        require_plain(path)
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES).strip()
            second = file.readline(MAX_LINE_BYTES).strip()
            file.seek(0)
            data = file.read(MAX_JSON_FILE_BYTES + 1).removeprefix(UTF8_MARK)
    except OSError as error:
        raise InputError(f"cannot be read: {path}: {error.strerror}; give a file of JSON") from None
    if first.endswith(b"}") and second.startswith(b"{"):
        for number, row in json_lines(path, parse_float):
            yield f"{path}:{number}", row
        return
    if len(data) > MAX_JSON_FILE_BYTES:
        raise InputError(
            f"JSON of over {MAX_JSON_FILE_BYTES:,} bytes: {path}; write one JSON object per line"
        )
    if not data.strip():
        return
    if _has_more_values(data, MAX_JSON_FILE_VALUES):
        raise InputError(
            f"more than {MAX_JSON_FILE_VALUES:,} values: {path}; write one JSON object per line"
        )
    remedy = "write a list of JSON objects, or one per line"
    parse = partial(unambiguous_json, parse_float=parse_float)
    rows = _parse_json(data, str(path), remedy, parse)
    if isinstance(rows, dict):
        rows = rows[ROWS_KEY] if isinstance(rows.get(ROWS_KEY), list) else [rows]
    if not isinstance(rows, list):
        raise InputError(f"not a list of JSON objects: {path}; {remedy}")
    for number, row in enumerate(rows, start=1):
        where = f"{path}: row {number}"
        if not isinstance(row, dict):
            raise InputError(f"not a JSON object: {where}; {remedy}")
        yield where, row


def decimal_or_float(digits: str) -> float | Decimal:
    """Parse a number of JSON: a float, or a decimal if no float has the value that is written.

    Args:
        digits: such as `12.50` or `3.14159265358979323846`.

    Returns:
        The number; infinity if it is larger than any float.
    """
    number = float(digits)
    if not math.isfinite(number):
        return number
    written = Decimal(digits)
    return number if Decimal(repr(number)) == written else written


MAX_WRITTEN_EXPONENT = 30  # a larger or smaller number is written with its exponent
FLOAT_DIGITS = 15  # a decimal of so many digits survives a float
# A float with more than 15 digits that is so close to one of fewer digits was computed: 0.1 + 0.2.
MEANT_DIGITS = 12


def number_text(number: float | Decimal) -> str:
    """Write a number of a file as people write it: 12 for 12.0, .3 as 0.3 for 0.1 + 0.2.

    Readers of tables make floats of whole numbers as soon as one is missing, and decimals have the
    zeros of their column; neither are the author's.

    Args:
        number: finite.

    Returns:
        Its digits, without zeros at the end of a fraction; an int as it is.
    """
    if isinstance(number, int):
        return str(number)
    exact = number if isinstance(number, Decimal) else Decimal(repr(number))
    if isinstance(number, float) and _digit_count(exact) > FLOAT_DIGITS:
        rounded = Decimal(f"{number:.{FLOAT_DIGITS}g}")
        if _digit_count(rounded) <= MEANT_DIGITS:
            exact = rounded
    if not exact:
        return "0"  # also for a negative zero
    if abs(exact.adjusted()) > MAX_WRITTEN_EXPONENT:
        return str(number)
    digits = f"{exact:f}"
    return digits.rstrip("0").removesuffix(".") if "." in digits else digits


def _digit_count(number: Decimal) -> int:
    """Significant digits of a decimal, without zeros at its end."""
    return len("".join(map(str, number.as_tuple().digits)).rstrip("0"))


MAX_PARQUET_ROWS = 50_000_000  # a file that declares more is damaged or malicious
PARQUET_BATCH_ROWS = 1024  # fewer if one row has many values
# Texts that people wrote are compressed to more than a thousandth.
MAX_COMPRESSION_RATIO = 1000
# Encodings that can be read as a dictionary: a text that many rows repeat is in memory once.
DICTIONARY_ENCODINGS = frozenset(
    {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}
)
# Encodings that store each text completely, so that what is read is no larger than what is stored.
COMPLETE_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
MAX_PLAIN_BATCH_BYTES = 1 << 24  # of a column that is not read as a dictionary
MAX_PLAIN_LIST_BYTES = 1 << 27  # that lists of such a column could have


def parquet_schema(path: Path) -> pa.Schema:
    """Read the names and types of the columns of a Parquet file.

    Raises:
        InputError: not a Parquet file, or damaged; two columns or two fields have one name.
    """
    try:
        require_plain(path)
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = reason_of(error).rstrip(".")
        raise InputError(f"not readable as parquet: {path}: {reason}; write it again") from None
    _refuse_repeated_columns(schema, path)
    return schema


def _refuse_repeated_columns(fields: Iterable[pa.Field], path: Path, parent: str = "") -> None:
    """Refuse two columns, or two fields of a struct, of one name: only one of them could be read.

    Raises:
        InputError: with the name.
    """
    fields = list(fields)
    name = _repeated(field.name for field in fields)
    if name is not None:
        raise InputError(f"column {f'{parent}{name}'!r:.60} twice: {path}; keep one of them")
    for field in fields:
        kind = field.type
        nested = [kind.field(position) for position in range(kind.num_fields)]
        _refuse_repeated_columns(nested, path, f"{parent}{field.name}.")


def parquet_rows(
    path: Path, columns: Collection[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a Parquet file.

    A text that many rows repeat is kept once until its row is read: a file of kilobytes can repeat
    a long text often enough to fill any memory.

    Args:
        path: of the file.
        columns: those to read; None for all of them.

    Returns:
        (number from 1, values by column) of each row; a value is None if the cell is null.

    Raises:
        InputError: not a Parquet file, damaged, too many rows, or sizes that no real file has.
        InputError: two columns have one name.
    """
    number = 0
    try:
        require_plain(path)
        metadata = pq.read_metadata(path)
        positions = [
            position
            for position in range(metadata.num_columns)
            if columns is None or metadata.schema.column(position).path.partition(".")[0] in columns
        ]
        as_dictionary = _columns_of(metadata, positions, DICTIONARY_ENCODINGS)
        max_bytes = max(4 * MAX_LINE_BYTES, MAX_COMPRESSION_RATIO * path.stat().st_size)
        unpacked_bytes = 0
        # With extensions, JSON columns could not be read as dictionaries.
        with pq.ParquetFile(
            path, read_dictionary=list(as_dictionary), arrow_extensions_enabled=False
        ) as file:
            _refuse_repeated_columns(file.schema_arrow, path)
            names = [name for name in file.schema_arrow.names if columns is None or name in columns]
            batch_rows = _batch_rows(metadata, path, positions, as_dictionary)
            for batch in _batches(file, batch_rows, names):
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


def _batches(
    file: pq.ParquetFile, batch_rows: int, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read a file by its groups of rows: lists with two dictionaries cannot be in one batch."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_rows, row_groups=[group], columns=names)


def _columns_of(
    metadata: pq.FileMetaData, positions: Iterable[int], encodings: Collection[str]
) -> frozenset[str]:
    """The paths of the columns that have no other encodings than these, in any group of rows."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return frozenset(
        metadata.schema.column(position).path
        for position in positions
        if all(set(group.column(position).encodings) <= {*encodings} for group in groups)
    )


def _batch_rows(
    metadata: pq.FileMetaData, path: Path, positions: Sequence[int], as_dictionary: Collection[str]
) -> int:
    """The number of rows to read together, so that a batch has at most `MAX_ROW_VALUES` values.

    Texts of a column that is not read as a dictionary are at most as long as all that the column
    stores: DELTA_BYTE_ARRAY repeats the beginning of the text before, a dictionary complete texts.

    Args:
        metadata: of the file.
        path: of the file, for messages.
        positions: of the columns that are read.
        as_dictionary: paths of the columns that are read as dictionaries.

    Raises:
        InputError: too many rows or values, or sizes that no real file has.
    """
    if metadata.num_rows > MAX_PARQUET_ROWS:
        raise InputError(
            f"{metadata.num_rows:,} rows declared, the limit is {MAX_PARQUET_ROWS:,}: {path}; "
            "split the file"
        )
    complete = _columns_of(metadata, positions, COMPLETE_ENCODINGS)
    row_values = 1  # the most values of one row in one column
    max_rows = PARQUET_BATCH_ROWS
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for position in positions:
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
            if schema.physical_type != "BYTE_ARRAY" or schema.path in as_dictionary:
                continue
            max_rows = min(max_rows, MAX_PLAIN_BATCH_BYTES // max(unpacked_bytes, 1))
            if not schema.max_repetition_level or schema.path in complete:
                continue
            if unpacked_bytes * column.num_values > MAX_PLAIN_LIST_BYTES:
                raise InputError(
                    f"lists of texts that may unpack to any size: {path}: column "
                    f"{schema.path!r:.60} as {', '.join(column.encodings)}; write it again, as "
                    "PLAIN or as a dictionary"
                )
    if row_values > MAX_ROW_VALUES:
        raise InputError(
            f"more than {MAX_ROW_VALUES:,} values a row: {path}; write one question a row"
        )
    return max(1, min(max_rows, MAX_ROW_VALUES // row_values))


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

"""Rows of a file that others wrote.

In: a .parquet, .csv or .jsonl file. Out: rows one after the other, each with its place, so that
every complaint can name it. Nothing is ever unpickled. Not covered: what the columns mean.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from hierrouter.json_lines import MAX_LINE, json_lines
from hierrouter.parquet_rows import parquet_rows
from hierrouter.query import storable
from hierrouter_cache.errors import InputError

MAX_TOKENS = 2**31 - 1  # what a cache can hold
PICKLES = (".pkl", ".pickle", ".pt", ".pth")


@dataclass(frozen=True)
class Row:
    """One row, and where it stands.

    Attributes:
        where: file and row, for messages.
        values: by column; None where nothing stands there.
    """

    where: str
    values: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """The text of a column, lone surrogates replaced; `default` where there is none.

        Raises:
            InputError: nothing there and no default, or not a text.
        """
        value = self.values.get(name)
        if value is None and default is not None:
            return storable(default)  # perhaps a file's name, which may be any bytes
        if not isinstance(value, str):
            raise InputError(f"{name} must be a text, got {value!r:.40}: {self.where}")
        return storable(value)

    def words(self, name: str, default: str | None = None) -> str:
        """The text of a column that must not be blank.

        Raises:
            InputError: as `text`, or the text is blank.
        """
        text = self.text(name, default)
        if not text.strip():
            raise InputError(f"{name} is blank: {self.where}; give a text")
        return text

    def label(self, name: str, default: str | None = None) -> str:
        """A text that names something; a whole number is taken as its digits.

        Raises:
            InputError: as `words`.
        """
        value = self.values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.words(name, default)

    def count(self, name: str) -> int:
        """A whole number >= 0 that a cache can hold.

        Raises:
            InputError: anything else.
        """
        value = self.number(name)
        if value is None or not value.is_integer() or not 0 <= value <= MAX_TOKENS:
            raise InputError(
                f"{name} must be a whole number from 0 to {MAX_TOKENS:,}, "
                f"got {self.values.get(name)!r:.40}: {self.where}"
            )
        return int(value)

    def share(self, name: str) -> float | None:
        """A number from 0 to 1, or None where nothing stands there.

        Raises:
            InputError: anything else.
        """
        value = self.number(name)
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{name} must be from 0 to 1, got {value}: {self.where}")
        return value

    def number(self, name: str) -> float | None:
        """A finite number, or None where nothing stands there.

        Raises:
            InputError: anything else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{name} must be a finite number, got {value!r:.40}: {self.where}")
        return number


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, by the end of its name.

    Raises:
        InputError: not such a file, not readable, or without rows.
    """
    readers = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
    require_file(path)
    reader = readers.get(path.suffix)
    if reader is None:
        raise InputError(
            f"unknown kind of file: {path}; known: {', '.join(readers)}; "
            "a cache of ours: --format jsonl"
        )
    number = 0
    try:
        for number, values in enumerate(reader(path), start=1):
            yield Row(f"{path}: row {number}", values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        place = f"{path}: after row {number}" if number else f"{path}"
        raise InputError(
            f"not readable as {path.suffix[1:]}: {place}: {_cause(error)}; save it again"
        ) from None
    if not number:
        raise InputError(f"no rows: {path}; give one for each answer")


def _cause(error: Exception) -> str:
    """Why a file could not be read, in a few words and without its bytes."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "invalid UTF8" in said:
        return "not UTF-8"
    columns = re.search(r"(Row #\d+: )?Expected \d+ columns, got \d+", said)
    return columns[0] if columns else said[:120]


def require_file(path: Path) -> None:
    """Refuse what is no regular file, and what only a pickle could be read from.

    Raises:
        InputError: with what it is instead.
    """
    if path.suffix in PICKLES:
        raise InputError(
            f"a pickle can run any code and is not read: {path}; save the frame as .parquet or .csv"
        )
    if not path.exists():
        raise InputError(f"file not found: {path}; name one that exists")
    if not path.is_file():
        raise InputError(f"not a regular file: {path}; name a file")
    if not path.stat().st_size:
        raise InputError(f"file is empty: {path}; save it again")


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    for _, row in json_lines(path):
        yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    for _, row in parquet_rows(path):
        yield row


def _require_commas(path: Path) -> None:
    """Refuse what the first line of a CSV shows to be of another kind."""
    with path.open("rb") as file:
        first = file.readline(MAX_LINE)
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"not UTF-8 but UTF-16: {path}; save it as UTF-8")
    for separator, name in ((b";", ";"), (b"\t", "a tab")):
        if separator in first and b"," not in first:
            raise InputError(f"the separator looks like {name}: {path}; save it with commas")


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    _require_commas(path)
    whole = pa.csv.ParseOptions(newlines_in_values=True)
    blocks = pa.csv.ReadOptions(block_size=MAX_LINE)
    with pa.csv.open_csv(path, read_options=blocks, parse_options=whole) as batches:
        names = batches.schema.names
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"column {twice[0]!r:.80} stands twice: {path}; rename or remove one")
    # Every cell as a text: an answer "007" is no number.
    cells = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    with pa.csv.open_csv(path, blocks, whole, cells) as batches:
        for batch in batches:
            yield from batch.to_pylist()

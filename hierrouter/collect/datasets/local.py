"""Questions in files: JSON lines and Parquet.

In: a .jsonl or .parquet file with one question a row. Out: `Query` values, or one line that names
the bad rows by their numbers. Not covered: what a row holds (`shape`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from hierrouter.collect.datasets.shape import Row, query_of
from hierrouter.json_lines import json_lines
from hierrouter.parquet_rows import parquet_rows
from hierrouter.query import Query
from hierrouter_cache.errors import InputError

SUFFIXES = (".jsonl", ".parquet")
NAMED = 4  # bad rows in a line, besides the first


def is_file(name: str) -> bool:
    """Whether a name means a file of one's own."""
    return name.endswith(SUFFIXES)


def read_file(path: Path) -> list[Query]:
    """The queries of one file; `split` is "" where the file does not say.

    Raises:
        InputError: no such file, it cannot be read, or its bad rows.
    """
    if path.is_dir():
        raise InputError(f"dataset is a directory: {path}; name a .jsonl or .parquet file")
    if not path.exists():
        raise InputError(
            f"dataset file not found: {path}; put the questions there, see docs/datasets.md"
        )
    queries = []
    places: dict[tuple[str, str], str] = {}
    faults: list[tuple[int, str]] = []
    for number, where, row in _rows(path):
        try:
            query = query_of(row, where, path.stem, number)
            _require_new(query, where, places)
        except InputError as error:
            faults.append((number, str(error)))
        else:
            queries.append(query)
    if faults:
        raise InputError(_bad_rows(faults))
    if not queries:
        raise InputError(f"dataset has no rows: {path}; put the questions there")
    return queries


def _require_new(query: Query, where: str, places: dict[tuple[str, str], str]) -> None:
    first = places.setdefault((query.dataset, query.id), where)
    if first != where:
        raise InputError(f"duplicate id {query.id:.40}: {first} and {where}; ids must differ")


def _bad_rows(faults: list[tuple[int, str]]) -> str:
    """What is wrong with the first row in full, with others in brief."""
    (_, first), *others = faults
    if not others:
        return first
    brief = ", ".join(f"{number} ({said.partition(':')[0]})" for number, said in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"{first}; bad too: {brief}{more}"


def count_rows(path: Path) -> int:
    """How many questions a file has, without looking at them.

    Raises:
        InputError: it cannot be read.
    """
    return sum(1 for _ in _rows(path))


def _rows(path: Path) -> Iterator[tuple[int, str, Row]]:
    """(number, place for messages, row) of each row."""
    if path.suffix == ".parquet":
        for number, row in parquet_rows(path):
            yield number, f"{path}: row {number}", _without_nulls(row)
    else:
        for number, row in json_lines(path):
            yield number, f"{path}:{number}", row


def _without_nulls(row: Row) -> dict[str, Any]:
    """The row without what other rows have: in Parquet every row has the keys of all."""
    kept = {key: value for key, value in row.items() if value is not None}
    choices = kept.get("choices")
    if isinstance(choices, list) and all(_is_pair(item) for item in choices):
        choices = dict(choices)  # of the type "map"
    if isinstance(choices, dict):
        kept["choices"] = {key: text for key, text in choices.items() if text is not None}
    return kept


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and isinstance(item[0], Hashable)

"""The rows of data/math.jsonl, and the same rows as a table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.acceptance.place import ROWS, Place, questions, write_rows

NAME = "math"


def file_of(place: Place) -> Path:
    return place.home / "data" / f"{NAME}.jsonl"


def missing(place: Place) -> None:
    file_of(place).unlink()


def empty(place: Place) -> None:
    file_of(place).write_text("")


def line(place: Place, number: int, text: str) -> None:
    """Replace a line, counted from 1."""
    lines = file_of(place).read_text().splitlines()
    lines[number - 1] = text
    file_of(place).write_text("\n".join(lines) + "\n")


def field(place: Place, number: int, key: str, value: Any) -> None:
    """Set a field of the row on this line."""
    line(place, number, json.dumps({**questions(NAME)[number - 1], key: value}))


def misspelt(place: Place, number: int, key: str, instead: str) -> None:
    row = questions(NAME)[number - 1]
    row[instead] = row.pop(key)
    line(place, number, json.dumps(row))


def long_question(place: Place, number: int, size: int) -> None:
    field(place, number, "question", "x" * size)


def array(place: Place, indent: int | None = None) -> None:
    """One JSON list instead of a line a row."""
    file_of(place).write_text(json.dumps(questions(NAME), indent=indent))


def in_both_folds(place: Place) -> None:
    first, second, *rest = questions(NAME)
    second = {**second, "question": first["question"], "split": "test"}
    write_rows(file_of(place), [first, second, *rest])


def only_first_row(place: Place) -> None:
    write_rows(file_of(place), questions(NAME)[:1])


def not_utf_8(place: Place) -> None:
    with file_of(place).open("ab") as file:
        file.write(b'\xff\xfe{"id":1}\n')


def windows_text(place: Place) -> None:
    """As an editor there saves it: a byte order mark and CRLF."""
    data = file_of(place).read_bytes()
    file_of(place).write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))


def compressed(place: Place) -> None:
    file_of(place).write_bytes(gzip.compress(file_of(place).read_bytes()))


def table(place: Place, **columns: Any) -> None:
    """The rows as Parquet instead, with these columns replaced; None leaves one out."""
    rows = questions(NAME)
    content = {name: [row[name] for row in rows] for name in rows[0]} | columns
    kept = {name: values for name, values in content.items() if values is not None}
    file_of(place).unlink()
    pq.write_table(pa.table(kept), file_of(place).with_suffix(".parquet"))


def table_without_answers(place: Place) -> None:
    table(place, answer=None)


def table_of_numbers(place: Place) -> None:
    table(place, question=list(range(ROWS)))


def table_with_a_hole(place: Place) -> None:
    table(place, answer=["1", None, "3", "4", "5", "6"])


def table_with_twins(place: Place) -> None:
    table(place, id=["a", "b", "a", "c", "d", "e"])


def empty_table(place: Place) -> None:
    table(place, **{name: [] for name in questions(NAME)[0]})


def torn_table(place: Place) -> None:
    table(place)
    file = file_of(place).with_suffix(".parquet")
    file.write_bytes(file.read_bytes()[:-20])

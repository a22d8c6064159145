"""Parts under right names whose rows are none of ours: refused in one line, whoever reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter_cache.errors import CacheError, DamagedPart
from hierrouter_cache.parts import METADATA_KEY, list_parts, part_name, sound_parts
from tests.properties.test_parts import READERS, sound

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(shutil.copytree(sound(), tmp_path / "cache"))
    shutil.rmtree(root / "derived")  # so that texts have to be read again
    for part in list_parts(root):
        if part.kind == "scores":
            part.path.unlink()
    return root


def forge(root: Path, kind: str, change: Change) -> None:
    """Put changed rows in the place of each part of a kind, under names that fit."""
    for part in list_parts(root):
        if part.kind == kind:
            sink = pa.BufferOutputStream()
            table = change(pq.read_table(part.path))
            pq.write_table(table, sink)
            replace(part.path, kind, part.seq, len(table), sink.getvalue().to_pybytes())


def replace(path: Path, kind: str, seq: int, rows: int, data: bytes) -> None:
    path.unlink()
    (path.parent / part_name(kind, seq, "00000000", rows, data)).write_bytes(data)


def every(column: str, value: Any) -> Change:
    """Each row with this value in a column."""

    def change(table: pa.Table) -> pa.Table:
        field = table.schema.field(column)
        values = pa.array([value] * len(table), field.type)
        return table.set_column(table.column_names.index(column), field, values)

    return change


def no_utf8(column: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        values = pa.array([b"\xff"] * len(table), pa.binary()).view(pa.string())
        place = table.column_names.index(column)
        return table.set_column(place, table.schema.field(column), values)

    return change


ODD: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "no answer": ("calls", every("response", None), ("open",)),
    "a time that is none": ("calls", every("latency_s", float("nan")), ("export",)),
    "a key that is not UTF-8": (
        "calls",
        no_utf8("key"),
        ("info", "open", "export", "compact"),
    ),
    "a step that is not UTF-8": ("calls", no_utf8("step"), ("info", "open", "sql", "export")),
    "no question": ("queries", every("question", None), ("open",)),
    "no references": ("queries", every("answers", None), ("open",)),
    "a reference that is none": ("queries", every("answers", [None]), ("open",)),
    "no plan": ("plans", lambda table: table.slice(0, 0), ("info", "verify", "sql", "open")),
    "a plan without queries": ("plans", every("queries", []), ("info", "sql", "open")),
    "a plan without a list": ("plans", every("queries", None), ("info", "sql", "open")),
    "a plan without a pool": ("plans", every("pool", None), ("info", "sql", "open")),
    "a pool that is no JSON": ("plans", every("pool", "x"), ("info", "sql", "open")),
    "a pool of no models": ("plans", every("pool", '{"pool": {}}'), ("info", "sql", "open")),
}
CASES = [(name, reader) for name, (_, _, readers) in ODD.items() for reader in readers]


@pytest.mark.parametrize(("name", "reader"), CASES)
def test_rows_that_nobody_wrote_are_refused(root: Path, name: str, reader: str) -> None:
    kind, change, _ = ODD[name]
    forge(root, kind, change)
    with pytest.raises(CacheError) as refused:
        READERS[reader](root)
    assert "\n" not in str(refused.value)


def spoilt(table: pa.Table, **changes: Any) -> pa.Table:
    """A plan whose pool has these entries."""

    stored = json.loads(table["pool"][0].as_py())
    stored["pool"].update(changes)
    return every("pool", json.dumps(stored))(table)


@pytest.mark.parametrize(
    "changes",
    [
        {"hops": "2"},
        {"hops": 60},
        {"hops": True},
        {"models": []},
        {"models": [7]},
        {"stage_prompts": []},
        {"stage_prompts": ["\ud800"]},
        {"references": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("reader", ["info", "sql", "open"])
def test_a_pool_that_no_tree_can_have_is_refused(
    root: Path, reader: str, changes: dict[str, Any]
) -> None:
    forge(root, "plans", lambda table: spoilt(table, **changes))
    with pytest.raises(CacheError, match="the last plan holds no pool"):
        READERS[reader](root)


def test_a_page_that_is_damaged_under_a_right_name_is_not_merged(root: Path) -> None:
    part = next(part for part in list_parts(root) if part.kind == "calls")
    data = bytearray(part.path.read_bytes())
    data[4:400] = bytes(396)
    replace(part.path, part.kind, part.seq, part.rows, bytes(data))
    before = {path.name for path in (root / "parts").iterdir()}
    with pytest.raises(CacheError):
        READERS["compact"](root)
    assert {path.name for path in (root / "parts").iterdir()} == before


@pytest.mark.parametrize("header", [b'{"format": Infinity}', b'{"format": 1e400}', b"[" * 100_000])
def test_a_format_that_is_no_number_is_named(root: Path, header: bytes) -> None:
    forge(root, "calls", lambda table: table.replace_schema_metadata({METADATA_KEY: header}))
    with pytest.raises(DamagedPart, match="its format number is not readable"):
        sound_parts(root)

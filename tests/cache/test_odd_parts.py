"""Parts under right names whose rows are none of ours: refused in one line, whoever reads them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter_cache.errors import CacheError
from hierrouter_cache.parts import list_parts
from tests.cache import rows
from tests.properties.test_parts import READERS, sound

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(shutil.copytree(sound(), tmp_path / "cache"))
    shutil.rmtree(root / "derived")  # so that texts have to be read again
    for part in list_parts(root):
        if part.kind == "scores":
            rows.take(part.path)
    return root


def forge(root: Path, kind: str, change: Change) -> None:
    """Put changed rows in the place of each part of a kind, under names that fit."""
    for part in list_parts(root):
        if part.kind == kind:
            table = change(pq.read_table(part.path))
            rows.take(part.path)
            rows.put(root, kind, table, part.seq)


def every(column: str, value: Any) -> Change:
    """Each row with this value in a column."""
    return lambda table: rows.with_column(table, column, [value] * len(table))


def no_utf8(column: str) -> Change:
    return lambda table: rows.with_column(table, column, rows.no_utf8(len(table)))


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


@pytest.mark.parametrize(
    "changes",
    [
        *({"hops": hops} for hops in ("2", 60, True)),
        *({"models": models} for models in ([], [7])),
        *({"stage_prompts": prompts} for prompts in ([], ["\ud800"])),
        {"references": None},
    ],
    ids=str,
)
def test_a_pool_that_no_tree_can_have_is_refused(root: Path, changes: dict[str, Any]) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        stored = json.loads(table["pool"][0].as_py())
        stored["pool"].update(changes)
        return every("pool", json.dumps(stored))(table)

    forge(root, "plans", spoil)
    for reader in ("info", "sql", "open"):
        with pytest.raises(CacheError, match="the last plan holds no pool"):
            READERS[reader](root)


def test_a_page_that_is_damaged_under_a_right_name_is_not_merged(root: Path) -> None:
    part = next(part for part in list_parts(root) if part.kind == "calls")
    data = bytearray(part.path.read_bytes())
    data[4:400] = bytes(396)
    rows.take(part.path)
    rows.put(root, part.kind, bytes(data), part.seq, rows=part.rows)
    before = {path.name for path in (root / "parts").iterdir()}
    with pytest.raises(CacheError):
        READERS["compact"](root)
    assert {path.name for path in (root / "parts").iterdir()} == before

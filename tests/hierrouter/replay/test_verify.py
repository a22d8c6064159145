"""`cache verify`: parts whose bytes are right and whose rows are not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter.replay.inspection import damaged_files, verify_cache
from hierrouter.replay.opening import open_tree
from hierrouter_cache.errors import DamagedPart
from hierrouter_cache.keys import plan_key
from hierrouter_cache.parts import KINDS, Part, list_parts
from hierrouter_cache.writer import PartWriter

Row = dict[str, Any]


@pytest.fixture
def cache(testbed_cache: Path, tmp_path: Path) -> Path:
    """Collected and scored, and ours alone."""
    root = Path(shutil.copytree(testbed_cache, tmp_path / "cache"))
    open_tree(root)
    return root


def last_part(root: Path, kind: str) -> Part:
    return [part for part in list_parts(root) if part.kind == kind][-1]


def spoil(root: Path, kind: str, change: Callable[[Row], object]) -> str:
    """Change every row of a kind's last part; returns the name of the part that is there now."""
    part = last_part(root, kind)
    rows = pq.read_table(part.path, columns=KINDS[kind].names).to_pylist()
    for row in rows:
        change(row)
    part.path.unlink()
    return PartWriter(root).append(kind, pa.Table.from_pylist(rows, schema=KINDS[kind])).name


def other_hops(row: Row) -> None:
    """A pool that no file could hold, under the key that is right for it."""
    stored = json.loads(row["pool"])
    stored["pool"]["hops"] = "2"
    row["pool"] = json.dumps(stored)
    row["plan"] = plan_key(row["pool"], row["queries"])


DAMAGES: dict[str, tuple[str, Callable[[Row], object], str]] = {
    "score": ("scores", lambda row: row.update(value=1.7), "value must be from 0 to 1"),
    "response": ("calls", lambda row: row.update(response="forged"), "outcome is not that of"),
    "step": ("calls", lambda row: row.update(step="0" * 32), "key is not that of"),
    "tokens": ("calls", lambda row: row.update(tokens_in=-1), "tokens_in must be int32, got -1"),
    "question": ("queries", lambda row: row.update(question="forged"), "query is not that of"),
    "answers": ("queries", lambda row: row.update(answers=["forged"]), "query is not that of"),
    "plan": ("plans", lambda row: row.update(queries=row["queries"][1:]), "plan is not that of"),
    "pool": ("plans", other_hops, "hops must be an integer, got '2'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_rows_that_are_not_what_their_keys_say_are_found(cache: Path, name: str) -> None:
    kind, change, message = DAMAGES[name]
    part = spoil(cache, kind, change)
    assert damaged_files(cache) == []  # every byte is as its name says
    with pytest.raises(DamagedPart, match=message) as error:
        verify_cache(cache)
    assert part in str(error.value)
    assert len(str(error.value)) <= 300


def test_rows_that_are_not_served_are_looked_at_too(cache: Path) -> None:
    row = pq.read_table(last_part(cache, "calls").path).slice(0, 1).to_pylist()[0]
    rival = pa.Table.from_pylist([{**row, "response": "forged"}], schema=KINDS["calls"])
    PartWriter(cache).append("calls", rival)
    with pytest.raises(DamagedPart, match="row 1: outcome is not that of"):
        verify_cache(cache)


def test_a_sound_cache_is_verified_row_by_row(cache: Path) -> None:
    total = sum(part.rows for part in list_parts(cache))
    seen: list[tuple[int, int]] = []
    lines = verify_cache(cache, on_rows=lambda rows, of: seen.append((rows, of)))
    assert f"{total} rows: every key is that of the row's content" in lines
    assert sum(rows for rows, _ in seen) == total
    assert {of for _, of in seen} == {total}

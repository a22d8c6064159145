"""Compaction: fewer parts, the same rows served; also when it is broken off anywhere."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter_cache import reader
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.errors import CacheError, CacheLocked, DamagedPart, NoCache, WorldError
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact, quarantine
from hierrouter_cache.parts import IDENTITY_COLUMNS, LAST_WINS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.cache.test_writer import failing

Served = dict[tuple[object, ...], dict[str, object]]


class BrokenOffError(Exception):
    """What a test raises in the middle of a compaction."""


def scores(**values: float) -> pa.Table:
    """One score a name."""
    return rows.table("scores", *((name, name, name, value) for name, value in values.items()))


def failures(**statuses: str) -> pa.Table:
    """One failed call a name."""
    failed = ((name, "s", "c", "m", status, "why", 1) for name, status in statuses.items())
    return rows.table("failures", *failed)


def store(root: Path, *tables: pa.Table) -> list[Path]:
    """Parts of scores, numbered from 1."""
    return [rows.put(root, "scores", table, seq) for seq, table in enumerate(tables, 1)]


def served(root: Path, kind: str = "scores") -> Served:
    """What the rule says: of equal rows, that of the smallest name, or of the largest one."""
    found: Served = {}
    for part in list_parts(root):
        if part.kind == kind:
            for row in pq.ParquetFile(part.path).read().to_pylist():
                identity = tuple(row[name] for name in IDENTITY_COLUMNS[kind])
                if kind in LAST_WINS:
                    found.pop(identity, None)
                found.setdefault(identity, row)
    return found


def names(root: Path) -> list[str]:
    return [part.path.name for part in list_parts(root)]


def rows_stored(root: Path) -> int:
    return sum(part.rows for part in list_parts(root))


def break_off_everywhere(root: Path, target_rows: int = 100) -> Iterator[int]:
    """Compact, broken off at the first step, then at the second one of what is left, and so on.

    Yields the number of the step after each, and 0 when it came to its end.
    """
    for at in range(1, 1000):
        left = at

        def on_step(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise BrokenOffError

        try:
            compact(root, on_step, target_rows=target_rows)
        except BrokenOffError:
            yield at
        else:
            yield 0
            return


def test_small_parts_become_one_with_the_same_rows(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    tables = [rows.calls(("m", f"c{n}", f"r{n}"), ("m", f"d{n}", "r")) for n in range(50)]
    for table in tables:
        writer.append("calls", table)
    done = compact(tmp_path)
    assert (done.parts_before, done.parts_after) == (50, 1)
    assert done.bytes_after < done.bytes_before / 10
    (part,) = sound_parts(tmp_path)
    assert pq.ParquetFile(part.path).read().equals(pa.concat_tables(tables))
    assert len(CacheReader(tmp_path).responses()) == 100


def test_a_second_compaction_changes_nothing(tmp_path: Path) -> None:
    store(tmp_path, *(scores(**{f"s{n}": 0.5, f"t{n}": 0.25}) for n in range(29)))
    told: list[tuple[int, int]] = []
    compact(tmp_path, on_progress=lambda done, total: told.append((done, total)), target_rows=10)
    once = names(tmp_path)
    assert told == [(done, 29) for done in (5, 10, 15, 20, 25, 29)]
    compact(tmp_path, target_rows=10)
    assert names(tmp_path) == once
    assert len(once) == 6


def test_a_rerun_only_removes_what_was_merged(tmp_path: Path) -> None:
    store(tmp_path, *(scores(**{f"s{n}": 0.5}) for n in range(4)))

    def stop(step: str) -> None:
        if step == "compact: unlink":
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        compact(tmp_path, stop)
    (merged, *_) = names(tmp_path)
    steps: list[str] = []
    compact(tmp_path, steps.append)
    assert steps == ["compact: unlink"] * 4
    assert names(tmp_path) == [merged]


@pytest.mark.parametrize("seed", range(8))
def test_broken_off_anywhere_it_serves_the_same_rows(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(12):
        chosen = dice.sample("abcdefghijklmnopqrst", dice.choice([1, 2, 3, 12]))
        table = scores(**{name: dice.random() for name in chosen})
        writer = dice.choice(["00000000", "bbbbbbbb"])
        rows.put(tmp_path, "scores", table, dice.randint(1, 5), writer)
    before, steps = served(tmp_path), []
    for step in break_off_everywhere(tmp_path, target_rows=8):
        steps.append(step)
        assert served(tmp_path) == before
    assert len(steps) > 4
    assert rows_stored(tmp_path) == len(before)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_rival_in_a_large_part_does_not_win_when_the_winner_moves(tmp_path: Path) -> None:
    many = {f"x{n}": 0.0 for n in range(99)}
    store(tmp_path, scores(a=1.0), scores(**many, a=0.0), scores(b=1.0))
    before = served(tmp_path)
    assert before[("a", "a", "a")]["value"] == 1.0
    compact(tmp_path, target_rows=100)
    assert served(tmp_path) == before
    assert rows_stored(tmp_path) == 101


def test_a_part_that_lies_between_and_is_large_is_left_alone(tmp_path: Path) -> None:
    many = {f"x{n}": 0.0 for n in range(99)}
    _, large, _ = store(tmp_path, scores(a=1.0), scores(**many), scores(b=1.0))
    compact(tmp_path, target_rows=100)
    assert large.name in names(tmp_path)
    assert len(names(tmp_path)) == 2


def test_the_latest_plan_stays_the_latest_wherever_it_is_broken_off(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    for name in ("first", "second", "third", "first", "fourth", "second"):
        writer.append("plans", rows.plans(name))
        writer.append("scores", scores(**{name: 1.0}))
    for _ in break_off_everywhere(tmp_path):
        assert CacheReader(tmp_path).latest_plan().pool == "second"
    assert [key for (key,) in served(tmp_path, "plans")] == ["third", "first", "fourth", "second"]
    writer.append("plans", rows.plans("fifth"))
    assert CacheReader(tmp_path).latest_plan().pool == "fifth"


def test_the_latest_of_plans_with_one_seq_stays_the_latest(tmp_path: Path) -> None:
    for writer in ("11111111", "22222222", "33333333"):
        rows.put(tmp_path, "plans", rows.plans(f"of {writer}"), 7, writer)
    for _ in break_off_everywhere(tmp_path):
        assert CacheReader(tmp_path).latest_plan().pool == "of 33333333"


@pytest.mark.parametrize("target_rows", [2, 100])
def test_the_last_failure_of_a_call_stays_the_last_wherever_it_is_broken_off(
    tmp_path: Path, target_rows: int
) -> None:
    writer = PartWriter(tmp_path)
    for table in [
        failures(a="filtered", b="filtered", c="too_long"),
        failures(a="empty", d="error"),
        failures(b="empty", e="error"),
        failures(a="error"),
    ]:
        writer.append("failures", table)
    last = {"a": "error", "b": "empty", "c": "too_long", "d": "error", "e": "error"}
    for _ in break_off_everywhere(tmp_path, target_rows):
        assert CacheReader(tmp_path).failures() == last
    assert rows_stored(tmp_path) == len(last)
    writer.append("failures", failures(c="empty"))
    assert CacheReader(tmp_path).failures() == {**last, "c": "empty"}


def test_a_further_column_of_a_later_version_survives(tmp_path: Path) -> None:
    store(tmp_path, scores(a=1.0).append_column("judge", pa.array(["x"])), scores(b=0.0))
    compact(tmp_path)
    assert [row["judge"] for row in served(tmp_path).values()] == ["x", None]


def test_what_cannot_be_merged_is_refused_and_nothing_touched(tmp_path: Path) -> None:
    with pytest.raises(NoCache):
        compact(tmp_path)
    assert list(tmp_path.iterdir()) == []
    paths = store(
        tmp_path,
        scores(a=1.0).append_column("judge", pa.array(["x"])),
        scores(b=1.0).append_column("judge", pa.array([1])),
    )
    with pytest.raises(CacheError, match=r"parts of scores do not go together: .*judge"):
        compact(tmp_path)
    with collector_lock(tmp_path), pytest.raises(CacheLocked):
        compact(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    with pytest.raises(DamagedPart, match=paths[1].name):
        compact(tmp_path)
    assert names(tmp_path) == [path.name for path in paths]


def test_identities_beyond_the_memory_wait_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"{number:064d}" for number in range(200000)]
    columns = {"call": many, "references": many, "scorer": many, "value": [0.5] * len(many)}
    schema = scores().schema
    unread = {name: pa.nulls(len(many), schema.field(name).type) for name in schema.names[4:]}
    table = pa.table({**columns, **unread}, schema=schema)
    store(tmp_path, table, table)
    monkeypatch.setattr(reader, "WINNERS_MEMORY", "50MB")
    compact(tmp_path)
    (merged,) = list_parts(tmp_path)
    assert merged.rows == len(many)
    assert not list((tmp_path / "tmp").iterdir())


def test_without_room_nothing_is_merged_and_a_part_that_is_gone_is_no_lack_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, scores(a=0.5), scores(a=0.5))
    before = list_parts(tmp_path)
    with monkeypatch.context() as small:
        small.setattr(reader, "WINNERS_MEMORY", "1KB")
        with pytest.raises(WorldError, match="no room to compare rows"):
            compact(tmp_path)
    assert list_parts(tmp_path) == before
    before[1].path.unlink()
    with pytest.raises(CacheError, match=r"a part cannot be read: .*; nothing was merged"):
        reader.winners_of(tmp_path, before)


def test_a_disk_that_refuses_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = store(tmp_path, scores(a=0.5), scores(b=0.5))
    for call in ("unlink", "rename"):
        monkeypatch.setattr(Path, call, failing(errno.EIO))
    with pytest.raises(WorldError, match=r"cannot remove a merged part: .*; run `cache compact`"):
        compact(tmp_path)
    assert {first.name, second.name} < set(names(tmp_path))
    second.write_bytes(b"")
    with pytest.raises(WorldError, match=r"cannot move a damaged file: .*; run `repair` again"):
        quarantine(tmp_path)


@pytest.mark.parametrize("name", ["a b'c", "x[1]*?", "deep/../deep/./cache"])
def test_a_folder_of_any_name_is_compacted(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep").mkdir()
    store(tmp_path / name, *[scores(a=0.5, b=1.0)] * 2)
    compact(tmp_path / name)
    assert [part.rows for part in list_parts(tmp_path / name)] == [2]

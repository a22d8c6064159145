"""Damage is never silent: whatever happens to a part, the reader refuses it by name."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter_cache import parts
from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.errors import CacheError, CacheLocked, DamagedPart, NoCache
from hierrouter_cache.keys import digest
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact, quarantine
from hierrouter_cache.parts import (
    KINDS,
    MAX_ROWS,
    METADATA_KEY,
    list_parts,
    part_name,
    sound_parts,
)
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

ONE_CALL = rows.calls(("m", "c", "r"))


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return PartWriter(tmp_path).append(
        "calls", rows.calls(*[("m", f"c{i}", "r") for i in range(9)])
    )


def damage(kind: str, part: Path) -> None:
    data = bytearray(part.read_bytes())
    middle = len(data) // 2
    if kind == "flip":
        data[middle] ^= 1
    elif kind == "truncate":
        del data[middle:]
    elif kind == "zero block":
        data[middle : middle + 64] = bytes(64)
    elif kind == "empty":
        data.clear()
    part.write_bytes(data)


@pytest.mark.parametrize("kind", ["flip", "truncate", "zero block", "empty"])
def test_damage_is_named(tmp_path: Path, part: Path, kind: str) -> None:
    damage(kind, part)
    with pytest.raises(DamagedPart, match=rf"damaged part: {part.name}.*cache repair"):
        CacheReader(tmp_path)


def realistic(kind: str) -> pa.Table:
    """A few hundred rows of one kind, with texts of a kilobyte."""
    dice = Random(kind)

    def value(of: pa.DataType) -> object:
        if pa.types.is_list(of):
            return [value(of.value_type) for _ in range(3)]
        if pa.types.is_struct(of):
            return {field.name: value(field.type) for field in of}
        if pa.types.is_string(of):
            return dice.randbytes(dice.choice([8, 8, 600])).hex()
        return dice.random() if pa.types.is_floating(of) else dice.randrange(1000)

    fields = KINDS[kind]
    return pa.table([[value(field.type) for _ in range(200)] for field in fields], schema=fields)


def flip_bit(data: bytearray, dice: Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def truncate(data: bytearray, dice: Random) -> None:
    del data[dice.randrange(len(data)) :]


def zero_block(data: bytearray, dice: Random) -> None:
    start = dice.randrange(len(data))
    size = min(512, len(data) - start)
    data[start : start + size] = bytes(size)


@pytest.mark.parametrize("harm", [flip_bit, truncate, zero_block])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_damages_of_each_kind_are_all_named(
    tmp_path: Path, kind: str, harm: Callable[[bytearray, Random], None]
) -> None:
    part = PartWriter(tmp_path).append(kind, realistic(kind))
    sound, dice = part.read_bytes(), Random(0)
    seen = 0
    while seen < 100:
        data = bytearray(sound)
        harm(data, dice)
        if data != sound:
            seen += 1
            part.write_bytes(data)
            with pytest.raises(DamagedPart, match=part.name):
                sound_parts(tmp_path)
    part.write_bytes(sound)
    assert [found.path for found in sound_parts(tmp_path)] == [part]


def forge(folder: Path, table: pa.Table, header: bytes = b'{"format": 1}') -> None:
    """A part with a right hash but other content than we write."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: header}), sink)
    data = memoryview(sink.getvalue())
    name = part_name("calls", 1, "00000000", table.num_rows, data)
    (folder / name).write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PartWriter(tmp_path)
    return tmp_path / "parts"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "column tokens_in is missing"),
        (pa.array([3.5]), "tokens_in has type double, not int32"),
    ],
    ids=["missing", "of another type"],
)
def test_a_wrong_column_is_named(
    tmp_path: Path, folder: Path, given: pa.Array | None, message: str
) -> None:
    table = ONE_CALL.drop_columns(["tokens_in"])
    forge(folder, table if given is None else table.append_column("tokens_in", given))
    with pytest.raises(DamagedPart, match=message):
        CacheReader(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path, folder: Path) -> None:
    forge(folder, ONE_CALL, b'{"format": 99}')
    with pytest.raises(CacheError, match=r"newer version \(format 99"):
        CacheReader(tmp_path)


def test_a_further_column_is_welcome(tmp_path: Path, folder: Path) -> None:
    forge(folder, ONE_CALL.append_column("judge", pa.array(["x"])))
    assert len(CacheReader(tmp_path).responses()) == 1


def test_strangers_are_ignored(tmp_path: Path, part: Path) -> None:
    for name in (".DS_Store", "README.txt", "x.tmp", "y.csv", "calls-1.parquet"):
        (part.parent / name).write_text("stranger")
    assert len(CacheReader(tmp_path).responses()) == 9


def test_no_cache_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(NoCache, match=r"no cache: .*nowhere; .*hierrouter collect"):
        CacheReader(tmp_path / "nowhere")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda part: part.symlink_to("../sound")])
def test_a_folder_a_pipe_or_a_link_with_the_name_of_a_part_is_no_part(
    tmp_path: Path, part: Path, make: Callable[[Path], None]
) -> None:
    part.rename(tmp_path / "sound")
    make(part)
    with pytest.raises(DamagedPart, match="not a regular file"):
        CacheReader(tmp_path)


def test_a_part_without_permission_is_not_damaged(
    tmp_path: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved aside, its answers would be paid for again. Root reads everything, hence the patch."""
    real = Path.open

    def locked(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == part:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", locked)
    with pytest.raises(CacheError, match="no permission to read a part") as refused:
        CacheReader(tmp_path)
    assert not isinstance(refused.value, DamagedPart)
    with pytest.raises(CacheError, match="no permission"):
        quarantine(tmp_path)
    assert part.exists()


def test_a_part_with_more_rows_than_any_of_ours_is_refused_unread(
    tmp_path: Path, folder: Path
) -> None:
    name = f"scores-00000001-00000000-r{MAX_ROWS + 1}-{'0' * 16}.parquet"
    (folder / name).write_bytes(b"never looked at")
    refused = rf"{MAX_ROWS + 1:,} rows, the limit is {MAX_ROWS:,}"
    with pytest.raises(DamagedPart, match=refused):
        CacheReader(tmp_path)
    (part,) = list_parts(tmp_path)
    assert re.search(refused, parts.fault_of_bytes(part, b"never looked at") or "")


@pytest.mark.parametrize("error", [OSError(), pa.ArrowInvalid("")], ids=repr)
def test_a_part_that_fails_without_a_word_is_named_all_the_same(
    part: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def silent(where: object) -> None:
        raise error

    monkeypatch.setattr(parts.pq, "read_metadata", silent)
    (found,) = list_parts(part.parents[1])
    said = f"not readable ({type(error).__name__})"
    assert parts.fault(found) == said
    assert parts.fault_of_bytes(found, part.read_bytes()) == said


def test_a_part_that_hides_its_number_of_rows_is_refused_by_its_footer(
    tmp_path: Path, folder: Path
) -> None:
    table = pa.table({"value": pa.nulls(1_000_000, pa.int8())})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema) as bomb:
        for _ in range(60):
            bomb.write_table(table)
    data = memoryview(sink.getvalue())
    (folder / part_name("scores", 1, "00000000", 3, data)).write_bytes(data)
    with pytest.raises(DamagedPart, match="60000000 rows, its name says 3"):
        CacheReader(tmp_path)


@pytest.mark.parametrize("header", [b"[]", b"{", b'{"format": "x"}', b"\xff"])
def test_a_format_that_cannot_be_read_is_named(tmp_path: Path, folder: Path, header: bytes) -> None:
    forge(folder, ONE_CALL, header)
    with pytest.raises(DamagedPart, match="its format number is not readable"):
        CacheReader(tmp_path)


def test_bytes_that_are_no_parquet_are_named(tmp_path: Path, folder: Path) -> None:
    (folder / part_name("scores", 1, "00000000", 3, b"text")).write_bytes(b"text")
    with pytest.raises(DamagedPart, match="not readable"):
        CacheReader(tmp_path)


def test_no_clock_decides_anything(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    both = [writer.append("calls", rows.calls(("m", "c", said))) for said in ("first", "second")]
    for age, path in zip((0, 365 * 86400), both, strict=True):
        os.utime(path, (1e9 - age, 1e9 - age))
    assert list(CacheReader(tmp_path).responses().values()) == ["first"]
    third = writer.append("calls", rows.calls(("m", "d", "third")))
    assert [part.path for part in sound_parts(tmp_path)] == [*both, third]


def test_parts_that_a_compaction_replaces_meanwhile_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(tmp_path)
    old = [writer.append("calls", rows.calls(("m", f"c{n}", "r"))) for n in range(3)]
    real = parts.fault

    def compact_before_the_second_look(part: parts.Part) -> str | None:
        if part.path == old[1]:
            monkeypatch.setattr(parts, "fault", real)
            compact(tmp_path)
        return real(part)

    monkeypatch.setattr(parts, "fault", compact_before_the_second_look)
    (merged,) = sound_parts(tmp_path)
    assert merged.rows == 3
    assert not any(path.exists() for path in old)


def test_a_part_that_goes_while_it_is_looked_at_is_gone_and_not_damaged(
    tmp_path: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (listed,) = list_parts(tmp_path)
    real = Path.lstat

    def look_and_lose(path: Path) -> os.stat_result:
        seen = real(path)
        path.unlink()
        return seen

    monkeypatch.setattr(Path, "lstat", look_and_lose)
    assert parts.fault(listed) == parts.GONE


def test_a_listing_torn_by_a_compaction_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second listing comes too late for the sources and too early for the merged part."""
    writer = PartWriter(tmp_path)
    alone = writer.append("queries", rows.queries("q"))
    for number in range(3):
        writer.append("calls", rows.calls(("m", f"c{number}", "r")))
    before = list_parts(tmp_path)
    compact(tmp_path)
    listings = iter([before, [part for part in before if part.path == alone]])
    monkeypatch.setattr(parts, "list_parts", lambda root: next(listings, None) or list_parts(root))
    merged, left_alone = sound_parts(tmp_path)
    assert (merged.rows, left_alone.path) == (3, alone)


def test_a_part_that_somebody_removed_is_asked_for_again(tmp_path: Path, part: Path) -> None:
    other = PartWriter(tmp_path).append("calls", rows.calls(("m", "other", "r")))
    part.unlink()
    assert [found.path for found in CacheReader(tmp_path).parts] == [other]


def test_repair_works_while_no_collector_does(tmp_path: Path, part: Path) -> None:
    damage("flip", part)
    with collector_lock(tmp_path), pytest.raises(CacheLocked):
        quarantine(tmp_path)
    assert part.exists()


def test_where_nothing_is_damaged_repair_makes_no_folder(tmp_path: Path, part: Path) -> None:
    assert quarantine(tmp_path) == []
    assert not parts.quarantine_folder(tmp_path).exists()
    assert part.exists()


def test_repair_moves_damaged_embeddings(tmp_path: Path, part: Path) -> None:
    store = EmbeddingStore(CacheReader(tmp_path), "e")
    store.append([digest("a"), digest("b")], np.ones((2, 4), np.float32))
    (file,) = store.folder.iterdir()
    damage("flip", file)
    assert [name for name, _ in quarantine(tmp_path)] == [file.name]
    assert list(store.folder.iterdir()) == []
    assert part.exists()


def test_an_older_plan_does_not_stand_in_for_a_damaged_one(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.append("plans", rows.plans("first"))
    last = [writer.append("plans", rows.plans(name)) for name in ("second", "third")]
    for path in last:
        damage("flip", path)
    quarantine(tmp_path)
    with pytest.raises(CacheError, match=rf"moved aside: {last[1].name}; collect with") as refused:
        CacheReader(tmp_path).latest_plan()
    assert len(str(refused.value)) <= 300
    writer.append("plans", rows.plans("fourth"))
    assert CacheReader(tmp_path).latest_plan().pool == "fourth"


def test_a_damaged_plan_that_was_not_the_last_changes_nothing(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    damage("flip", writer.append("plans", rows.plans("first")))
    writer.append("plans", rows.plans("second"))
    quarantine(tmp_path)
    assert CacheReader(tmp_path).latest_plan().pool == "second"


def test_repair_keeps_what_it_moved_before(tmp_path: Path, part: Path) -> None:
    sound = part.read_bytes()
    for kind in ("flip", "truncate"):
        part.write_bytes(sound)
        damage(kind, part)
        quarantine(tmp_path)
    moved = sorted(path.name for path in (tmp_path / "quarantine").iterdir())
    assert moved == [part.name, f"{part.name}.2"]


def test_repair_moves_the_damaged_and_keeps_the_others(tmp_path: Path, part: Path) -> None:
    other = PartWriter(tmp_path).append("calls", rows.calls(("m", "other", "r")))
    damage("flip", part)
    assert quarantine(tmp_path) == [(part.name, "checksum mismatch")]
    assert (tmp_path / "quarantine" / part.name).exists()
    assert [found.path for found in CacheReader(tmp_path).parts] == [other]

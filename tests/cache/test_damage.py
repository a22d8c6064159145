"""Damage is never silent, and parts under right names whose rows are none of ours are refused."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter_cache import parts
from hierrouter_cache.chain import HashRecord, seal_loose, sound_chain, sound_parts
from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.errors import CacheError, CacheLocked, DamagedPart
from hierrouter_cache.keys import digest
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact, quarantine
from hierrouter_cache.parts import MAX_PART_ROWS, ROW_SCHEMAS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.properties.test_parts import READERS, sound

ONE_CALL = rows.calls(("m", "c", "r"))
HARMS = ("flip", "truncate", "zero block")


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """A part of nine calls, the only one in its cache."""
    nine = [("m", f"c{number}", "r") for number in range(9)]
    return PartWriter(tmp_path).append("calls", rows.calls(*nine))


def harmed(sound: bytes, how: str) -> Iterator[bytes]:
    """A hundred times the bytes, damaged in one place each."""
    dice, found = Random(0), 0
    while found < 100:
        data = bytearray(sound)
        at = dice.randrange(len(data))
        if how == "flip":
            data[at] ^= 1 << dice.randrange(8)
        elif how == "truncate":
            del data[at:]
        else:
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        if data != sound:
            found += 1
            yield bytes(data)


def flip(path: Path) -> None:
    path.write_bytes(next(harmed(path.read_bytes(), "flip")))


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
        if pa.types.is_boolean(of):
            return dice.random() < 0.5
        return dice.random() if pa.types.is_floating(of) else dice.randrange(1000)

    fields = ROW_SCHEMAS[kind]
    return pa.table([[value(field.type) for _ in range(200)] for field in fields], schema=fields)


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("kind", ROW_SCHEMAS)
def test_a_hundred_damages_of_each_kind_are_all_named(tmp_path: Path, kind: str, how: str) -> None:
    part = PartWriter(tmp_path).append(kind, realistic(kind))
    sound = part.read_bytes()
    for data in (b"", *harmed(sound, how)):
        part.write_bytes(data)
        with pytest.raises(DamagedPart, match=rf"damaged part: {part.name}.*cache repair"):
            sound_parts(tmp_path)
    part.write_bytes(sound)
    assert [found.path for found in sound_parts(tmp_path)] == [part]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ONE_CALL.drop_columns(["tokens_in"]), "column tokens_in is missing"),
        (
            rows.with_column(ONE_CALL, "tokens_in", pa.array([3.5])),
            "tokens_in has type double, not int32",
        ),
        (b"text", "not readable"),
        *(
            (rows.parquet(ONE_CALL, header), "format 1, by an earlier version: collect again")
            for header in (b'{"format": 1}', b'{"format": 1, "kind": "calls"}')
        ),
        *(
            (rows.parquet(ONE_CALL, header), "its format number is not readable")
            for header in (
                *(b"[]", b"{", b'{"format": "x"}', b"\xff", b"[" * 100_000),
                *(b'{"format": Infinity}', b'{"format": 1e400}'),
            )
        ),
    ],
)
def test_what_we_do_not_write_is_named(
    tmp_path: Path, given: pa.Table | bytes, message: str
) -> None:
    rows.put(tmp_path, "calls", given)
    with pytest.raises(DamagedPart, match=message):
        CacheReader(tmp_path)


def test_a_further_column_is_welcome(tmp_path: Path) -> None:
    rows.put(tmp_path, "calls", ONE_CALL.append_column("judge", pa.array(["x"])))
    assert len(CacheReader(tmp_path).responses()) == 1


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, partial(os.symlink, "/dev/zero")])
def test_a_folder_a_pipe_or_a_device_with_the_name_of_a_part_is_no_part(
    tmp_path: Path, part: Path, make: Callable[[Path], None]
) -> None:
    part.rename(tmp_path / "sound")
    make(part)
    make(part.with_name(part.name.replace("calls", "seals")))
    seal_loose(tmp_path)  # does not hang
    with pytest.raises(DamagedPart, match="not a regular file"):
        CacheReader(tmp_path)


def linked(root: Path, link: Callable[[Path, Path], None]) -> Path:
    """The cache, with the bytes of its files in another folder, as tools that fetch data do it."""
    blobs = root.parent / "blobs"
    blobs.mkdir()
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink():
            blob = file.rename(blobs / f"{len(list(blobs.iterdir()))}")
            link(file, blob)
    return root


def relative_link(file: Path, blob: Path) -> None:
    file.symlink_to(os.path.relpath(blob, file.parent))


@pytest.mark.parametrize("link", [Path.symlink_to, relative_link, Path.hardlink_to])
def test_a_cache_of_links_is_read_and_grows(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """The hash in a part's name tells whether a link leads to its bytes."""
    root = linked(rows.fill(tmp_path / "cache"), link)
    before = CacheReader(root).responses()
    assert before
    (tmp_path / "door").symlink_to(root)
    assert CacheReader(tmp_path / "door").responses() == before
    PartWriter(tmp_path / "door").append("calls", rows.calls(("m", "new", "r")))
    assert len(CacheReader(root).responses()) == len(before) + 1
    compact(root)
    assert len(CacheReader(root).responses()) == len(before) + 1
    assert not quarantine(root)


def test_a_link_to_other_bytes_is_damage(tmp_path: Path, part: Path) -> None:
    (tmp_path / "other").write_bytes(part.read_bytes()[:-1] + b"x")
    record = HashRecord(tmp_path, tmp_path / "derived")
    part.rename(tmp_path / "sound")
    part.symlink_to(tmp_path / "sound")
    os.utime(tmp_path / "sound", (1, 1))
    sound_chain(tmp_path, record)
    part.unlink()
    part.symlink_to(tmp_path / "other")
    with pytest.raises(DamagedPart, match="checksum mismatch"):
        sound_chain(tmp_path, HashRecord(tmp_path, tmp_path / "derived"))


def test_a_link_to_a_file_that_was_not_fetched_is_no_damage(tmp_path: Path, part: Path) -> None:
    """Nor does `repair` give up what can still be fetched."""
    part.rename(tmp_path / "elsewhere")
    part.symlink_to("nowhere")
    for use in (CacheReader, quarantine):
        with pytest.raises(CacheError, match="leads to a file that is not here") as refused:
            use(tmp_path)
        assert not isinstance(refused.value, DamagedPart)
        assert "repair" not in str(refused.value)
    assert part.is_symlink()


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
    for use in (CacheReader, quarantine):
        with pytest.raises(CacheError, match="no permission to read a part") as refused:
            use(tmp_path)
        assert not isinstance(refused.value, DamagedPart)
    assert part.exists()


def test_a_part_with_more_rows_than_any_of_ours_is_refused_unread(tmp_path: Path) -> None:
    rows.put(tmp_path, "scores", b"never looked at", rows=MAX_PART_ROWS + 1)
    refused = rf"{MAX_PART_ROWS + 1:,} rows, the limit is {MAX_PART_ROWS:,}"
    with pytest.raises(DamagedPart, match=refused):
        CacheReader(tmp_path)
    (part,) = list_parts(tmp_path)
    assert re.search(refused, parts.proof(part, b"never looked at")[0] or "")


@pytest.mark.parametrize("error", [OSError(), pa.ArrowInvalid("")], ids=repr)
def test_a_part_that_fails_without_a_word_is_named_all_the_same(
    tmp_path: Path, part: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def silent(where: object) -> None:
        raise error

    monkeypatch.setattr(parts.pq, "read_metadata", silent)
    (found,) = list_parts(tmp_path)
    said = f"not readable ({type(error).__name__})"
    assert parts.proof(found) == (said, None)
    assert parts.proof(found, part.read_bytes()) == (said, None)


def test_a_part_that_hides_its_number_of_rows_is_refused_by_its_footer(tmp_path: Path) -> None:
    table = pa.table({"value": pa.nulls(1_000_000, pa.int8())})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema) as bomb:
        for _ in range(60):
            bomb.write_table(table)
    rows.put(tmp_path, "scores", sink.getvalue().to_pybytes(), rows=3)
    with pytest.raises(DamagedPart, match="60000000 rows, its name says 3"):
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
    real = parts.proof

    def compact_before_the_second_look(part: parts.Part, **how: Any) -> Any:
        if part.path == old[1]:
            monkeypatch.setattr(parts, "proof", real)
            compact(tmp_path)
        return real(part, **how)

    monkeypatch.setattr(parts, "proof", compact_before_the_second_look)
    (merged,) = sound_parts(tmp_path)
    assert merged.rows == 3
    assert not any(path.exists() for path in old)


def test_a_part_that_goes_while_it_is_looked_at_is_gone_and_not_damaged(
    tmp_path: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (listed,) = list_parts(tmp_path)
    real = Path.stat

    def look_and_lose(path: Path, **options: Any) -> os.stat_result:
        seen = real(path, **options)
        path.unlink()
        return seen

    monkeypatch.setattr(Path, "stat", look_and_lose)
    assert parts.proof(listed) == (parts.FAULT_GONE, None)


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


def test_repair_moves_the_damaged_and_keeps_the_others(tmp_path: Path, part: Path) -> None:
    assert quarantine(tmp_path) == []
    assert not (tmp_path / "quarantine").exists()
    other = PartWriter(tmp_path).append("calls", ONE_CALL)
    sound = part.read_bytes()
    flip(part)
    with collector_lock(tmp_path), pytest.raises(CacheLocked):
        quarantine(tmp_path)
    assert part.exists()
    assert quarantine(tmp_path) == [(part.name, "checksum mismatch")]
    assert [found.path for found in CacheReader(tmp_path).parts] == [other]
    part.write_bytes(sound[:-1])
    assert quarantine(tmp_path) == [(part.name, "checksum mismatch")]
    moved = sorted(path.name for path in (tmp_path / "quarantine").iterdir())
    assert moved == [part.name, f"{part.name}.2"]


def test_repair_moves_damaged_embeddings(tmp_path: Path, part: Path) -> None:
    store = EmbeddingStore(CacheReader(tmp_path), "e")
    store.append([digest("a"), digest("b")], np.ones((2, 4), np.float32))
    (file,) = store.folder.iterdir()
    flip(file)
    assert [name for name, _ in quarantine(tmp_path)] == [file.name]
    assert list(store.folder.iterdir()) == []
    assert part.exists()


def test_an_older_plan_that_was_damaged_is_not_missed(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    damaged = [writer.append("plans", rows.plans("first"))]
    writer.append("plans", rows.plans("second"))
    flip(damaged[0])
    quarantine(tmp_path)
    assert CacheReader(tmp_path).latest_plan().pool == "second"  # it was not the last


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
    "a key that is not UTF-8": ("calls", no_utf8("key"), ("info", "open", "export", "compact")),
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

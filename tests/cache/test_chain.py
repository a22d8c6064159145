"""A part that is missing, renamed, older or another cache's is found, and a crash is no damage."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import killing
from hierrouter_cache import chain, parts
from hierrouter_cache.chain import examine, seal_loose, sound_chain, sound_parts
from hierrouter_cache.errors import CacheError, DamagedPart
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact, damaged_files, quarantine
from hierrouter_cache.mirror import pull, push
from hierrouter_cache.parts import (
    MAX_SEQ,
    PART_SCHEMAS,
    ROW_SCHEMAS,
    Link,
    Part,
    head_name,
    listing,
)
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter, make_cache
from tests.cache import rows

BATCHES = 3


def filled(root: Path, first: int = 0) -> Path:
    """Parts of every kind, merged ones and small ones, and the seal of a compaction."""
    for begin in (first, first + BATCHES):
        writer = PartWriter(root)
        for number in range(begin, begin + BATCHES):
            for kind, table in killing.batch(number).items():
                writer.append(kind, table)
        if begin == first:
            compact(root)
    return root


def interrupt_compaction(root: Path, point: str, time: int = 1) -> None:
    times = [time]

    def on_step(name: str) -> None:
        times[0] -= name == point
        if not times[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(root, on_step)


def parts_of(root: Path, kind: str) -> list[Path]:
    return [part.path for part in listing(root).parts if part.kind == kind]


def deleted(part: Path, _: Path) -> str:
    part.unlink()
    return part.name


def renamed_later(part: Path, _: Path) -> str:
    """As if it had been written after all others."""
    kind, _, rest = part.name.split("-", 2)
    part.rename(part.with_name(f"{kind}-00000099-{rest}"))
    return part.name


def exchanged_names(part: Path, _: Path) -> str:
    """Two parts of one cache, each under the number of the other."""
    seq = part.name.split("-")[1]
    other = next(path for path in part.parent.glob("*.parquet") if path.name.split("-")[1] != seq)
    theirs = other.name.split("-")[1]
    part.rename(part.with_name(part.name.replace(seq, theirs, 1)))
    other.rename(other.with_name(other.name.replace(theirs, seq, 1)))
    return part.name


def swapped(part: Path, other: Path) -> str:
    """The bytes of another cache's part under this one's name."""
    shutil.copy(other, part)
    return part.name


def exchanged(part: Path, other: Path) -> str:
    """Another cache's part under its own name instead of this one."""
    part.unlink()
    shutil.copy(other, part.parent)
    return part.name


def joined(part: Path, other: Path) -> str:
    """Another cache's part beside all that is here."""
    shutil.copy(other, part.parent)
    return other.name


def set_back(part: Path, _: Path) -> str:
    """An earlier part of the cache under the name of this one."""
    earlier = min(path for path in part.parent.glob("*.parquet") if path != part)
    shutil.copy(earlier, part)
    return part.name


HARMS = (*(deleted, renamed_later, exchanged_names), *(swapped, exchanged, joined, set_back))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two caches of the same history and other rows."""
    folder = tmp_path_factory.mktemp("two")
    return filled(folder / "one"), filled(folder / "other", 50)


def test_a_seal_that_is_merged_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, merged = filled(tmp_path), []
    [seal] = parts_of(root, "seals")

    def proof(part: Part, **how: Any) -> tuple[str | None, Link | None]:
        found = hashed(part, **how)
        if part.path == seal and not merged:
            merged.append(part)
            compact(root)
        return found

    hashed = parts.proof
    monkeypatch.setattr(parts, "proof", proof)
    assert sound_chain(root).sound("seals") and merged and not seal.exists()


def test_a_merged_part_that_a_listing_missed_but_not_its_seal_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second listing has passed where the merged part will lie, and then meets the seal."""
    root, looks = filled(tmp_path), iter((1, 2))

    def listdir(folder: Path) -> list[str]:
        names = real(folder)
        if next(looks, 0) == 2:
            interrupt_compaction(root, "compact: unlink")
            names += [name for name in real(folder) if name.startswith("seals-")]
        return names

    real = os.listdir
    monkeypatch.setattr(os, "listdir", listdir)
    assert sound_chain(root).sound("seals")


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_two_interrupted_compactions_leave_no_part_missing(every: int, tmp_path: Path) -> None:
    """The first has removed a part, its seal and the one before are removed by the second."""
    start = filled(tmp_path / "start")
    due = [kind for kind in (*ROW_SCHEMAS, "seals") for _ in parts_of(start, kind)]
    for first in range(2, len(due) + 1, every):
        once = Path(shutil.copytree(start, tmp_path / f"{first}"))
        interrupt_compaction(once, "compact: unlink", first)
        for second in (2, 3):
            root = Path(shutil.copytree(once, tmp_path / f"{first} {second}"))
            PartWriter(root).append("calls", killing.batch(90)["calls"])
            interrupt_compaction(root, "compact: unlink", second)
            found = killing.inspect(root, killing.all_parts(2 * BATCHES))
            assert found == killing.Findings(), (first, second)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("kind", PART_SCHEMAS)
def test_no_harm_to_a_part_of_any_kind_is_silent(
    two: tuple[Path, Path], tmp_path: Path, kind: str, harm: Callable[[Path, Path], str]
) -> None:
    """Of every part there is, the first of the chain and the last one too."""
    other = parts_of(two[1], kind)
    for number, part in enumerate(parts_of(two[0], kind)):
        root = Path(shutil.copytree(two[0], tmp_path / str(number)))
        plan = parts_of(root, "plans")[-1]
        harmed = harm(root / "parts" / part.name, other[min(number, len(other) - 1)])
        sealed = examine(root).fates.keys()
        seal_loose(root)
        with pytest.raises(DamagedPart, match="cache repair"):
            CacheReader(root)
        damaged = [path.name for path, _ in damaged_files(root)]
        assert harmed in damaged and (harm is not joined or len(damaged) == 1)
        assert not (examine(root).fates.keys() - sealed).intersection(damaged)
        quarantine(root)
        assert damaged_files(root) == []
        if lost := sound_chain(root).lost_plan:
            assert lost in damaged and (harm is renamed_later or not plan.exists())
        else:
            assert CacheReader(root).latest_plan().pool == str(2 * BATCHES - 1)


def test_the_first_part_of_another_cache_is_foreign_and_that_of_a_pull_is_not(
    tmp_path: Path,
) -> None:
    ours, theirs = PartWriter(tmp_path / "ours"), PartWriter(tmp_path / "theirs")
    part = theirs.append("plans", rows.plans("theirs"))
    ours.append("plans", rows.plans("ours", "ours"))
    killed = FolderStore(shutil.copytree(ours.root, tmp_path / "pull was killed"))
    killed.write(part.name, part.read_bytes())
    assert len(CacheReader(killed.root).parts) == 2
    shutil.copy(part, ours.root / "parts")
    with pytest.raises(DamagedPart, match=f"{part.name}: written by another cache"):
        CacheReader(ours.root)
    assert quarantine(ours.root) == [(part.name, chain.FAULT_FOREIGN)]
    compact(ours.root)
    assert CacheReader(ours.root).latest_plan().pool == "ours"
    pull(FolderStore(theirs.root), ours.root)
    assert len(CacheReader(ours.root).parts) == 2
    (ours.root / "parts" / part.name).unlink()  # its place in the chain is sealed
    with pytest.raises(DamagedPart, match=f"{part.name}: missing"):
        CacheReader(ours.root)


def test_what_is_missing_comes_back_with_a_pull_or_is_given_up(tmp_path: Path) -> None:
    root, store = filled(tmp_path / "cache"), FolderStore(tmp_path / "mirror")
    push(root, store)
    gone = parts_of(root, "plans")[-1]
    for part in (gone, parts_of(root, "calls")[0]):
        part.unlink()
    assert pull(store, root).copied == 2
    assert damaged_files(root) == []
    gone.unlink()
    assert quarantine(root) == [(gone.name, chain.FAULT_MISSING)]
    with pytest.raises(CacheError, match=f"given up: {gone.name}; collect with the same"):
        CacheReader(root).latest_plan()
    compact(root)
    with pytest.raises(CacheError, match=f"given up: {gone.name}"):
        CacheReader(root).latest_plan()
    PartWriter(root).append("plans", rows.plans("new"))
    assert CacheReader(root).latest_plan().pool == "new"
    parts_of(root, "calls")[0].unlink()
    quarantine(root)
    pull(store, root)  # instead of the merged part come those that were merged into it
    gone = parts_of(root, "calls")[0]
    gone.unlink()
    with pytest.raises(DamagedPart, match=f"{gone.name}: missing"):
        CacheReader(root)


def test_no_part_gets_a_number_that_is_too_large_for_a_name(tmp_path: Path) -> None:
    part = rows.put(tmp_path, "plans", rows.plans("x"), 99_999_999)
    assert quarantine(tmp_path) == [(part.name, "its number is above 90,000,000")]
    PartWriter(tmp_path).append("plans", rows.plans("new"))
    assert CacheReader(tmp_path).latest_plan().pool == "new"
    rows.put(tmp_path, "plans", rows.plans("last"), MAX_SEQ)
    with pytest.raises(CacheError, match=f"no number left for a part: .* {MAX_SEQ} out of parts/"):
        PartWriter(tmp_path).append("plans", rows.plans("later"))


def test_a_folder_that_was_pushed_to_is_a_chain(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "mirror")
    make_cache(store.root)
    with collector_lock(store.root):  # a compaction may be at work: nothing is sealed now
        push(filled(tmp_path / "one"), store)
        assert not parts_of(store.root, "seals")
    for root in (tmp_path / "one", filled(tmp_path / "other", 50)):
        push(root, store)
    assert damaged_files(store.root) == []
    parts_of(store.root, "plans")[-1].unlink()
    with pytest.raises(DamagedPart, match=r"plans-.*: missing"):
        CacheReader(store.root)


@pytest.mark.parametrize("wrong", ["", head_name("foo.parquet")])
def test_a_head_that_was_renamed_or_is_of_no_part_is_named(tmp_path: Path, wrong: str) -> None:
    part = PartWriter(tmp_path).append("calls", rows.calls(("m", "c", "r")))
    head = part.with_name(head_name(part.name))
    bad = head.rename(head.with_name(wrong or head.name.replace("r1", "r2")))
    with pytest.raises(DamagedPart, match=f"{bad.name}: 0 bytes"):
        CacheReader(tmp_path)
    assert quarantine(tmp_path) == [(bad.name, "0 bytes")]
    assert len(CacheReader(tmp_path).responses()) == 1


@pytest.mark.parametrize("point", ["after rename", "after head"])
@pytest.mark.parametrize("time", [1, 4])
def test_a_kill_between_part_and_head_is_no_damage_and_the_part_is_then_taken_in(
    tmp_path: Path, point: str, time: int
) -> None:
    cache = killing.Harness(tmp_path)
    assert cache.run(2, kill_at=(point, time)) == -9
    found = sound_chain(tmp_path)
    assert len(found.loose) == (point != "after head")
    seal_loose(tmp_path)
    assert not sound_chain(tmp_path).loose
    last = found.sound(*ROW_SCHEMAS)[-1].path
    last.unlink()
    with pytest.raises(DamagedPart, match=f"{last.name}: missing"):
        sound_chain(tmp_path)


def test_two_processes_that_write_at_once_and_are_killed_leave_a_whole_chain(
    tmp_path: Path,
) -> None:
    dice = random.Random(1)
    writers = [killing.PROCESSES.Process(target=endless, args=(tmp_path, n)) for n in range(2)]
    for writer in writers:
        writer.start()
    while len(list(tmp_path.glob("parts/*.parquet"))) < 12 + dice.randrange(9):
        assert all(writer.is_alive() for writer in writers)
    for writer in writers:
        writer.kill()
    for writer in writers:
        writer.join()
    found = sound_chain(tmp_path)
    assert len(found.loose) <= 2
    seal_loose(tmp_path)
    assert damaged_files(tmp_path) == []
    for part in found.sound("calls")[::3]:
        aside = part.path.rename(tmp_path / "aside")
        assert (part.path, chain.FAULT_MISSING) in damaged_files(tmp_path)
        aside.rename(part.path)


def endless(root: Path, first: int) -> None:
    """Append part after part, without any lock."""
    writer = PartWriter(root)
    for number in range(first, killing.ENDLESS, 2):
        writer.append("calls", killing.batch(number)["calls"])


def test_threads_that_write_while_others_read_are_never_damage(tmp_path: Path) -> None:
    PartWriter(tmp_path).append("calls", rows.calls(("m", "c", "r")))

    def write(number: int) -> None:
        writer = PartWriter(tmp_path)
        for at in range(10):
            writer.append("calls", rows.calls(("m", f"{number}-{at}", "r")))

    with ThreadPoolExecutor(3) as streams:
        busy = [streams.submit(write, number) for number in range(3)]
        while not all(stream.done() for stream in busy):
            sound_chain(tmp_path)
    assert not any(stream.exception() for stream in busy)
    assert len(sound_parts(tmp_path)) == 31
    assert not examine(tmp_path).loose
    assert len(listing(tmp_path).heads) <= 3


def test_a_commit_costs_one_more_file_and_an_opening_reads_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: two fsyncs and one listing as before, and a head made and one removed."""
    writer = PartWriter(tmp_path)
    for number in range(20):
        writer.append("calls", rows.calls(("m", f"c{number}", "r")))
    asked: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*given: Any, **more: Any) -> Any:
            asked[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, call)

    for name in ("fsync", "listdir", "unlink"):
        count(os, name)
    count(Path, "touch")
    count(parts, "proof")
    writer.append("calls", rows.calls(("m", "last", "r")))
    assert asked == {"fsync": 2, "listdir": 1, "unlink": 1, "touch": 1}
    asked.clear()
    assert len(sound_parts(tmp_path)) == 21
    assert asked == {"listdir": 2, "proof": 21}

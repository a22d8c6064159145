"""A mirror: whatever breaks off, both sides end with the same parts and serve the same rows."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from hierrouter_cache.compact import compact
from hierrouter_cache.errors import CacheError, CacheLocked, DamagedPart, InputError, WorldError
from hierrouter_cache.locks import collector_lock, shard_lock
from hierrouter_cache.parts import list_parts, sound_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.remote import copying_to, pull, push
from hierrouter_cache.schema import KINDS
from hierrouter_cache.stores import FolderStore, ObjectStore, Store, store_at
from hierrouter_cache.writer import PartWriter
from tests.cache import crash, rows
from tests.conftest import SOURCES, environment

BATCHES = 4
PARTS = BATCHES * len(KINDS)


class WithoutRename(MemoryFileSystem):  # type: ignore[misc]
    """As an object store: what is written appears when it is closed, and nothing moves."""

    protocol = "without-rename"

    def mv(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("rename")


def in_memory(files: MemoryFileSystem, whole: bool) -> ObjectStore:
    handler = fs.PyFileSystem(fs.FSSpecHandler(files))
    return ObjectStore(handler, f"/{uuid4().hex}", whole, "memory://")


@pytest.fixture(params=["folder", "subtree", "memory", "without-rename"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "mirror")
    if request.param == "subtree":
        (tmp_path / "disk").mkdir()
        below = fs.SubTreeFileSystem(str(tmp_path / "disk"), fs.LocalFileSystem())
        return ObjectStore(below, "mirror", whole=False, shown="sub://mirror")
    if request.param == "memory":
        return in_memory(MemoryFileSystem(), whole=False)
    return in_memory(WithoutRename(), whole=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return filled(tmp_path / "cache", range(BATCHES))


def filled(root: Path, batches: range) -> Path:
    writer = PartWriter(root)
    for number in batches:
        for kind, table in crash.batch(number).items():
            writer.append(kind, table)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {part.path.name: part.path.read_bytes() for part in sound_parts(root)}


def served(root: Path) -> dict[str, Any]:
    """What a reader is served: the rows of every kind, and the latest plan."""
    reader = CacheReader(root)
    rows = {
        kind: sorted(reader.sql(f"SELECT * FROM {kind}").to_pylist(), key=str) for kind in KINDS
    }
    return {**rows, "latest": reader.latest_plan()}


def test_a_mirror_gives_back_every_byte(root: Path, store: Store, tmp_path: Path) -> None:
    assert push(root, store) == PARTS
    assert pull(store, tmp_path / "other") == PARTS
    assert contents(tmp_path / "other") == contents(root)
    assert (push(root, store), pull(store, root), push(tmp_path / "other", store)) == (0, 0, 0)
    assert crash.leftovers(tmp_path / "other") == []


def test_progress_is_told(root: Path, store: Store) -> None:
    told: list[tuple[int, int]] = []
    push(root, store, lambda done, total: told.append((done, total)))
    assert told == [(done, PARTS) for done in range(1, PARTS + 1)]


def test_a_folder_is_a_cache_itself(root: Path, tmp_path: Path) -> None:
    push(root, store_at(f"file://{tmp_path / 'mir%20ror'}"))
    assert served(tmp_path / "mir ror") == served(root)
    assert not crash.leftovers(tmp_path / "mir ror")


def test_two_sides_become_equal(store: Store, tmp_path: Path) -> None:
    """Each has answered something of its own, with the same counters."""
    one, other = filled(tmp_path / "one", range(3)), filled(tmp_path / "other", range(2, 5))
    push(one, store)
    push(other, store)
    pull(store, one)
    pull(store, other)
    assert contents(one) == contents(other)
    assert served(one) == served(other)
    found = crash.inspect(one, crash.whole(5))
    assert replace(found, older=0) == crash.Findings()  # with equal counters no plan is older


def test_each_part_is_copied_when_it_is_committed(store: Store, tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "cache", on_part=copying_to(store))
    for number in range(3):
        writer.append("calls", rows.calls(("m", f"c{number}", "r")))
        assert store.sizes() == {name: len(data) for name, data in contents(writer.root).items()}
    assert push(writer.root, store) == 0


def test_a_copy_that_fails_costs_no_row(root: Path, tmp_path: Path) -> None:
    """The mirror's disk goes away in the middle, and comes back."""
    store = FolderStore(tmp_path / "mirror")
    push(root, store)
    (tmp_path / "mirror" / "parts").rename(tmp_path / "away")
    (tmp_path / "mirror" / "parts").write_text("not a folder")
    writer = PartWriter(root, on_part=copying_to(store))
    with pytest.raises(WorldError, match=r"cannot use the mirror: .* is safe, rerun") as caught:
        writer.append("calls", rows.calls(("m", "c", "r")))
    assert "\n" not in str(caught.value)
    assert len(sound_parts(root)) == PARTS + 1
    (tmp_path / "mirror" / "parts").unlink()
    (tmp_path / "away").rename(tmp_path / "mirror" / "parts")
    assert push(root, store) == 1


@pytest.mark.parametrize(
    "hurt", [lambda data: data[:-9], lambda data: bytes([data[0] ^ 1]) + data[1:]]
)
def test_a_torn_or_altered_object_is_refused_by_name(
    root: Path, store: Store, tmp_path: Path, hurt: Any
) -> None:
    push(root, store)
    name = sorted(store.sizes())[2]
    store.write(name, hurt(store.read(name)))
    with pytest.raises(DamagedPart, match=f"damaged part in the mirror: .*{name}; delete it there"):
        pull(store, tmp_path / "other")
    assert contents(tmp_path / "other").keys() == contents(root).keys() - {name}
    assert crash.leftovers(tmp_path / "other") == []


def test_a_torn_object_is_copied_again(root: Path, store: Store, tmp_path: Path) -> None:
    push(root, store)
    name = sorted(store.sizes())[0]
    store.write(name, b"half")
    assert push(root, store) == 1
    assert pull(store, tmp_path / "other") == PARTS


def test_a_damaged_part_is_not_copied(root: Path, store: Store) -> None:
    part = list_parts(root)[0]
    part.path.write_bytes(part.path.read_bytes()[:-1])
    with pytest.raises(DamagedPart, match=f"{part.path.name}: checksum mismatch"):
        push(root, store)
    assert part.path.name not in store.sizes()


def test_strangers_in_a_mirror_are_left_alone(root: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "mirror")
    push(root, store)
    stranger = tmp_path / "mirror" / "parts" / ".DS_Store"
    stranger.write_text("?")
    pull(store, tmp_path / "other")
    assert len(list((tmp_path / "other" / "parts").iterdir())) == PARTS
    assert stranger.exists()


def test_a_compaction_on_one_side_changes_no_row(root: Path, store: Store, tmp_path: Path) -> None:
    """The mirror keeps the sources beside the merged part, as the middle of a compaction does."""
    doubles = filled(tmp_path / "doubles", range(2, 6))
    push(doubles, store)
    pull(store, root)
    before = served(root)
    push(root, store)
    compact(root)
    assert served(root) == before
    push(root, store)
    pull(store, tmp_path / "fresh")
    assert served(tmp_path / "fresh") == before
    pull(store, doubles)
    assert served(doubles) == before
    pull(store, root)  # brings back what was merged
    assert contents(root) == contents(tmp_path / "fresh")
    compact(root)
    assert served(root) == before
    assert len(list_parts(root)) == len(KINDS)


def test_any_part_of_a_mirror_after_a_compaction_doubles_no_row(root: Path, tmp_path: Path) -> None:
    """Copying may break off anywhere: what is there is served once, as it was."""
    store = FolderStore(tmp_path / "mirror")
    push(root, store)
    whole = served(root)
    compact(root)
    push(root, store)
    names = sorted(store.sizes())
    rng = Random(0)
    for number in range(10):
        some = FolderStore(tmp_path / f"some-{number}")
        for name in rng.sample(names, rng.randrange(1, len(names))):
            some.write(name, store.read(name))
        reader = CacheReader(some.root)
        for kind in KINDS:
            found = reader.sql(f"SELECT * FROM {kind}").to_pylist()
            assert all(row in whole[kind] for row in found)
            assert len({str(row) for row in found}) == len(found)
        pull(store, some.root)
        assert served(some.root) == whole


def test_a_part_with_other_answers_is_left_where_it_is(
    root: Path, store: Store, tmp_path: Path
) -> None:
    """Else a score of the one answer might be served with the other."""
    there = tmp_path / "there"
    PartWriter(there).append("calls", rows.calls(("m", "c", "yes"), ("m", "d", "same")))
    PartWriter(there).append("calls", rows.calls(("m", "e", "new")))
    push(there, store)
    PartWriter(root).append("calls", rows.calls(("m", "c", "no"), ("m", "d", "same")))
    before = contents(root)
    with pytest.raises(
        CacheError, match="1 parts of the mirror answer calls in other words"
    ) as caught:
        pull(store, root)
    assert list_parts(there)[0].path.name in str(caught.value)
    assert len(str(caught.value)) <= 300
    assert contents(root).keys() - before.keys() == {list_parts(there)[1].path.name}
    assert before.items() <= contents(root).items()


class Compacting(FolderStore):
    """Compacts the cache that is copied from, before the first part is written."""

    source: Path | None
    one_at_a_time = Lock()

    def write(self, name: str, data: bytes | memoryview) -> None:
        with self.one_at_a_time:
            if not self.sizes():
                assert self.source
                compact(self.source)
            super().write(name, data)


def test_compacting_while_parts_are_copied_misses_nothing(root: Path, tmp_path: Path) -> None:
    store = Compacting(tmp_path / "mirror")
    object.__setattr__(store, "source", root)
    push(root, store)
    assert set(contents(root)) <= set(store.sizes())
    pull(store, tmp_path / "other")
    assert served(tmp_path / "other") == served(root)


def test_a_repaired_cache_gets_its_parts_back(root: Path, store: Store) -> None:
    before = contents(root)
    push(root, store)
    (root / "quarantine").mkdir()
    for part in list_parts(root)[::3]:
        part.path.rename(root / "quarantine" / part.path.name)
    pull(store, root)
    assert contents(root) == before


def test_pull_waits_for_no_shard_and_refuses_beside_a_collector(root: Path, tmp_path: Path) -> None:
    store = FolderStore(root)
    other = filled(tmp_path / "other", range(1))
    with collector_lock(other), pytest.raises(CacheLocked):
        pull(store, other)
    with shard_lock(other, 1, 2):
        assert pull(store, other) == PARTS


def test_an_empty_place_gives_nothing(store: Store, tmp_path: Path) -> None:
    assert pull(store, tmp_path / "other") == 0
    assert not (tmp_path / "other").exists()


def test_a_folder_needs_no_scheme() -> None:
    assert store_at("../mirror") == FolderStore(Path("../mirror"))


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "adl://bucket/x"])
def test_a_place_that_is_none_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(InputError, match="no such place for a mirror") as caught:
        store_at(url)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_no_secret_of_a_url_is_shown() -> None:
    with pytest.raises(InputError) as caught:
        store_at("nosuch://key:secret@host/x?token=abc")
    for secret in ("key", "secret", "abc"):
        assert secret not in str(caught.value)


KILLED = """
import os, signal, sys
from pathlib import Path
from pyarrow import fs
from hierrouter_cache import remote, stores, writer
def die(times):
    def step(name):
        times[0] -= name == sys.argv[2]
        if times[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return step
steps = die([int(sys.argv[3])])
for module in (remote, stores):
    module.no_steps = steps
class Torn(stores.ObjectStore):
    def _put(self, path, data):
        with self.files.open_output_stream(path) as stream:
            stream.write(bytes(data[: len(data) // 2]))
            stream.flush()
            steps("half")
            stream.write(bytes(data[len(data) // 2 :]))
root, mirror = Path(sys.argv[4]), Path(sys.argv[5])
store = stores.FolderStore(mirror)
if sys.argv[2] == "half":
    store = Torn(fs.LocalFileSystem(), str(mirror), False, "local")
if sys.argv[1] == "push":
    remote.push(root, store)
else:
    remote.pull(store, root)
"""
POINTS = ("before write", "before rename", "after rename", "after folder fsync")


@pytest.mark.parametrize("time", [1, 7])
@pytest.mark.parametrize(
    ("direction", "point"),
    [(way, point) for way in ("push", "pull") for point in POINTS] + [("push", "half")],
)
def test_kill_9_in_the_middle_of_a_copy(
    root: Path, tmp_path: Path, direction: str, point: str, time: int
) -> None:
    mirror, other = FolderStore(tmp_path / "mirror"), tmp_path / "other"
    if direction == "pull":
        push(root, mirror)
    here = root if direction == "push" else other
    done = subprocess.run(
        [sys.executable, "-c", KILLED, direction, point, str(time), str(here), str(mirror.root)],
        env=environment(),
        cwd=SOURCES,
    )
    assert done.returncode == -signal.SIGKILL
    target = mirror.root if direction == "push" else other
    there = contents(target) if list((target / "parts").iterdir()) else {}
    assert there.items() <= contents(root).items()  # nothing torn is to be seen
    copied = push(root, mirror) if direction == "push" else pull(mirror, other)
    assert copied == PARTS - len(there)
    assert contents(target) == contents(root)
    if direction == "pull":
        assert crash.leftovers(other) == []

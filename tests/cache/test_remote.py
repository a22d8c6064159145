"""A mirror: whatever breaks off, both sides end with the same parts and serve the same rows."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from hierrouter_cache import mirror as remote
from hierrouter_cache import parts, writer
from hierrouter_cache.errors import (
    CacheError,
    CacheLocked,
    DamagedPart,
    InputError,
    NoCache,
    WorldError,
)
from hierrouter_cache.locks import collector_lock, pull_lock, shard_lock
from hierrouter_cache.maintenance import compact
from hierrouter_cache.mirror import (
    ARRIVING,
    Pulled,
    copying_to,
    exchange,
    pull,
    push,
    require_no_rivals,
)
from hierrouter_cache.parts import KINDS, list_parts, part_name, sound_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore, ObjectStore, Store, store_at, without_secrets
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


class Repeating(MemoryFileSystem):  # type: ignore[misc]
    """As some libraries: what fails is named by the whole URL, or by a part of it."""

    protocol = "repeating"
    said = "{url}/parts"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def _fail(self, path: str, *_: Any, **__: Any) -> Any:
        raise OSError(self.said.format(url=path.removesuffix("/parts")))

    info = isdir = _open = pipe_file = _fail


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
    assert pull(store, tmp_path / "other").copied == PARTS
    assert contents(tmp_path / "other") == contents(root)
    assert (push(root, store), push(tmp_path / "other", store)) == (0, 0)
    assert pull(store, root) == Pulled(str(store))
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
    with pytest.raises(
        DamagedPart, match=f"damaged part in the mirror: .*{name}: checksum mismatch; delete"
    ):
        pull(store, tmp_path / "other")
    assert contents(tmp_path / "other").keys() == contents(root).keys() - {name}
    assert crash.leftovers(tmp_path / "other") == []


def test_a_torn_object_is_copied_again(root: Path, store: Store, tmp_path: Path) -> None:
    push(root, store)
    name = sorted(store.sizes())[0]
    store.write(name, b"half")
    assert push(root, store) == 1
    assert pull(store, tmp_path / "other").copied == PARTS


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
    rival, new = (part.path.name for part in list_parts(there))
    pulled = pull(store, root)
    assert (pulled.copied, pulled.rivals) == (1, (rival,))
    assert contents(root).keys() - before.keys() == {new}
    assert before.items() <= contents(root).items()
    with pytest.raises(CacheError, match=f"1 parts of the mirror answer calls in .*{rival}") as why:
        require_no_rivals(pulled)
    assert len(str(why.value)) <= 300
    assert pull(store, root, leave=pulled.rivals) == Pulled(str(store))


def test_an_empty_cache_gets_one_of_two_answers_and_all_the_rest(
    store: Store, tmp_path: Path
) -> None:
    """What contradicts only a part that is left is no rival any more."""
    for number, answers in enumerate(
        [[("c", "first"), ("x", "same")], [("c", "second"), ("d", "second")], [("d", "third")]]
    ):
        writer = PartWriter(tmp_path / f"{number}")
        writer.append("calls", rows.calls(*[("m", *answer) for answer in answers]))
        data = list_parts(writer.root)[0].path.read_bytes()
        store.write(part_name("calls", number + 1, "0" * 8, len(answers), data), data)
    first, second, third = sorted(store.sizes())
    pulled = pull(store, tmp_path / "other")
    assert pulled == Pulled(str(store), 2, (second,))
    assert contents(tmp_path / "other").keys() == {first, third}


def test_a_score_never_meets_another_answer_than_its_own(store: Store, tmp_path: Path) -> None:
    """Each side has scored its own answer; the mirror holds both."""
    for side, said in (("one", "yes"), ("other", "no")):
        table = rows.calls(("m", "c", said), ("m", "d", "yes"))
        writer = PartWriter(tmp_path / side)
        writer.append("calls", table)
        writer.append("scores", rows.scores(table))
        push(tmp_path / side, store)
    for side, value in (("one", {1.0}), ("other", {0.0}), ("fresh", set())):
        exchange(tmp_path / side, store)
        reader = CacheReader(tmp_path / side)
        key = rows.calls(("m", "c", "yes"))["key"][0].as_py()
        found = reader.sql("SELECT value FROM scores_rows WHERE call = ?", [key])
        assert set(found["value"].to_pylist()) == value
        assert len(reader.responses()) == 2


def with_a_rival(tmp_path: Path) -> tuple[Path, FolderStore]:
    """A cache that says "no", and a mirror of another answer, its score and a new call."""
    scored = rows.calls(("m", "c", "yes"))
    there = PartWriter(tmp_path / "there")
    there.append("calls", scored)
    there.append("scores", rows.scores(scored))
    there.append("calls", rows.calls(("m", "new", "yes")))
    store = FolderStore(tmp_path / "mirror")
    push(there.root, store)
    PartWriter(tmp_path / "here").append("calls", rows.calls(("m", "c", "no")))
    return tmp_path / "here", store


def require_own_answer(here: Path) -> None:
    """Only what was answered here is here, and no score of another answer."""
    reader = CacheReader(here)
    key = rows.calls(("m", "c", "no"))["key"][0].as_py()
    said = reader.sql("SELECT response FROM calls_rows WHERE key = ?", [key])
    assert said["response"].to_pylist() == ["no"]
    assert not reader.has("scores")
    assert not (here / ARRIVING).exists()
    assert crash.leftovers(here) == []


class BreaksOff(FolderStore):
    """Gives what it is asked for of one kind, and fails with the rest."""

    kind: str
    how: BaseException

    def read(self, name: str) -> bytes:
        if name.startswith(self.kind):
            return super().read(name)
        time.sleep(0.2)  # the others are on their way at the same time
        raise self.how


@pytest.mark.parametrize("kind", ["calls", "scores"])
@pytest.mark.parametrize("how", [OSError("no route"), KeyboardInterrupt()], ids=repr)
def test_a_pull_that_breaks_off_leaves_no_rival(
    tmp_path: Path, how: BaseException, kind: str
) -> None:
    here, store = with_a_rival(tmp_path)
    broken = BreaksOff(store.root)
    object.__setattr__(broken, "how", how)
    object.__setattr__(broken, "kind", kind)
    with pytest.raises((WorldError, KeyboardInterrupt)):
        pull(broken, here)
    assert len(list_parts(here)) == (2 if kind == "calls" else 1)  # one new call has come
    require_own_answer(here)
    assert len(pull(store, here).rivals) == 1
    require_own_answer(here)


def test_no_part_is_copied_beside_a_damaged_one(tmp_path: Path) -> None:
    here, store = with_a_rival(tmp_path)
    (part,) = list_parts(here)
    part.path.write_bytes(part.path.read_bytes()[:-1])
    with pytest.raises(DamagedPart, match=f"damaged part: {part.path.name}"):
        pull(store, here)
    assert list_parts(here) == [part]


def test_arrivals_of_a_pull_at_work_are_left_to_it(tmp_path: Path) -> None:
    here, store = with_a_rival(tmp_path)
    for name in store.sizes():
        FolderStore(here).write(name, store.read(name))
    remote.note_arrivals(here, store.sizes())
    before = list_parts(here)
    with pull_lock(here):
        remote.finish_pull(here)
        assert list_parts(here) == before
    remote.finish_pull(here)
    require_own_answer(here)


def test_a_list_of_arrivals_that_is_none_is_named(tmp_path: Path) -> None:
    here, store = with_a_rival(tmp_path)
    (here / ARRIVING).write_text("7")
    with pytest.raises(CacheError, match=f"not readable: {here / ARRIVING}: .*; remove it"):
        pull(store, here)


def test_two_pulls_at_the_same_time_copy_everything_once(tmp_path: Path) -> None:
    here, store = with_a_rival(tmp_path)
    with ThreadPoolExecutor(2) as streams:
        pulled = [found.result() for found in [streams.submit(pull, store, here) for _ in "ab"]]
    assert sorted(found.copied for found in pulled) == [0, 1]
    require_own_answer(here)


def test_two_sides_with_rivals_still_exchange_the_rest(store: Store, tmp_path: Path) -> None:
    sides = {"one": "yes", "other": "no"}
    for side, said in sides.items():
        PartWriter(tmp_path / side).append("calls", rows.calls(("m", "c", said)))
        PartWriter(tmp_path / side).append("calls", rows.calls(("m", side, said)))
    for _ in range(2):
        for side in sides:
            exchange(tmp_path / side, store)
    assert len(store.sizes()) == 4
    for side, said in sides.items():
        answers = CacheReader(tmp_path / side).responses()
        assert len(answers) == 3
        assert answers[rows.calls(("m", "c", said))["key"][0].as_py()] == said


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
        assert pull(store, other).copied == PARTS


def test_an_empty_place_gives_nothing(store: Store, tmp_path: Path) -> None:
    pulled = pull(store, tmp_path / "other")
    assert (pulled.copied, pulled.note) == (0, "")
    require_no_rivals(pulled)
    assert not (tmp_path / "other").exists()
    with pytest.raises(NoCache, match=r"no parts in the mirror: .*; push to it first"):
        pull(store, tmp_path / "other", may_be_empty=False)


def test_a_folder_needs_no_scheme() -> None:
    assert store_at("../mirror") == FolderStore(Path("../mirror"))


def of_a_newer_version(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FORMAT", parts.FORMAT + 1)
    PartWriter(root).append("calls", rows.calls(("m", "later", "yes")))
    monkeypatch.undo()


def no_parquet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"PAR1 is what it says; its hash is right"
    (root / "parts" / part_name("calls", 9, "0" * 8, 1, data)).write_bytes(data)


def with_other_columns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": ["k"]}), sink)
    data = sink.getvalue().to_pybytes()
    (root / "parts" / part_name("calls", 9, "0" * 8, 1, data)).write_bytes(data)


@pytest.mark.parametrize(
    ("add", "error", "message"),
    [
        (of_a_newer_version, CacheError, r"newer version \(format 2 > 1\): {name}; upgrade"),
        (no_parquet, DamagedPart, r"damaged part in the mirror: .*{name}: not readable"),
        (with_other_columns, DamagedPart, r"{name}: column step is missing; delete it there"),
    ],
)
def test_what_cannot_be_read_here_stays_in_the_mirror(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Any, error: Any, message: str
) -> None:
    mirror = FolderStore(tmp_path / "mirror")
    push(root, mirror)
    add(mirror.root, monkeypatch)
    (name,) = mirror.sizes().keys() - contents(root).keys()
    seen: set[str] = set()
    monkeypatch.setattr(remote, "commit", noting(seen))
    with pytest.raises(error, match=message.format(name=name)) as caught:
        pull(mirror, tmp_path / "other")
    assert "\n" not in str(caught.value)
    assert seen == contents(root).keys()  # it was not visible for a moment either
    assert served(tmp_path / "other") == served(root)
    assert name in mirror.sizes()


def noting(seen: set[str]) -> Any:
    """`commit`, the names written down."""

    def commit(root: Path, name: str, *rest: Any) -> Path:
        seen.add(name)
        return writer.commit(root, name, *rest)

    return commit


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "adl://bucket/x"])
def test_a_place_that_is_none_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(InputError, match="no such place for a mirror") as caught:
        store_at(url)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://AKID:topsecret@host/x?token=hushed",
        "nosuch://AKID:topsecret/hushed@host/x",
        "s3://AKID:topsecret/hushed+x@host/x",
        "s3://AKID:topsecret hushed@host/x",
        "s3://AKID:topsecret/hushed@host/x?no_such=1",
        "s3://AKID:topsecret@host/x y?token=a@hushed",
        f"s3://AKID:topsecret/{'hushed' * 40}@host/x",
        "abfs://AKID:topsecret/hushed@host/x",
    ],
)
def test_no_secret_of_a_url_is_shown(url: str) -> None:
    """Not by us, and not by a library that repeats the URL in its reason."""
    with pytest.raises(InputError, match="no such place for a mirror") as caught:
        store_at(url)
    for secret in ("AKID", "topsecret", "hushed"):
        assert secret not in str(caught.value)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("said", ["500: {url}/parts", "no route to AKID:top%20secret@host"])
@pytest.mark.parametrize("use", [pull, push], ids=["pull", "push"])
def test_no_secret_is_shown_when_a_mirror_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: str, use: Any
) -> None:
    monkeypatch.setattr(Repeating, "said", said)
    register_implementation("repeating", Repeating, clobber=True)
    store = store_at("repeating://AKID:top%20secret@host/x?token=hushed")
    with pytest.raises(WorldError, match=r"cannot use the mirror: repeating://host/x: ") as caught:
        use(*((store, root) if use is pull else (root, store)))
    for secret in ("AKID", "secret", "hushed"):
        assert secret not in str(caught.value)
        assert secret not in repr(store)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert without_secrets("s3://AKID:a/b@bucket/path?token=x") == "s3://bucket/path"
    assert without_secrets("s3://bucket/path") == "s3://bucket/path"
    assert without_secrets("s3://AKID:a?b@bucket/path") == "s3://..."


KILLED = """
import os, signal, sys
from pathlib import Path
from pyarrow import fs
from hierrouter_cache import mirror as remote, stores, writer
def die(times):
    def step(name):
        times[0] -= name == sys.argv[2]
        if times[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return step
steps = die([int(sys.argv[3])])
for module in (remote, stores):
    module.no_steps = steps
remove = Path.unlink
def unlink(path, missing_ok=False):
    steps("unlink " + path.suffix)
    remove(path, missing_ok)
Path.unlink = unlink
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


def killed(
    direction: str, point: str, time: int, here: Path, mirror: FolderStore
) -> subprocess.CompletedProcess[bytes]:
    """A copy by a process that kills itself when `point` is reached for this time."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, direction, point, str(time), str(here), str(mirror.root)],
        env=environment(),
        cwd=SOURCES,
    )


POINTS = ("before write", "before rename", "after rename", "after folder fsync")


@pytest.mark.parametrize("go_on", [pull, compact], ids=["pull", "compact"])
@pytest.mark.parametrize(
    ("point", "time"),
    [
        *(("after rename", time) for time in (1, 2, 3)),
        *(("after folder fsync", time) for time in (1, 2, 3)),
        *(("unlink .parquet", time) for time in (1, 2)),
        ("unlink .json", 2),
    ],
)
def test_kill_9_in_the_middle_of_a_pull_leaves_no_rival_for_good(
    tmp_path: Path, point: str, time: int, go_on: Any
) -> None:
    here, store = with_a_rival(tmp_path)
    done = killed("pull", point, time, here, store)
    assert done.returncode == -signal.SIGKILL
    assert (here / ARRIVING).exists()
    if go_on is compact:
        compact(here)
        require_own_answer(here)
    pull(store, here)
    require_own_answer(here)
    assert len(CacheReader(here).responses()) == 2


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
    done = killed(direction, point, time, here, mirror)
    assert done.returncode == -signal.SIGKILL
    target = mirror.root if direction == "push" else other
    there = contents(target) if list((target / "parts").iterdir()) else {}
    assert there.items() <= contents(root).items()  # nothing torn is to be seen
    copied = push(root, mirror) if direction == "push" else pull(mirror, other).copied
    early = [name for name in there if direction == "pull" and name.startswith("scores-")]
    assert copied == PARTS - len(there) + len(early)
    assert contents(target) == contents(root)
    if direction == "pull":
        assert crash.leftovers(other) == []

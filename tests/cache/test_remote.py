"""A mirror: whatever breaks off, both sides end with the same parts and serve the same rows."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any
from uuid import uuid4

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from benchmarks import killing
from hierrouter_cache import errors, writer
from hierrouter_cache import mirror as remote
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.keys import call_key
from hierrouter_cache.locks import collector_lock, pull_lock, shard_lock
from hierrouter_cache.maintenance import compact, quarantine
from hierrouter_cache.mirror import (
    ARRIVALS_FILE,
    PullResult,
    exchange,
    part_copier,
    pull,
    push,
    require_no_conflicts,
)
from hierrouter_cache.parts import ROW_SCHEMAS, Link, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore, ObjectStore, Store, redact_url, store_at
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

BATCHES = 4
PARTS = BATCHES * len(ROW_SCHEMAS)
LATER = rows.calls(("m", "later", "yes"))
CALL = call_key("m", "c")


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


@pytest.fixture
def mirror(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "mirror")


@pytest.fixture(params=["folder", "subtree", "memory", "without-rename"])
def store(request: pytest.FixtureRequest, tmp_path: Path, mirror: FolderStore) -> Store:
    if request.param == "folder":
        return mirror
    if request.param == "subtree":
        (tmp_path / "disk").mkdir()
        below = fs.SubTreeFileSystem(str(tmp_path / "disk"), fs.LocalFileSystem())
        return ObjectStore(below, "mirror", is_atomic=False, label="sub://mirror")
    whole = request.param == "without-rename"
    files = fs.FSSpecHandler(WithoutRename() if whole else MemoryFileSystem())
    return ObjectStore(fs.PyFileSystem(files), f"/{uuid4().hex}", whole, "memory://")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return filled(tmp_path / "cache", range(BATCHES))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Where another cache may be."""
    return tmp_path / "other"


@pytest.fixture
def pushed(root: Path, mirror: FolderStore) -> FolderStore:
    """The mirror, with all that is in `root`."""
    push(root, mirror)
    return mirror


def filled(root: Path, batches: range) -> Path:
    writer = PartWriter(root)
    for number in batches:
        for kind, table in killing.batch(number).items():
            writer.append(kind, table)
    return root


def answer(root: Path, *calls: tuple[str, str], scored: bool = False) -> Path:
    """One part of (context, response), and one of their scores; the path of the first."""
    table, writer = rows.calls(*(("m", *call) for call in calls)), PartWriter(root)
    path = writer.append("calls", table)
    if scored:
        writer.append("scores", rows.scores(table))
    return path


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def contents(root: Path) -> dict[str, bytes]:
    return {part.path.name: part.path.read_bytes() for part in sound_parts(root)}


def served(root: Path) -> dict[str, Any]:
    """What a reader is served: the rows of every kind, and the latest plan."""
    reader = CacheReader(root)
    tables = {kind: reader.sql(f"SELECT * FROM {kind}").to_pylist() for kind in ROW_SCHEMAS}
    stored = {kind: sorted(table, key=str) for kind, table in tables.items()}
    return {**stored, "latest": reader.latest_plan()}


def test_a_mirror_gives_back_every_byte(root: Path, store: Store, other: Path) -> None:
    told: list[tuple[int, int]] = []
    assert push(root, store, lambda done, total: told.append((done, total))) == PARTS
    assert told == [(done, PARTS) for done in range(1, PARTS + 1)]
    assert pull(store, other).copied == PARTS
    assert contents(other) == contents(root)
    assert (push(root, store), push(other, store)) == (0, 0)
    assert pull(store, root) == PullResult(str(store))
    assert killing.leftovers(other) == []
    (other / "quarantine").mkdir()
    for part in list_parts(other)[::3]:  # as a repair does
        part.path.rename(other / "quarantine" / part.path.name)
    pull(store, other)
    assert contents(other) == contents(root)


def test_a_folder_is_a_cache_itself_and_strangers_in_it_are_left_alone(
    root: Path, tmp_path: Path, other: Path
) -> None:
    store, folder = store_at(f"file://{tmp_path / 'mir%20ror'}"), tmp_path / "mir ror"
    push(root, store)
    assert served(folder) == served(root)
    assert not killing.leftovers(folder)
    stranger = folder / "parts" / ".DS_Store"
    stranger.write_text("?")
    pull(store, other)
    assert contents(other) == contents(root)
    assert set(FolderStore(other).sizes()) == set(contents(root))
    assert stranger.exists()


def test_two_sides_become_equal(store: Store, tmp_path: Path) -> None:
    """Each has answered something of its own, with the same counters."""
    one, other = filled(tmp_path / "one", range(3)), filled(tmp_path / "other", range(2, 5))
    for copy in (push, lambda root, store: pull(store, root)):
        for side in (one, other):
            copy(side, store)
    assert contents(one) == contents(other)
    assert served(one) == served(other)
    found = killing.inspect(one, killing.all_parts(5))
    assert replace(found, older=0) == killing.Findings()  # with equal counters no plan is older


def test_a_copy_that_fails_costs_no_row(root: Path, pushed: FolderStore) -> None:
    """The mirror's disk goes away in the middle, and comes back."""
    folder = (pushed.root / "parts").rename(root.with_name("away"))
    (pushed.root / "parts").write_text("not a folder")
    writer = PartWriter(root, on_part=part_copier(pushed))
    with pytest.raises(
        errors.WorldError, match=r"cannot use the mirror: .* is safe, rerun"
    ) as caught:
        writer.append("calls", rows.calls(("m", "c", "r")))
    assert "\n" not in str(caught.value)
    assert len(sound_parts(root)) == PARTS + 1
    (pushed.root / "parts").unlink()
    folder.rename(pushed.root / "parts")
    assert push(root, pushed) == 1


@pytest.mark.parametrize("hurt", [lambda data: data[:-9], lambda data: data[::-1]])
def test_a_torn_or_altered_object_is_refused_by_name_and_a_torn_one_copied_again(
    root: Path, store: Store, other: Path, hurt: Callable[[bytes], bytes]
) -> None:
    push(root, store)
    name = sorted(store.sizes())[2]
    sound = store.read(name)
    store.write(name, hurt(sound))
    refused = f"damaged part in the mirror: .*{name}: checksum mismatch; delete"
    with pytest.raises(errors.DamagedPart, match=refused):
        pull(store, other)
    assert contents(other).keys() == contents(root).keys() - {name}
    assert killing.leftovers(other) == []
    if len(hurt(sound)) < len(sound):
        assert push(root, store) == 1
        assert pull(store, other).copied == 1


def test_a_damaged_part_is_not_copied(root: Path, store: Store) -> None:
    path = list_parts(root)[0].path
    shorten(path)
    with pytest.raises(errors.DamagedPart, match=f"{path.name}: checksum mismatch"):
        push(root, store)
    assert path.name not in store.sizes()


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
    assert len(list_parts(root)) == len(ROW_SCHEMAS)


def test_any_part_of_a_mirror_after_a_compaction_doubles_no_row(
    root: Path, pushed: FolderStore, tmp_path: Path
) -> None:
    """Copying may break off anywhere: what is there is served once, as it was."""
    whole = served(root)
    compact(root)
    push(root, pushed)
    names, rng = sorted(pushed.sizes()), Random(0)
    for number in range(6):
        some = FolderStore(tmp_path / f"some-{number}")
        for name in rng.sample(names, rng.randrange(1, len(names))):
            some.write(name, pushed.read(name))
        reader = CacheReader(some.root)
        for kind in ROW_SCHEMAS:
            found = reader.sql(f"SELECT * FROM {kind}").to_pylist()
            assert all(row in whole[kind] for row in found)
            assert len({str(row) for row in found}) == len(found)
        pull(pushed, some.root)
        assert served(some.root) == whole


def test_a_part_with_other_answers_is_left_where_it_is(
    root: Path, store: Store, other: Path
) -> None:
    """Else a score of the one answer might be served with the other."""
    rival, new = answer(other, ("c", "yes"), ("d", "same")), answer(other, ("e", "new"))
    push(other, store)
    answer(root, ("c", "no"), ("d", "same"))
    before = contents(root)
    pulled = pull(store, root)
    assert (pulled.copied, pulled.conflicts) == (1, (rival.name,))
    assert contents(root).keys() - before.keys() == {new.name}
    assert before.items() <= contents(root).items()
    message = f"1 parts of the mirror answer calls in .*{rival.name}"
    with pytest.raises(errors.CacheError, match=message) as why:
        require_no_conflicts(pulled)
    assert len(str(why.value)) <= 300
    assert pull(store, root, leave=pulled.conflicts) == PullResult(str(store))


def test_an_empty_cache_gets_one_of_two_answers_and_all_the_rest(
    store: Store, tmp_path: Path, other: Path
) -> None:
    """What contradicts only a part that is left is no rival any more."""
    for seq, answers in enumerate(
        [[("c", "first"), ("x", "same")], [("c", "second"), ("d", "second")], [("d", "third")]]
    ):
        table = rows.calls(*(("m", *said) for said in answers))
        path = rows.put(tmp_path / "there", "calls", table, seq)
        store.write(path.name, path.read_bytes())
    first, second, third = sorted(store.sizes())
    assert pull(store, other) == PullResult(str(store), 2, (second,))
    assert contents(other).keys() == {first, third}


def test_a_score_never_meets_another_answer_than_its_own_and_the_rest_is_exchanged(
    store: Store, tmp_path: Path
) -> None:
    """Each side has scored its own answer; the mirror holds both."""
    for side, said in (("one", "yes"), ("other", "no")):
        answer(tmp_path / side, ("c", said), scored=True)
        answer(tmp_path / side, (side, said))
        push(tmp_path / side, store)
    values: dict[str, set[float]] = {"one": {1.0}, "other": {0.0}, "fresh": set()}
    for side in [*values, *values]:
        exchange(tmp_path / side, store)
    assert len(store.sizes()) == 6
    for side, value in values.items():
        reader = CacheReader(tmp_path / side)
        found = reader.sql("SELECT value FROM scores_rows WHERE call = ?", [CALL])
        assert set(found["value"].to_pylist()) == value
        assert len(reader.responses()) == 3


@pytest.fixture
def here(tmp_path: Path, mirror: FolderStore) -> Path:
    """A cache that says "no"; the mirror has another answer, its score and a new call."""
    answer(tmp_path / "there", ("c", "yes"), scored=True)
    answer(tmp_path / "there", ("new", "yes"))
    push(tmp_path / "there", mirror)
    answer(tmp_path / "here", ("c", "no"))
    return tmp_path / "here"


def require_own_answer(here: Path) -> None:
    """Only what was answered here is here, and no score of another answer."""
    reader = CacheReader(here)
    assert reader.responses()[CALL] == "no"
    assert reader.number(f"SELECT count(*) FROM calls_rows WHERE key = '{CALL}'") == 1
    assert not reader.has("scores")
    assert not (here / ARRIVALS_FILE).exists()
    assert killing.leftovers(here) == []


@pytest.mark.parametrize("kind", ["calls", "scores"])
@pytest.mark.parametrize("how", [OSError("no route"), KeyboardInterrupt()], ids=repr)
def test_a_pull_that_breaks_off_leaves_no_rival(
    here: Path, mirror: FolderStore, monkeypatch: pytest.MonkeyPatch, how: BaseException, kind: str
) -> None:
    """One kind of part comes, and the others fail while it is on its way."""
    real = FolderStore.read

    def read(store: FolderStore, name: str) -> bytes:
        if name.startswith(kind):
            return real(store, name)
        time.sleep(0.2)
        raise how

    with monkeypatch.context() as broken, pytest.raises((errors.WorldError, KeyboardInterrupt)):
        broken.setattr(FolderStore, "read", read)
        pull(mirror, here)
    assert len(list_parts(here)) == (2 if kind == "calls" else 1)  # one new call has come
    require_own_answer(here)
    assert len(pull(mirror, here).conflicts) == 1
    require_own_answer(here)


def test_no_part_is_copied_beside_a_damaged_one(here: Path, mirror: FolderStore) -> None:
    (part,) = list_parts(here)
    shorten(part.path)
    with pytest.raises(errors.DamagedPart, match=f"damaged part: {part.path.name}"):
        pull(mirror, here)
    assert list_parts(here) == [part]


def test_arrivals_of_a_pull_at_work_are_left_to_it(here: Path, mirror: FolderStore) -> None:
    for name in mirror.sizes():
        FolderStore(here).write(name, mirror.read(name))
    remote.record_arrivals(here, mirror.sizes())
    before = list_parts(here)
    with pull_lock(here):
        remote.finish_pull(here)
        assert list_parts(here) == before
    remote.finish_pull(here)
    require_own_answer(here)


def test_a_list_of_arrivals_that_is_none_is_named(here: Path, mirror: FolderStore) -> None:
    (here / ARRIVALS_FILE).write_text("7")
    with pytest.raises(
        errors.CacheError, match=f"not readable: {here / ARRIVALS_FILE}: .*; remove it"
    ):
        pull(mirror, here)


def test_two_pulls_at_the_same_time_copy_everything_once(here: Path, mirror: FolderStore) -> None:
    with ThreadPoolExecutor(2) as streams:
        pulled = [found.result() for found in [streams.submit(pull, mirror, here) for _ in "ab"]]
    assert sorted(found.copied for found in pulled) == [0, 1]
    require_own_answer(here)


def test_compacting_while_parts_are_copied_misses_nothing(
    root: Path, mirror: FolderStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, one_at_a_time = FolderStore.write, Lock()

    def write(store: FolderStore, name: str, data: bytes | memoryview) -> None:
        with one_at_a_time:
            if not store.sizes():
                compact(root)
            real(store, name, data)

    monkeypatch.setattr(FolderStore, "write", write)
    push(root, mirror)
    assert set(contents(root)) <= set(mirror.sizes())
    pull(mirror, other)
    assert served(other) == served(root)


def test_pull_waits_for_no_shard_and_refuses_beside_a_collector(root: Path, other: Path) -> None:
    PartWriter(other)
    with collector_lock(other), pytest.raises(errors.CacheLocked):
        pull(FolderStore(root), other)
    with shard_lock(other, 1, 2):
        assert pull(FolderStore(root), other).copied == PARTS


def test_an_empty_place_gives_nothing(store: Store, other: Path) -> None:
    pulled = pull(store, other)
    assert (pulled.copied, pulled.note) == (0, "")
    require_no_conflicts(pulled)
    assert not other.exists()
    with pytest.raises(errors.NoCache, match=r"no parts in the mirror: .*; push to it first"):
        pull(store, other, may_be_empty=False)


NEWER = rows.parquet(LATER, b'{"format": 3}')
OTHER_COLUMNS = rows.parquet(
    LATER.select(["key"]), Link("calls", 9, "a" * 8, "0" * 16, ()).header()
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(NEWER, r"newer version \(format 3 > 2\): {name}; upgrade", id="newer"),
        pytest.param(b"PAR1", r"damaged part in the mirror: .*{name}: not readable", id="text"),
        pytest.param(
            OTHER_COLUMNS, r"{name}: column step is missing; delete it there", id="other columns"
        ),
    ],
)
def test_what_cannot_be_read_here_stays_in_the_mirror(
    root: Path, pushed: FolderStore, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    name = rows.put(pushed.root, "calls", data, seq=9).name
    other, seen = root.with_name("other"), set()

    real = writer.commit

    def commit(root: Path, name: str, *rest: Any) -> None:
        seen.add(name)
        real(root, name, *rest)

    monkeypatch.setattr(writer, "commit", commit)
    with pytest.raises(errors.CacheError, match=message.format(name=name)) as caught:
        pull(pushed, other)
    assert "\n" not in str(caught.value)
    seen = {name for name in seen if not name.startswith("seals")}  # ours alone
    assert seen == contents(root).keys()  # it was not visible for a moment either
    assert served(other) == served(root)
    assert name in pushed.sizes()


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://bucket/x",
        "adl://bucket/x",
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
def test_a_place_that_is_none_is_refused_and_no_secret_of_its_url_shown(url: str) -> None:
    """Not by us, and not by a library that repeats the URL in its reason."""
    with pytest.raises(errors.InputError, match="no such place for a mirror") as caught:
        store_at(url)
    for secret in ("AKID", "topsecret", "hushed"):
        assert secret not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("said", ["500: {url}/parts", "no route to AKID:top%20secret@host"])
@pytest.mark.parametrize("use", [pull, push], ids=["pull", "push"])
def test_no_secret_is_shown_when_a_mirror_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: str, use: Any
) -> None:
    monkeypatch.setattr(Repeating, "said", said)
    register_implementation("repeating", Repeating, clobber=True)
    store = store_at("repeating://AKID:top%20secret@host/x?token=hushed")
    with pytest.raises(
        errors.WorldError, match=r"cannot use the mirror: repeating://host/x: "
    ) as caught:
        use(*((store, root) if use is pull else (root, store)))
    for secret in ("AKID", "secret", "hushed"):
        assert secret not in str(caught.value)
        assert secret not in repr(store)


def test_a_url_is_shown_without_its_secrets_and_a_folder_needs_none() -> None:
    assert store_at("../mirror") == FolderStore(Path("../mirror"))
    assert redact_url("s3://AKID:a/b@bucket/path?token=x") == "s3://bucket/path"
    assert redact_url("s3://bucket/path") == "s3://bucket/path"
    assert redact_url("s3://AKID:a?b@bucket/path") == "s3://..."


@pytest.mark.parametrize("go_on", [pull, compact, quarantine])
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
    here: Path, mirror: FolderStore, point: str, time: int, go_on: Any
) -> None:
    assert killing.is_killed(pull, mirror, here, point=point, time=time)
    assert (here / ARRIVALS_FILE).exists()
    if go_on is not pull:
        assert go_on is compact or quarantine(here) == []  # what is not judged yet is not sealed
        compact(here)
        require_own_answer(here)
    pull(mirror, here)
    require_own_answer(here)
    assert len(CacheReader(here).responses()) == 2


@pytest.mark.parametrize("time", [1, 7])
@pytest.mark.parametrize("point", killing.MILESTONES[:4])
def test_kill_9_in_the_middle_of_a_pull(
    root: Path, pushed: FolderStore, other: Path, point: str, time: int
) -> None:
    assert killing.is_killed(pull, pushed, other, point=point, time=time)
    there = contents(other) if list(other.glob("parts/*.parquet")) else {}
    assert there.items() <= contents(root).items()  # nothing torn is to be seen
    early = [name for name in there if name.startswith("scores-")]
    assert pull(pushed, other).copied == PARTS - len(there) + len(early)
    assert contents(other) == contents(root)
    assert killing.leftovers(other) == []


@pytest.mark.parametrize("time", [1, 7])
@pytest.mark.parametrize("point", [*killing.MILESTONES[:4], "half"])
def test_kill_9_in_the_middle_of_a_push(
    root: Path, mirror: FolderStore, point: str, time: int
) -> None:
    files = ObjectStore(fs.LocalFileSystem(), str(mirror.root), is_atomic=False, label="local")
    assert killing.is_killed(
        push, root, files if point == "half" else mirror, point=point, time=time
    )
    there = contents(mirror.root) if list(mirror.root.glob("parts/*.parquet")) else {}
    assert there.items() <= contents(root).items()  # nothing torn is to be seen
    assert push(root, mirror) == PARTS - len(there)
    assert contents(mirror.root) == contents(root)

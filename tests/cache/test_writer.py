"""Files and parts are written wholly or not at all, whatever fails, and nothing else is swept."""

import errno
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hierrouter_cache import writer
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.errors import CacheError, InputError, WorldError
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import head_name, list_parts, listing
from hierrouter_cache.writer import (
    PartWriter,
    atomic_file,
    draft_path,
    sweep_drafts,
    write_atomically,
)
from tests.cache import rows

FILES = Path("/proc/self/fd")

Event = tuple[str, Path]
FIRST, SECOND = rows.calls(("m", "c", "r")), rows.calls(("m", "d", "r"))


def failing(code: int) -> Callable[..., Any]:
    """A call of the system that fails with this number."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_later_writer_sorts_after_what_it_saw(tmp_path: Path) -> None:
    paths = [PartWriter(tmp_path).append("calls", table) for table in (FIRST, SECOND)]
    found = [(part.path, part.kind, part.rows, part.seq) for part in list_parts(tmp_path)]
    assert found == [(paths[0], "calls", 1, 1), (paths[1], "calls", 1, 2)]


def test_a_full_disk_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(tmp_path)
    kept = writer.append("calls", FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        with pytest.raises(WorldError, match="No space left on device; what was committed is safe"):
            writer.append("calls", SECOND)
    assert [part.path for part in sound_parts(tmp_path)] == [kept]
    assert list((tmp_path / "tmp").iterdir()) == []
    writer.append("calls", SECOND)
    assert len(sound_parts(tmp_path)) == 2


def test_a_disk_that_fails_altogether_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(tmp_path)
    for call in ("write", "unlink"):
        monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(WorldError, match=r"cannot write: .*Input/output error"):
        writer.append("calls", FIRST)


def test_a_place_that_takes_no_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", failing(errno.ENOSPC))
        with pytest.raises(WorldError, match="No space left on device; make room and run again"):
            PartWriter(tmp_path / "cache")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="not a directory"):
        PartWriter(tmp_path / "file")
    monkeypatch.setattr(writer, "writable", lambda root: False)  # nothing is refused to root
    with pytest.raises(CacheError, match=f"not writable: {tmp_path}: permission denied"):
        PartWriter(tmp_path)


def test_a_part_without_rows_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty part"):
        PartWriter(tmp_path).append("calls", rows.calls())
    assert not list(tmp_path.glob("parts/*.parquet"))


def test_drafts_of_the_living_and_of_other_machines_stay(tmp_path: Path) -> None:
    root = PartWriter(tmp_path).root
    here = re.sub("[^A-Za-z0-9-]", "-", socket.gethostname())

    def draft(host: str, pid: int, hours_old: float = 0) -> Path:
        """A draft as the process `pid` of `host` would leave it."""
        ours = draft_path(root, "calls-half")
        path = ours.with_name(ours.name.replace(f".{here}.{os.getpid()}.", f".{host}.{pid}."))
        assert (path == ours) == ((host, pid) == (here, os.getpid()))
        path.write_bytes(b"half")
        os.utime(path, (time.time() - hours_old * 3600,) * 2)
        return path

    (root / "tmp" / "calls-half.tmp").write_bytes(b"half")
    draft(here, 2**22 + 1)
    draft(here, os.getpid())  # of a dead one that had this number
    living = draft(here, os.getppid(), hours_old=100)
    elsewhere = draft("node-7", 2**22 + 1, hours_old=20)
    draft("node-7", os.getppid(), hours_old=30)
    sweep_drafts(root)
    assert set((root / "tmp").iterdir()) == {living, elsewhere}


def test_two_writers_with_the_same_counter_do_not_meet(tmp_path: Path) -> None:
    """Shards that list the folder at the same time choose the same `seq`."""
    first, second = PartWriter(tmp_path), PartWriter(tmp_path)
    paths = [first.append("calls", FIRST)]
    aside = paths[0].rename(tmp_path / "aside")
    paths.append(second.append("calls", SECOND))
    aside.rename(paths[0])
    parts = sound_parts(tmp_path)
    assert [part.seq for part in parts] == [1, 1]
    assert {part.path for part in parts} == set(paths)


def test_a_copy_is_told_each_part_after_its_commit(tmp_path: Path) -> None:
    told: dict[str, bytes] = {}

    def copy(name: str, data: memoryview) -> None:
        assert (tmp_path / "parts" / name).read_bytes() == bytes(data)
        told[name] = bytes(data)
        if len(told) == 2:
            raise WorldError("the copy failed")

    writer = PartWriter(tmp_path, on_part=copy)
    writer.append("calls", FIRST)
    with pytest.raises(WorldError, match="the copy failed"):
        writer.append("calls", SECOND)
    assert {part.path.name for part in sound_parts(tmp_path)} == set(told)


def test_a_file_is_replaced_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "policy.json"
    with pytest.raises(KeyboardInterrupt), atomic_file(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    write_atomically(target, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(WorldError, match="Input/output error"):
            write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    with atomic_file(target) as file:
        file.write(b"first\n")
        file.write(b"second\n")
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"first\nsecond\n"


# The order of system calls that makes a power cut harmless, recorded from real runs.


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """(what, file or folder) of every system call that changes the disk, in order."""
    if not FILES.is_dir():
        pytest.skip("needs /proc to name open files")
    seen: list[Event] = []

    def record(name: str, path_of: Callable[..., Path]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **more: Any) -> Any:
            path = path_of(*args)
            done = real(*args, **more)
            seen.append((name, path))
            return done

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync"):
        record(name, lambda descriptor, *_: (FILES / str(descriptor)).readlink())
    for name in ("replace", "rename"):
        record(name, lambda source, target: Path(target))
    record("unlink", Path)
    return seen


def placed(draft: Path, target: Path, *covered: Path) -> list[Event]:
    """A file is synced before it is visible, and its folder after; between them heads go."""
    return [
        *(("write", draft), ("fsync", draft), ("replace", target)),
        *(("unlink", head_of(part)) for part in covered),
        ("fsync", target.parent),
    ]


def head_of(part: Path) -> Path:
    return part.with_name(head_name(part.name))


def test_a_part_is_synced_before_it_is_visible_and_the_folder_after(
    tmp_path: Path, events: list[Event]
) -> None:
    writer = PartWriter(tmp_path)
    events.clear()
    part = writer.append("calls", FIRST)
    assert events == placed(draft_path(tmp_path, part.name), part)
    assert head_of(part).exists()
    events.clear()
    second = writer.append("calls", SECOND)
    assert events == placed(draft_path(tmp_path, second.name), second, part)


def test_so_is_any_file_written_atomically(tmp_path: Path, events: list[Event]) -> None:
    write_atomically(tmp_path / "report.json", b"{}")
    draft = events[0][1]
    assert draft.parent == tmp_path
    assert events == placed(draft, tmp_path / "report.json")


def test_the_name_of_every_new_folder_is_synced(tmp_path: Path, events: list[Event]) -> None:
    root = tmp_path / "caches" / "default"
    PartWriter(root)
    assert {path for _, path in events} == {tmp_path, root.parent, root}
    assert {what for what, _ in events} == {"fsync"}


def test_sources_go_after_the_merged_part_is_safe_largest_first(
    tmp_path: Path, events: list[Event]
) -> None:
    writer = PartWriter(tmp_path)
    sources = [writer.append("calls", rows.calls(("m", f"c{n}", "r"))) for n in range(4)]
    events.clear()
    compact(tmp_path)
    (merged, seal) = [part.path for part in listing(tmp_path).parts]
    assert [(what, path) for what, path in events if path.name != "collect.lock"] == [
        *placed(draft_path(tmp_path, merged.name), merged, sources[-1]),
        *placed(draft_path(tmp_path, seal.name), seal, merged),
        *(("unlink", path) for path in reversed(sources)),
        ("fsync", merged.parent),
    ]

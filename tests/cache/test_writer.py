"""Files and parts are written wholly or not at all, and nobody else's drafts are swept."""

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
from hierrouter_cache.errors import CacheError, InputError, WorldError
from hierrouter_cache.parts import list_parts, sound_parts
from hierrouter_cache.writer import (
    PartWriter,
    atomic_file,
    draft_path,
    sweep_drafts,
    write_atomically,
)
from tests.cache import rows

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
    assert list((tmp_path / "parts").iterdir()) == []


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

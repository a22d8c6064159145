import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hierrouter_cache.errors import CacheLocked, InputError, WorldError
from hierrouter_cache.parts import list_parts, sound_parts
from hierrouter_cache.writer import (
    PartWriter,
    atomic_file,
    collector_lock,
    sweep_drafts,
    write_atomically,
)
from tests.cache import rows


def test_a_part_says_its_rows_and_bytes(tmp_path: Path) -> None:
    path = PartWriter(tmp_path).append("calls", rows.calls(("m", "c", "r"), ("m", "d", "s")))
    (part,) = sound_parts(tmp_path)
    assert (part.path, part.kind, part.rows, part.seq) == (path, "calls", 2, 1)


def test_a_later_writer_sorts_after_what_it_saw(tmp_path: Path) -> None:
    first = PartWriter(tmp_path).append("calls", rows.calls(("m", "c", "r")))
    second = PartWriter(tmp_path).append("calls", rows.calls(("m", "d", "r")))
    assert [part.path for part in list_parts(tmp_path)] == [first, second]


def test_a_full_disk_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(tmp_path)
    kept = writer.append("calls", rows.calls(("m", "c", "r")))

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(WorldError, match="No space left on device; what was committed is safe"):
            writer.append("calls", rows.calls(("m", "d", "r")))
    assert [part.path for part in sound_parts(tmp_path)] == [kept]
    assert list((tmp_path / "tmp").iterdir()) == []
    writer.append("calls", rows.calls(("m", "d", "r")))
    assert len(sound_parts(tmp_path)) == 2


def test_a_disk_that_fails_altogether_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(tmp_path)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for call in ("write", "unlink"):
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(WorldError, match=r"cannot write: .*Input/output error"):
        writer.append("calls", rows.calls(("m", "c", "r")))


def test_a_cache_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cf").write_text("x")
    with pytest.raises(InputError, match="not a directory"):
        PartWriter(tmp_path / "cf")


def test_two_collectors_do_not_pay_twice(tmp_path: Path) -> None:
    PartWriter(tmp_path)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path\n"
            "from hierrouter_cache.writer import collector_lock\n"
            "with collector_lock(Path(sys.argv[1])): print('held', flush=True); input()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(CacheLocked, match=rf"another collector \(pid {holder.pid}\)"),
        collector_lock(tmp_path),
    ):
        pass
    holder.kill()
    holder.communicate()
    with collector_lock(tmp_path):  # the kernel has dropped the dead one's lock
        pass


def test_drafts_of_a_crash_are_swept(tmp_path: Path) -> None:
    PartWriter(tmp_path)
    (tmp_path / "tmp" / "calls-half.tmp").write_bytes(b"half")
    sweep_drafts(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_write_atomically_replaces_or_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "policy.json"
    write_atomically(target, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(WorldError, match="I/O error"):
            write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    write_atomically(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]
    assert target.read_bytes() == b"new"


def test_a_file_that_is_not_finished_never_appears(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt), atomic_file(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with atomic_file(target) as file:
        file.write(b"first\n")
        file.write(b"second\n")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    assert target.read_bytes() == b"first\nsecond\n"

"""Who may write into a cache at the same time: real processes, real locks."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from hierrouter_cache.errors import CacheError, CacheLocked, WorldError
from hierrouter_cache.locks import (
    collector_lock,
    folder_lock,
    shard_lock,
    shards_at_work,
    shared_lock,
)
from hierrouter_cache.writer import PartWriter
from tests.conftest import environment

HOLD = """
import sys
from pathlib import Path
from hierrouter_cache.locks import *
root = Path(sys.argv[1])
with {lock}:
    print("held", flush=True)
    input()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return PartWriter(tmp_path).root


@contextmanager
def process_with(lock: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(lock=lock), str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


WHOLE, SHARED, SHARD = "collector_lock(root)", "shared_lock(root)", "shard_lock(root, 1, 2)"
REFUSED = [
    pytest.param(WHOLE, collector_lock, r"another collector \(pid {pid} on", id="two-collectors"),
    pytest.param(WHOLE, shared_lock, r"another collector \(pid {pid} on", id="transfer-beside-one"),
    pytest.param(
        WHOLE, lambda root: shard_lock(root, 1, 2), r"pid {pid} on", id="shard-beside-one"
    ),
    pytest.param(SHARD, collector_lock, r"shards or a transfer", id="one-beside-a-shard"),
    pytest.param(SHARED, collector_lock, r"shards or a transfer", id="one-beside-a-transfer"),
    pytest.param(
        "folder_lock(root, 'a training')",
        lambda root: folder_lock(root, "a training"),
        r"a training \(pid {pid} on .*\) is at work",
        id="two-in-another-folder",
    ),
    pytest.param(
        SHARD,
        lambda root: shard_lock(root, 1, 2),
        r"shard 1/2 of a collector \(pid {pid} on",
        id="a-shard-twice",
    ),
    pytest.param(
        SHARD,
        lambda root: shard_lock(root, 2, 3),
        r"shard 1/2 is at work: .*; shards of another number would make the same calls",
        id="shards-of-another-number",
    ),
]


@pytest.mark.parametrize(("held", "lock", "message"), REFUSED)
def test_who_would_pay_twice_is_refused(
    root: Path, held: str, lock: type[AbstractContextManager[None]], message: str
) -> None:
    with (
        process_with(held, root) as holder,
        pytest.raises(CacheLocked, match=message.format(pid=holder.pid)),
        lock(root),
    ):
        pass
    with lock(root):  # the kernel has dropped the dead one's lock
        pass


def test_shards_and_transfers_live_together(root: Path) -> None:
    with process_with(SHARD, root), process_with(SHARED, root), shard_lock(root, 2, 2):
        assert shards_at_work(root) == [(1, 2), (2, 2)]
    assert shards_at_work(root) == []


STARTS = """
import sys
from pathlib import Path
from hierrouter_cache.locks import shard_lock, shards_at_work, start_lock
root, index = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(200):
    with shard_lock(root, index, 4), start_lock(root):
        shards_at_work(root)
"""


def test_a_look_at_a_lock_makes_no_starting_shard_fail(root: Path) -> None:
    """As the scheduler starts: the lock, then a look at who else is at work."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTS, str(root), str(index)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in (1, 2, 3, 4)
    ]
    said = [process.communicate()[1] for process in processes]
    assert said == [""] * 4


def test_shards_start_one_after_the_other(root: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from time import sleep\n"
        "from hierrouter_cache.locks import start_lock\n"
        "root = Path(sys.argv[1])\n"
        "with start_lock(root), (root / 'log').open('a', buffering=1) as log:\n"
        "    log.write('in\\n'); sleep(0.3); log.write('out\\n')\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(root)], env=environment())
        for _ in range(3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert (root / "log").read_text().split() == ["in", "out"] * 3


def test_a_link_in_place_of_a_lock_is_refused_and_its_target_kept(root: Path) -> None:
    (root / "precious").write_text("kept")
    (root / "collect.lock").symlink_to(root / "precious")
    with (
        pytest.raises(CacheError, match=f"the cache is not writable: {root}"),
        collector_lock(root),
    ):
        pass
    assert (root / "precious").read_text() == "kept"


def test_a_disk_without_locks_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    message = f"cannot lock the cache: {root}: No locks available; use a disk that has locks"
    with pytest.raises(WorldError, match=message), collector_lock(root):
        pass

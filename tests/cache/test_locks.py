"""Who may write into a cache at the same time: real processes, real locks."""

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from hierrouter_cache import locks
from hierrouter_cache.errors import CacheError, CacheLocked, WorldError
from hierrouter_cache.writer import PartWriter
from tests.conftest import environment
from tests.warm import Running, Warm

Lock = Callable[[Path], AbstractContextManager[None]]
Start = Callable[[str], Running]

HEAD = """
import signal, sys
from pathlib import Path
from time import sleep
from contextlib import ExitStack
from hierrouter_cache.locks import *
root = Path()
"""
HOLD = """
with {lock}:
    print("held", file=sys.stderr, flush=True)
    signal.pause()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return PartWriter(tmp_path).root


@pytest.fixture
def python(root: Path, warm: Warm) -> Start:
    """Start a process that runs some lines in the cache."""
    return lambda lines: warm.start("-c", HEAD + lines, cwd=root, env=environment())


@pytest.fixture
def holder(python: Start) -> Start:
    """Start a process that holds a lock until it is killed."""

    def start(lock: str) -> Running:
        process = python(HOLD.format(lock=lock))
        process.wait_for("held")
        return process

    return start


def kill(process: Running) -> None:
    process.send_signal(signal.SIGKILL)
    process.result()


WHOLE, SHARED, SHARD = "collector_lock(root)", "shared_lock(root)", "shard_lock(root, 1, 2)"
TRAINING = "folder_lock(root, 'a training')"
ONE_OF_TWO = partial(locks.shard_lock, index=1, count=2)
COLLECTOR = r"another collector \(pid {pid} on"
OTHER_NUMBER = r"shard 1/2 is at work: .*; shards of another number would make the same calls"
REFUSED = [
    pytest.param(WHOLE, locks.collector_lock, COLLECTOR, id="two-collectors"),
    pytest.param(WHOLE, locks.shared_lock, COLLECTOR, id="transfer-beside-one"),
    pytest.param(WHOLE, ONE_OF_TWO, r"pid {pid} on", id="shard-beside-one"),
    pytest.param(SHARD, locks.collector_lock, r"shards or a transfer", id="one-beside-a-shard"),
    pytest.param(SHARED, locks.collector_lock, r"shards or a transfer", id="one-beside-a-transfer"),
    pytest.param(
        TRAINING,
        partial(locks.folder_lock, who="a training"),
        r"a training \(pid {pid} on .*\) is at work",
        id="two-in-another-folder",
    ),
    pytest.param(SHARD, ONE_OF_TWO, r"shard 1/2 of a collector \(pid {pid} on", id="a-shard-twice"),
    pytest.param(
        SHARD,
        partial(locks.shard_lock, index=2, count=3),
        OTHER_NUMBER,
        id="shards-of-another-number",
    ),
]


@pytest.mark.parametrize(("held", "lock", "message"), REFUSED)
def test_who_would_pay_twice_is_refused(
    root: Path, holder: Start, held: str, lock: Lock, message: str
) -> None:
    process = holder(held)
    with pytest.raises(CacheLocked, match=message.format(pid=process.pid)), lock(root):
        pass
    kill(process)
    with lock(root):  # the kernel has dropped the dead one's lock
        pass


def test_shards_and_transfers_live_together(root: Path, holder: Start) -> None:
    processes = [holder(lock) for lock in (SHARD, SHARED)]
    with locks.shard_lock(root, 2, 2):
        assert locks.shards_at_work(root) == [(1, 2), (2, 2)]
    for process in processes:
        kill(process)
    assert locks.shards_at_work(root) == []


def test_a_look_at_a_lock_makes_no_starting_shard_fail(python: Start) -> None:
    """As the scheduler starts: the lock, then a look at who else is at work."""
    starts = """
for _ in range(200):
    with ExitStack() as held:
        with start_lock(root):
            held.enter_context(shard_lock(root, {index}, 4))
            shards_at_work(root)
"""
    processes = [python(starts.format(index=index)) for index in (1, 2, 3, 4)]
    assert [process.result().stderr for process in processes] == [""] * 4


def test_shards_start_one_after_the_other(root: Path, python: Start) -> None:
    start = """
with start_lock(root), (root / "log").open("a", buffering=1) as log:
    log.write("in\\n"); sleep(0.3); log.write("out\\n")
"""
    processes = [python(start) for _ in range(3)]
    assert [process.result().returncode for process in processes] == [0, 0, 0]
    assert (root / "log").read_text().split() == ["in", "out"] * 3


def test_a_link_in_place_of_a_lock_is_refused_and_its_target_kept(root: Path) -> None:
    (root / "precious").write_text("kept")
    (root / "collect.lock").symlink_to(root / "precious")
    message = f"the cache is not writable: {root}"
    with pytest.raises(CacheError, match=message), locks.collector_lock(root):
        pass
    assert (root / "precious").read_text() == "kept"


def test_a_disk_without_locks_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    message = f"cannot lock: {root}: No locks available; use a disk that has locks"
    with pytest.raises(WorldError, match=message), locks.collector_lock(root):
        pass

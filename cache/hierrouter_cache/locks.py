"""File locks of a cache, so that no two processes pay for the same calls."""

import contextlib
import errno
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hierrouter_cache.errors import CacheLocked, WorldError
from hierrouter_cache.writer import not_writable_error

COLLECT_LOCK_FILE = "collect.lock"
SHARD_LOCK_PATTERN = re.compile(r"shard-(?P<index>\d+)-of-(?P<count>\d+)\.lock")
LOCKED_ERRNOS = (errno.EWOULDBLOCK, errno.EACCES)  # of a lock that another process holds


def collector_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the cache exclusively.

    Raises:
        CacheLocked: another process is collecting into it, all of a plan or a shard.
        CacheError: the cache is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    return _lock(root / COLLECT_LOCK_FILE, fcntl.LOCK_EX, "another collector")


def folder_lock(
    folder: Path, who: str, wait: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Hold any folder exclusively.

    Args:
        folder: the folder.
        who: name for another process that holds it, for the error message.
        wait: whether to wait for that process instead of raising an error.

    Raises:
        CacheLocked: another process holds it, and `wait` is false.
        CacheError: the folder is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    return _lock(folder / "run.lock", fcntl.LOCK_EX, who, wait)


def shared_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the cache together with other processes that only add parts.

    Raises:
        CacheLocked: another process holds it exclusively.
        CacheError: the cache is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    return _lock(root / COLLECT_LOCK_FILE, fcntl.LOCK_SH, "another collector")


@contextlib.contextmanager
def shard_lock(root: Path, index: int, count: int) -> Iterator[None]:
    """Hold one shard of a collection; other shards of the same count may be at work.

    Take it while holding `start_lock`: `shards_at_work` takes each shard's lock for a moment, and
    without `start_lock` that would make another shard fail to start.

    Args:
        root: the cache's folder.
        index: number of the shard.
        count: number of shards of the collection.

    Raises:
        CacheLocked: the same shard is at work, a shard of another count, or a collection of the
            complete plan.
        CacheError: the cache is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    path = root / f"shard-{index}-of-{count}.lock"
    who = f"shard {index}/{count} of a collector"
    with shared_lock(root), _lock(path, fcntl.LOCK_EX, who):
        for other_index, other_count in shards_at_work(root):
            if other_count != count:
                raise CacheLocked(
                    f"shard {other_index}/{other_count} is at work: {root}; shards of another "
                    "number would make the same calls, wait for it or stop it"
                )
        yield


def judge_lock(
    root: Path, judge: str, wait: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Hold the right to ask a judge.

    Args:
        root: the cache's folder.
        judge: names the judge and its prompt, in letters that a file name may have.
        wait: whether to wait for another process that asks it, instead of raising an error.

    Raises:
        CacheLocked: another process asks it, and `wait` is false.
        CacheError: the cache is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    return _lock(root / f"judge-{judge}.lock", fcntl.LOCK_EX, "another command", wait)


def start_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the right to start a shard; waits while another shard is starting.

    Raises:
        CacheError: the cache is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    return _lock(root / "start.lock", fcntl.LOCK_EX, "another shard", wait=True)


def pull_lock(root: Path, wait: bool = True) -> contextlib.AbstractContextManager[None]:
    """Hold the right to copy parts into the cache.

    Args:
        root: the cache's folder.
        wait: whether to wait for another pull instead of raising an error.

    Raises:
        CacheLocked: another pull is at work, and `wait` is false.
        CacheError: the cache is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    return _lock(root / "pull.lock", fcntl.LOCK_EX, "another pull", wait)


def shards_at_work(root: Path) -> list[tuple[int, int]]:
    """Return (index, count) of each shard whose lock is held, in order.

    Shards of this process are included.
    """
    shards = []
    for path in root.glob("shard-*.lock"):
        match = SHARD_LOCK_PATTERN.fullmatch(path.name)
        if match and _is_locked(path):
            shards.append((int(match["index"]), int(match["count"])))
    return sorted(shards)


def _is_locked(path: Path) -> bool:
    with _open_lock_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in LOCKED_ERRNOS
    return False


@contextlib.contextmanager
def _lock(path: Path, operation: int, who: str, wait: bool = False) -> Iterator[None]:
    """Hold a lock file while the block lasts.

    Args:
        path: the lock file.
        operation: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
        who: name for another process that holds it, for the error message.
        wait: whether to wait for that process.

    Raises:
        CacheLocked: another process holds it, and `wait` is false.
        CacheError: the folder is not writable.
        WorldError: the disk is full, or does not support locks.
    """
    try:
        lock_file = _open_lock_file(path)
    except OSError as error:
        raise not_writable_error(path.parent, error) from error
    with lock_file as file:
        try:
            fcntl.flock(file, operation if wait else operation | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in LOCKED_ERRNOS:
                raise WorldError(
                    f"cannot lock: {path.parent}: {error.strerror}; use a disk that has locks"
                ) from error
            file.seek(0)
            holder = file.read().strip() or "unknown pid"
            raise CacheLocked(
                f"{who} ({holder}) is at work: {path.parent}; wait for it or stop it"
            ) from None
        if not _is_still_at(path, file):
            raise CacheLocked(
                f"the lock was removed while it was taken: {path}; run the same command again"
            )
        # The holder is written for people only, so a full disk is no reason to fail here.
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            if operation == fcntl.LOCK_SH:
                holder = "shards or a transfer"
            else:
                holder = f"pid {os.getpid()} on {socket.gethostname()}"
            os.write(file.fileno(), holder.encode())
        yield


def _is_still_at(path: Path, file: IO[str]) -> bool:
    """Return whether the path still names this open file.

    If not, other processes would lock another file under the same name.
    """
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _open_lock_file(path: Path) -> IO[str]:
    """Open a lock file; create it if it does not exist.

    A symbolic link is refused: the file that it names would be emptied.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "a+")

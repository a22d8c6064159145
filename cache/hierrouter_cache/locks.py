"""Who may write into a cache, so that nobody pays twice."""

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
from hierrouter_cache.writer import not_writable

WHOLE = "collect.lock"
SHARD = re.compile(r"shard-(?P<index>\d+)-of-(?P<count>\d+)\.lock")
BUSY = (errno.EWOULDBLOCK, errno.EACCES)


def collector_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the cache alone.

    Raises CacheLocked: another process is at work there, whole or a shard; CacheError: the cache is
    not writable; WorldError: the disk is full or has no locks.
    """
    return _locked(root / WHOLE, fcntl.LOCK_EX, "another collector")


def folder_lock(
    folder: Path, who: str, wait: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Hold any folder alone.

    Raises CacheLocked: another process is at work there, and `wait` is false; CacheError,
    WorldError: as `collector_lock`.

    `who`: what another process at work there is called in the message.
    """
    return _locked(folder / "run.lock", fcntl.LOCK_EX, who, wait)


def shared_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the cache together with others that only add parts.

    Raises CacheLocked: somebody holds it alone; CacheError, WorldError: as `collector_lock`.
    """
    return _locked(root / WHOLE, fcntl.LOCK_SH, "another collector")


@contextlib.contextmanager
def shard_lock(root: Path, index: int, count: int) -> Iterator[None]:
    """Hold one shard of a collection; its siblings may be at work.

    Take it while you hold `start_lock`: who looks at a lock holds it for that moment. Raises
    CacheLocked: the same shard is at work, one of another `count`, or a whole collection;
    CacheError, WorldError: as `collector_lock`.
    """
    lock, who = root / f"shard-{index}-of-{count}.lock", f"shard {index}/{count} of a collector"
    with shared_lock(root), _locked(lock, fcntl.LOCK_EX, who):
        for other in shards_at_work(root):
            if other[1] != count:
                raise CacheLocked(
                    f"shard {other[0]}/{other[1]} is at work: {root}; shards of another "
                    "number would make the same calls, wait for it or stop it"
                )
        yield


def start_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Wait until no other shard is starting here, then be the one that does.

    Raises CacheError, WorldError: as `collector_lock`.
    """
    return _locked(root / "start.lock", fcntl.LOCK_EX, "another shard", wait=True)


def pull_lock(root: Path, wait: bool = True) -> contextlib.AbstractContextManager[None]:
    """Be the one that copies parts into the cache.

    Raises CacheLocked: another pull is at work there, and `wait` is false; CacheError, WorldError:
    as `collector_lock`.
    """
    return _locked(root / "pull.lock", fcntl.LOCK_EX, "another pull", wait)


def shards_at_work(root: Path) -> list[tuple[int, int]]:
    """(index, count) of each shard whose lock is held, by this process too; in order."""
    found = []
    for path in root.glob("shard-*.lock"):
        if (match := SHARD.fullmatch(path.name)) and _held(path):
            found.append((int(match["index"]), int(match["count"])))
    return sorted(found)


def _held(path: Path) -> bool:
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in BUSY
    return False


@contextlib.contextmanager
def _locked(path: Path, kind: int, who: str, wait: bool = False) -> Iterator[None]:
    try:
        lock = _opened(path)
    except OSError as error:
        raise not_writable(path.parent, error) from error
    with lock as file:
        try:
            fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in BUSY:
                raise WorldError(
                    f"cannot lock: {path.parent}: {error.strerror}; use a disk that has locks"
                ) from error
            file.seek(0)
            holder = file.read().strip() or "unknown pid"
            raise CacheLocked(
                f"{who} ({holder}) is at work: {path.parent}; wait for it or stop it"
            ) from None
        if not _is_at(path, file):
            raise CacheLocked(
                f"the lock was removed while it was taken: {path}; run the same command again"
            )
        # For people; a full disk can do without.
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            me = f"pid {os.getpid()} on {socket.gethostname()}"
            holder = "shards or a transfer" if kind == fcntl.LOCK_SH else me
            os.write(file.fileno(), holder.encode())
        yield


def _is_at(path: Path, file: IO[str]) -> bool:
    """Whether the path still names this open file; else others would lock another one."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _opened(path: Path) -> IO[str]:
    """The lock's own file, made where there is none: what a link names would be emptied."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "a+")

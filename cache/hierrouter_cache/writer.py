"""Append parts so that no crash can lose or tear one.

In: Arrow tables of a kind in `schema`. Out: one immutable file a call. The order is
write to tmp/ -> fsync -> rename into parts/ -> fsync of the folder; only then is a row reported
as committed. A reader never looks into tmp/. Every milestone is told to `on_step`, so that tests
can kill the process there. Not covered: which rows to write, and merging parts (`compact`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import CacheError, CacheLocked, InputError, WorldError
from hierrouter_cache.parts import METADATA_KEY, last_seq, part_name, parts_folder
from hierrouter_cache.schema import FORMAT, KINDS

# Told the name of each milestone of a commit or a compaction, right when it is reached.
Steps = Callable[[str], None]


def no_steps(_: str) -> None:
    """The `Steps` of everyday work: nobody listens."""


@dataclass(frozen=True)
class Packing:
    """How hard a part is compressed: zstd `level`, and the size of a page in bytes."""

    level: int
    page_bytes: int


WHILE_COLLECTING = Packing(level=3, page_bytes=1 << 20)


class PartWriter:
    """The one way rows get into a cache.

    Args:
        root: the cache's folder; made, with its parents, where it does not exist.
        on_step: told `before write`, `before rename`, `after rename`, `after folder fsync`.

    Raises:
        InputError: `root` is a file.
        CacheError: `root` cannot be written to.
        WorldError: the disk is full.
    """

    def __init__(self, root: Path, on_step: Steps = no_steps) -> None:
        self.root = root
        self._on_step = on_step
        if root.exists() and not root.is_dir():
            raise InputError(f"the cache is not a directory: {root}; name a folder")
        try:
            for folder in (root, parts_folder(root), root / "tmp"):
                _make_folder(folder)
        except OSError as error:
            raise _not_writable(root, error) from error
        if not writable(root):
            raise CacheError(f"the cache is not writable: {root}: permission denied")
        self._writer = secrets.token_hex(4)

    def append(self, kind: str, table: pa.Table) -> Path:
        """Commit `table` as one part; when this returns, its rows survive a power cut.

        Raises:
            WorldError: the disk is full or failed; `table` is not committed then.
        """
        data = encode(kind, table.cast(KINDS[kind]), WHILE_COLLECTING)
        seq = last_seq(self.root) + 1
        name = part_name(kind, seq, self._writer, table.num_rows, data)
        return commit(self.root, name, data, self._on_step)


def encode(kind: str, table: pa.Table, packing: Packing) -> memoryview:
    """The bytes of a part; the same table gives the same bytes.

    Raises:
        ValueError: `table` has no rows; such a part would carry no information.
    """
    if table.num_rows == 0:
        raise ValueError("an empty part would carry no information")
    header = json.dumps({"format": FORMAT, "kind": kind}).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({METADATA_KEY: header}),
        sink,
        compression="zstd",
        compression_level=packing.level,
        data_page_size=packing.page_bytes,
        write_page_checksum=True,
        write_statistics=False,  # the smallest and largest text of a column help nobody
    )
    return memoryview(sink.getvalue())


def commit(root: Path, name: str, data: memoryview, on_step: Steps) -> Path:
    """Make the part `name` with the bytes `data`, wholly or not at all.

    Raises:
        WorldError: the disk is full or failed; the part is not committed then.
    """
    draft = root / "tmp" / f"{name}.{os.getpid()}.tmp"
    target = parts_folder(root) / name
    _place(data, draft, target, on_step)
    return target


def fitting_rows(done: int, seconds: float, wanted_s: float, most: int) -> int:
    """How many rows the next part may have.

    Args:
        done: rows that were just made.
        seconds: what they took.
        wanted_s: what a part should take: no more than that is lost in a crash.
        most: rows of the largest part.
    """
    return min(most, max(1, round(done * wanted_s / max(seconds, 1e-3))))


def writable(root: Path) -> bool:
    """Whether parts can be added to the cache at `root`."""
    return os.access(parts_folder(root), os.W_OK)


@contextlib.contextmanager
def collector_lock(root: Path) -> Iterator[None]:
    """Hold the cache for one collector, so that two do not pay for the same calls.

    The kernel drops the lock with the process, however it ends. Readers take no lock.

    Raises:
        CacheLocked: another process holds it.
        CacheError: the cache is not writable.
        WorldError: the disk is full or has no locks.
    """
    try:
        lock = (root / "collect.lock").open("a+")
    except OSError as error:
        raise _not_writable(root, error) from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise WorldError(
                    f"cannot lock the cache: {root}: {error.strerror}; use a disk that has locks"
                ) from error
            file.seek(0)
            holder = file.read().strip() or "unknown pid"
            raise CacheLocked(
                f"another collector ({holder}) is at work: {root}; wait for it or stop it"
            ) from None
        with contextlib.suppress(OSError):  # the pid is for people; a full disk can do without
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"pid {os.getpid()}".encode())
        yield


def sweep_drafts(root: Path) -> None:
    """Remove what a crash left in tmp/; call it only while holding the collector's lock.

    Embeddings are written without the lock: a draft of another process that lives is left alone.
    """
    for draft in (root / "tmp").glob("*.tmp"):
        if not _another_lives(draft.name.split(".")[-2]):
            draft.unlink(missing_ok=True)


def _another_lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return int(pid) != os.getpid()


def write_derived(root: Path, path: Path, data: bytes) -> None:
    """Write a file of derived data below the cache at `root`, wholly or not at all.

    Raises:
        WorldError: the disk is full or failed.
    """
    (root / "tmp").mkdir(exist_ok=True)
    _place(data, root / "tmp" / f"{path.name}.{os.getpid()}.tmp", path)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, wholly or not at all, surviving a power cut.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    with atomic_file(path) as file:
        _write_all(file.fileno(), data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """An open file that replaces `path` when the block ends well, surviving a power cut.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with _placing(draft, path) as file:
        yield file


def _place(data: bytes | memoryview, draft: Path, target: Path, on_step: Steps = no_steps) -> None:
    with _placing(draft, target, on_step) as file:
        _write_all(file.fileno(), data)


@contextlib.contextmanager
def _placing(draft: Path, target: Path, on_step: Steps = no_steps) -> Iterator[BinaryIO]:
    """Make `target` visible: the one order of steps that survives a crash anywhere."""
    try:
        on_step("before write")
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        on_step("before rename")
        draft.replace(target)
        on_step("after rename")
        fsync_folder(target.parent)
        on_step("after folder fsync")
    except BaseException as error:
        with contextlib.suppress(OSError):  # a disk that fails may refuse that too
            draft.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise WorldError(
            f"cannot write: {target.parent}: {error.strerror}; "
            "what was committed is safe, rerun the same command to resume"
        ) from error


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _not_writable(root: Path, error: OSError) -> CacheError | WorldError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorldError(f"cannot write: {root}: {error.strerror}; make room and run again")
    return CacheError(f"the cache is not writable: {root}: {error.strerror}")


def _make_folder(path: Path) -> None:
    """Make a folder, and its parents where they are missing, so that a power cut leaves them."""
    if not path.parent.is_dir():
        _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Append parts so that no crash can lose or tear one.

In: Arrow tables of a kind in `schema`. Out: one immutable file a call. The order is
write to tmp/ -> fsync -> rename into parts/ -> fsync of the folder; only then is a row reported
as committed. A reader never looks into tmp/. Not covered: which rows to write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import CacheError, CacheLocked, InputError, NoCache, WorldError
from hierrouter_cache.parts import METADATA_KEY, list_parts, parts_folder, sha16
from hierrouter_cache.schema import FORMAT, KINDS


class PartWriter:
    """The one way rows get into a cache.

    Args:
        root: the cache's folder; made, with its parents, where it does not exist.

    Raises:
        InputError: `root` is a file.
        CacheError: `root` cannot be written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tmp = root / "tmp"
        if root.exists() and not root.is_dir():
            raise InputError(f"the cache is not a directory: {root}; name a folder")
        try:
            for folder in (parts_folder(root), self._tmp):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(f"the cache is not writable: {root}: {error.strerror}") from error
        if not os.access(parts_folder(root), os.W_OK):
            raise CacheError(f"the cache is not writable: {root}: permission denied")
        for folder in (root.resolve().parent, root):
            fsync_folder(folder)
        self._writer = secrets.token_hex(4)

    def append(self, kind: str, table: pa.Table) -> Path:
        """Commit `table` as one part; when this returns, its rows survive a power cut.

        Raises:
            WorldError: the disk is full or failed; nothing of `table` is visible then.
        """
        data = _encode(kind, table)
        seq = self._last_seq() + 1
        name = f"{kind}-{seq:08d}-{self._writer}-r{table.num_rows}-{sha16(data)}.parquet"
        draft = self._tmp / f"{name}.{os.getpid()}.tmp"
        target = parts_folder(self.root) / name
        _place(data, draft, target)
        return target

    def _last_seq(self) -> int:
        try:
            return max(part.seq for part in list_parts(self.root))
        except NoCache:
            return 0


@contextlib.contextmanager
def collector_lock(root: Path) -> Iterator[None]:
    """Hold the cache for one collector, so that two do not pay for the same calls.

    The kernel drops the lock with the process, however it ends. Readers take no lock.

    Raises:
        CacheLocked: another process holds it.
    """
    try:
        lock = (root / "collect.lock").open("a+")
    except OSError as error:
        raise CacheError(f"the cache is not writable: {root}: {error.strerror}") from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            file.seek(0)
            holder = file.read().strip() or "unknown pid"
            raise CacheLocked(
                f"another collector ({holder}) is at work: {root}; wait for it or stop it"
            ) from None
        file.truncate(0)
        file.write(f"pid {os.getpid()}")
        file.flush()
        yield


def sweep_drafts(root: Path) -> None:
    """Remove what a crash left in tmp/; call it only while holding the collector's lock."""
    for draft in (root / "tmp").glob("*.tmp"):
        draft.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, wholly or not at all, surviving a power cut.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    _place(data, draft, path)


def _place(data: bytes | memoryview, draft: Path, target: Path) -> None:
    """Make `data` visible as `target`: the one order of steps that survives a crash anywhere."""
    try:
        _write_synced(draft, data)
        draft.replace(target)
        fsync_folder(target.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise WorldError(
            f"cannot write: {target.parent}: {error.strerror}; "
            "what was committed is safe, rerun the same command to resume"
        ) from error


def _encode(kind: str, table: pa.Table) -> memoryview:
    if table.num_rows == 0:
        raise ValueError("an empty part would carry no information")
    header = json.dumps({"format": FORMAT, "kind": kind}).encode()
    schema = KINDS[kind].with_metadata({METADATA_KEY: header})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.cast(schema), sink, compression="zstd", compression_level=3, write_page_checksum=True
    )
    return memoryview(sink.getvalue())


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

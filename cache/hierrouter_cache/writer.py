"""Write files completely or not at all, and append parts so that no crash can tear or lose one."""

import contextlib
import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache import parts
from hierrouter_cache.errors import CacheError, InputError, WorldError

# Called with the name of each milestone of a commit or a compaction, as soon as it is reached.
OnStep = Callable[[str], None]
# Called with the name and the bytes of each part, right after its commit.
OnPart = Callable[[str, memoryview], None]
DRAFT_NAME_PATTERN = re.compile(r".+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)\.tmp")
# Stands for the number of a cache whose own number was gone when a part was written.
UNKNOWN_CACHE = "0" * 16
OLD_DRAFT_S = 24 * 3600.0
NOT_WRITABLE_REMEDY = "give another --cache, or ask its owner"


def no_steps(_: str) -> None:
    """Ignore a milestone: the default `OnStep`."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of `path` completely or not at all, even if the power fails.

    Args:
        path: the file.
        data: its new content.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched.
    """
    with atomic_file(path) as file:
        write_all(file.fileno(), data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` if the block succeeds, even if the power fails.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched. If there was no file
            before, there is none afterwards.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    existed = path.exists()
    try:
        with staged_file(draft, path) as file:
            yield file
    except WorldError:
        if not existed:
            # The failed step may have come after the rename. A file that a power cut may still
            # undo must not look like a finished one.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def staged_file(
    draft: Path,
    target: Path,
    on_step: OnStep = no_steps,
    after_rename: Callable[[], None] = lambda: None,
) -> Iterator[BinaryIO]:
    """Open a draft that becomes `target` if the block succeeds.

    The steps have the one order that survives a crash at any point: write, fsync, rename, fsync of
    the folder.

    Args:
        draft: path to write to; it must not exist.
        target: path to rename it to.
        on_step: called with `before write`, `before rename`, `after rename` and
            `after folder fsync`.
        after_rename: called between the last two steps. It may change the same folder, whose fsync
            then covers both changes.

    Raises:
        WorldError: the disk is full or failed; `target` is untouched.
    """
    try:
        on_step("before write")
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        on_step("before rename")
        draft.replace(target)
        on_step("after rename")
        after_rename()
        fsync_folder(target.parent)
        on_step("after folder fsync")
    except BaseException as error:
        with contextlib.suppress(OSError):  # a failing disk may refuse to remove the draft, too
            draft.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise WorldError(
            f"cannot write: {target.parent}: {error.strerror}; "
            "what was committed is safe, rerun the same command to resume"
        ) from error


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data` to a file descriptor; a single write may take only a part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def no_copy(name: str, data: memoryview) -> None:
    """Ignore a part: the default `OnPart`, of a cache without a mirror."""


class PartWriter:
    """The only way in which rows get into a cache.

    Args:
        root: the cache's folder; it is created, with its parents, if it does not exist.
        on_step: called with `before write`, `before rename`, `after rename` and
            `after folder fsync`.
        on_part: called with each part after its commit, to copy it elsewhere. `append` raises what
            it raises; the part is committed all the same.

    Raises:
        InputError: `root` is a file.
        CacheError: `root` is not writable.
        WorldError: the disk is full or failed.
    """

    def __init__(self, root: Path, on_step: OnStep = no_steps, on_part: OnPart = no_copy) -> None:
        make_cache(root)
        self.root = root
        self._on_step = on_step
        self._on_part = on_part
        self._writer = secrets.token_hex(4)

    def append(self, kind: str, table: pa.Table) -> Path:
        """Commit a table as one part; when this returns, its rows survive a power cut.

        Args:
            kind: a key of `parts.ROW_SCHEMAS`.
            table: the rows, in the columns of this kind.

        Returns:
            The part's file.

        Raises:
            WorldError: the disk is full or failed; `table` is not committed.
            CacheError: no sequence number is left for a part.
        """
        name, data = append_part(
            self.root, kind, table.cast(parts.ROW_SCHEMAS[kind]), self._writer, self._on_step
        )
        self._on_part(name, data)
        return parts.parts_folder(self.root) / name


def append_part(
    root: Path,
    kind: str,
    table: pa.Table,
    writer: str,
    on_step: OnStep = no_steps,
    seq: int = 0,
    **packing: int,
) -> tuple[str, memoryview]:
    """Commit one part behind all open ends of the chain.

    Args:
        root: the cache's folder.
        kind: a key of `parts.PART_SCHEMAS`.
        table: its rows.
        writer: 8 hexadecimal digits for its name.
        on_step: called with the milestones of `commit`.
        seq: its sequence number; 0 for one more than any part has.
        **packing: `level` and `page_bytes` of `encode`.

    Returns:
        (its name, its bytes).

    Raises:
        CacheError: no sequence number is left.
        ValueError: `table` has no rows.
        WorldError: the disk is full or failed; the part is not committed.
    """
    before = parts.listing(root)
    cache = min(before.caches, default=UNKNOWN_CACHE)
    if not seq:
        numbers = [part.seq for part in before.parts if part.seq <= parts.MAX_SEQ]
        seq = 1 + max(numbers, default=0)
    if seq > parts.MAX_SEQ:
        raise CacheError(
            f"no number left for a part: {root}; move part {parts.MAX_SEQ} out of parts/"
        )
    data = encode(table, parts.Link(kind, seq, writer, cache, before.heads), **packing)
    name = parts.part_name(kind, seq, writer, table.num_rows, data)
    commit(root, name, data, on_step, before.heads)
    return name, data


def make_cache(root: Path) -> None:
    """Create the folders of a cache, with its parents, if they do not exist.

    Raises:
        InputError: `root` is a file.
        CacheError: `root` is not writable.
        WorldError: the disk is full.
    """
    if root.exists() and not root.is_dir():
        raise InputError(f"the cache is not a directory: {root}; name a folder")
    try:
        for folder in (root, parts.parts_folder(root), root / "tmp"):
            _make_folder(folder)
        if not parts.listing(root).caches:
            parts.origin(root, secrets.token_hex(8)).touch()
    except OSError as error:
        raise not_writable_error(root, error) from error
    if not writable(root):
        raise CacheError(
            f"the cache is not writable: {root}: permission denied; {NOT_WRITABLE_REMEDY}"
        )


def encode(
    table: pa.Table, link: parts.Link, level: int = 3, page_bytes: int = 1 << 20
) -> memoryview:
    """Encode a part; the same table and link give the same bytes.

    Args:
        table: its rows.
        link: what it says of itself.
        level: compression level of zstd; low while a collection waits for it.
        page_bytes: size of a page of Parquet.

    Returns:
        Its bytes.

    Raises:
        ValueError: `table` has no rows; such a part would carry no information.
    """
    if table.num_rows == 0:
        raise ValueError("an empty part would carry no information")
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({parts.METADATA_KEY: link.header()}),
        sink,
        compression="zstd",
        compression_level=level,
        data_page_size=page_bytes,
        write_page_checksum=True,
        write_statistics=False,  # no query uses the smallest and the largest text of a column
    )
    return memoryview(sink.getvalue())


def commit(
    root: Path, name: str, data: memoryview, on_step: OnStep, after: Sequence[str] | None = None
) -> None:
    """Create a part completely or not at all.

    Args:
        root: the cache's folder.
        name: name of the part.
        data: its bytes.
        on_step: called with the milestones of `staged_file`, and with `after head`.
        after: the open ends of the chain that it names; it replaces them. None for a copy of a part
            of another cache. That is no open end, because the parts that it names may be copied
            later. Its cache is noted, and `chain.seal_loose` takes it into the chain.

    Raises:
        WorldError: the disk is full or failed; the part is not committed.
    """
    folder = parts.parts_folder(root)

    def move_head() -> None:
        if after is None:
            return
        (folder / parts.head_name(name)).touch()
        for predecessor in after:
            with contextlib.suppress(OSError):  # a head too many does no harm
                (folder / parts.head_name(predecessor)).unlink()
        on_step("after head")

    if after is None:
        link = parts.link_of(pa.BufferReader(data))
        if link:
            # If the disk refuses this file, it will also refuse the part, which is reported.
            with contextlib.suppress(OSError):
                parts.origin(root, link.cache).touch()
    with staged_file(draft_path(root, name), folder / name, on_step, move_head) as file:
        write_all(file.fileno(), data)


def writable(root: Path) -> bool:
    """Return whether parts can be added to the cache at `root`."""
    return os.access(parts.parts_folder(root), os.W_OK)


def draft_path(root: Path, name: str) -> Path:
    """Return where this process writes the file `name` of a cache until it is complete."""
    return root / "tmp" / f"{name}.{_host()}.{os.getpid()}.tmp"


def sweep_drafts(root: Path) -> None:
    """Remove the drafts that crashed processes left in tmp/.

    Drafts of processes that are alive are kept: shards write side by side, and embeddings are
    written without a lock. Which processes of another machine are alive is unknown, so its drafts
    are removed when they are old. If tmp/ is a symbolic link, nothing is removed: the files behind
    it may belong to something else.
    """
    folder = root / "tmp"
    if folder.is_symlink():
        return
    for draft in folder.glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError):  # another shard may be sweeping, too
            if _is_abandoned(draft):
                draft.unlink()


def _is_abandoned(draft: Path) -> bool:
    match = DRAFT_NAME_PATTERN.fullmatch(draft.name)
    if not match:
        return True
    if match["host"] != _host():
        return time.time() - draft.stat().st_mtime > OLD_DRAFT_S
    return not _is_other_process(int(match["pid"]))


def _host() -> str:
    """Return this machine's name without dots, which separate the parts of a draft's name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())


def _is_other_process(pid: int) -> bool:
    """Return whether a process of this id is alive and is not this one."""
    try:
        os.kill(pid, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def write_derived(root: Path, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file of derived data below a cache, completely or not at all.

    Args:
        root: the cache's folder.
        path: the file.
        pieces: its content, in order.

    Raises:
        WorldError: the disk is full or failed.
    """
    (root / "tmp").mkdir(exist_ok=True)
    with staged_file(draft_path(root, path.name), path) as file:
        for piece in pieces:
            write_all(file.fileno(), piece)


def not_writable_error(root: Path, error: OSError) -> CacheError | WorldError:
    """Return the error to raise if the cache at `root` refused a write.

    Args:
        root: the cache's folder.
        error: what the write raised.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorldError(f"cannot write: {root}: {error.strerror}; make room and run again")
    return CacheError(f"the cache is not writable: {root}: {error.strerror}; {NOT_WRITABLE_REMEDY}")


def _make_folder(path: Path) -> None:
    """Create a folder, and its parents if they are missing, so that it survives a power cut."""
    if not path.parent.is_dir():
        _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    fsync_folder(path.parent)

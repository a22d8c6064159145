"""Write files wholly or not at all, and append parts so that no crash can lose or tear one."""

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

# Told the name of each milestone of a commit or a compaction, right when it is reached.
Steps = Callable[[str], None]
# Told the name and the bytes of each part, right after its commit.
OnPart = Callable[[str, memoryview], None]
DRAFT = re.compile(r".+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)\.tmp")
NOBODY = "0" * 16  # the cache of parts that were written when its own number was gone
OLD_DRAFT_S = 24 * 3600.0
ELSEWHERE = "give another --cache, or ask its owner"


def no_steps(_: str) -> None:
    """The `Steps` of everyday work: nobody listens."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, wholly or not at all, surviving a power cut.

    Raises WorldError: the disk is full or failed; the old file is untouched then.
    """
    with atomic_file(path) as file:
        write_all(file.fileno(), data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """An open file that replaces `path` when the block ends well, surviving a power cut.

    Raises WorldError: the disk is full or failed; the old file is untouched then, and where there
    was none there is none.
    """
    draft, was_there = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp"), path.exists()
    try:
        with placing(draft, path) as file:
            yield file
    except WorldError:
        if not was_there:  # its name is there, and perhaps not for good
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def placing(
    draft: Path, target: Path, on_step: Steps = no_steps, then: Callable[[], None] = lambda: None
) -> Iterator[BinaryIO]:
    """An open `draft` that becomes `target`: the one order of steps that survives a crash anywhere.

    Raises WorldError: the disk is full or failed; `target` is untouched then.

    `on_step`: told `before write`, `before rename`, `after rename`, `after folder fsync`; `then`:
    done between the last two, in the same folder: one fsync is for both.
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
        then()
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


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`: the system may take a part of it at a time."""
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
    """The `OnPart` of a cache that lies at one place only."""


class PartWriter:
    """The one way rows get into a cache.

    Args:
        root: the cache's folder; made, with its parents, where it does not exist.
        on_step: told `before write`, `before rename`, `after rename`, `after folder fsync`.
        on_part: told each part after its commit, to copy it elsewhere. What it raises, `append`
            raises; the part is committed all the same.

    Raises:
        InputError, CacheError, WorldError: as `make_cache`.
    """

    def __init__(self, root: Path, on_step: Steps = no_steps, on_part: OnPart = no_copy) -> None:
        make_cache(root)
        self.root = root
        self._on_step = on_step
        self._on_part = on_part
        self._writer = secrets.token_hex(4)

    def append(self, kind: str, table: pa.Table) -> Path:
        """Commit `table` as one part; when this returns, its rows survive a power cut.

        Raises WorldError: the disk is full or failed; `table` is not committed then.
        """
        name, data = append_part(
            self.root, kind, table.cast(parts.KINDS[kind]), self._writer, self._on_step
        )
        self._on_part(name, data)
        return parts.parts_folder(self.root) / name


def append_part(
    root: Path,
    kind: str,
    table: pa.Table,
    writer: str,
    on_step: Steps = no_steps,
    seq: int = 0,
    **packing: int,
) -> tuple[str, memoryview]:
    """Commit one part behind all open ends of the chain; returns its name and its bytes.

    `seq`: its number; 0 for one more than any that is there; `packing`: as `encode`, which raises
    what this does, and `commit`. Raises CacheError: there is no number left.
    """
    seen = parts.listing(root)
    cache = min(seen.caches, default=NOBODY)
    numbers = (part.seq for part in seen.parts)
    seq = seq or 1 + max((number for number in numbers if number <= parts.MAX_SEQ), default=0)
    if seq > parts.MAX_SEQ:
        raise CacheError(
            f"no number left for a part: {root}; move part {parts.MAX_SEQ} out of parts/"
        )
    data = encode(table, parts.Link(kind, seq, writer, cache, seen.heads), **packing)
    name = parts.part_name(kind, seq, writer, table.num_rows, data)
    commit(root, name, data, on_step, seen.heads)
    return name, data


def make_cache(root: Path) -> None:
    """Make the folders of a cache at `root`, with its parents, where they do not exist.

    Raises InputError: `root` is a file; CacheError: `root` cannot be written to; WorldError: the
    disk is full.
    """
    if root.exists() and not root.is_dir():
        raise InputError(f"the cache is not a directory: {root}; name a folder")
    try:
        for folder in (root, parts.parts_folder(root), root / "tmp"):
            _make_folder(folder)
        if not parts.listing(root).caches:
            parts.origin(root, secrets.token_hex(8)).touch()
    except OSError as error:
        raise not_writable(root, error) from error
    if not writable(root):
        raise CacheError(f"the cache is not writable: {root}: permission denied; {ELSEWHERE}")


def encode(
    table: pa.Table, link: parts.Link, level: int = 3, page_bytes: int = 1 << 20
) -> memoryview:
    """The bytes of a part; the same table and link give the same bytes.

    Raises ValueError: `table` has no rows; such a part would carry no information.

    `table`: its rows; `link`: what it says of itself; `level`: how hard zstd compresses; low while
    a collection waits for it; `page_bytes`: size of a page.
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
        write_statistics=False,  # the smallest and largest text of a column help nobody
    )
    return memoryview(sink.getvalue())


def commit(
    root: Path, name: str, data: memoryview, on_step: Steps, after: Sequence[str] | None = None
) -> None:
    """Make the part `name` with the bytes `data`, wholly or not at all.

    Raises WorldError: the disk is full or failed; the part is not committed then.

    Args:
        after: the open ends that it names; it takes their place. None for a copy of a part of
            another cache, which is no open end, for what it names may come later: its cache is
            noted, and `chain.seal_loose` takes it in.
    """
    folder = parts.parts_folder(root)

    def move_head() -> None:
        if after is None:
            return
        (folder / parts.head_name(name)).touch()
        for covered in after:
            with contextlib.suppress(OSError):  # one too many costs nothing
                (folder / parts.head_name(covered)).unlink()
        on_step("after head")

    if after is None and (link := parts.link_of(pa.BufferReader(data))):
        with contextlib.suppress(OSError):  # a disk that refuses this refuses the part, too
            parts.origin(root, link.cache).touch()
    with placing(draft_path(root, name), folder / name, on_step, move_head) as file:
        write_all(file.fileno(), data)


def writable(root: Path) -> bool:
    """Whether parts can be added to the cache at `root`."""
    return os.access(parts.parts_folder(root), os.W_OK)


def draft_path(root: Path, name: str) -> Path:
    """Where this process writes the file `name` of the cache at `root` until it is whole."""
    return root / "tmp" / f"{name}.{_host()}.{os.getpid()}.tmp"


def sweep_drafts(root: Path) -> None:
    """Remove what crashes left in tmp/.

    Drafts of others that live are left alone: shards work side by side, and embeddings are written
    without a lock. Nobody here can tell which processes of another machine live, so its drafts go
    when they are old. Behind a link are files of somebody else.
    """
    folder = root / "tmp"
    for draft in () if folder.is_symlink() else folder.glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError):  # a sibling may sweep too
            if _abandoned(draft):
                draft.unlink()


def _abandoned(draft: Path) -> bool:
    made_by = DRAFT.fullmatch(draft.name)
    if made_by and made_by["host"] != _host():
        return time.time() - draft.stat().st_mtime > OLD_DRAFT_S
    return not (made_by and _another_lives(int(made_by["pid"])))


def _host() -> str:
    """This machine's name, without the dot that parts a draft's name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())


def _another_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def write_derived(root: Path, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file of derived data below the cache at `root`, wholly or not at all.

    Raises WorldError: the disk is full or failed.
    """
    (root / "tmp").mkdir(exist_ok=True)
    with placing(draft_path(root, path.name), path) as file:
        for piece in pieces:
            write_all(file.fileno(), piece)


def not_writable(root: Path, error: OSError) -> CacheError | WorldError:
    """The error to raise where the cache at `root` refused a write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorldError(f"cannot write: {root}: {error.strerror}; make room and run again")
    return CacheError(f"the cache is not writable: {root}: {error.strerror}; {ELSEWHERE}")


def _make_folder(path: Path) -> None:
    """Make a folder, and its parents where they are missing, so that a power cut leaves them."""
    if not path.parent.is_dir():
        _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    fsync_folder(path.parent)

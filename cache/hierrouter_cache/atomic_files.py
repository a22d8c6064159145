"""Files that are there wholly or not at all.

In: a path and bytes. Out: the file. The order is write to a draft -> fsync -> rename -> fsync of
the folder, so a crash or a power cut anywhere leaves the old file or the new one. Not covered:
where the drafts of a cache lie, and who sweeps them (`writer`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from hierrouter_cache.errors import WorldError

# Told the name of each milestone of a commit or a compaction, right when it is reached.
Steps = Callable[[str], None]


def no_steps(_: str) -> None:
    """The `Steps` of everyday work: nobody listens."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, wholly or not at all, surviving a power cut.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    with atomic_file(path) as file:
        write_all(file.fileno(), data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """An open file that replaces `path` when the block ends well, surviving a power cut.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with placing(draft, path) as file:
        yield file


@contextlib.contextmanager
def placing(draft: Path, target: Path, on_step: Steps = no_steps) -> Iterator[BinaryIO]:
    """An open `draft` that becomes `target`: the one order of steps that survives a crash anywhere.

    Args:
        on_step: told `before write`, `before rename`, `after rename`, `after folder fsync`.

    Raises:
        WorldError: the disk is full or failed; `target` is untouched then.
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

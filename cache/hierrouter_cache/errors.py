"""What can go wrong, named by what happened."""

import difflib
import os
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path


class HierRouterError(Exception):
    """Base of every error this project raises on purpose."""


class InputError(HierRouterError):
    """A flag, a file, a dataset or a checkpoint given by the user is wrong."""


class CacheError(HierRouterError):
    """The cache cannot serve the request."""


class NoCache(CacheError):
    """There is no cache at that place yet."""


class DamagedPart(CacheError):
    """A part is truncated, altered, misnamed or of another format."""


class IncompleteTree(CacheError):
    """Nodes of the requested tree have not been collected."""


class CacheLocked(CacheError):
    """Another process is collecting into this cache."""


class Interrupted(HierRouterError):
    """The user asked to stop; everything committed is safe."""


class WorldError(HierRouterError):
    """Disk, memory, model or server failed; what was committed is safe."""


def open_plain(path: Path) -> BufferedReader:
    """A file to be read that has an end.

    Raises InputError: it is no plain file, such as a pipe or a device; OSError: as opening it.
    """
    # A pipe has perhaps nobody at its other end.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise InputError(f"not a plain file: {path}; give one that is")


def read_small(path: Path, limit: int) -> bytes:
    """All bytes of a file, and not more than `limit` of them.

    Raises InputError: it is larger, or as `open_plain`; OSError: as opening it.
    """
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"larger than {limit:,} bytes: {path}; nothing of that kind is so large")
    return data


def reason_of(error: BaseException, limit: int = 120) -> str:
    """What an error says, on one line cut to `limit` characters; its kind where it is silent."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def named_reason(error: BaseException, limit: int = 120) -> str:
    """`reason_of` with the kind before it, for errors of code that is not ours."""
    kind, reason = type(error).__name__, reason_of(error, limit)
    return kind if reason == kind else f"{kind}: {reason}"


def suggestion(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """`did you mean x? ` where something known is close, else `known: a, b; `.

    `otherwise`: takes the place of the list, where that would be long.
    """
    candidates = list(known)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}? "
    return f"known: {', '.join(candidates)}; " if otherwise is None else otherwise

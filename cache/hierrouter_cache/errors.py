"""What can go wrong, named by what happened.

    HierRouterError
    ├── InputError      what the user typed or gave is wrong            exit 2
    ├── CacheError      the cache cannot serve the request              exit 3
    │   ├── NoCache         nothing has been collected there
    │   ├── DamagedPart     a part's bytes are not those its name promises
    │   ├── IncompleteTree  nodes that the pool needs are missing
    │   └── CacheLocked     another collector is at work
    ├── Interrupted     the user asked to stop; committed work is safe  exit 130
    └── WorldError      the disk, a model or a server failed            exit 1

Every message is one line: what is wrong: where; what to do. The exit codes are the command
line's business (`hierrouter_cli.app`); they stand here so that the tree is drawn once.
"""

from __future__ import annotations


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


def reason_of(error: BaseException, limit: int = 120) -> str:
    """What an error says, on one line cut to `limit` characters; its kind where it is silent."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def named_reason(error: BaseException, limit: int = 120) -> str:
    """`reason_of` with the kind before it, for errors of code that is not ours."""
    kind, reason = type(error).__name__, reason_of(error, limit)
    return kind if reason == kind else f"{kind}: {reason}"

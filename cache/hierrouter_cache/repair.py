"""Move damaged files out of the way.

In: a cache with parts or embedding files that are not what their names promise. Out: the same
cache without them; nothing is deleted. The next collection asks only for what was in them. Where
the last plan was among them, nobody knows what was asked for last until it is written again: see
`parts.quarantined_plan`.
"""

from __future__ import annotations

from pathlib import Path

from hierrouter_cache.atomic_files import fsync_folder
from hierrouter_cache.embedding_files import embedding_fault, embedding_files
from hierrouter_cache.errors import WorldError
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import examine, list_parts, quarantine_folder


def quarantine(root: Path) -> list[tuple[str, str]]:
    """Move every damaged file to `quarantine/`; returns (name, what was wrong) of each.

    Raises:
        NoCache: nothing was collected at `root`.
        CacheLocked: a collector or a compaction is at work; nothing is touched then.
        WorldError: a file cannot be moved.
    """
    list_parts(root)  # before a lock file is made in a folder that is no cache
    with collector_lock(root):
        damaged = _damaged(root)
        try:
            _move([path for path, _ in damaged], quarantine_folder(root))
        except OSError as error:
            raise WorldError(f"cannot move a damaged file: {error}; run `repair` again") from error
    return [(path.name, why) for path, why in damaged]


def _damaged(root: Path) -> list[tuple[Path, str]]:
    """(file, what is wrong) of each damaged part and embedding file."""
    parts = [(part.path, why) for part, why in examine(root).items() if why]
    files = ((file.path, embedding_fault(file)) for file in embedding_files(root))
    return parts + [(path, why) for path, why in files if why]


def _move(paths: list[Path], shelf: Path) -> None:
    """Move files to the shelf, under names that are free there, and make that last."""
    if not paths:
        return
    shelf.mkdir(exist_ok=True)
    for path in paths:
        path.rename(_free_name(shelf / path.name))
    for folder in {shelf, shelf.parent, *(path.parent for path in paths)}:
        fsync_folder(folder)


def _free_name(path: Path) -> Path:
    """`path`, or it with the first number behind it that no file has."""
    number = 1
    free = path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free

"""Move damaged parts out of the way.

In: a cache with parts that are not what their names promise. Out: the same cache without them;
nothing is deleted. The next collection asks only for what was in them.
"""

from __future__ import annotations

from pathlib import Path

from hierrouter_cache.parts import fault, list_parts
from hierrouter_cache.writer import collector_lock, fsync_folder


def quarantine(root: Path) -> list[tuple[str, str]]:
    """Move every damaged part to `quarantine/`; returns (name, what was wrong) of each.

    Raises:
        NoCache: nothing was collected at `root`.
        CacheLocked: a collector is at work.
    """
    parts = list_parts(root)
    shelf = root / "quarantine"
    with collector_lock(root):
        damaged = [(part, why) for part in parts if (why := fault(part))]
        if damaged:
            shelf.mkdir(exist_ok=True)
        for part, _ in damaged:
            part.path.rename(shelf / part.path.name)
        for folder in {part.path.parent for part, _ in damaged}:
            fsync_folder(shelf)
            fsync_folder(folder)
    return [(part.path.name, why) for part, why in damaged]

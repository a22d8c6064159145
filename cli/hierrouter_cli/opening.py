"""Open the cache a command was pointed at, with a bar while contexts are embedded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter_cache.tree import RouteTree


def open_tree(
    cache: Path,
    pool: str | None = None,
    datasets: list[str] | None = None,
    limit: int | None = None,
    encoder: str | None = None,
) -> RouteTree:
    """The tree in `cache`; see `hierrouter.trees.open_tree` for the errors."""
    from hierrouter.collect.encoders import BUILT_IN
    from hierrouter.trees import Selection
    from hierrouter.trees import open_tree as open_selected

    selection = Selection(pool, datasets, limit, encoder or BUILT_IN)
    with console.progress_bars() as bars:
        task = bars.add_task("embed contexts", total=None, note="")
        return open_selected(
            cache, selection, lambda done, total: bars.update(task, completed=done, total=total)
        )

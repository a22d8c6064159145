"""Two answers to one call, from two places.

In: a cache into which parts of another one were just copied. Out: the cache without those copies
that answer a call in other words than it was answered here: they come from another collection of
the same calls by an engine that does not repeat itself. Of rivals that meet in an empty cache the
one with the smallest name stays, so every empty cache gets the same. Copied scores of such calls go
too: a score names its call, and it may be that of the other answer. They are computed again.
Not covered: rivals that are both here already; of those the smaller name is served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from hierrouter_cache.parts import parts_folder
from hierrouter_cache.reader import CacheReader

DISPUTED = "SELECT key FROM calls_rows GROUP BY key HAVING min(outcome) != max(outcome)"


def take_back_rivals(root: Path, copied: Collection[str]) -> tuple[list[str], list[str]]:
    """Remove what was just copied and may make a score meet another answer than its own.

    Args:
        root: the cache's folder.
        copied: names of parts that were not here before.

    Returns:
        Names of the rivals, and of all that was removed, scores included.

    Raises:
        DamagedPart: a part is damaged.
    """
    if not any(name.startswith("calls-") for name in copied):
        return [], []
    reader = CacheReader(root)
    rows = reader.sql(
        "SELECT parse_filename(filename) AS name, key, outcome FROM calls_rows "  # noqa: S608 - our own names
        f"WHERE key IN ({DISPUTED})"
    ).to_pylist()
    scores = reader.sql(
        "SELECT DISTINCT parse_filename(filename) AS name FROM scores_rows "  # noqa: S608 - our own names
        f"WHERE call IN ({DISPUTED})"
    )
    rivals = _rivals(((row["name"], row["key"], row["outcome"]) for row in rows), copied)
    left = [*rivals, *(name for name in scores["name"].to_pylist() if name in copied)]
    for name in left:
        (parts_folder(root) / name).unlink(missing_ok=True)
    return rivals, left


def _rivals(rows: Iterable[tuple[str, str, str]], copied: Collection[str]) -> list[str]:
    """The copied parts that contradict what is here, or one with a smaller name that stays.

    Args:
        rows: (part, call, outcome) of every answer to a call that has several.
        copied: names of parts that were not here before.
    """
    by_part: dict[str, list[tuple[str, str]]] = {}
    for name, key, outcome in rows:
        by_part.setdefault(name, []).append((key, outcome))
    kept: dict[str, str] = {}
    rivals = []
    for name in sorted(by_part, key=lambda name: (name in copied, name)):
        if name in copied and any(kept.get(key, said) != said for key, said in by_part[name]):
            rivals.append(name)
            continue
        for key, outcome in by_part[name]:
            kept.setdefault(key, outcome)
    return rivals

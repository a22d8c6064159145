"""Whether what was imported is tested on what it is learned from.

In: a cache. Out: a line that names questions of test that nearly stand in another fold. Collected
datasets are looked at when they are loaded; a file of answers comes past that. Not covered: what
near means (`hierrouter.collect.datasets.near`).
"""

from __future__ import annotations

from pathlib import Path

from hierrouter.collect.datasets.near import near_line, near_pairs
from hierrouter.query import Query
from hierrouter_cache.reader import CacheReader

MOST = 20_000  # questions; so many take ten seconds, and time grows faster than they do


def leak_line(root: Path) -> str:
    """What is to be said of the queries that a cache was opened for last; empty where nothing.

    Raises:
        CacheError: nothing there, or damaged.
    """
    reader = CacheReader(root)
    keys = reader.latest_plan().queries
    if len(keys) > MOST:
        return f"more than {MOST:,} questions: near-duplicates across folds were not looked for"
    rows = reader.queries(keys, ("id", "dataset", "question", "split")).to_pylist()
    pairs = near_pairs([Query(**row, answers=()) for row in rows])
    return near_line(pairs) if pairs else ""

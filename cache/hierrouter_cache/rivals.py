"""Two answers to one call, from two places.

In: a cache into which parts of another one were just copied. Out: the cache without those copies
that answer a call in other words than it was answered here: they come from another collection of
the same calls by an engine that does not repeat itself. Of rivals that meet in an empty cache the
one with the smallest name stays, so every empty cache gets the same. Copied scores of such calls go
too: a score names its call, and it may be that of the other answer. They are computed again.

The names of what is copied are noted on the disk before the first of it is here, and struck out
when it was judged. So one that was killed is judged before the next pull, collection or compaction
here; until then readers may see both answers. Not covered: rivals that were both here before; of
those the smaller name is served.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from hierrouter_cache.atomic_files import fsync_folder
from hierrouter_cache.errors import CacheError, CacheLocked
from hierrouter_cache.locks import pull_lock
from hierrouter_cache.parts import part_named, parts_folder
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import write_derived

DISPUTED = "SELECT key FROM calls_rows GROUP BY key HAVING min(outcome) != max(outcome)"
ARRIVING = "pull.json"  # below the cache: names of parts that are copied and not judged yet


def note_arrivals(root: Path, names: Collection[str]) -> None:
    """Write down what will be copied, before any of it is here.

    Raises:
        WorldError: the disk is full or failed.
    """
    write_derived(root, root / ARRIVING, [json.dumps(sorted(names)).encode()])


def judge_arrivals(root: Path, whole: bool = False) -> tuple[list[str], list[str]]:
    """Take back the rivals among what was noted and is here, and strike it out.

    Whoever calls this holds `pull_lock`, or the whole cache.

    Args:
        root: the cache's folder.
        whole: whether all came that will come. If not, the scores go too: the other answer that
            they belong to may be on its way still.

    Returns:
        As `take_back_rivals`.

    Raises:
        DamagedPart: a part is damaged; what was noted stays noted.
        CacheError: what was noted cannot be read.
    """
    noted = _noted(root)
    here = {name for name in noted if (parts_folder(root) / name).exists()}
    early = set() if whole else {name for name in here if name.startswith("scores-")}
    _remove(root, early)
    rivals, left = take_back_rivals(root, here - early)
    (root / ARRIVING).unlink(missing_ok=True)
    return rivals, [*left, *early]


def _remove(root: Path, names: Collection[str]) -> None:
    for name in names:
        (parts_folder(root) / name).unlink(missing_ok=True)
    if names:
        fsync_folder(parts_folder(root))


def finish_pull(root: Path) -> None:
    """Judge what a pull brought that was killed; one that is at work does that itself.

    Raises:
        CacheError: as `judge_arrivals`.
    """
    if (root / ARRIVING).exists():
        with suppress(CacheLocked), pull_lock(root, wait=False):
            judge_arrivals(root)


def _noted(root: Path) -> list[str]:
    try:
        names = json.loads((root / ARRIVING).read_bytes())
        return [name for name in names if part_named(root, name)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CacheError(
            f"not readable: {root / ARRIVING}: not written by this program; remove it"
        ) from error


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
    # Scores first: where this breaks off, their calls are still disputed when it is done again.
    left = [*(name for name in scores["name"].to_pylist() if name in copied), *rivals]
    _remove(root, left)
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

"""Merge many small parts into few large ones.

In: a cache. Out: the same cache, each row served exactly as before, in parts of about 131,072 rows
or 64 MB. A merged part is committed like any other one; only then are its sources unlinked, the
largest name first. A kill at any point leaves a cache that serves the same rows, and a rerun
finishes the work.

Why that holds. Of rows with the same identity the one in the part with the smallest name is
served: the winner. A merged part holds winners only, and every part with a row that is none is
merged (or, without any winner, just unlinked), however large it is. So while sources are there,
each winner still stands before its rivals; when a winner's source goes, its rivals, which have
larger names, are gone, and a part that is left alone never holds a rival. A merged part takes the
smallest `seq` of its sources and `MERGED` as writer, so it also sorts before them and before
whatever is appended later.

Of plans and failures the last row wins (`schema.LAST_WINS`), so the other way round: a merged part
takes a `seq` beyond the largest of its sources. It holds winners only and stands behind all their
rivals from the moment it appears. All plans become one part, in the order of each plan's last
occurrence, because the latest plan is the last row of the last part.

Not covered: embeddings, which are derived data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.atomic_files import Steps, fsync_folder, no_steps
from hierrouter_cache.errors import CacheError, DamagedPart, WorldError, reason_of
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import Part, list_parts, part_name, sound_parts
from hierrouter_cache.rivals import finish_pull
from hierrouter_cache.schema import KINDS, LAST_WINS
from hierrouter_cache.winners import Winners, winners_of
from hierrouter_cache.writer import Packing, commit, encode, sweep_drafts

TARGET_ROWS = 131_072
TARGET_BYTES = 64 << 20
PACKING = Packing(level=9, page_bytes=8 << 20)
# The writer in a merged part's name: sorts before every other one.
MERGED = "00000000"


@dataclass(frozen=True)
class Compaction:
    """What a compaction did; sizes are those of the Parquet files."""

    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int


def compact(
    root: Path,
    on_step: Steps = no_steps,
    on_part: Callable[[int, int], None] = lambda done, total: None,
    target_rows: int = TARGET_ROWS,
) -> Compaction:
    """Merge the small parts of each kind and drop rows that are stored twice.

    Args:
        root: the cache's folder.
        on_step: told the milestones of each commit, and `compact: read`, `compact: written` and
            `compact: unlink` (before each).
        on_part: told how many parts are merged, of how many that will be.
        target_rows: size of a merged part; a part of half that size or more is left alone.

    Raises:
        NoCache: nothing has been collected at `root`.
        CacheLocked: a collector is at work.
        DamagedPart: a part is not what its name promises; nothing is touched then.
        WorldError: the disk is full or failed; what was committed is safe.
    """
    list_parts(root)  # before a lock file is made in a folder that is no cache
    with collector_lock(root):
        sweep_drafts(root)
        finish_pull(root)
        before = sound_parts(root)
        bytes_before = _size(before)
        jobs = [
            _job(root, [part for part in before if part.kind == kind], target_rows)
            for kind in KINDS
        ]
        total = sum(len(group) for job in jobs for group in job.groups)
        done = 0
        for job in jobs:
            written = set()
            for group in job.groups:
                written.add(_merge(root, group, job.winners, on_step))
                done += len(group)
                on_part(done, total)
            _unlink([path for path in job.sources if path not in written], on_step)
        after = list_parts(root)
    return Compaction(len(before), len(after), bytes_before, _size(after))


@dataclass(frozen=True)
class _Job:
    """What is to be done with the parts of one kind.

    Attributes:
        winners: for each part, the positions of its rows that are served, ascending.
        groups: parts that become one part each.
        sources: files of the groups, and of parts without winners; they go at the end.
    """

    winners: Winners
    groups: Sequence[Sequence[Part]]
    sources: Sequence[Path]


def _job(root: Path, parts: Sequence[Part], target_rows: int) -> _Job:
    winners = winners_of(root, parts)
    empty = [part for part in parts if len(winners[part]) == 0]
    loose = [
        part
        for part in parts
        if part not in empty
        and (
            part.kind == "plans"
            or len(winners[part]) < part.rows
            or _share(part, winners, target_rows) < 0.5
        )
    ]
    groups = [
        group
        for group in _neighbours(loose, winners, target_rows)
        if len(group) > 1 or len(winners[group[0]]) < group[0].rows
    ]
    return _Job(winners, groups, [part.path for part in [*empty, *chain.from_iterable(groups)]])


def _share(part: Part, winners: Winners, target_rows: int) -> float:
    """How much of a merged part this part's winners would fill, by rows or by bytes."""
    kept = len(winners[part])
    return max(kept / target_rows, part.path.stat().st_size * kept / part.rows / TARGET_BYTES)


def _neighbours(loose: Sequence[Part], winners: Winners, target_rows: int) -> Iterator[list[Part]]:
    """Runs of parts whose winners fit into one merged part; all plans together."""
    group: list[Part] = []
    filled = 0.0
    for part in loose:
        share = _share(part, winners, target_rows)
        if group and filled + share > 1 and part.kind != "plans":
            yield group
            group, filled = [], 0.0
        group.append(part)
        filled += share
    if group:
        yield group


def _merge(root: Path, group: Sequence[Part], winners: Winners, on_step: Steps) -> Path:
    kind = group[0].kind
    table = _concat(kind, [_read(part).take(pa.array(winners[part])) for part in group])
    on_step("compact: read")
    seqs = [part.seq for part in group]
    seq = max(seqs) + 1 if kind in LAST_WINS else min(seqs)
    data = encode(kind, table, PACKING)
    path = commit(root, part_name(kind, seq, MERGED, table.num_rows, data), data, on_step)
    on_step("compact: written")
    return path


def _concat(kind: str, tables: Sequence[pa.Table]) -> pa.Table:
    """One table with the columns of the kind first, and every further column of a later version.

    Raises:
        CacheError: a further column has two types.
    """
    try:
        return pa.concat_tables(
            [KINDS[kind].empty_table(), *(table.replace_schema_metadata() for table in tables)],
            promote_options="default",
        )
    except pa.ArrowException as error:
        why = reason_of(error)
        raise CacheError(
            f"parts of {kind} do not go together: {why}; nothing was merged"
        ) from error


def _read(part: Part) -> pa.Table:
    try:
        with pq.ParquetFile(part.path) as file:
            return file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:  # bytes as their name says, and no rows of ours
        raise DamagedPart(
            f"damaged part: {part.path.name}: {reason_of(error, 80)}; no version of this program "
            "wrote it, move it out of parts/"
        ) from error


def _unlink(paths: Iterable[Path], on_step: Steps) -> None:
    """Remove merged parts, the largest name first, so that winners outlive their rivals."""
    folder = None
    try:
        for path in sorted(paths, reverse=True):
            on_step("compact: unlink")
            path.unlink()
            folder = path.parent
        if folder:
            fsync_folder(folder)
    except OSError as error:
        raise WorldError(
            f"cannot remove a merged part: {error}; run `cache compact` again"
        ) from error


def _size(parts: Iterable[Part]) -> int:
    return sum(part.path.stat().st_size for part in parts)

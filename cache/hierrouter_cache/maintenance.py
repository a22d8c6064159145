"""Keep a cache healthy: merge small parts, move damaged files away."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache import writer
from hierrouter_cache.chain import (
    DAMAGED,
    FIRST,
    FOREIGN,
    HERE,
    LOST,
    MERGED,
    MISSING,
    QUARANTINE,
    STRANGE,
    Chain,
    arrivals,
    examine,
    seal,
    sound_chain,
)
from hierrouter_cache.embeddings import embedding_fault, embedding_files
from hierrouter_cache.errors import CacheError, DamagedPart, WorldError, reason_of
from hierrouter_cache.kept import kept_trees, tree_fault
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.mirror import finish_pull
from hierrouter_cache.parts import (
    KINDS,
    LAST_WINS,
    Listing,
    Part,
    list_parts,
    listing,
    no_cache,
    require_damage,
)
from hierrouter_cache.reader import Winners, winners_of

TARGET_ROWS = 131_072
TARGET_BYTES = 64 << 20
FATES = {LOST: MISSING, FOREIGN: STRANGE}  # of what is given up, by its fault; else `DAMAGED`


@dataclass(frozen=True)
class Compaction:
    """What a compaction did; sizes are those of the Parquet files."""

    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int


def compact(
    root: Path,
    on_step: writer.Steps = writer.no_steps,
    on_part: Callable[[int, int], None] = lambda done, total: None,
    target_rows: int = TARGET_ROWS,
) -> Compaction:
    """Merge the small parts of each kind and drop rows that are stored twice.

    Raises NoCache: nothing has been collected at `root`; CacheLocked: a collector is at work;
    DamagedPart: a part is not what its name promises; nothing is touched then; WorldError: the disk
    is full or failed; what was committed is safe.

    Args:
        on_step: told the milestones of each commit, and `compact: read`, `compact: written` and
            `compact: unlink` (before each).
        on_part: told how many parts are merged, of how many that will be.
        target_rows: size of a merged part; a part of half that size or more is left alone.
    """
    list_parts(root)  # before a lock file is made in a folder that is no cache
    with collector_lock(root):
        writer.sweep_drafts(root)
        finish_pull(root)
        chain = sound_chain(root)
        before = chain.sound(*KINDS)
        bytes_before = _size(before)
        # First what a compaction that was killed has merged already: else it would be merged again.
        winners = winners_of(root, before)
        merged = [part for won in winners for part in won if len(won[part]) == 0]
        if merged:
            _retire(root, chain, merged, on_step)
            chain = sound_chain(root)
        plans = [_groups(won, target_rows) for won in winners]
        total = sum(len(group) for groups in plans for group in groups)
        done, gone = 0, list[Part]()
        for won, groups in zip(winners, plans, strict=True):
            for group in groups:
                _merge(root, group, won, on_step)
                gone += group
                done += len(group)
                on_part(done, total)
        _retire(root, chain, gone, on_step)
        after = list_parts(root)
    return Compaction(len(before), len(after), bytes_before, _size(after))


def _groups(winners: Winners, target_rows: int) -> list[list[Part]]:
    """The parts of one kind that become one part each; those without winners are in none.

    Neighbours whose winners fit into one merged part go together, and all plans. A part that would
    fill half of one by itself, by its rows or its bytes, and keeps them all, is left alone.
    """
    groups: list[list[Part]] = []
    filled = 0.0
    for part, rows in winners.items():
        if not len(rows):
            continue
        kept = part.path.stat().st_size * len(rows) / part.rows
        share = max(len(rows) / target_rows, kept / TARGET_BYTES)
        if part.kind != "plans" and len(rows) == part.rows and share >= 0.5:
            continue
        if not groups or (filled + share > 1 and part.kind != "plans"):
            groups.append([])
            filled = 0.0
        groups[-1].append(part)
        filled += share
    return [group for group in groups if len(group) > 1 or len(winners[group[0]]) < group[0].rows]


def _merge(root: Path, group: Sequence[Part], winners: Winners, on_step: writer.Steps) -> None:
    kind = group[0].kind
    table = _concat(kind, [_read(part).take(pa.array(winners[part])) for part in group])
    on_step("compact: read")
    seqs = [part.seq for part in group]
    seq = max(seqs) + 1 if kind in LAST_WINS else min(seqs)
    writer.append_part(root, kind, table, FIRST, on_step, seq, level=9, page_bytes=8 << 20)
    on_step("compact: written")


def _retire(root: Path, chain: Chain, merged: Sequence[Part], on_step: writer.Steps) -> None:
    """Remove parts whose rows others have, once a seal says so; raises as `_seal_all`."""
    told = {part.path.name for part in merged if chain.fates.get(part.path.name) == MERGED}
    gone = dict.fromkeys(merged, MERGED)
    if len(told) < len(gone) or not told.issuperset(chain.loose):
        gone |= dict.fromkeys(chain.sound("seals"), MERGED)
        _seal_all(root, chain, gone, on_step)
    _unlink(gone, on_step)


def _seal_all(
    root: Path, chain: Chain, gone: Mapping[Part, str], on_step: writer.Steps = writer.no_steps
) -> None:
    """Commit what all parts are now, so that nobody need look behind this commit.

    What a pull has brought and not judged yet is left to it. Raises as `seal` and `arrivals`.
    """
    fates = {name: fate for name, fate in chain.fates.items() if fate not in (HERE, MERGED)}
    here = {part.path.name for part in listing(root).parts}
    fates |= dict.fromkeys(here.difference(arrivals(root)), HERE)
    fates |= {part.path.name: fate for part, fate in gone.items()}
    seal(root, fates, on_step)


def _concat(kind: str, tables: Sequence[pa.Table]) -> pa.Table:
    """One table with the columns of the kind first, and every further column of a later version."""
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
        require_damage(error, part.path)
        raise DamagedPart(
            f"damaged part: {part.path.name}: {reason_of(error, 80)}; no version of this program "
            "wrote it, move it out of parts/"
        ) from error


def _unlink(parts: Iterable[Part], on_step: writer.Steps) -> None:
    """Remove merged parts: the oldest seal first, then the largest name, so winners outlive rivals.

    A seal that says of a part that it belongs here never outlives the one that says it was merged.
    """
    due = list(parts)
    seals = sorted(part.path for part in due if part.kind == "seals")
    others = sorted((part.path for part in due if part.kind != "seals"), reverse=True)
    try:
        for path in (*seals, *others):
            on_step("compact: unlink")
            path.unlink(missing_ok=True)
            if path in seals or path == others[-1]:
                writer.fsync_folder(path.parent)
    except OSError as error:
        raise WorldError(
            f"cannot remove a merged part: {error}; run `cache compact` again"
        ) from error


def _size(parts: Iterable[Part]) -> int:
    return sum(part.path.stat().st_size for part in parts)


def quarantine(root: Path) -> list[tuple[str, str]]:
    """Move every damaged file to `quarantine/`, give up what is missing, and seal what is left.

    Returns (name, what was wrong) of each; `chain.LOST` where it is missing. Raises NoCache:
    nothing was collected at `root`; CacheLocked: a collector or a compaction is at work; nothing is
    touched then; WorldError: a file cannot be moved.
    """
    if listing(root) == Listing():  # before a lock file is made in a folder that is no cache
        raise no_cache(root)
    with collector_lock(root):
        chain = examine(root)
        faults = damaged_files(root, chain)
        damaged = [(path, why) for path, why in faults if why != LOST]
        shelf = root / QUARANTINE
        wrong = {part: FATES.get(why, DAMAGED) for part, why in chain.faults.items() if why}
        if wrong or chain.loose:
            _seal_all(root, chain, wrong)
        try:
            if damaged:
                shelf.mkdir(exist_ok=True)
            for path, _ in damaged:
                path.rename(_free_name(shelf / path.name))
            for folder in {place for path, _ in damaged for place in (shelf, root, path.parent)}:
                writer.fsync_folder(folder)
        except OSError as error:
            raise WorldError(f"cannot move a damaged file: {error}; run `repair` again") from error
    return [(path.name, why) for path, why in faults]


def damaged_files(root: Path, chain: Chain | None = None) -> list[tuple[Path, str]]:
    """(file, what is wrong) of each damaged or missing part, head, embedding file and kept tree.

    Raises NoCache: nothing was collected at `root`.
    """
    found = chain or examine(root)
    parts = [(part.path, why) for part, why in found.faults.items() if why]
    files = [(file.path, embedding_fault(file)) for file in embedding_files(root)]
    files += [(path, tree_fault(path)) for path in kept_trees(root)]
    return parts + [(path, why) for path, why in files if why]


def _free_name(path: Path) -> Path:
    """`path`, or it with the first number behind it that no file has."""
    number = 1
    free = path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free

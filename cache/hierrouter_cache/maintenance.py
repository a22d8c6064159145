"""Keep a cache healthy: merge small parts, and move damaged files away."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache import writer
from hierrouter_cache.chain import (
    FATE_DAMAGED,
    FATE_FOREIGN,
    FATE_MERGED,
    FATE_MISSING,
    FATE_PRESENT,
    FAULT_FOREIGN,
    FAULT_MISSING,
    MERGED_WRITER,
    QUARANTINE_FOLDER,
    Chain,
    arrivals,
    examine,
    seal,
    sound_chain,
)
from hierrouter_cache.embeddings import embedding_fault, embedding_files
from hierrouter_cache.errors import CacheError, DamagedPart, WorldError, reason_of
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.mirror import finish_pull
from hierrouter_cache.parts import (
    LAST_WINS,
    PARQUET_ERRORS,
    ROW_SCHEMAS,
    Listing,
    Part,
    list_parts,
    listing,
    no_cache_error,
    require_damage,
)
from hierrouter_cache.reader import Winners, winners_of
from hierrouter_cache.saved_trees import list_saved_trees, saved_tree_fault

TARGET_ROWS = 131_072
TARGET_BYTES = 64 << 20
# The fate of a part that is given up, by its fault; `FATE_DAMAGED` for all other faults.
FATE_OF_FAULT = {FAULT_MISSING: FATE_MISSING, FAULT_FOREIGN: FATE_FOREIGN}


@dataclass(frozen=True)
class Compaction:
    """Result of a compaction.

    Attributes:
        parts_before: number of parts before it.
        parts_after: number of parts after it.
        bytes_before: size of all Parquet files before it.
        bytes_after: size of all Parquet files after it.
    """

    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int


def compact(
    root: Path,
    on_step: writer.OnStep = writer.no_steps,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    target_rows: int = TARGET_ROWS,
) -> Compaction:
    """Merge the small parts of each kind, and drop rows that are stored twice.

    Args:
        root: the cache's folder.
        on_step: called with the milestones of each commit, with `compact: read` and
            `compact: written`, and with `compact: unlink` before each removal.
        on_progress: called with (parts merged, parts to merge).
        target_rows: size of a merged part; a part of half that size or more is left alone.

    Raises:
        NoCache: nothing has been collected at `root`.
        CacheLocked: a collector is at work.
        DamagedPart: a part is damaged or missing; nothing was changed.
        WorldError: the disk is full or failed; everything that was committed is safe.
    """
    list_parts(root)  # raises NoCache before a lock file is created in a folder that is no cache
    with collector_lock(root):
        writer.sweep_drafts(root)
        finish_pull(root)
        chain = sound_chain(root)
        before = chain.sound(*ROW_SCHEMAS)
        bytes_before = _total_size(before)
        winners = winners_of(root, before)
        # Finish an earlier compaction that was killed; else its parts would be merged once more.
        merged = [part for rows_of in winners for part in rows_of if len(rows_of[part]) == 0]
        if merged:
            _retire(root, chain, merged, on_step)
            chain = sound_chain(root)
        groups_of_kinds = [_group_parts(rows_of, target_rows) for rows_of in winners]
        total = sum(len(group) for groups in groups_of_kinds for group in groups)
        retired: list[Part] = []
        for rows_of, groups in zip(winners, groups_of_kinds, strict=True):
            for group in groups:
                _merge(root, group, rows_of, on_step)
                retired += group
                on_progress(len(retired), total)
        _retire(root, chain, retired, on_step)
        after = list_parts(root)
    return Compaction(len(before), len(after), bytes_before, _total_size(after))


def _group_parts(winners: Winners, target_rows: int) -> list[list[Part]]:
    """Group the parts of one kind that are merged into one part each.

    Neighbours whose winning rows fit into one merged part form a group, and all plans form one. A
    part without winning rows is in no group. Neither is a part that keeps all its rows and fills
    half of a merged part or more by its rows or its bytes.
    """
    groups: list[list[Part]] = []
    filled = 0.0
    for part, rows in winners.items():
        if not len(rows):
            continue
        remaining_bytes = part.path.stat().st_size * len(rows) / part.rows
        share = max(len(rows) / target_rows, remaining_bytes / TARGET_BYTES)
        if part.kind != "plans" and len(rows) == part.rows and share >= 0.5:
            continue
        if not groups or (filled + share > 1 and part.kind != "plans"):
            groups.append([])
            filled = 0.0
        groups[-1].append(part)
        filled += share
    # A part that is alone in its group and keeps all its rows would only be copied.
    return [group for group in groups if len(group) > 1 or len(winners[group[0]]) < group[0].rows]


def _merge(root: Path, group: Sequence[Part], winners: Winners, on_step: writer.OnStep) -> None:
    """Commit one part with the winning rows of a group."""
    kind = group[0].kind
    table = _concatenate(kind, [_read(part).take(pa.array(winners[part])) for part in group])
    on_step("compact: read")
    sequence_numbers = [part.seq for part in group]
    # The merged part must win or lose against all other parts as the group does.
    seq = max(sequence_numbers) + 1 if kind in LAST_WINS else min(sequence_numbers)
    writer.append_part(root, kind, table, MERGED_WRITER, on_step, seq, level=9, page_bytes=8 << 20)
    on_step("compact: written")


def _retire(root: Path, chain: Chain, merged: Sequence[Part], on_step: writer.OnStep) -> None:
    """Remove parts whose rows other parts hold, after a seal has recorded that they are merged.

    Raises:
        CacheError: the list of arrivals cannot be read, or no sequence number is left.
        WorldError: the disk is full or failed.
    """
    recorded = {part.path.name for part in merged if chain.fates.get(part.path.name) == FATE_MERGED}
    fates = dict.fromkeys(merged, FATE_MERGED)
    if len(recorded) < len(fates) or not recorded.issuperset(chain.loose):
        # The new seal repeats what all earlier seals say, so these can go, too.
        fates |= dict.fromkeys(chain.sound("seals"), FATE_MERGED)
        _seal_all(root, chain, fates, on_step)
    _unlink(fates, on_step)


def _seal_all(
    root: Path, chain: Chain, gone: Mapping[Part, str], on_step: writer.OnStep = writer.no_steps
) -> None:
    """Commit the fates of all parts, so that no link has to be followed beyond this commit.

    Parts that a pull has copied and not settled yet are left to that pull.

    Args:
        root: the cache's folder.
        chain: its chain.
        gone: fates of the parts that are given up or merged.
        on_step: called with the milestones of the commit.

    Raises:
        CacheError: the list of arrivals cannot be read, or no sequence number is left.
        WorldError: the disk is full or failed.
    """
    fates = {
        name: fate for name, fate in chain.fates.items() if fate not in (FATE_PRESENT, FATE_MERGED)
    }
    present = {part.path.name for part in listing(root).parts}
    fates |= dict.fromkeys(present.difference(arrivals(root)), FATE_PRESENT)
    fates |= {part.path.name: fate for part, fate in gone.items()}
    seal(root, fates, on_step)


def _concatenate(kind: str, tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables: the columns of the kind first, then all columns of later versions.

    Raises:
        CacheError: a column has different types in two tables.
    """
    try:
        return pa.concat_tables(
            [
                ROW_SCHEMAS[kind].empty_table(),
                *(table.replace_schema_metadata() for table in tables),
            ],
            promote_options="default",
        )
    except pa.ArrowException as error:
        reason = reason_of(error)
        raise CacheError(
            f"parts of {kind} do not go together: {reason}; nothing was merged"
        ) from error


def _read(part: Part) -> pa.Table:
    """Read all rows of a sound part.

    Raises:
        DamagedPart: its bytes have the hash in its name, but they are no Parquet file.
        WorldError: the disk failed.
    """
    try:
        with pq.ParquetFile(part.path) as file:
            return file.read(use_threads=False)
    except PARQUET_ERRORS as error:
        require_damage(error, part.path)
        raise DamagedPart(
            f"damaged part: {part.path.name}: {reason_of(error, 80)}; no version of this program "
            "wrote it, move it out of parts/"
        ) from error


def _unlink(parts: Iterable[Part], on_step: writer.OnStep) -> None:
    """Remove merged parts.

    Seals are removed first, the oldest one first: a seal that says of a part that it is present
    must not outlive the seal that says that it was merged. Other parts follow, the largest name
    first, so that a part with winning rows outlives the parts whose rows lost against them.

    Raises:
        WorldError: a file cannot be removed.
    """
    merged = list(parts)
    seals = sorted(part.path for part in merged if part.kind == "seals")
    others = sorted((part.path for part in merged if part.kind != "seals"), reverse=True)
    try:
        for path in (*seals, *others):
            on_step("compact: unlink")
            path.unlink(missing_ok=True)
            # The order among seals matters, so each removal is made durable.
            if path in seals or path == others[-1]:
                writer.fsync_folder(path.parent)
    except OSError as error:
        raise WorldError(
            f"cannot remove a merged part: {error}; run `cache compact` again"
        ) from error


def _total_size(parts: Iterable[Part]) -> int:
    return sum(part.path.stat().st_size for part in parts)


def quarantine(root: Path) -> list[tuple[str, str]]:
    """Move every damaged file to `quarantine/`, give up missing parts, and seal the others.

    Returns:
        (name, what was wrong) of each file; `chain.FAULT_MISSING` if it is missing.

    Raises:
        NoCache: nothing has been collected at `root`.
        CacheLocked: a collector or a compaction is at work; nothing was changed.
        WorldError: a file cannot be moved.
    """
    if listing(root) == Listing():
        raise no_cache_error(root)  # before a lock file is created in a folder that is no cache
    with collector_lock(root):
        chain = examine(root)
        faults = damaged_files(root, chain)
        damaged = [path for path, fault in faults if fault != FAULT_MISSING]
        folder = root / QUARANTINE_FOLDER
        given_up = {
            part: FATE_OF_FAULT.get(fault, FATE_DAMAGED)
            for part, fault in chain.faults.items()
            if fault
        }
        if given_up or chain.loose:
            _seal_all(root, chain, given_up)
        try:
            if damaged:
                folder.mkdir(exist_ok=True)
            for path in damaged:
                path.rename(_free_path(folder / path.name))
            changed_folders = {path.parent for path in damaged}
            if damaged:
                changed_folders |= {folder, root}
            for changed_folder in changed_folders:
                writer.fsync_folder(changed_folder)
        except OSError as error:
            raise WorldError(f"cannot move a damaged file: {error}; run `repair` again") from error
    return [(path.name, fault) for path, fault in faults]


def damaged_files(root: Path, chain: Chain | None = None) -> list[tuple[Path, str]]:
    """Check all files of a cache: parts, heads, embedding files and saved trees.

    Args:
        root: the cache's folder.
        chain: its chain, if it was examined before.

    Returns:
        (file, what is wrong) of each damaged or missing file.

    Raises:
        NoCache: nothing has been collected at `root`.
    """
    if chain is None:
        chain = examine(root)
    faults = [(part.path, fault) for part, fault in chain.faults.items()]
    faults += [(file.path, embedding_fault(file)) for file in embedding_files(root)]
    faults += [(path, saved_tree_fault(path)) for path in list_saved_trees(root)]
    return [(path, fault) for path, fault in faults if fault]


def _free_path(path: Path) -> Path:
    """Return `path` if it is free, else the first free one of `path.2`, `path.3`, ..."""
    number = 1
    free = path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free

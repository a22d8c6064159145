"""Exchange parts between a cache and its mirror, and leave out parts that contradict others.

Two caches may hold different responses to the same call. Scores name a call and not its response,
so a score could then meet a response that it does not belong to. A copied part that answers a call
in other words than the parts here is a conflict; it is removed again.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from hierrouter_cache import writer
from hierrouter_cache.chain import (
    ARRIVALS_FILE,
    FAULT_MISSING,
    MAX_LISTINGS,
    arrivals,
    glance,
    seal_loose,
    sound_parts,
)
from hierrouter_cache.errors import (
    CacheError,
    CacheLocked,
    DamagedPart,
    NoCache,
    WorldError,
    open_plain,
)
from hierrouter_cache.locks import pull_lock, shared_lock
from hierrouter_cache.parts import (
    PARQUET_ERRORS,
    ROW_SCHEMAS,
    Part,
    list_parts,
    part_named,
    parts_folder,
    proof,
    sha16,
)
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore, Store, store_error

# Keys of the calls that have several different responses.
CONFLICTING_KEYS = "SELECT key FROM calls_rows GROUP BY key HAVING min(outcome) != max(outcome)"
MAX_TRANSFERS = 4  # parts that are copied at the same time: a store is slower to reply than a disk

OnProgress = Callable[[int, int], None]  # called with (parts copied, parts to copy)
Item = TypeVar("Item")
Result = TypeVar("Result")


def record_arrivals(root: Path, names: Collection[str]) -> None:
    """Record which parts will be copied, before the first one is.

    Args:
        root: the cache's folder.
        names: names of the parts.

    Raises:
        WorldError: the disk is full or failed.
    """
    writer.write_derived(root, root / ARRIVALS_FILE, [json.dumps(sorted(names)).encode()])


def settle_arrivals(root: Path, complete: bool = False) -> tuple[list[str], list[str]]:
    """Remove the conflicts among the recorded parts that were copied, and delete the record.

    The caller holds `pull_lock`, or the cache exclusively.

    Args:
        root: the cache's folder.
        complete: whether all recorded parts were copied. If not, copied scores are removed, too:
            the response that they belong to may not have been copied yet.

    Returns:
        (names of the conflicts, names of all removed parts).

    Raises:
        DamagedPart: a part is damaged; the record is kept.
        CacheError: the record cannot be read.
    """
    copied = {name for name in arrivals(root) if (parts_folder(root) / name).exists()}
    early_scores = set[str]()
    if not complete:
        early_scores = {name for name in copied if name.startswith("scores-")}
    _remove_parts(root, early_scores)
    conflicts, removed = remove_conflicts(root, copied - early_scores)
    (root / ARRIVALS_FILE).unlink(missing_ok=True)
    return conflicts, [*removed, *early_scores]


def _remove_parts(root: Path, names: Collection[str]) -> None:
    for name in names:
        (parts_folder(root) / name).unlink(missing_ok=True)
    if names:
        writer.fsync_folder(parts_folder(root))


def finish_pull(root: Path) -> None:
    """Settle the parts that a killed pull has copied; a pull at work settles its parts itself.

    Raises:
        DamagedPart: a part is damaged.
        CacheError: the record of arrivals cannot be read.
    """
    if (root / ARRIVALS_FILE).exists():
        with suppress(CacheLocked), pull_lock(root, wait=False):
            settle_arrivals(root)


def remove_conflicts(root: Path, copied: Collection[str]) -> tuple[list[str], list[str]]:
    """Remove copied parts that could make a score meet a response that it does not belong to.

    Args:
        root: the cache's folder.
        copied: names of parts that were not here before.

    Returns:
        (names of the conflicts, names of all removed parts, scores included).

    Raises:
        DamagedPart: a part is damaged.
    """
    if not any(name.startswith("calls-") for name in copied):
        return [], []
    reader = CacheReader(root)
    rows = reader.sql(
        "SELECT parse_filename(filename) AS name, key, outcome FROM calls_rows "  # noqa: S608 - our own names
        f"WHERE key IN ({CONFLICTING_KEYS})"
    ).to_pylist()
    scores = reader.sql(
        "SELECT DISTINCT parse_filename(filename) AS name FROM scores_rows "  # noqa: S608 - our own names
        f"WHERE call IN ({CONFLICTING_KEYS})"
    )
    conflicts = _find_conflicts(rows, copied)
    # Scores first. If a crash comes between, their calls still conflict, and the next attempt
    # removes both.
    removed = [name for name in scores["name"].to_pylist() if name in copied]
    removed += conflicts
    _remove_parts(root, removed)
    return conflicts, removed


def _find_conflicts(rows: Iterable[Mapping[str, str]], copied: Collection[str]) -> list[str]:
    """Return the copied parts that contradict a part that stays.

    A part that was here before stays. Of the copied parts those with smaller names come first.

    Args:
        rows: name of the part, key and outcome of every response to a call that has several.
        copied: names of parts that were not here before.
    """
    calls_by_part: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        calls_by_part.setdefault(row["name"], []).append((row["key"], row["outcome"]))
    accepted: dict[str, str] = {}  # outcome of each call, by key
    conflicts = []
    for name in sorted(calls_by_part, key=lambda name: (name in copied, name)):
        calls = calls_by_part[name]
        contradicts = any(accepted.get(key, outcome) != outcome for key, outcome in calls)
        if name in copied and contradicts:
            conflicts.append(name)
            continue
        for key, outcome in calls:
            accepted.setdefault(key, outcome)
    return conflicts


@dataclass(frozen=True)
class PullResult:
    """Result of a pull.

    Attributes:
        store: name of the mirror.
        copied: number of parts that are here now and were not before.
        conflicts: names of the parts that were left in the mirror, because they answer a call in
            other words.
    """

    store: str = ""
    copied: int = 0
    conflicts: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Sentence about the conflicts for people; empty if there are none."""
        if not self.conflicts:
            return ""
        return (
            f"{len(self.conflicts)} parts of the mirror answer calls in other words than they are "
            f"answered here: {self.store}: {self.conflicts[0]}; they stay there, answers here count"
        )


def require_no_conflicts(result: PullResult) -> None:
    """Require that a cache and its mirror have the same responses.

    Raises:
        CacheError: there are conflicts.
    """
    if result.conflicts:
        raise CacheError(result.note)


def push(root: Path, store: Store, on_progress: OnProgress = lambda done, total: None) -> int:
    """Copy every part that the store lacks, or of which it holds a fragment.

    Args:
        root: the cache's folder.
        store: its mirror.
        on_progress: called with (parts copied, parts to copy).

    Returns:
        The number of parts copied.

    Raises:
        NoCache: nothing has been collected at `root`.
        DamagedPart: a part here is damaged; it is not copied.
        CacheError: the cache keeps changing.
        WorldError: the store failed.
    """
    total_copied = 0
    for _ in range(MAX_LISTINGS):
        with _store_errors(store):
            sizes = store.sizes()
        # Plans last, so that the queries and calls that they name arrive before them.
        parts = sorted(list_parts(root), key=lambda part: part.kind == "plans")
        due = [part for part in parts if sizes.get(part.path.name) != _size(part.path)]
        copied = _run_transfers(partial(_send, store), due, on_progress)
        total_copied += sum(copied)
        if all(copied):
            if isinstance(store, FolderStore) and writer.writable(store.root):
                # This store is a cache itself. If another process holds it, or its disk has no
                # locks, a later push takes the parts into its chain.
                with (
                    _store_errors(store),
                    suppress(CacheLocked, WorldError),
                    shared_lock(store.root),
                ):
                    seal_loose(store.root)
            return total_copied
        # A compaction removed parts after they were listed. List again to find the merged part.
    raise CacheError(f"the cache keeps changing: {root}; push again when it is at rest")


def pull(
    store: Store,
    root: Path,
    on_progress: OnProgress = lambda done, total: None,
    may_be_empty: bool = True,
    leave: Collection[str] = (),
) -> PullResult:
    """Commit every part that the store has and the cache lacks, except conflicts.

    Args:
        store: the mirror.
        root: the cache's folder; it is created if it does not exist.
        on_progress: called with (parts copied, parts to copy).
        may_be_empty: whether to accept a store without any part.
        leave: names of parts to ignore, such as conflicts of an earlier pull.

    Raises:
        NoCache: the store is empty, and may not be.
        CacheLocked: a collection of a complete plan or a compaction is at work here.
        DamagedPart: a part here is damaged, and nothing was copied; or a part of the store is
            damaged, and all others were copied.
        CacheError: a part of the store was written by a newer version; all others were copied.
        WorldError: the store or the disk failed; copied parts are kept, except scores.
    """
    with _store_errors(store):
        sizes = store.sizes()
    if not sizes and not may_be_empty:
        raise NoCache(f"no parts in the mirror: {store}; push to it first, or check its address")
    if not sizes:
        return PullResult(str(store))
    writer.make_cache(root)
    with shared_lock(root), pull_lock(root):
        writer.sweep_drafts(root)
        missing = {
            part.path.name for part, fault in glance(root).faults.items() if fault == FAULT_MISSING
        }
        # Parts that belong to this cache are no arrivals: they cannot contradict it.
        restored = _absent_parts(root, missing.intersection(sizes))
        faults = _run_transfers(partial(_fetch, store, root), restored, on_progress)
        settle_arrivals(root)  # of an earlier pull that was killed
        due = _absent_parts(root, set(sizes).difference(leave))
        if due:
            with suppress(NoCache):
                sound_parts(root)  # in a damaged cache, conflicts could not be found
            record_arrivals(root, due)
        try:
            faults += _run_transfers(partial(_fetch, store, root), due, on_progress)
        except BaseException:
            settle_arrivals(root)
            raise
        conflicts, removed = settle_arrivals(root, complete=True)
        seal_loose(root)
    errors = [fault for fault in faults if fault]
    if errors:
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise type(errors[0])(f"{errors[0]}{others}")
    return PullResult(str(store), len(restored) + len(due) - len(removed), tuple(conflicts))


def exchange(root: Path, store: Store) -> PullResult:
    """Copy parts both ways, so that each side has what the other one has.

    Args:
        root: the cache's folder; it may be empty.
        store: its mirror; it may be empty.

    Raises:
        CacheError: a part of a side is damaged or was written by a newer version, or a side is
            locked.
        WorldError: the store or the disk failed.
    """
    result = pull(store, root)
    with suppress(NoCache):
        push(root, store)
    return result


def part_copier(store: Store) -> writer.OnPart:
    """Return a callback for `PartWriter` that copies each part right after its commit.

    The callback raises WorldError if the store fails; the next `push` copies the part.
    """

    def copy_part(name: str, data: memoryview) -> None:
        with _store_errors(store):
            store.write(name, data)

    return copy_part


def _send(store: Store, part: Part) -> bool:
    """Copy one part to the store; return False if it does not exist any more.

    Raises:
        DamagedPart: the part is damaged.
        WorldError: the store failed.
    """
    try:
        with open_plain(part.path) as file:
            data = file.read()
    except FileNotFoundError:
        return False
    if sha16(data) != part.sha:
        raise DamagedPart(
            f"damaged part: {part.path.name}: checksum mismatch; move it aside with "
            f"`hierrouter cache repair --cache {part.path.parents[1]}`, then push again"
        )
    with _store_errors(store):
        store.write(part.path.name, data)
    return True


def _absent_parts(root: Path, names: Iterable[str]) -> list[str]:
    """Return the names of parts that are not here, in name order with plans last.

    Parts of unknown kinds are left out.
    """
    absent = sorted(name for name in names if not (parts_folder(root) / name).exists())
    readable = [name for name in absent if name.partition("-")[0] in ROW_SCHEMAS]
    return sorted(readable, key=lambda name: name.startswith("plans-"))


def _fetch(store: Store, root: Path, name: str) -> CacheError | None:
    """Commit one part of the store; return an error if the part cannot be used here.

    Raises:
        WorldError: the store or the disk failed.
    """
    with _store_errors(store):
        data = store.read(name)
    part = part_named(root, name)
    try:
        fault = proof(part, data)[0] if part else "not the name of a part"
    except CacheError as error:
        return CacheError(f"not taken from the mirror: {store}: {error}")
    if fault:
        return DamagedPart(
            f"damaged part in the mirror: {store}: {name}: {fault}; delete it there, and push from "
            "a cache that has it or collect again"
        )
    writer.commit(root, name, memoryview(data), writer.no_steps)
    return None


def _run_transfers(
    transfer: Callable[[Item], Result], items: Sequence[Item], on_progress: OnProgress
) -> list[Result]:
    """Run transfers in several threads.

    Args:
        transfer: copies one item.
        items: what to copy.
        on_progress: called with (items copied, all items).

    Returns:
        The results in the order of `items`.

    Raises:
        Exception: what a transfer raised; no further transfer is started then.
    """
    results = []
    with ThreadPoolExecutor(MAX_TRANSFERS) as threads:
        try:
            for result in threads.map(transfer, items):
                results.append(result)
                on_progress(len(results), len(items))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return results


def _size(path: Path) -> int:
    """Return the number of bytes of a file; -1 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


@contextmanager
def _store_errors(store: Store) -> Iterator[None]:
    """Turn errors of a store into WorldError.

    A `CacheError` is one of them: a folder store is a cache itself, and may refuse to be written.
    """
    try:
        yield
    except (*PARQUET_ERRORS, CacheError) as error:
        raise store_error(store, error, store.url) from error

"""A cache and its mirror, made equal, and what happens to rival answers."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from hierrouter_cache import writer
from hierrouter_cache.chain import ARRIVING, LOST, TRIES, arrivals, glance, seal_loose, sound_parts
from hierrouter_cache.errors import (
    CacheError,
    CacheLocked,
    DamagedPart,
    NoCache,
    WorldError,
    open_plain,
)
from hierrouter_cache.locks import pull_lock, shared_lock
from hierrouter_cache.parts import KINDS, Part, list_parts, part_named, parts_folder, proof, sha16
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore, Store, unreachable

DISPUTED = "SELECT key FROM calls_rows GROUP BY key HAVING min(outcome) != max(outcome)"
STREAMS = 4  # parts on their way together: a store's answer takes longer than a disk's

Done = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def note_arrivals(root: Path, names: Collection[str]) -> None:
    """Write down what will be copied, before any of it is here.

    Raises WorldError: the disk is full or failed.
    """
    writer.write_derived(root, root / ARRIVING, [json.dumps(sorted(names)).encode()])


def judge_arrivals(root: Path, whole: bool = False) -> tuple[list[str], list[str]]:
    """Take back the rivals among what was noted and is here, and strike it out.

    Whoever calls this holds `pull_lock`, or the whole cache. Raises DamagedPart: a part is damaged;
    what was noted stays noted; CacheError: what was noted cannot be read. Returns as
    `take_back_rivals`.

    Args:
        root: the cache's folder.
        whole: whether all came that will come. If not, the scores go too: the other answer that
            they belong to may be on its way still.
    """
    here = {name for name in arrivals(root) if (parts_folder(root) / name).exists()}
    early = set() if whole else {name for name in here if name.startswith("scores-")}
    _remove(root, early)
    rivals, left = take_back_rivals(root, here - early)
    (root / ARRIVING).unlink(missing_ok=True)
    return rivals, [*left, *early]


def _remove(root: Path, names: Collection[str]) -> None:
    for name in names:
        (parts_folder(root) / name).unlink(missing_ok=True)
    if names:
        writer.fsync_folder(parts_folder(root))


def finish_pull(root: Path) -> None:
    """Judge what a pull brought that was killed; one that is at work does that itself.

    Raises CacheError: as `judge_arrivals`.
    """
    if (root / ARRIVING).exists():
        with suppress(CacheLocked), pull_lock(root, wait=False):
            judge_arrivals(root)


def take_back_rivals(root: Path, copied: Collection[str]) -> tuple[list[str], list[str]]:
    """Remove what was just copied and may make a score meet another answer than its own.

    Raises DamagedPart: a part is damaged.

    `root`: the cache's folder; `copied`: names of parts that were not here before. Returns names of
    the rivals, and of all that was removed, scores included.
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
    rivals = _rivals(rows, copied)
    # Scores first: where this breaks off, their calls are still disputed when it is done again.
    left = [*(name for name in scores["name"].to_pylist() if name in copied), *rivals]
    _remove(root, left)
    return rivals, left


def _rivals(rows: Iterable[Mapping[str, str]], copied: Collection[str]) -> list[str]:
    """The copied parts that contradict what is here, or one with a smaller name that stays.

    `rows`: name of the part, key and outcome of every answer to a call that has several; `copied`:
    names of parts that were not here before.
    """
    by_part: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        by_part.setdefault(row["name"], []).append((row["key"], row["outcome"]))
    kept: dict[str, str] = {}
    rivals = []
    for name in sorted(by_part, key=lambda name: (name in copied, name)):
        if name in copied and any(kept.get(key, said) != said for key, said in by_part[name]):
            rivals.append(name)
            continue
        for key, outcome in by_part[name]:
            kept.setdefault(key, outcome)
    return rivals


@dataclass(frozen=True)
class Pulled:
    """What came out of a mirror.

    Attributes:
        copied: how many parts are here now that were not.
        rivals: names of the parts left there, because they answer a call in other words.
    """

    store: str = ""
    copied: int = 0
    rivals: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What a person should know of the rivals; empty where there are none."""
        if not self.rivals:
            return ""
        return (
            f"{len(self.rivals)} parts of the mirror answer calls in other words than they are "
            f"answered here: {self.store}: {self.rivals[0]}; they stay there, answers here count"
        )


def require_no_rivals(pulled: Pulled) -> None:
    """Refuse to call two sides equal that differ in answers.

    Raises CacheError: there are rivals.
    """
    if pulled.rivals:
        raise CacheError(pulled.note)


def push(root: Path, store: Store, on_part: Done = lambda done, total: None) -> int:
    """Copy every part that the store lacks, or holds torn; returns how many.

    Raises NoCache: nothing was collected at `root`; DamagedPart: a part here is damaged; it is not
    copied; WorldError: the store failed.
    """
    sent = 0
    for _ in range(TRIES):
        with _reaching(store):
            there = store.sizes()
        # What a plan names should be there before it is.
        parts = sorted(list_parts(root), key=lambda part: part.kind == "plans")
        due = [part for part in parts if there.get(part.path.name) != _size(part.path)]
        done = _each(partial(_send, store), due, on_part)
        sent += sum(done)
        if all(done):
            if isinstance(store, FolderStore) and writer.writable(store.root):  # it is a cache, too
                # Where somebody holds it, or it has no locks, another push makes up for that.
                with _reaching(store), suppress(CacheLocked, WorldError), shared_lock(store.root):
                    seal_loose(store.root)
            return sent
        # A compaction took parts away between two looks: the merged one is listed now.
    raise CacheError(f"the cache keeps changing: {root}; push again when it is at rest")


def pull(
    store: Store,
    root: Path,
    on_part: Done = lambda done, total: None,
    may_be_empty: bool = True,
    leave: Collection[str] = (),
) -> Pulled:
    """Commit every part that the store has and the cache lacks, but no rival of one that is here.

    Raises NoCache: the store is empty and may not be; CacheLocked: a whole collection or a
    compaction is at work here; DamagedPart: a part here is damaged; nothing is copied; CacheError:
    a part of the store was written by a newer version; it is left there, all others were copied;
    DamagedPart: a part of the store is torn, altered or no part; likewise; WorldError: the store or
    the disk failed; what was copied stays, but for scores.

    Args:
        on_part: told (parts copied, parts to copy).
        may_be_empty: whether a store without any part is one that nothing was pushed to yet.
        leave: names of parts not to look at, such as rivals that are known.
    """
    with _reaching(store):
        there = store.sizes()
    if not there and not may_be_empty:
        raise NoCache(f"no parts in the mirror: {store}; push to it first, or check its address")
    if not there:
        return Pulled(str(store))
    writer.make_cache(root)
    with shared_lock(root), pull_lock(root):
        writer.sweep_drafts(root)
        lost = {part.path.name for part, why in glance(root).faults.items() if why == LOST}
        ours = _missing(root, lost.intersection(there))  # no arrivals: they were here
        faults = _each(partial(_fetch, store, root), ours, on_part)
        judge_arrivals(root)  # of a pull that was killed
        due = _missing(root, set(there).difference(leave))
        if due:
            with suppress(NoCache):  # in a damaged cache rivals could not be found
                sound_parts(root)
            note_arrivals(root, due)
        try:
            faults += _each(partial(_fetch, store, root), due, on_part)
        except BaseException:
            judge_arrivals(root)
            raise
        rivals, left = judge_arrivals(root, whole=True)
        seal_loose(root)
    if wrong := [fault for fault in faults if fault]:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise type(wrong[0])(f"{wrong[0]}{more}")
    return Pulled(str(store), len(ours) + len(due) - len(left), tuple(rivals))


def exchange(root: Path, store: Store) -> Pulled:
    """Both ways: each side gets what the other one has; neither need hold anything.

    Raises CacheError, WorldError: as `pull` and `push`.
    """
    pulled = pull(store, root)
    with suppress(NoCache):
        push(root, store)
    return pulled


def copying_to(store: Store) -> writer.OnPart:
    """For `PartWriter`: copy each part right after its commit.

    What it returns raises WorldError where the store fails; the next `push` makes up for that.
    """

    def copy(name: str, data: memoryview) -> None:
        with _reaching(store):
            store.write(name, data)

    return copy


def _send(store: Store, part: Part) -> bool:
    """Copy one part; False where it is not here any more."""
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
    with _reaching(store):
        store.write(part.path.name, data)
    return True


def _missing(root: Path, names: Iterable[str]) -> list[str]:
    """Those that are not here, in name order, plans last; unknown kinds are left out."""
    absent = sorted(name for name in names if not (parts_folder(root) / name).exists())
    known = [name for name in absent if name.partition("-")[0] in KINDS]
    return sorted(known, key=lambda name: name.startswith("plans-"))


def _fetch(store: Store, root: Path, name: str) -> CacheError | None:
    """Commit one part of the store; what is wrong with it where nobody could read it here."""
    with _reaching(store):
        data = store.read(name)
    part = part_named(root, name)
    try:
        why = proof(part, data)[0] if part else "not the name of a part"
    except CacheError as error:
        return CacheError(f"not taken from the mirror: {store}: {error}")
    if why:
        return DamagedPart(
            f"damaged part in the mirror: {store}: {name}: {why}; delete it there, and push from "
            "a cache that has it or collect again"
        )
    writer.commit(root, name, memoryview(data), writer.no_steps)
    return None


def _each(step: Callable[[Item], Result], items: Sequence[Item], on_part: Done) -> list[Result]:
    """Several at a time, results in order; after an error nothing new is begun."""
    results = []
    with ThreadPoolExecutor(STREAMS) as streams:
        try:
            for result in streams.map(step, items):
                results.append(result)
                on_part(len(results), len(items))
        except BaseException:
            streams.shutdown(cancel_futures=True)
            raise
    return results


def _size(path: Path) -> int:
    """The bytes of a file; -1 where it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


@contextmanager
def _reaching(store: Store) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, CacheError) as error:  # a folder is refused as a cache
        raise unreachable(store, error, store.url) from error

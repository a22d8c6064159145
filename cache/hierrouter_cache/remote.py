"""A cache and its mirror, made equal.

In: a cache, a `Store`. Out: the parts of one side on the other too. Parts are immutable and named
by their content, and which row is served is decided by the names of the parts alone. So a mirror
only grows, copying can break off anywhere and go on, and two sides that hold the same parts serve
the same rows, whoever copied what in which order.

After a compaction here the mirror keeps what was merged: merged part and sources side by side
serve the same rows, as they do in the middle of a compaction. A later `pull` brings the sources
back, and the next compaction merges them again; a mirror is made smaller by pushing to a new place.

Only parts that answer a call in other words than it was answered here are not taken: see `rivals`.

Not mirrored: embeddings, which are derived, and what was moved to quarantine: `pull` brings back
the sound copy of a damaged part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from hierrouter_cache.atomic_files import no_steps
from hierrouter_cache.errors import CacheError, DamagedPart, NoCache
from hierrouter_cache.locks import pull_lock, shared_lock
from hierrouter_cache.parts import (
    TRIES,
    Part,
    fault_of_bytes,
    list_parts,
    part_named,
    parts_folder,
    sha16,
    sound_parts,
)
from hierrouter_cache.rivals import judge_arrivals, note_arrivals
from hierrouter_cache.schema import KINDS
from hierrouter_cache.stores import Store
from hierrouter_cache.writer import OnPart, commit, make_cache, sweep_drafts

STREAMS = 4  # parts on their way together: a store's answer takes longer than a disk's

Done = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pulled:
    """What came out of a mirror.

    Attributes:
        store: the mirror, for people.
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

    Raises:
        CacheError: there are rivals.
    """
    if pulled.rivals:
        raise CacheError(pulled.note)


def push(root: Path, store: Store, on_part: Done = lambda done, total: None) -> int:
    """Copy every part that the store lacks, or holds torn; returns how many.

    Args:
        root: the cache's folder.
        store: where to.
        on_part: told (parts copied, parts to copy).

    Raises:
        NoCache: nothing was collected at `root`.
        DamagedPart: a part here is damaged; it is not copied.
        WorldError: the store failed.
    """
    sent = 0
    for _ in range(TRIES):
        with _reaching(store):
            there = store.sizes()
        parts = _plans_last(list_parts(root), lambda part: part.kind)
        due = [part for part in parts if there.get(part.path.name) != _size(part.path)]
        done = _each(partial(_send, store), due, on_part)
        sent += sum(done)
        if all(done):
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

    Args:
        store: where from.
        root: the cache's folder, made where it does not exist.
        on_part: told (parts copied, parts to copy).
        may_be_empty: whether a store without any part is one that nothing was pushed to yet.
        leave: names of parts not to look at, such as rivals that are known.

    Raises:
        NoCache: the store is empty and may not be.
        CacheLocked: a whole collection or a compaction is at work here.
        DamagedPart: a part here is damaged; nothing is copied.
        CacheError: a part of the store was written by a newer version; it is left there, all
            others were copied.
        DamagedPart: a part of the store is torn, altered or no part; likewise.
        WorldError: the store or the disk failed; what was copied stays, but for scores.
    """
    with _reaching(store):
        there = store.sizes()
    if not there and not may_be_empty:
        raise NoCache(f"no parts in the mirror: {store}; push to it first, or check its address")
    if not there:
        return Pulled(str(store))
    make_cache(root)
    with shared_lock(root), pull_lock(root):
        sweep_drafts(root)
        judge_arrivals(root)  # of a pull that was killed
        missing = sorted(
            name
            for name in set(there).difference(leave)
            if not (parts_folder(root) / name).exists()
        )
        due = _plans_last(missing, _kind)
        if due:
            _require_sound(root)
            note_arrivals(root, due)
        try:
            faults = _each(partial(_fetch, store, root), due, on_part)
        except BaseException:
            judge_arrivals(root)
            raise
        rivals, left = judge_arrivals(root, whole=True)
    if wrong := [fault for fault in faults if fault]:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise type(wrong[0])(f"{wrong[0]}{more}")
    return Pulled(str(store), len(due) - len(left), tuple(rivals))


def exchange(root: Path, store: Store) -> Pulled:
    """Both ways: each side gets what the other one has; neither need hold anything.

    Raises:
        CacheError, WorldError: as `pull` and `push`.
    """
    pulled = pull(store, root)
    with suppress(NoCache):
        push(root, store)
    return pulled


def copying_to(store: Store) -> OnPart:
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
        data = part.path.read_bytes()
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


def _require_sound(root: Path) -> None:
    """Refuse a cache in which rivals could not be found."""
    with suppress(NoCache):
        sound_parts(root)


def _fetch(store: Store, root: Path, name: str) -> CacheError | None:
    """Commit one part of the store; what is wrong with it where nobody could read it here."""
    with _reaching(store):
        data = store.read(name)
    part = part_named(root, name)
    try:
        why = fault_of_bytes(part, data) if part else "not the name of a part"
    except CacheError as error:
        return CacheError(f"not taken from the mirror: {store}: {error}")
    if why:
        return DamagedPart(
            f"damaged part in the mirror: {store}: {name}: {why}; delete it there, and push from "
            "a cache that has it or collect again"
        )
    commit(root, name, memoryview(data), no_steps)
    return None


def _plans_last(items: Iterable[Item], kind: Callable[[Item], str]) -> list[Item]:
    """What a plan names should be there before it is; unknown kinds are left out."""
    known = [item for item in items if kind(item) in KINDS]
    return sorted(known, key=lambda item: kind(item) == "plans")


def _kind(name: str) -> str:
    return name.partition("-")[0]


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
        raise store.failed(error) from error

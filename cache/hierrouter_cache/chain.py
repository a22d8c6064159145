"""The parts of a cache as a chain of commits, which shows whether any part is missing.

A part names the commits that were open ends of the chain when it was written. For each commit that
no other one names yet there is an empty file, its head. So every commit can be reached from the
heads. A seal is a commit about other parts: it says that they belong to the cache, or what has
become of them. See docs/cache.md.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache import parts
from hierrouter_cache.errors import (
    CacheError,
    DamagedPart,
    InputError,
    NoCache,
    WorldError,
    read_small,
)
from hierrouter_cache.parts import Link, Part, sha16
from hierrouter_cache.writer import OnStep, append_part, no_steps, writable, write_derived

MAX_LISTINGS = 100  # how often a folder is listed again while other processes change it
ARRIVALS_FILE = "pull.json"  # in the cache: names of parts that a pull copies or has copied
QUARANTINE_FOLDER = "quarantine"  # in the cache: files that `cache repair` moved aside
MERGED_WRITER = "00000000"  # the writer in a merged part's name: it sorts before all others
# The fates in a seal. Unless its fate is "present", a part is gone or may be removed.
FATE_PRESENT = "here"
FATE_MERGED = "merged"
FATE_DAMAGED = "damaged"
FATE_MISSING = "missing"
FATE_FOREIGN = "foreign"
# Faults of parts that `parts.proof` cannot know of.
FAULT_MISSING = "missing: later commits name it"
FAULT_FOREIGN = "written by another cache, and no pull brought it"
HASH_RECORD_FILE = "hashed.json"  # in a folder of derived data, see `HashRecord`
# A file system's clock is coarse: of two changes within a tick only the first is visible.
SETTLE_NS = 2 * 10**9
MAX_RECORD_BYTES = 1 << 28

Proof = tuple[str | None, Link | None]  # (what is wrong with a part, what it says of itself)


@dataclass(frozen=True)
class Chain:
    """The state of a cache's parts and of the links between them.

    Attributes:
        faults: what is wrong with each part, None if it is sound; seals are included. In name
            order, and after all parts on the disk those that are missing.
        loose: names of sound parts that no head reaches. Either a crash came between part and
            head, or a copy is under way, or they were merged and were not removed or came back.
        fates: what the seals say of parts, by name.
        heads: names of the commits that no other commit names.
    """

    faults: Mapping[Part, str | None]
    loose: Sequence[str]
    fates: Mapping[str, str]
    heads: tuple[str, ...]

    def sound(self, *kinds: str) -> list[Part]:
        """Return the sound parts of these kinds, in name order."""
        return [part for part, fault in self.faults.items() if not fault and part.kind in kinds]

    @property
    def lost_plan(self) -> str | None:
        """Name of the latest plan if it was given up as damaged or missing, or None.

        Until a plan is written again, the queries that were requested last are unknown.
        """
        latest = max((part.path.name for part in self.sound("plans")), default="")
        end_of_plans = f"plans-{parts.MAX_SEQ + 1}"  # sorts after all plans of this program
        lost = ""
        for name, fate in self.fates.items():
            if fate in (FATE_DAMAGED, FATE_MISSING) and "plans-" <= name < end_of_plans:
                lost = max(lost, name)
        return lost if lost > latest else None


class HashRecord:
    """A record of the files that were hashed completely and have not changed since.

    A file counts as unchanged if its size, its inode and its times of change (in nanoseconds) are
    the recorded ones. So a copy is hashed again.

    Args:
        root: the cache's folder.
        folder: folder of the record, below `root`. An unreadable record counts as empty.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._file = folder / HASH_RECORD_FILE
        self._stored: dict[str, list[Any]] = {}
        self._current: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError, RecursionError, InputError):
            data = read_small(self._file, MAX_RECORD_BYTES)
            if data[:16] == sha16(data[16:]).encode():
                record = json.loads(data[16:])
                if isinstance(record, dict):
                    self._stored = record

    def look_up(self, path: Path) -> tuple[list[int], Any]:
        """Compare a file with its record. Do this before hashing the file, see `add`.

        Returns:
            (status of the file, recorded note). The note is None if the file must be hashed.

        Raises:
            OSError: the file does not exist.
        """
        status = path.stat()  # of a link, what it leads to
        stamps = [status.st_size, status.st_ino, status.st_ctime_ns, status.st_mtime_ns]
        entry = self._stored.get(path.name)
        if entry is None or entry[0] != stamps:
            return stamps, None
        self._current[path.name] = entry
        return stamps, entry[1]

    def add(self, path: Path, stamps: list[int], note: Any) -> None:
        """Record that a file was hashed and is sound.

        Args:
            path: the file.
            stamps: its status before it was hashed, from `look_up`.
            note: what to remember of it, as JSON; not None.
        """
        if time.time_ns() - stamps[-1] > SETTLE_NS:
            self._current[path.name] = [stamps, note]

    def save(self) -> None:
        """Store the record of the files that were looked up or added, and of no others.

        If that fails, nothing is lost but time: the files are hashed again.
        """
        if self._current == self._stored or not writable(self._root):
            return
        data = json.dumps(self._current).encode()
        with suppress(OSError, WorldError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_derived(self._root, self._file, [sha16(data).encode(), data])


def _recorded_proof(part: Part, record: HashRecord) -> Proof:
    """Return `parts.proof` of a part; do not hash a part that is on record."""
    try:
        stamps, note = record.look_up(part.path)
    except OSError:  # `proof` finds out what it means
        return parts.proof(part)
    if note:
        return None, Link(**{**note, "after": tuple(note["after"])})
    fault, link = parts.proof(part)
    if link and not fault:
        record.add(part.path, stamps, asdict(link))
    return fault, link


def examine(root: Path, hashed: bool = True, record: HashRecord | None = None) -> Chain:
    """Check every part, and the links between them.

    Readers take no lock, so a compaction may replace parts at the same time. A listing can miss a
    merged part that appears after its place was read, and also the parts that were merged into it,
    if they vanish before their place is read. But a merged part appears before the others vanish.
    So if the next listing still has all parts of the first one, it has missed nothing, and it has
    all parts that the heads of the first one reach. Only a seal in it may name a merged part that
    appeared too late for it.

    Args:
        root: the cache's folder.
        hashed: whether to hash all bytes; if not, only files and footers are read.
        record: files that need not be hashed again.

    Raises:
        NoCache: nothing has been collected at `root`.
        CacheError: a part was written by a newer version, or the folder keeps changing.
    """
    prove: Callable[[Part], Proof]
    if record:
        prove = partial(_recorded_proof, record=record)
    else:
        prove = partial(parts.proof, hashed=hashed)
    proofs: dict[Part, Proof] = {}
    before = parts.listing(root)
    for _ in range(MAX_LISTINGS):
        if not before.parts and not before.heads:
            raise parts.no_cache_error(root)
        listing = parts.listing(root)
        if set(before.parts) <= set(listing.parts):
            proofs = {part: proofs.get(part) or prove(part) for part in listing.parts}
            if all(fault != parts.FAULT_GONE for fault, _ in proofs.values()):
                # A seal may be merged after it was hashed and before it is read.
                with suppress(FileNotFoundError):
                    chain = _connect(root, replace(listing, heads=before.heads), proofs)
                    if not _has_appeared(chain):
                        return chain
            proofs = {part: proof for part, proof in proofs.items() if proof[0] != parts.FAULT_GONE}
        before = listing
    raise CacheError(f"the cache keeps changing: {root}; wait until `cache compact` is done")


def _has_appeared(chain: Chain) -> bool:
    """Return whether a part that the listing lacked is on the disk by now."""
    return any(
        fault == FAULT_MISSING and part.kind in parts.PART_SCHEMAS and part.path.exists()
        for part, fault in chain.faults.items()
    )


def _connect(root: Path, listing: parts.Listing, proofs: Mapping[Part, Proof]) -> Chain:
    """Follow the links from the heads of a listing.

    Raises:
        FileNotFoundError: a seal was removed.
    """
    links: dict[str, Link] = {}
    for part, (_, link) in proofs.items():
        if link:
            # A part that was only renamed counts under its original name.
            links[parts.own_name(part, link)] = link
    # The number of a cache is also trusted if a head reaches a part of that cache.
    reached = _reachable(listing.heads, links, {})
    caches = listing.caches | {links[name].cache for name in reached if name in links}

    def is_known(cache: str) -> bool:
        return not caches or cache in caches or parts.origin(root, cache).exists()

    own_seals = []
    for part in proofs:
        seal_link = links.get(part.path.name)
        if part.kind == "seals" and seal_link and is_known(seal_link.cache):
            own_seals.append(part)
    fates = _read_fates(own_seals)
    expected = _reachable(listing.heads, links, fates)
    faults = {part: fault for part, (fault, _) in proofs.items()}
    for name in sorted(expected - {part.path.name for part in proofs}):
        missing = parts.part_named(root, name)
        if missing:
            faults[missing] = FAULT_MISSING
    loose = []
    for part, (fault, link) in proofs.items():
        name = part.path.name
        if fault or not link or name in expected:
            continue
        if fates.get(name) == FATE_MERGED or is_known(link.cache):
            loose.append(name)
        else:
            faults[part] = FAULT_FOREIGN
    return Chain(faults, loose, fates, listing.heads)


def _reachable(
    heads: Iterable[str], links: Mapping[str, Link], fates: Mapping[str, str]
) -> set[str]:
    """Return the names of the commits that must exist, according to heads, parts and seals.

    The links of a part that a seal names are not followed: the seal names those parts as well.

    Args:
        heads: names of the open ends.
        links: what sound parts say of themselves, by name.
        fates: what the seals say of parts, by name.
    """
    names = set[str]()
    todo = [*heads, *fates]
    while todo:
        name = todo.pop()
        if name in names or fates.get(name, FATE_PRESENT) != FATE_PRESENT:
            continue
        names.add(name)
        link = links.get(name)
        if link and name not in fates:
            todo += link.after
    return names


def _read_fates(seals: Iterable[Part]) -> dict[str, str]:
    """Return what the seals say together; a later seal overrides an earlier one.

    A damaged seal is skipped here; it is among the chain's faults.

    Raises:
        FileNotFoundError: a seal was removed.
    """
    fates: dict[str, str] = {}
    for seal_part in sorted(seals, key=lambda part: part.path.name):
        try:
            with pq.ParquetFile(seal_part.path) as file:
                rows = file.read(parts.SEALS_SCHEMA.names, use_threads=False).to_pydict()
            fates |= {name: fate for name, fate in zip(*rows.values(), strict=True) if name}
        except FileNotFoundError:
            raise
        except parts.PARQUET_ERRORS as error:
            parts.require_damage(error, seal_part.path)
    return fates


def sound_parts(root: Path) -> list[Part]:
    """Return the parts that hold rows, in name order, of a cache that is sound.

    Raises:
        NoCache: nothing has been collected at `root`.
        DamagedPart: a part is damaged or missing.
        CacheError: a part was written by a newer version, or the folder keeps changing.
    """
    return sound_chain(root).sound(*parts.ROW_SCHEMAS)


def sound_chain(root: Path, record: HashRecord | None = None) -> Chain:
    """Return the chain of a cache, and require it to be sound.

    Every byte is hashed, every schema is compared and every link is followed.

    Args:
        root: the cache's folder.
        record: files that need not be hashed again; it is updated and saved.

    Raises:
        NoCache: nothing has been collected at `root`.
        DamagedPart: a part is damaged or missing.
        CacheError: a part was written by a newer version, or the folder keeps changing.
    """
    chain = examine(root, record=record)
    if record:
        record.save()
    faults = [(part.path.name, fault) for part, fault in chain.faults.items() if fault]
    if faults:
        name, fault = faults[0]
        others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        remedy = "bring it back, or give it up" if fault == FAULT_MISSING else "move it aside"
        raise DamagedPart(
            f"damaged part{others}: {name}: {fault}; "
            f"{remedy} with `hierrouter cache repair --cache {root}`"
        )
    return chain


def seal(root: Path, fates: Mapping[str, str], on_step: OnStep = no_steps) -> None:
    """Commit a seal.

    Args:
        root: the cache's folder.
        fates: what became of parts, by name: one of the constants FATE_...
        on_step: called with the milestones of the commit.

    Raises:
        CacheError: no sequence number is left for a part.
        WorldError: the disk is full or failed; the seal is not committed.
    """
    names = sorted(fates)
    table = pa.table([names, [fates[name] for name in names]], schema=parts.SEALS_SCHEMA)
    append_part(root, "seals", table, secrets.token_hex(4), on_step)


def seal_loose(root: Path) -> None:
    """Take the parts that a crash or a copy left outside of the chain into it, without hashing.

    Shards may be at work, but no compaction. Parts that a pull has copied and not settled yet are
    left to that pull.

    Raises:
        CacheError: the list of arrivals cannot be read, a part was written by a newer version, the
            folder keeps changing, or no sequence number is left.
        WorldError: the disk is full or failed.
    """
    loose = set(glance(root).loose).difference(arrivals(root))
    existing = [name for name in loose if (parts.parts_folder(root) / name).exists()]
    if existing:
        seal(root, dict.fromkeys(existing, FATE_PRESENT))


def glance(root: Path) -> Chain:
    """Return `examine` of a cache without hashing; an empty chain if nothing was collected.

    Raises:
        CacheError: a part was written by a newer version, or the folder keeps changing.
    """
    try:
        return examine(root, hashed=False)
    except NoCache:
        return Chain({}, [], {}, ())


def arrivals(root: Path) -> list[str]:
    """Return the names of the parts that a pull copies, or copied until it was killed.

    Raises:
        CacheError: the list of arrivals cannot be read.
    """
    try:
        names = json.loads((root / ARRIVALS_FILE).read_bytes())
        return [name for name in names if parts.part_named(root, name)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CacheError(
            f"not readable: {root / ARRIVALS_FILE}: not written by this program; remove it"
        ) from error

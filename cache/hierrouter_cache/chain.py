"""The parts of a cache as a chain of commits: whether each one that must be there is there.

A part names the commits that were open ends when it was written, and an empty head file names each
commit that nobody has named yet. So from the heads every commit is reached. A seal is a commit that
says of other parts that they belong here, or what has become of them. See docs/cache.md.
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
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
from hierrouter_cache.writer import Steps, append_part, no_steps, writable, write_derived

TRIES = 100  # how often a listing is taken again while others change the folder
ARRIVING = "pull.json"  # below the cache: names of parts that are copied and not judged yet
QUARANTINE = "quarantine"  # below the cache: files that `cache repair` moved aside
FIRST = "00000000"  # the writer in a merged part's name: sorts before every other one
# What a seal says of a part. All but the first are gone, or may go.
HERE, MERGED, DAMAGED, MISSING, STRANGE = "here", "merged", "damaged", "missing", "foreign"
LOST = "missing: later commits name it"
FOREIGN = "written by another cache, and no pull brought it"
HASHED = "hashed.json"  # in the folder of what is derived: see `Hashed`
SETTLED = 2 * 10**9  # ns; a file changed twice within a tick of its clock may look the same
MAX_NOTES = 1 << 28  # bytes

Found = Mapping[Part, tuple[str | None, Link | None]]  # as `parts.proof` of each part


@dataclass(frozen=True)
class Chain:
    """What lies in a cache.

    Attributes:
        faults: every part, seals too, in name order, and what is wrong with it; after them each
            part that must be there and is not.
        loose: names of sound parts that no head reaches: a crash came between part and head, a
            copy is under way, or they were merged and are here still or again.
        heads: names of the commits that nobody names.
    """

    faults: Mapping[Part, str | None]
    loose: Sequence[str]
    fates: Mapping[str, str]
    heads: tuple[str, ...]

    def sound(self, *kinds: str) -> list[Part]:
        """The sound parts of these kinds, in name order."""
        return [part for part, why in self.faults.items() if not why and part.kind in kinds]

    @property
    def lost_plan(self) -> str | None:
        """The name of a plan that was given up and was the latest one, or None.

        Until it is written again, what was asked for last is not known.
        """
        latest = max((part.path.name for part in self.sound("plans")), default="")
        given_up = [name for name, fate in self.fates.items() if fate in (DAMAGED, MISSING)]
        beyond = f"plans-{parts.MAX_SEQ + 1}"  # was never written here
        lost = max((name for name in given_up if "plans-" <= name < beyond), default="")
        return lost if lost > latest else None


class Hashed:
    """Which files were hashed whole, and have not changed since as far as the system can tell.

    That is by size, inode, and times of change to the nanosecond; a copy is hashed again.

    Args:
        root: the cache.
        folder: where this is noted, below it; what cannot be read there was never noted.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._file = root, folder / HASHED
        self._then, self._now = dict[str, list[Any]](), dict[str, list[Any]]()
        with suppress(OSError, ValueError, RecursionError, InputError):
            data = read_small(self._file, MAX_NOTES)
            found = json.loads(data[16:]) if data[:16] == sha16(data[16:]).encode() else {}
            self._then = found if isinstance(found, dict) else {}

    def told(self, path: Path) -> tuple[list[int], Any]:
        """(what the system tells of a file, what was noted of it); None where it is to be hashed.

        Ask before it is hashed. Raises OSError: it is not there.
        """
        found = os.lstat(path)
        seen = [found.st_size, found.st_ino, found.st_ctime_ns, found.st_mtime_ns]
        noted = self._then.get(path.name)
        if noted is None or noted[0] != seen:
            return seen, None
        self._now[path.name] = noted
        return seen, noted[1]

    def add(self, path: Path, seen: list[int], note: Any) -> None:
        """Note that this file was hashed and is sound; `seen`: as it was told before."""
        if time.time_ns() - seen[-1] > SETTLED:
            self._now[path.name] = [seen, note]

    def save(self) -> None:
        """Keep what was noted, of no other files than these; where that fails, nothing is lost."""
        if self._now == self._then or not writable(self._root):
            return
        data = json.dumps(self._now).encode()
        with suppress(OSError, WorldError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_derived(self._root, self._file, [sha16(data).encode(), data])


def _proof(part: Part, noted: Hashed) -> tuple[str | None, Link | None]:
    """As `parts.proof`, without hashing what was hashed and has not changed."""
    try:
        seen, told = noted.told(part.path)
    except OSError:  # whose name is proof's to find
        return parts.proof(part)
    if told:
        return None, Link(**{**told, "after": tuple(told["after"])})
    why, link = parts.proof(part)
    if link and not why:
        noted.add(part.path, seen, asdict(link))
    return why, link


def examine(root: Path, hashed: bool = True, noted: Hashed | None = None) -> Chain:
    """Look at every part, after hashing all bytes, and at what connects them.

    Readers take no lock, so a compaction may replace parts meanwhile. One listing can miss a merged
    part that appears behind its back and also the parts that were merged into it. A merged part
    appears before they vanish; so if the next listing still has everything that the first one had,
    it has missed nothing, and it has all that the heads of the first one reach. Only a seal in it
    may name a merged part that came too late for it. Raises NoCache: nothing has been collected at
    `root`; CacheError: a part of a newer version, or the folder does not come to rest.

    `hashed`: False to look at the files and footers of parts alone; `noted`: what need not be
    hashed.
    """
    known: Found = {}
    prove = partial(_proof, noted=noted) if noted else partial(parts.proof, hashed=hashed)
    before = parts.listing(root)
    for _ in range(TRIES):
        if not before.parts and not before.heads:
            raise parts.no_cache(root)
        seen = parts.listing(root)
        if set(before.parts) <= set(seen.parts):
            known = {part: known.get(part) or prove(part) for part in seen.parts}
            if all(why != parts.GONE for why, _ in known.values()):
                with suppress(FileNotFoundError):  # a seal was merged after it was hashed
                    chain = _connected(root, replace(seen, heads=before.heads), known)
                    lost = [part for part, why in chain.faults.items() if why == LOST]
                    if not any(part.kind in parts.SCHEMAS and part.path.exists() for part in lost):
                        return chain
            known = {part: found for part, found in known.items() if found[0] != parts.GONE}
        before = seen
    raise CacheError(f"the cache keeps changing: {root}; wait until `cache compact` is done")


def _connected(root: Path, seen: parts.Listing, found: Found) -> Chain:
    links = {  # also of a part that was only renamed, under its own name
        parts.own_name(part, link) if link else part.path.name: link
        for part, (why, link) in found.items()
        if link or not why
    }
    # A number that is not noted is known where a head reaches a part of it.
    reached = _wanted(seen.heads, links, {})
    caches = seen.caches | {link.cache for name in reached if (link := links.get(name))}

    def known(cache: str) -> bool:
        return not caches or cache in caches or parts.origin(root, cache).exists()

    seals = [part for part in found if part.kind == "seals"]
    ours = ((seal, links.get(seal.path.name)) for seal in seals)
    fates = _fates(seal for seal, link in ours if link and known(link.cache))
    wanted = _wanted(seen.heads, links, fates)
    faults = {part: why for part, (why, _) in found.items()}
    missing = wanted - {part.path.name for part in found}
    faults |= {part: LOST for name in sorted(missing) if (part := parts.part_named(root, name))}
    loose = list[str]()
    for part, (why, link) in found.items():
        name = part.path.name
        if why or not link or name in wanted:
            continue
        if fates.get(name) == MERGED or known(link.cache):
            loose.append(name)
        else:
            faults[part] = FOREIGN
    return Chain(faults, loose, fates, seen.heads)


def _wanted(
    heads: Iterable[str], links: Mapping[str, Link | None], fates: Mapping[str, str]
) -> set[str]:
    """Names of the commits that must be there, from what sound parts and seals say, by name.

    Behind a part that a seal names nothing is looked for: the seal has named that, too.
    """
    todo, found = [*heads, *fates], set()
    while todo:
        name = todo.pop()
        if name in found or fates.get(name, HERE) != HERE:
            continue
        found.add(name)
        link = links.get(name)
        if link and name not in fates:
            todo += link.after
    return found


def _fates(seals: Iterable[Part]) -> dict[str, str]:
    """What the seals say together, a later one knows better; a damaged one says nothing."""
    fates: dict[str, str] = {}
    for seal in sorted(seals, key=lambda part: part.path.name):
        try:
            with pq.ParquetFile(seal.path) as file:
                rows = file.read(parts.SEALS.names, use_threads=False).to_pydict()
            fates |= {name: fate for name, fate in zip(*rows.values(), strict=True) if name}
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            parts.require_damage(error, seal.path)
    return fates


def sound_parts(root: Path) -> list[Part]:
    """The parts that hold rows, in name order; raises as `sound_chain`."""
    return sound_chain(root).sound(*parts.KINDS)


def sound_chain(root: Path, noted: Hashed | None = None) -> Chain:
    """The cache, after every byte has been hashed, every schema compared and every link followed.

    With `noted`, but for what was hashed before.

    Raises NoCache: nothing has been collected at `root`; DamagedPart: at least one part is not what
    its name promises, or is missing; CacheError: as `examine`.
    """
    found = examine(root, noted=noted)
    if noted:
        noted.save()
    faults = [(part.path.name, why) for part, why in found.faults.items() if why]
    if faults:
        name, why = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        remedy = "bring it back, or give it up" if why == LOST else "move it aside"
        raise DamagedPart(
            f"damaged part{more}: {name}: {why}; "
            f"{remedy} with `hierrouter cache repair --cache {root}`"
        )
    return found


def seal(root: Path, fates: Mapping[str, str], on_step: Steps = no_steps) -> None:
    """Commit what became of these parts; raises as `PartWriter.append`."""
    names = sorted(fates)
    table = pa.table([names, [fates[name] for name in names]], schema=parts.SEALS)
    append_part(root, "seals", table, secrets.token_hex(4), on_step)


def seal_loose(root: Path) -> None:
    """Take into the chain what a crash or a copy has left beside it; nothing is hashed.

    Shards may be at work, but no compaction. What a pull has brought and not judged yet is left to
    it. Raises as `PartWriter.append`, `arrivals` and `examine`.
    """
    loose = set(glance(root).loose).difference(arrivals(root))
    if due := [name for name in loose if (parts.parts_folder(root) / name).exists()]:
        seal(root, dict.fromkeys(due, HERE))


def glance(root: Path) -> Chain:
    """As `examine`, but nothing is hashed, and where nothing was collected nothing is found."""
    try:
        return examine(root, hashed=False)
    except NoCache:
        return Chain({}, [], {}, ())


def arrivals(root: Path) -> list[str]:
    """Names of the parts that a pull copies, or copied until it was killed.

    Raises CacheError: what was noted cannot be read.
    """
    try:
        names = json.loads((root / ARRIVING).read_bytes())
        return [name for name in names if parts.part_named(root, name)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CacheError(
            f"not readable: {root / ARRIVING}: not written by this program; remove it"
        ) from error

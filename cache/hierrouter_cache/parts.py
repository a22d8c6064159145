"""Immutable parts: their names, and proof of their bytes.

`<kind>-<seq>-<writer>-r<rows>-<sha256[:16]>.parquet` says everything needed to check a part:
how many rows it has and what its bytes hash to. Readers match that pattern and ignore strangers.
`seq` is a Lamport counter, so no clock decides anything. Not covered: writing (`writer`) and what
the rows mean (`reader`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import CacheError, DamagedPart, NoCache
from hierrouter_cache.schema import FORMAT, KINDS, mismatch

NAME = re.compile(
    r"(?P<kind>[a-z]+)-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})"
    r"-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.parquet"
)
METADATA_KEY = b"hierrouter"
# Far beyond a part that `collect` writes; a file that declares more is not one of ours.
MAX_ROWS = 50_000_000


@dataclass(frozen=True)
class Part:
    """One file of the cache, as its name describes it."""

    path: Path
    kind: str
    seq: int
    rows: int
    sha: str


def parts_folder(root: Path) -> Path:
    """Where the parts of the cache at `root` lie."""
    return root / "parts"


def list_parts(root: Path) -> list[Part]:
    """All parts of a cache, in name order; the smallest name wins a duplicate row.

    Raises:
        NoCache: `root` holds no parts.
    """
    folder = parts_folder(root)
    found = []
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            match = NAME.fullmatch(path.name)
            if match and match["kind"] in KINDS:
                found.append(
                    Part(path, match["kind"], int(match["seq"]), int(match["rows"]), match["sha"])
                )
    if not found:
        raise NoCache(f"no cache: {root}; make one with `hierrouter collect --cache {root}`")
    return found


def sha16(data: bytes | memoryview) -> str:
    """The 16 hexadecimal digits of the content hash in a part's name."""
    return hashlib.sha256(data).hexdigest()[:16]


def fault(part: Part) -> str | None:
    """What is wrong with a part's bytes, or None.

    Raises:
        CacheError: the part is sound but was written by a newer version.
    """
    if part.path.is_symlink() or not part.path.is_file():
        return "not a regular file"
    if part.path.stat().st_size == 0:
        return "0 bytes"
    with part.path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest()[:16] != part.sha:
            return "checksum mismatch"
    try:
        footer = pq.read_metadata(part.path)
        schema = footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        return f"not readable as Parquet ({str(error).splitlines()[0][:80]})"
    header = json.loads((footer.metadata or {}).get(METADATA_KEY, b"{}"))
    if header.get("format", 0) > FORMAT:
        raise CacheError(
            f"cache written by a newer version (format {header['format']} > {FORMAT}): "
            f"{part.path.name}; upgrade hierrouter"
        )
    if footer.num_rows != part.rows or part.rows > MAX_ROWS:
        return f"{footer.num_rows} rows, its name says {part.rows}"
    return mismatch(schema, KINDS[part.kind])


def sound_parts(root: Path) -> list[Part]:
    """All parts after every byte has been hashed and every schema compared.

    Raises:
        NoCache: nothing has been collected at `root`.
        DamagedPart: at least one part is not what its name promises.
    """
    parts = list_parts(root)
    faults = [(part, why) for part in parts if (why := fault(part))]
    if faults:
        part, why = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise DamagedPart(
            f"damaged part{more}: {part.path.name}: {why}; "
            f"move it aside with `hierrouter cache repair --cache {root}`"
        )
    return parts

"""Immutable parts: columns, names, and proof of their bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import CacheError, DamagedPart, NoCache, reason_of

FORMAT = 1
METADATA_KEY = b"hierrouter"
NAME = re.compile(
    r"(?P<kind>[a-z]+)-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})"
    r"-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.parquet"
)
# Far beyond a part that is written here; a file that declares more is not one of ours.
MAX_ROWS = 2_000_000
TOO_MANY = f"{{:,}} rows, the limit is {MAX_ROWS:,}"
# `fault` of a part that is not there any more: moved aside, or merged into another one.
GONE = "the file is gone"
BATCH = 1024  # rows read together
TRIES = 100  # how often a listing is taken again while others change the folder

CHOICES = pa.list_(pa.struct([("label", pa.string()), ("text", pa.string())]))

CALLS = pa.schema(
    [
        ("key", pa.string()),  # call_key(step, context)
        ("step", pa.string()),  # step_key: model, generation settings, instruction
        ("context", pa.string()),  # what the model saw: question and earlier responses
        ("outcome", pa.string()),  # the context after this response
        ("model", pa.string()),  # the model's name in the pool, for people
        ("prompt", pa.string()),  # the user message: the evidence for the key
        ("response", pa.string()),
        ("tokens_in", pa.int32()),  # by the model's own tokenizer, chat template included
        ("tokens_out", pa.int32()),  # generated tokens, the end token included
        ("finish_reason", pa.string()),  # "stop", "length", or "unknown" after an import
        ("latency_s", pa.float64()),  # of the batch, shared equally by its rows; null if imported
    ]
)
QUERIES = pa.schema(
    [
        ("query", pa.string()),  # digest of everything below
        ("context", pa.string()),  # root context, the digest of the question
        ("references", pa.string()),  # digest of the answers and choices
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),  # train, validation or test
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("choices", CHOICES),  # what the question offers, in its order; null where nothing
    ]
)
# Columns that parts of earlier versions lack, by kind, with their types in SQL.
ADDED = {"queries": {"choices": "STRUCT(label VARCHAR, text VARCHAR)[]"}}
SCORES = pa.schema(
    [
        ("call", pa.string()),
        ("references", pa.string()),
        ("scorer", pa.string()),
        ("value", pa.float64()),  # in [0, 1]
    ]
)
PLANS = pa.schema(
    [
        ("plan", pa.string()),  # digest of the two columns below
        ("pool", pa.string()),  # JSON: models with identities and rates, hops, instructions
        ("queries", pa.list_(pa.string())),
    ]
)
FAILURES = pa.schema(
    [
        ("key", pa.string()),  # of the call that was wanted
        ("step", pa.string()),
        ("context", pa.string()),
        ("model", pa.string()),
        ("status", pa.string()),  # a word, such as "too_long" or "filtered"
        ("detail", pa.string()),
        ("attempts", pa.int32()),
    ]
)
KINDS = {
    "calls": CALLS,
    "queries": QUERIES,
    "scores": SCORES,
    "plans": PLANS,
    "failures": FAILURES,
}
# Columns that may be null: where an import does not know it, or there are none.
NULLABLE = ("latency_s", "choices")
# The columns that name a row: of several rows with the same ones, the first is served.
IDENTITY = {
    "calls": ("key",),
    "queries": ("query",),
    "scores": ("call", "references", "scorer"),
    "plans": ("plan",),
    "failures": ("key",),
}
# Kinds of which the last row is served: what was asked for, and what went wrong, most recently.
LAST_WINS = ("plans", "failures")


def mismatch(found: pa.Schema, kind: str) -> str | None:
    """What is wrong with the columns of a part of this kind, or None. Further ones are allowed."""
    for field in KINDS[kind]:
        index = found.get_field_index(field.name)
        if index < 0:
            if field.name in ADDED.get(kind, {}):
                continue
            return f"column {field.name} is missing"
        if found.field(index).type != field.type:
            return f"column {field.name} has type {found.field(index).type}, not {field.type}"
    return None


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


def quarantine_folder(root: Path) -> Path:
    """Where damaged files of the cache at `root` are moved to."""
    return root / "quarantine"


def part_name(kind: str, seq: int, writer: str, rows: int, data: bytes | memoryview) -> str:
    """The name of a part with these bytes; `writer` is 8 hexadecimal digits."""
    return f"{kind}-{seq:08d}-{writer}-r{rows}-{sha16(data)}.parquet"


def list_parts(root: Path) -> list[Part]:
    """All parts of a cache, in name order; the smallest name wins a duplicate row.

    Raises:
        NoCache: `root` holds no parts.
    """
    folder = parts_folder(root)
    found = [_part(folder, match) for _, match in _matches(folder)]
    if not found:
        raise NoCache(f"no cache: {root}; make one with `hierrouter collect --cache {root}`")
    return found


def part_named(root: Path, name: str) -> Part | None:
    """The part of this name, there or not yet; None where it is no part's name."""
    match = NAME.fullmatch(name)
    return match and _part(parts_folder(root), match)


def _part(folder: Path, match: re.Match[str]) -> Part:
    return Part(
        folder / match[0], match["kind"], int(match["seq"]), int(match["rows"]), match["sha"]
    )


def last_seq(root: Path) -> int:
    """The largest `seq` of the cache at `root`, 0 where there is no part.

    What was moved aside counts: what is written instead of it is later.
    """
    folders = (parts_folder(root), quarantine_folder(root))
    return max(
        (int(match["seq"]) for folder in folders for _, match in _matches(folder)), default=0
    )


def quarantined_plan(root: Path) -> str | None:
    """The name of a plan that was moved aside and was the latest one, or None.

    Until it is written again, what was asked for last is not known.
    """
    last = [
        max((name for name, match in _matches(folder) if match["kind"] == "plans"), default="")
        for folder in (parts_folder(root), quarantine_folder(root))
    ]
    return last[1] if last[1] > last[0] else None


def _matches(folder: Path) -> list[tuple[str, re.Match[str]]]:
    """(name, its fields) of each part of a known kind, in name order."""
    if not folder.is_dir():
        return []
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - ten times as fast at 500 parts
    except PermissionError as error:
        raise CacheError(f"no permission to read the cache: {folder}; ask its owner") from error
    matches = [(name, NAME.fullmatch(name)) for name in names]
    return [(name, match) for name, match in matches if match and match["kind"] in KINDS]


def sha16(data: bytes | memoryview) -> str:
    """The 16 hexadecimal digits of the content hash in a part's name."""
    return hashlib.sha256(data).hexdigest()[:16]


def file_sha16(path: Path) -> str:
    """`sha16` of a file's bytes, which are not held in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def fault(part: Part) -> str | None:
    """What is wrong with a part, `GONE` where it is not there any more, None where it is sound.

    Raises:
        CacheError: the part is sound but was written by a newer version.
    """
    try:
        if part.rows > MAX_ROWS:
            return TOO_MANY.format(part.rows)
        found = part.path.lstat()  # one look: the file may go at any time
        if not stat.S_ISREG(found.st_mode):
            return "not a regular file"
        if found.st_size == 0:
            return "0 bytes"
        if file_sha16(part.path) != part.sha:
            return "checksum mismatch"
        return _content_fault(part, part.path)
    except FileNotFoundError:
        return GONE
    except PermissionError as error:
        # Not damage: moved aside, its answers would be paid for again.
        raise CacheError(f"no permission to read a part: {part.path}; ask its owner") from error
    except (OSError, pa.ArrowException) as error:
        return f"not readable ({reason_of(error, 80)})"


def fault_of_bytes(part: Part, data: bytes) -> str | None:
    """What is wrong with the bytes of a part that is not there yet, or None.

    Raises:
        CacheError: as `fault`.
    """
    if part.rows > MAX_ROWS:
        return TOO_MANY.format(part.rows)
    if sha16(data) != part.sha:
        return "checksum mismatch"
    try:
        return _content_fault(part, pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        return f"not readable ({reason_of(error, 80)})"


def _content_fault(part: Part, where: Path | pa.BufferReader) -> str | None:
    """Are rows and columns those of its kind? Only the footer is read."""
    footer = pq.read_metadata(where)
    try:
        written = int(json.loads((footer.metadata or {}).get(METADATA_KEY, b"{}")).get("format", 0))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return "its format number is not readable"
    if written > FORMAT:
        raise CacheError(
            f"cache written by a newer version (format {written} > {FORMAT}): "
            f"{part.path.name}; upgrade hierrouter"
        )
    if footer.num_rows != part.rows:
        return f"{footer.num_rows} rows, its name says {part.rows}"
    return mismatch(footer.schema.to_arrow_schema(), part.kind)


def part_batches(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part in its kind's columns; memory does not grow with their number.

    A column that came later than the part is null.

    Raises:
        FileNotFoundError: a compaction has taken the part away.
    """
    schema = KINDS[part.kind]
    with pq.ParquetFile(part.path) as file:
        for batch in file.iter_batches(batch_size=BATCH, columns=schema.names):
            found = set(batch.schema.names)
            columns = [
                batch[field.name] if field.name in found else pa.nulls(len(batch), field.type)
                for field in schema
            ]
            yield pa.record_batch(columns, schema=schema)


def examine(root: Path) -> dict[Part, str | None]:
    """Every part and what is wrong with it, after hashing all bytes; in name order.

    Readers take no lock, so a compaction may replace parts meanwhile. Then the folder is listed
    again, and only what is new is hashed.

    Raises:
        NoCache: nothing has been collected at `root`.
        CacheError: a part of a newer version, or the folder does not come to rest.
    """
    known: dict[Part, str | None] = {}
    for _ in range(TRIES):
        parts = _whole_listing(root)
        known |= {part: fault(part) for part in parts if part not in known}
        if GONE not in (known[part] for part in parts):
            return {part: known[part] for part in parts}
        known = {part: why for part, why in known.items() if why != GONE}
    raise _restless(root)


def _whole_listing(root: Path) -> list[Part]:
    """A listing that holds every row that was committed before it began.

    One listing can miss a merged part that appears behind its back and also the parts that were
    merged into it. A merged part appears before they vanish; so if the next listing still has
    everything that the first one had, it has missed nothing.
    """
    before = list_parts(root)
    for _ in range(TRIES):
        parts = list_parts(root)
        if set(before) <= set(parts):
            return parts
        before = parts
    raise _restless(root)


def _restless(root: Path) -> CacheError:
    return CacheError(f"the cache keeps changing: {root}; wait until `cache compact` is done")


def sound_parts(root: Path) -> list[Part]:
    """All parts after every byte has been hashed and every schema compared.

    Raises:
        NoCache: nothing has been collected at `root`.
        DamagedPart: at least one part is not what its name promises.
        CacheError: as `examine`.
    """
    found = examine(root)
    faults = [(part, why) for part, why in found.items() if why]
    if faults:
        part, why = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise DamagedPart(
            f"damaged part{more}: {part.path.name}: {why}; "
            f"move it aside with `hierrouter cache repair --cache {root}`"
        )
    return list(found)

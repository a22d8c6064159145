"""Immutable parts: columns, names, proof of their bytes, and what each one says of itself."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.errors import CacheError, NoCache, WorldError, reason_of

FORMAT = 2
METADATA_KEY = b"hierrouter"
NAME = re.compile(
    r"(?P<kind>[a-z]+)-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})"
    r"-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.parquet"
)
# An empty file: the cache of this number has written parts that lie here.
ORIGIN = re.compile(r"(?P<cache>[0-9a-f]{16})\.cache")
# Far beyond a part that is written here; a file that declares more is not one of ours.
MAX_ROWS = 2_000_000
TOO_MANY = f"{{:,}} rows, the limit is {MAX_ROWS:,}"
MAX_SEQ = 90_000_000  # so that what is committed later fits into the 8 digits of a name
# `fault` of a part that is not there any more: moved aside, or merged into another one.
GONE = "the file is gone"
ALTERED = "checksum mismatch"
# What reading a header may raise: whoever wrote it, it is JSON at best.
NO_HEADER = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
BATCH = 1024  # rows read together

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
        # How sure the model was: log-probabilities of the generated tokens, in nats; the number of
        # those that count, less than tokens_out where an engine leaves out the end token. Null
        # where it tells nothing.
        ("logprob_sum", pa.float64()),
        ("logprob_min", pa.float64()),
        ("logprob_tokens", pa.int32()),
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
ADDED = {
    "queries": {"choices": "STRUCT(label VARCHAR, text VARCHAR)[]"},
    "calls": {"logprob_sum": "DOUBLE", "logprob_min": "DOUBLE", "logprob_tokens": "INTEGER"},
}
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
DECISIONS = pa.schema(  # of an adaptive collection, on each call that it could make
    [
        ("key", pa.string()),
        ("step", pa.string()),
        ("context", pa.string()),
        ("model", pa.string()),
        ("made", pa.bool_()),  # whether it was to be made
        ("chance", pa.float64()),  # that it is the best one, at the alpha where that is likeliest
        ("alphas", pa.list_(pa.float64())),
    ]
)
KINDS = {
    "calls": CALLS,
    "queries": QUERIES,
    "scores": SCORES,
    "plans": PLANS,
    "failures": FAILURES,
    "decisions": DECISIONS,
}
SEALS = pa.schema(
    [
        ("part", pa.string()),  # the name of a part
        ("fate", pa.string()),  # what became of it: `chain.HERE` or why it may be gone
    ]
)
SCHEMAS = {**KINDS, "seals": SEALS}  # seals are commits of the cache itself, and no rows of it
# Columns that may be null: where an import does not know it, or there are none.
NULLABLE = ("latency_s", "choices", "logprob_sum", "logprob_min", "logprob_tokens")
# The columns that name a row: of several rows with the same ones, the first is served.
IDENTITY = {
    "calls": ("key",),
    "queries": ("query",),
    "scores": ("call", "references", "scorer"),
    "plans": ("plan",),
    "failures": ("key",),
    "decisions": ("key",),
}
# Kinds of which the last row is served: what was asked for, decided, and went wrong most recently.
LAST_WINS = ("plans", "failures", "decisions")


def mismatch(found: pa.Schema, kind: str) -> str | None:
    """What is wrong with the columns of a part of this kind, or None. Further ones are allowed."""
    for field in SCHEMAS[kind]:
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


@dataclass(frozen=True)
class Link:
    """What a part says of itself inside its hashed bytes."""

    kind: str
    seq: int
    writer: str
    cache: str  # number of the cache that it was written into
    after: tuple[str, ...]  # names of the commits that were open ends when it was written

    def header(self) -> bytes:
        """As it stands in the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()


@dataclass(frozen=True)
class Listing:
    """What lies in parts/, by names alone."""

    parts: tuple[Part, ...] = ()  # in name order; seals too, and heads of no commit
    heads: tuple[str, ...] = ()  # names of the commits that are open ends
    caches: frozenset[str] = frozenset()  # numbers of the caches that have written here


def parts_folder(root: Path) -> Path:
    """Where the parts of the cache at `root` lie."""
    return root / "parts"


def trees_folder(root: Path) -> Path:
    """Where the trees of the cache at `root` are kept, see `hierrouter_cache.kept`."""
    return root / "derived" / "trees"


def part_name(kind: str, seq: int, writer: str, rows: int, data: bytes | memoryview) -> str:
    """The name of a part with these bytes; `writer` is 8 hexadecimal digits."""
    return _name(kind, seq, writer, rows, sha16(data))


def _name(kind: str, seq: int, writer: str, rows: int, sha: str) -> str:
    return f"{kind}-{seq:08d}-{writer}-r{rows}-{sha}.parquet"


def own_name(part: Part, link: Link) -> str:
    """The name under which a part was written that says this of itself."""
    return _name(link.kind, link.seq, link.writer, part.rows, part.sha)


def list_parts(root: Path) -> list[Part]:
    """All parts of a cache, in name order; the smallest name wins a duplicate row.

    Raises NoCache: `root` holds no parts.
    """
    found = [part for part in listing(root).parts if part.kind in KINDS]
    if not found:
        raise no_cache(root)
    return found


def no_cache(root: Path) -> NoCache:
    """The error to raise where nothing was collected at `root`."""
    return NoCache(f"no cache: {root}; make one with `hierrouter collect --cache {root}`")


def listing(root: Path) -> Listing:
    """One look at parts/, empty where there is none; raises CacheError: no permission."""
    folder = parts_folder(root)
    if not folder.is_dir():
        return Listing()
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - ten times as fast at 500 parts
    except PermissionError as error:
        raise CacheError(f"no permission to read the cache: {folder}; ask its owner") from error
    matches = [match for name in names if (match := NAME.fullmatch(name))]
    heads = {name: f"{name[5:-9]}.parquet" for name in names if name.startswith("head-")}
    altered = [
        name
        for name, commit in heads.items()
        if name != head_name(commit) or not NAME.fullmatch(commit)
    ]
    return Listing(
        (
            *(_part(folder, match) for match in matches if match["kind"] in SCHEMAS),
            *(Part(folder / name, "head", 0, 0, "") for name in altered),
        ),
        tuple(commit for name, commit in heads.items() if name not in altered),
        frozenset(match["cache"] for name in names if (match := ORIGIN.fullmatch(name))),
    )


def head_name(commit: str) -> str:
    """The file that says that the part of this name is an open end."""
    return f"head-{commit.removesuffix('.parquet')}-{sha16(commit.encode())[:8]}"


def origin(root: Path, cache: str) -> Path:
    """The file that says that the cache of this number writes parts that lie here."""
    return parts_folder(root) / f"{cache}.cache"


def part_named(root: Path, name: str) -> Part | None:
    """The part of this name, there or not yet; None where it is no part's name."""
    match = NAME.fullmatch(name)
    return match and _part(parts_folder(root), match)


def _part(folder: Path, match: re.Match[str]) -> Part:
    return Part(
        folder / match[0], match["kind"], int(match["seq"]), int(match["rows"]), match["sha"]
    )


def sha16(data: bytes | memoryview) -> str:
    """The 16 hexadecimal digits of the content hash in a part's name."""
    return hashlib.sha256(data).hexdigest()[:16]


def file_sha16(path: Path) -> str:
    """`sha16` of a file's bytes, which are not held in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def proof(
    part: Part, data: bytes | None = None, hashed: bool = True
) -> tuple[str | None, Link | None]:
    """(what is wrong with a part, what it says of itself), after hashing every byte.

    The fault is `GONE` where it is not there any more, None where it is sound. Raises CacheError:
    the part is sound but was written by a newer version.

    `data`: its bytes, where it is not there yet; `hashed`: False to look at file and footer alone.
    """
    try:
        if part.rows > MAX_ROWS:
            return TOO_MANY.format(part.rows), None
        if data is not None:
            whole = sha16(data) == part.sha
            return _content(part, pa.BufferReader(data)) if whole else (ALTERED, None)
        found = part.path.lstat()  # one look: the file may go at any time
        if not stat.S_ISREG(found.st_mode):
            return "not a regular file", None
        if found.st_size == 0:
            return "0 bytes", None
        if hashed and file_sha16(part.path) != part.sha:
            return ALTERED, None
        return _content(part, part.path)
    except FileNotFoundError:
        return GONE, None
    except PermissionError as error:
        # Not damage: moved aside, its answers would be paid for again.
        raise CacheError(f"no permission to read a part: {part.path}; ask its owner") from error
    except (OSError, pa.ArrowException) as error:
        require_damage(error, part.path)
        return f"not readable ({reason_of(error, 80)})", None


def require_damage(error: BaseException, path: Path) -> None:
    """Tell bytes that are wrong from a system that did not give them: they may be sound.

    Raises WorldError: the system's error has a number, such as that of a disk or of memory.
    """
    if isinstance(error, OSError) and error.errno:
        raise WorldError(
            f"cannot read: {path}: {os.strerror(error.errno)}; look at the disk, run it again"
        ) from error


def link_of(where: Path | pa.BufferReader) -> Link | None:
    """What a part says of itself; None where it cannot be read."""
    try:
        return _header(pq.read_metadata(where))[1]
    except (*NO_HEADER, OSError, pa.ArrowException):
        return None


def _header(footer: pq.FileMetaData) -> tuple[int, Link | None]:
    """(format, what the part says of itself); raises one of `NO_HEADER` where it is none."""
    found = json.loads((footer.metadata or {}).get(METADATA_KEY, b"{}"))
    written = int(found.pop("format", 0))
    if written != FORMAT:
        return written, None
    link = Link(**found)
    names = [f"{link.seq:08d}", *link.after]
    if not all(map(NAME.fullmatch, names[1:])) or not ORIGIN.fullmatch(f"{link.cache}.cache"):
        raise ValueError("no names of parts")
    return written, replace(link, after=tuple(link.after))


def _content(part: Part, where: Path | pa.BufferReader) -> tuple[str | None, Link | None]:
    """(what is wrong with rows, columns or name, what it says of itself), from the footer alone."""
    footer = pq.read_metadata(where)
    try:
        written, link = _header(footer)
    except NO_HEADER:
        return "its format number is not readable", None
    if written > FORMAT:
        raise CacheError(
            f"cache written by a newer version (format {written} > {FORMAT}): "
            f"{part.path.name}; upgrade hierrouter"
        )
    if footer.num_rows != part.rows:
        return f"{footer.num_rows} rows, its name says {part.rows}", link
    if not link:
        return f"of format {written}, by an earlier version: collect again", None
    if (own := own_name(part, link)) != part.path.name:
        return f"renamed: it was written as {own}", link
    if part.seq > MAX_SEQ:
        return f"its number is above {MAX_SEQ:,}", link
    return mismatch(footer.schema.to_arrow_schema(), part.kind), link


def part_batches(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part in its kind's columns; memory does not grow with their number.

    A column that came later than the part is null. Raises FileNotFoundError: a compaction has taken
    the part away.
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

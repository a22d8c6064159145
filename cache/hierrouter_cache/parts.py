"""Immutable parts: columns, file names, hashes of their bytes, and what each says of itself."""

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

from hierrouter_cache.errors import CacheError, NoCache, WorldError, reason_of, require_free_files

PART_FORMAT = 2
METADATA_KEY = b"hierrouter"
PART_NAME_PATTERN = re.compile(
    r"(?P<kind>[a-z]+)-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})"
    r"-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.parquet"
)
# Name of an empty file: the cache of this number has written parts into this folder.
ORIGIN_NAME_PATTERN = re.compile(r"(?P<cache>[0-9a-f]{16})\.cache")
# Far more than this program writes into a part; a file that declares more is not from it.
MAX_PART_ROWS = 2_000_000
# Sequence numbers have 8 digits in a name; those above are left for parts that are committed later.
MAX_SEQ = 90_000_000
# Faults that `proof` returns.
FAULT_TOO_MANY_ROWS = f"{{:,}} rows, the limit is {MAX_PART_ROWS:,}"
FAULT_GONE = "the file is gone"  # moved aside, or merged into another part
FAULT_CHECKSUM = "checksum mismatch"
# Errors that a header may cause when it is read: other programs may have written it.
# What reading a damaged Parquet file raises; the last where the name of a column is no text.
PARQUET_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError)
HEADER_ERRORS = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
ROWS_PER_BATCH = 1024  # rows of a part that are read together

CHOICES_TYPE = pa.list_(pa.struct([("label", pa.string()), ("text", pa.string())]))

CALLS_SCHEMA = pa.schema(
    [
        ("key", pa.string()),  # call_key(step, context)
        ("step", pa.string()),  # step_key: model, generation settings, instruction
        ("context", pa.string()),  # what the model was given: question and earlier responses
        ("outcome", pa.string()),  # the context after this response
        ("model", pa.string()),  # the model's name in the pool, for people
        ("prompt", pa.string()),  # the user message: the evidence for the key
        ("response", pa.string()),
        ("tokens_in", pa.int32()),  # by the model's own tokenizer, chat template included
        ("tokens_out", pa.int32()),  # generated tokens, the end token included
        ("finish_reason", pa.string()),  # "stop", "length", or "unknown" after an import
        # An equal share of the time of all calls of a commit: how fast calls follow each other.
        # What one call took is in `seconds`. Null, or that of the file, if imported.
        ("latency_s", pa.float64()),
        # Confidence of the model: sum and minimum of the log-probabilities of the generated tokens,
        # in nats, and the number of these tokens, which is less than tokens_out if an engine leaves
        # out the end token. Null if the engine does not report them.
        ("logprob_sum", pa.float64()),
        ("logprob_min", pa.float64()),
        ("logprob_tokens", pa.int32()),
        # What the next call reads of the response, if the pool drops thoughts and there is one;
        # else null, and the next call reads the complete response.
        ("visible", pa.string()),
        # The call's own time. Of a server: from the request to the last byte of the reply. Of a
        # model on this machine: from the row's admission to a batch to its last token, the steps of
        # its companions included. Null in parts of earlier versions, which have `latency_s` alone.
        ("seconds", pa.float64()),
        ("first_token_s", pa.float64()),  # to the first token, if it was seen; else null
        # The bill as the server sends it, JSON, and what was read in it. `tokens_out` is what is
        # billed: with thoughts, also where a server counts them on top of its completion_tokens.
        ("usage", pa.string()),
        ("tokens_cached", pa.int32()),  # of tokens_in, read from the provider's cache
        ("tokens_thoughts", pa.int32()),  # of tokens_out, in a thought
        ("cost_given", pa.float64()),  # cost of the call as a server or an imported file states it
        ("kind", pa.string()),  # "refusal", "filtered" or "empty"; null for an answer
        # Of a judge's call, whose response is a verdict: the prompt with its fields not filled in,
        # the scale that it states, as "0 to 10", and the cost at the rates of that time. Null for
        # the calls of a pool.
        ("judge_template", pa.string()),
        ("judge_scale", pa.string()),
        ("judge_cost", pa.float64()),
    ]
)
QUERIES_SCHEMA = pa.schema(
    [
        ("query", pa.string()),  # digest of everything below
        ("context", pa.string()),  # root context, the digest of the question
        ("references", pa.string()),  # digest of the answers, choices and tests
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),  # train, validation or test
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("choices", CHOICES_TYPE),  # the choices that the question offers, in its order, or null
        ("tests", pa.list_(pa.string())),  # statements that judge a program, in order, or null
        ("answer_type", pa.string()),  # null if the look of the answers tells it
    ]
)
# Columns that parts of earlier versions lack, by kind, with their types in SQL.
LATER_COLUMNS = {
    "queries": {
        "choices": "STRUCT(label VARCHAR, text VARCHAR)[]",
        "tests": "VARCHAR[]",
        "answer_type": "VARCHAR",
    },
    "calls": {
        "logprob_sum": "DOUBLE",
        "logprob_min": "DOUBLE",
        "logprob_tokens": "INTEGER",
        "visible": "VARCHAR",
        "seconds": "DOUBLE",
        "first_token_s": "DOUBLE",
        "usage": "VARCHAR",
        "tokens_cached": "INTEGER",
        "tokens_thoughts": "INTEGER",
        "cost_given": "DOUBLE",
        "kind": "VARCHAR",
        "judge_template": "VARCHAR",
        "judge_scale": "VARCHAR",
        "judge_cost": "DOUBLE",
    },
    "failures": {"judge_template": "VARCHAR"},
    "scores": {"read_type": "VARCHAR", "read_start": "INTEGER", "read_end": "INTEGER"},
}
SCORES_SCHEMA = pa.schema(
    [
        ("call", pa.string()),
        ("references", pa.string()),
        ("scorer", pa.string()),
        ("value", pa.float64()),  # in [0, 1]
        # The answer that the scorer read: its type, and its span in the response; the span is null
        # if there is no answer, and all three if the scorer reads none, or an older version did.
        ("read_type", pa.string()),
        ("read_start", pa.int32()),
        ("read_end", pa.int32()),
    ]
)
PLANS_SCHEMA = pa.schema(
    [
        ("plan", pa.string()),  # digest of the two columns below
        ("pool", pa.string()),  # JSON: models with identities and rates, hops, instructions
        ("queries", pa.list_(pa.string())),
    ]
)
FAILURES_SCHEMA = pa.schema(
    [
        ("key", pa.string()),  # of the call that failed
        ("step", pa.string()),
        ("context", pa.string()),
        ("model", pa.string()),
        ("status", pa.string()),  # a word, such as "too_long" or "filtered"
        ("detail", pa.string()),
        ("attempts", pa.int32()),
        ("judge_template", pa.string()),  # of a judge's call, as in `calls`; else null
    ]
)
# Decisions of an adaptive collection, one for each call that it could make.
DECISIONS_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("step", pa.string()),
        ("context", pa.string()),
        ("model", pa.string()),
        ("made", pa.bool_()),  # whether the call was to be made
        ("chance", pa.float64()),  # that it is the best call, at the alpha that makes it largest
        ("alphas", pa.list_(pa.float64())),
    ]
)
# Schema of each kind of part that holds rows.
ROW_SCHEMAS = {
    "calls": CALLS_SCHEMA,
    "queries": QUERIES_SCHEMA,
    "scores": SCORES_SCHEMA,
    "plans": PLANS_SCHEMA,
    "failures": FAILURES_SCHEMA,
    "decisions": DECISIONS_SCHEMA,
}
SEALS_SCHEMA = pa.schema(
    [
        ("part", pa.string()),  # the name of a part
        ("fate", pa.string()),  # what became of it: a FATE_... of `chain`
    ]
)
# Schema of each kind of part. Seals are commits about other parts and hold no rows.
PART_SCHEMAS = {**ROW_SCHEMAS, "seals": SEALS_SCHEMA}
# Columns that may be null: an import does not know the value, or there is none.
NULLABLE_COLUMNS = ("latency_s", *(name for names in LATER_COLUMNS.values() for name in names))
# The columns that identify a row. Of several rows with the same identity the first is served.
IDENTITY_COLUMNS = {
    "calls": ("key",),
    "queries": ("query",),
    "scores": ("call", "references", "scorer"),
    "plans": ("plan",),
    "failures": ("key",),
    "decisions": ("key",),
}
# Kinds of which the last row is served instead: the latest plan, decision or failure counts.
LAST_WINS = ("plans", "failures", "decisions")


def schema_fault(schema: pa.Schema, kind: str) -> str | None:
    """Return what is wrong with the columns of a part of this kind, or None.

    Further columns are allowed: a later version may have added them.
    """
    for field in PART_SCHEMAS[kind]:
        index = schema.get_field_index(field.name)
        if index < 0:
            if field.name in LATER_COLUMNS.get(kind, {}):
                continue
            return f"column {field.name} is missing"
        if schema.field(index).type != field.type:
            return f"column {field.name} has type {schema.field(index).type}, not {field.type}"
    return None


@dataclass(frozen=True)
class Part:
    """One file of the cache, as its name describes it.

    Attributes:
        path: the file.
        kind: a key of `PART_SCHEMAS`; "head" for a head file that names no commit.
        seq: sequence number; it orders the parts of a kind.
        rows: number of rows.
        sha: first 16 hexadecimal digits of the SHA-256 of its bytes.
    """

    path: Path
    kind: str
    seq: int
    rows: int
    sha: str


@dataclass(frozen=True)
class Link:
    """Header of a part: its name, and its predecessors in the chain.

    Attributes:
        kind: a key of `PART_SCHEMAS`.
        seq: its sequence number.
        writer: 8 hexadecimal digits, the writer in its name.
        cache: number of the cache that it was written into.
        after: names of the commits that were open ends of the chain when it was written.
    """

    # The names of these fields are stored in each part.
    kind: str
    seq: int
    writer: str
    cache: str
    after: tuple[str, ...]

    def header(self) -> bytes:
        """Return the header as it is stored in the file, JSON."""
        return json.dumps({"format": PART_FORMAT, **asdict(self)}).encode()


@dataclass(frozen=True)
class Listing:
    """The contents of parts/, judged by file names alone.

    Attributes:
        parts: in name order; seals are included, and heads that name no commit come last.
        heads: names of the commits that are open ends of the chain.
        caches: numbers of the caches that have written into this folder.
    """

    parts: tuple[Part, ...] = ()
    heads: tuple[str, ...] = ()
    caches: frozenset[str] = frozenset()


def parts_folder(root: Path) -> Path:
    """Return the folder of the parts of the cache at `root`."""
    return root / "parts"


def trees_folder(root: Path) -> Path:
    """Return the folder of the saved trees of the cache at `root`, see `saved_trees`."""
    return root / "derived" / "trees"


def part_name(kind: str, seq: int, writer: str, rows: int, data: bytes | memoryview) -> str:
    """Return the file name of a part.

    Args:
        kind: a key of `PART_SCHEMAS`.
        seq: its sequence number.
        writer: 8 hexadecimal digits.
        rows: number of rows.
        data: its bytes.
    """
    return _name_with_sha(kind, seq, writer, rows, sha16(data))


def _name_with_sha(kind: str, seq: int, writer: str, rows: int, sha: str) -> str:
    return f"{kind}-{seq:08d}-{writer}-r{rows}-{sha}.parquet"


def own_name(part: Part, link: Link) -> str:
    """Return the name under which a part was written, according to its own header."""
    return _name_with_sha(link.kind, link.seq, link.writer, part.rows, part.sha)


def list_parts(root: Path) -> list[Part]:
    """Return all parts of a cache that hold rows, in name order.

    If two parts hold the same row, the part with the smaller name wins.

    Raises:
        NoCache: `root` holds no parts.
        CacheError: no permission to read the folder.
    """
    parts = [part for part in listing(root).parts if part.kind in ROW_SCHEMAS]
    if not parts:
        raise no_cache_error(root)
    return parts


def no_cache_error(root: Path) -> NoCache:
    """Return the error to raise if nothing was collected at `root`."""
    return NoCache(f"no cache: {root}; make one with `hierrouter collect --cache {root}`")


def listing(root: Path) -> Listing:
    """List parts/ once; the listing is empty if the folder does not exist.

    Raises:
        CacheError: no permission to read the folder.
    """
    folder = parts_folder(root)
    if not folder.is_dir():
        return Listing()
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - ten times as fast at 500 parts
    except PermissionError as error:
        raise CacheError(f"no permission to read the cache: {folder}; ask its owner") from error
    parts = []
    heads = []
    invalid_heads = []
    caches = set()
    for name in names:
        if name.startswith("head-"):
            commit = f"{name[5:-9]}.parquet"  # without the dash and 8 digits of `head_name`
            if name == head_name(commit) and PART_NAME_PATTERN.fullmatch(commit):
                heads.append(commit)
            else:
                invalid_heads.append(Part(folder / name, "head", 0, 0, ""))
        elif match := PART_NAME_PATTERN.fullmatch(name):
            if match["kind"] in PART_SCHEMAS:
                parts.append(_part_of_match(folder, match))
        elif match := ORIGIN_NAME_PATTERN.fullmatch(name):
            caches.add(match["cache"])
    return Listing((*parts, *invalid_heads), tuple(heads), frozenset(caches))


def head_name(commit: str) -> str:
    """Return the name of the file that marks a part as an open end of the chain.

    Args:
        commit: the part's name.
    """
    return f"head-{commit.removesuffix('.parquet')}-{sha16(commit.encode())[:8]}"


def origin(root: Path, cache: str) -> Path:
    """Return the file that says that the cache of this number has written into parts/."""
    return parts_folder(root) / f"{cache}.cache"


def part_named(root: Path, name: str) -> Part | None:
    """Return the part of this name, whether it exists or not; None if it is no part's name."""
    match = PART_NAME_PATTERN.fullmatch(name)
    return match and _part_of_match(parts_folder(root), match)


def _part_of_match(folder: Path, match: re.Match[str]) -> Part:
    return Part(
        folder / match[0], match["kind"], int(match["seq"]), int(match["rows"]), match["sha"]
    )


def sha16(data: bytes | memoryview) -> str:
    """Return the 16 hexadecimal digits of the content hash in a part's name."""
    return hashlib.sha256(data).hexdigest()[:16]


def file_sha16(path: Path) -> str:
    """Return `sha16` of a file's bytes without holding them in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def proof(
    part: Part, data: bytes | None = None, hashed: bool = True
) -> tuple[str | None, Link | None]:
    """Check a part, and read its header.

    Args:
        part: the part.
        data: its bytes, if it is not on this disk yet.
        hashed: whether to hash every byte; if not, only the file and its footer are read.

    Returns:
        (what is wrong with it, what it says of itself). The fault is None if the part is sound,
        and `FAULT_GONE` if the file does not exist any more.

    A link counts as the file that it leads to: tools that fetch data sets keep the bytes elsewhere,
    and the hash tells whether they are the part's.

    Raises:
        CacheError: the part is sound, but was written by a newer version; or there is no
            permission to read it; or it is a link to a file that is not here.
        WorldError: the disk failed.
    """
    try:
        if part.rows > MAX_PART_ROWS:
            return FAULT_TOO_MANY_ROWS.format(part.rows), None
        if data is not None:
            if sha16(data) != part.sha:
                return FAULT_CHECKSUM, None
            return _check_content(part, pa.BufferReader(data))
        status = part.path.stat()  # only once: the file may disappear between two calls
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file", None
        if status.st_size == 0:
            return "0 bytes", None
        if hashed and file_sha16(part.path) != part.sha:
            return FAULT_CHECKSUM, None
        return _check_content(part, part.path)
    except FileNotFoundError:
        require_linked_file(part.path)
        return FAULT_GONE, None
    except PermissionError as error:
        # This is no damage: if the part were moved aside, its calls would be paid for again.
        raise CacheError(f"no permission to read a part: {part.path}; ask its owner") from error
    except PARQUET_ERRORS as error:
        require_damage(error, part.path)
        return f"not readable ({reason_of(error, 80)})", None


def require_linked_file(path: Path) -> None:
    """Refuse a link to a file that is not here: no damage, the tool that made it can fetch that.

    Args:
        path: a file that cannot be opened because it does not exist.

    Raises:
        CacheError: it is such a link.
    """
    if path.is_symlink():
        raise CacheError(
            f"a link leads to a file that is not here: {path}; fetch that file with the tool that "
            "made the link, or copy the cache anew with cp -L"
        )


def require_damage(error: BaseException, path: Path) -> None:
    """Tell wrong bytes from a system that failed to read bytes; these may then be sound.

    Args:
        error: what reading the file raised.
        path: the file.

    Raises:
        WorldError: the error has a number of the system, such as that of a failed disk; or too many
            files are open.
    """
    require_free_files(error)
    if isinstance(error, OSError) and error.errno:
        raise WorldError(
            f"cannot read: {path}: {os.strerror(error.errno)}; look at the disk, run it again"
        ) from error


def link_of(source: Path | pa.BufferReader) -> Link | None:
    """Return what a part says of itself; None if its header cannot be read.

    Args:
        source: its file, or its bytes.
    """
    try:
        return _read_header(pq.read_metadata(source))[1]
    except (*HEADER_ERRORS, *PARQUET_ERRORS):
        return None


def _read_header(footer: pq.FileMetaData) -> tuple[int, Link | None]:
    """Return (format, what the part says of itself); the latter is None for another format.

    Raises:
        ValueError: the header is not one of a part; or another one of `HEADER_ERRORS`.
    """
    fields = json.loads((footer.metadata or {}).get(METADATA_KEY, b"{}"))
    part_format = int(fields.pop("format", 0))
    if part_format != PART_FORMAT:
        return part_format, None
    link = Link(**fields)
    format(link.seq, "08d")  # raises an error unless it is an integer
    has_part_names = all(map(PART_NAME_PATTERN.fullmatch, link.after))
    if not has_part_names or not ORIGIN_NAME_PATTERN.fullmatch(f"{link.cache}.cache"):
        raise ValueError("no names of parts")
    return part_format, replace(link, after=tuple(link.after))


def _check_content(part: Part, source: Path | pa.BufferReader) -> tuple[str | None, Link | None]:
    """Compare a part's footer with its name and with the columns of its kind.

    Returns:
        (what is wrong with it, what it says of itself).

    Raises:
        CacheError: it was written by a newer version.
    """
    footer = pq.read_metadata(source)
    try:
        part_format, link = _read_header(footer)
    except HEADER_ERRORS:
        return "its format number is not readable", None
    if part_format > PART_FORMAT:
        raise CacheError(
            f"cache written by a newer version (format {part_format} > {PART_FORMAT}): "
            f"{part.path.name}; upgrade hierrouter"
        )
    if footer.num_rows != part.rows:
        return f"{footer.num_rows} rows, its name says {part.rows}", link
    if not link:
        return f"of format {part_format}, by an earlier version: collect again", None
    original_name = own_name(part, link)
    if original_name != part.path.name:
        return f"renamed: it was written as {original_name}", link
    if part.seq > MAX_SEQ:
        return f"its number is above {MAX_SEQ:,}", link
    return schema_fault(footer.schema.to_arrow_schema(), part.kind), link


def part_batches(part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part in the columns of its kind.

    The memory used does not grow with the number of rows. A column that was introduced after the
    part was written is null.

    Raises:
        FileNotFoundError: a compaction has removed the part.
    """
    schema = ROW_SCHEMAS[part.kind]
    with pq.ParquetFile(part.path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=schema.names):
            stored_names = set(batch.schema.names)
            columns = []
            for field in schema:
                if field.name in stored_names:
                    columns.append(batch[field.name])
                else:
                    columns.append(pa.nulls(len(batch), field.type))
            yield pa.record_batch(columns, schema=schema)

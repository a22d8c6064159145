"""Export a whole cache as JSON lines, and import such a file."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from hierrouter.collection.plan import is_latest
from hierrouter.collection.storing import Merge, open_merge
from hierrouter.collection.tables import require_file
from hierrouter.declarations.declaration import OnTask, ignore_task
from hierrouter.pools.files import stored_pool
from hierrouter.questions.files import parse_object, raw_lines
from hierrouter_cache.errors import CacheError, DamagedPart, InputError
from hierrouter_cache.keys import row_fault
from hierrouter_cache.parts import (
    IDENTITY_COLUMNS,
    LAST_WINS,
    LATER_COLUMNS,
    ROW_SCHEMAS,
    part_batches,
)
from hierrouter_cache.reader import CacheReader, StoredPlan
from hierrouter_cache.writer import atomic_file

# By kind of line: the kind of rows in a cache.
LINE_KINDS = {
    "query": "queries",
    "call": "calls",
    "failure": "failures",
    "score": "scores",
    "decision": "decisions",
    "plan": "plans",
}
# Keys of lines for columns whose names are taken: `kind` says what row a line is.
LINE_KEYS = {"kind": "response_kind"}
HEADER_KIND = "cache"  # kind of the first line
LINES_FORMAT = 1
DIGEST_KEY = "sha256"  # in the first line
LINES_PER_REPORT = 1024  # between two calls of `on_progress`


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON in UTF-8."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _header(counts: Mapping[str, int], sha256: str) -> bytes:
    """The first line of a file: the lines of each kind, and the digest of all that follow."""
    return json_line({"kind": HEADER_KIND, "format": LINES_FORMAT, **counts, DIGEST_KEY: sha256})


def export_jsonl(root: Path, out: Path, on_progress: OnTask = ignore_task) -> Counter[str]:
    """Write all rows of a cache, each once.

    Args:
        root: the cache's folder.
        out: the file to make.
        on_progress: called with ("export", done, total).

    Returns:
        Number of rows, by kind.

    Raises:
        CacheError: there is no cache, it is damaged, or it was compacted meanwhile.
        WorldError: the disk is full or failed.
    """
    reader = CacheReader(root)
    counts = Counter(
        {kind: reader.number(f"SELECT count(*) FROM {kind}") for kind in LINE_KINDS.values()}  # noqa: S608 - our own names
    )
    total = hashlib.sha256()
    with atomic_file(out) as file:
        # A header of the right length, which is overwritten once the digest is known.
        file.write(_header(counts, total.hexdigest()))
        for done, line in enumerate(_lines(reader), start=1):
            total.update(line)
            file.write(line)
            if done % LINES_PER_REPORT == 0:
                on_progress("export", done, counts.total())
        file.seek(0)
        file.write(_header(counts, total.hexdigest()))
    return counts


def _lines(reader: CacheReader) -> Iterator[bytes]:
    """A line of each row, without the newer columns that are null.

    So a row that was written before such a column existed gives the same line as then.
    """
    for name, kind in LINE_KINDS.items():
        rows = _last_rows(reader, kind) if kind in LAST_WINS else _first_rows(reader, kind)
        added = LATER_COLUMNS.get(kind, {})
        try:
            for row in rows:
                values = {
                    LINE_KEYS.get(column, column): value
                    for column, value in row.items()
                    if value is not None or column not in added
                }
                yield json_line({"kind": name, **values})
        except (ValueError, pa.ArrowException) as error:  # not UTF-8, or no number
            raise DamagedPart(
                f"a row of {kind} that no line can hold: {reader.root}; not written by this "
                "program, find the part with `hierrouter verify`"
            ) from error


def _first_rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a kind, in the order of the parts; of rows with one identity the first.

    Only one batch of rows is in memory at a time.
    """
    identities: set[tuple[Any, ...]] = set()
    try:
        for part in (part for part in reader.parts if part.kind == kind):
            for batch in part_batches(part):
                for row in batch.to_pylist():
                    identity = tuple(row[name] for name in IDENTITY_COLUMNS[kind])
                    if identity not in identities:
                        identities.add(identity)
                        yield row
    except FileNotFoundError:
        raise CacheError(
            f"the cache was compacted meanwhile: {reader.root}; export it again"
        ) from None


def _last_rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a small kind, in the order of the parts; of rows with one identity the last."""
    names = ", ".join(f'"{name}"' for name in ROW_SCHEMAS[kind].names)
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in reversed(reader.sql(f"SELECT {names} FROM {kind}_rows").to_pylist()):  # noqa: S608 - our own names
        last.setdefault(tuple(row[name] for name in IDENTITY_COLUMNS[kind]), row)
    yield from reversed(last.values())


def import_jsonl(path: Path, root: Path, on_progress: OnTask = ignore_task) -> Merge:
    """Add the rows of an exported file to a cache.

    Args:
        path: the file.
        root: the cache's folder, made if it does not exist.
        on_progress: called with ("check" or "import", done, total).

    Returns:
        Counts of new and known rows.

    Raises:
        InputError: a bad line, or a file that ends early; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed; import again, no row is written twice.
    """
    # Check the whole file first, so that nothing of a bad one is written.
    for _ in _checked_rows(path, "check", on_progress):
        pass
    plans = []
    with open_merge(root) as merge:
        for kind, row in _checked_rows(path, "import", on_progress):
            if kind == "plans":
                plans.append(row)
            else:
                merge.add(kind, row)
        merge.flush()
        _add_plans(merge, plans)
    return merge


def read_header(path: Path) -> tuple[Counter[str], str | None]:
    """Read the first line of an exported file.

    Args:
        path: the file.

    Returns:
        (number of lines by kind of rows, sha256 of all lines that follow). The digest is None if
        the file has none, perhaps because it was written by hand.

    Raises:
        InputError: the file does not exist, or has no valid header.
    """
    require_file(path)
    number, first = next(raw_lines(path))
    where = f"{path}:{number}"
    line = parse_object(first, where)
    if line.get("kind") != HEADER_KIND:
        raise InputError(
            f'no header {{"kind": "{HEADER_KIND}", ...}}: {where}; is it another format?'
        )
    if line.get("format") != LINES_FORMAT:
        raise InputError(
            f"format {line.get('format')!r:.20}, this version reads {LINES_FORMAT}: {where}; update"
        )
    counts = {kind: line.get(kind) for kind in LINE_KINDS.values()}
    for kind, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InputError(f"{kind} must be a count, got {count!r:.40}: {where}")
    sha256 = line.get(DIGEST_KEY)
    if DIGEST_KEY in line and not isinstance(sha256, str):
        raise InputError(
            f"{DIGEST_KEY} must be a text, got {sha256!r:.40}: {where}; or leave it out"
        )
    return Counter(counts), sha256


def _checked_rows(
    path: Path, task: str, on_progress: OnTask
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of each line after the header, whose counts and digest must be right."""
    counts, sha256 = read_header(path)
    digest = hashlib.sha256()
    row_counts: Counter[str] = Counter()
    for number, line in raw_lines(path):
        if number == 1:
            continue
        digest.update(line)
        if not line.strip():
            continue
        kind, row = _checked_row(line, f"{path}:{number}")
        row_counts[kind] += 1
        if row_counts.total() % LINES_PER_REPORT == 0:
            on_progress(task, row_counts.total(), counts.total())
        yield kind, row
    for kind, count in counts.items():
        if row_counts[kind] != count:
            raise InputError(
                f"{row_counts[kind]} {kind} where the header says {count}: {path}; the file is not "
                "whole, export again"
            )
    if sha256 not in (None, digest.hexdigest()):
        raise InputError(
            f"edited after the export, its {DIGEST_KEY} is not that of the header: {path}; export "
            "again, or see docs/interchange.md for files of your own"
        )


def _checked_row(text: bytes, where: str) -> tuple[str, dict[str, Any]]:
    """(kind of rows in a cache, row) of a line."""
    line = parse_object(text, where, json.loads)
    kind = LINE_KINDS.get(str(line.get("kind")))
    if kind is None:
        raise InputError(
            f"unknown kind {line.get('kind')!r:.40}: {where}; known: {', '.join(LINE_KINDS)}"
        )
    for name in ROW_SCHEMAS[kind].names:
        if name not in line and name not in LATER_COLUMNS.get(kind, {}):
            raise InputError(f"{name} is missing: {where}; it has {', '.join(line):.120}")
    row: dict[str, Any] = {
        name: line.get(LINE_KEYS.get(name, name)) for name in map(str, ROW_SCHEMAS[kind].names)
    }
    fault = row_fault(kind, row)
    if fault:
        raise InputError(f"{fault}: {where}; export again")
    if kind == "plans":
        stored_pool(row["pool"], where)
    return kind, row


def _add_plans(merge: Merge, plans: list[dict[str, Any]]) -> None:
    """Add plans in their order, so that the file's last one becomes the cache's latest."""
    if not plans:
        return
    stored: set[str] = set()
    if merge.reader:
        stored = set(merge.reader.sql("SELECT plan FROM plans_rows")["plan"].to_pylist())
    *earlier, last = plans
    new = [plan for plan in earlier if plan["plan"] not in stored]
    last_plan = StoredPlan(last["pool"], tuple(last["queries"]))
    merge.another_plan = not is_latest(merge.reader, last_plan)
    if new or merge.another_plan:
        merge.writer.append(
            "plans", pa.Table.from_pylist([*new, last], schema=ROW_SCHEMAS["plans"])
        )

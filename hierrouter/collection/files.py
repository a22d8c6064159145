"""Files that others read, whole or not at all, and a whole cache as JSON lines and back."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from hierrouter.collection.plan import is_latest
from hierrouter.collection.storing import Merge, OnProgress, ignored, merging
from hierrouter.collection.tables import require_file
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

# A kind of line, and the kind of rows in a cache.
LINES = {
    "query": "queries",
    "call": "calls",
    "failure": "failures",
    "score": "scores",
    "decision": "decisions",
    "plan": "plans",
}
HEADER = "cache"
FORMAT = 1  # of the lines
DIGEST = "sha256"
BATCH = 1024  # lines between two reports of progress


def require_free(out: Path) -> None:
    """Refuse to write over something, before any work is done for it.

    Raises InputError: it exists, or its folder does not or cannot be written to.
    """
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise InputError(f"no permission to write: {out.parent}; choose another --out")
    if out.exists() or out.is_symlink():
        raise InputError(f"output exists: {out}; choose another --out or remove it")


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON in UTF-8."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _header(counts: Mapping[str, int], sha256: str) -> bytes:
    """The first line of a file: the lines of each kind, and the digest of all that follow."""
    return json_line({"kind": HEADER, "format": FORMAT, **counts, DIGEST: sha256})


def export_jsonl(root: Path, out: Path, on_progress: OnProgress = ignored) -> Counter[str]:
    """Write all rows of the cache at `root`, each once; returns how many of each kind.

    Raises CacheError: nothing there, damaged, or merged by a compaction meanwhile; WorldError: the
    disk is full or failed.
    """
    reader = CacheReader(root)
    counts = Counter(
        {kind: reader.number(f"SELECT count(*) FROM {kind}") for kind in LINES.values()}  # noqa: S608 - our own names
    )
    total = hashlib.sha256()
    with atomic_file(out) as file:
        file.write(_header(counts, total.hexdigest()))  # as long as the right one
        for done, line in enumerate(_lines(reader), start=1):
            total.update(line)
            file.write(line)
            if done % BATCH == 0:
                on_progress("export", done, counts.total())
        file.seek(0)
        file.write(_header(counts, total.hexdigest()))
    return counts


def _lines(reader: CacheReader) -> Iterator[bytes]:
    """A line of each row; a column that came later is left out where it is null.

    So what a cache held before there was such a column is the same line as then.
    """
    for name, kind in LINES.items():
        rows = _last_rows(reader, kind) if kind in LAST_WINS else _first_rows(reader, kind)
        added = LATER_COLUMNS.get(kind, {})
        try:
            for row in rows:
                kept = {key: row[key] for key in row if row[key] is not None or key not in added}
                yield json_line({"kind": name, **kept})
        except (ValueError, pa.ArrowException) as error:  # not UTF-8, or no number
            raise DamagedPart(
                f"a row of {kind} that no line can hold: {reader.root}; not written by this "
                "program, find the part with `hierrouter verify`"
            ) from error


def _first_rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a kind, each once, where it stands first; no more of them is held at once."""
    seen: set[tuple[Any, ...]] = set()
    try:
        for part in (part for part in reader.parts if part.kind == kind):
            for batch in part_batches(part):
                for row in batch.to_pylist():
                    identity = tuple(row[name] for name in IDENTITY_COLUMNS[kind])
                    if identity not in seen:
                        seen.add(identity)
                        yield row
    except FileNotFoundError:
        raise CacheError(
            f"the cache was compacted meanwhile: {reader.root}; export it again"
        ) from None


def _last_rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a kind of which there are few, each once, where it stands last."""
    names = ", ".join(f'"{name}"' for name in ROW_SCHEMAS[kind].names)
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in reversed(reader.sql(f"SELECT {names} FROM {kind}_rows").to_pylist()):  # noqa: S608 - our own names
        last.setdefault(tuple(row[name] for name in IDENTITY_COLUMNS[kind]), row)
    yield from reversed(last.values())


def import_jsonl(path: Path, root: Path, on_progress: OnProgress = ignored) -> Merge:
    """Add what is in the file to the cache at `root`, which is made where there is none.

    Raises InputError: a bad line, or a file that ends early; nothing was written; CacheError: the
    cache is damaged, in use by a collector, or cannot be written; WorldError: the disk is full or
    failed; run again, what is there is not written twice.
    """
    for _ in _checked_rows(path, "check", on_progress):
        pass
    plans = []
    with merging(root) as merge:
        for kind, row in _checked_rows(path, "import", on_progress):
            if kind == "plans":
                plans.append(row)
            else:
                merge.add(kind, row)
        merge.flush()
        _add_plans(merge, plans)
    return merge


def read_header(path: Path) -> tuple[Counter[str], str | None]:
    """(lines of each kind of rows, sha256 of all that follows) by the first line of a file.

    The digest is None where a person who wrote the file left it out. Raises InputError: there is no
    such file, or no header.
    """
    require_file(path)
    number, first = next(raw_lines(path))
    where = f"{path}:{number}"
    line = parse_object(first, where)
    if line.get("kind") != HEADER:
        raise InputError(f'no header {{"kind": "{HEADER}", ...}}: {where}; is it another format?')
    if line.get("format") != FORMAT:
        raise InputError(
            f"format {line.get('format')!r:.20}, this version reads {FORMAT}: {where}; update"
        )
    counts = {kind: line.get(kind) for kind in LINES.values()}
    for kind, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InputError(f"{kind} must be a count, got {count!r:.40}: {where}")
    sha256 = line.get(DIGEST)
    if DIGEST in line and not isinstance(sha256, str):
        raise InputError(f"{DIGEST} must be a text, got {sha256!r:.40}: {where}; or leave it out")
    return Counter(counts), sha256


def _checked_rows(
    path: Path, what: str, on_progress: OnProgress
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of each line after the header; all of them must be what the header says."""
    counts, sha256 = read_header(path)
    digest = hashlib.sha256()
    found: Counter[str] = Counter()
    for number, line in raw_lines(path):
        if number == 1:
            continue
        digest.update(line)
        if not line.strip():
            continue
        kind, row = _checked_row(line, f"{path}:{number}")
        found[kind] += 1
        if found.total() % BATCH == 0:
            on_progress(what, found.total(), counts.total())
        yield kind, row
    for kind, count in counts.items():
        if found[kind] != count:
            raise InputError(
                f"{found[kind]} {kind} where the header says {count}: {path}; the file is not "
                "whole, export again"
            )
    if sha256 not in (None, digest.hexdigest()):
        raise InputError(
            f"edited after the export, its {DIGEST} is not that of the header: {path}; export "
            "again, or see docs/interchange.md for files of your own"
        )


def _checked_row(text: bytes, where: str) -> tuple[str, dict[str, Any]]:
    """(kind in the cache, row) of a line."""
    line = parse_object(text, where)
    kind = LINES.get(str(line.get("kind")))
    if kind is None:
        raise InputError(
            f"unknown kind {line.get('kind')!r:.40}: {where}; known: {', '.join(LINES)}"
        )
    for name in ROW_SCHEMAS[kind].names:
        if name not in line and name not in LATER_COLUMNS.get(kind, {}):
            raise InputError(f"{name} is missing: {where}; it has {', '.join(line):.120}")
    row: dict[str, Any] = {name: line.get(name) for name in ROW_SCHEMAS[kind].names}
    if fault := row_fault(kind, row):
        raise InputError(f"{fault}: {where}; export again")
    if kind == "plans":
        stored_pool(row["pool"], where)
    return kind, row


def _add_plans(merge: Merge, plans: list[dict[str, Any]]) -> None:
    """The plans in their order; the file's last one is then the cache's latest."""
    if not plans:
        return
    known: set[str] = set()
    if merge.reader:
        known = set(merge.reader.sql("SELECT plan FROM plans_rows")["plan"].to_pylist())
    *earlier, last = plans
    due = [plan for plan in earlier if plan["plan"] not in known]
    wanted = StoredPlan(last["pool"], tuple(last["queries"]))
    merge.another_plan = not is_latest(merge.reader, wanted)
    if due or merge.another_plan:
        merge.writer.append(
            "plans", pa.Table.from_pylist([*due, last], schema=ROW_SCHEMAS["plans"])
        )

"""Files that others read, whole or not at all, and a whole cache as JSON lines and back."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hierrouter.collection.plan import is_latest
from hierrouter.collection.storing import Merge, merging
from hierrouter.collection.tables import require_file
from hierrouter.pools.files import stored_pool
from hierrouter.questions.files import parse_object, raw_lines
from hierrouter.tables import csv_text
from hierrouter_cache.errors import CacheError, DamagedPart, InputError, WorldError
from hierrouter_cache.keys import row_fault
from hierrouter_cache.parts import ADDED, FORMAT, IDENTITY, KINDS, LAST_WINS, part_batches
from hierrouter_cache.reader import CacheReader, StoredPlan
from hierrouter_cache.writer import atomic_file, fsync_folder


def require_free(out: Path, flag: str = "--out") -> None:
    """Refuse to write over something, before any work is done for it.

    Args:
        flag: that gave the path, for the error.

    Raises:
        InputError: it exists, or its folder does not or cannot be written to.
    """
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise InputError(f"no permission to write: {out.parent}; choose another {flag}")
    if out.exists() or out.is_symlink():
        raise InputError(f"output exists: {out}; choose another {flag} or remove it")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write into; it is called `out` when the block ends well, and else is gone.

    Raises:
        WorldError: the disk is full or failed.
    """
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.mkdir()
        yield draft
        draft.rename(out)
        fsync_folder(out.parent)
    except OSError as error:
        raise WorldError(f"cannot write: {out}: {error.strerror}; {_hint(error)}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _hint(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "make room and retry" if full else "choose another --out"


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """One object a line.

    Raises:
        WorldError: the disk is full or failed.
    """
    with atomic_file(path) as file:
        for row in rows:
            file.write(json_line(row))


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON in UTF-8."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_frame(table: pa.Table, path: Path) -> None:
    """A frame as .parquet or .csv, by the end of the name; no cell of a CSV runs as a formula.

    Raises:
        InputError: another kind of file.
        WorldError: the disk is full or failed.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"a frame is written as .parquet or .csv: --out {path}; name such a file")
    with atomic_file(path) as file:
        if path.suffix == ".parquet":
            pq.write_table(table, file)
        else:
            pa.csv.write_csv(_inert(table), file)


def _inert(table: pa.Table) -> pa.Table:
    """The table with texts and names that no spreadsheet takes for a formula."""
    columns = [
        pa.array(map(csv_text, column.to_pylist())) if column.type == pa.string() else column
        for column in table.columns
    ]
    return pa.table(columns, names=[csv_text(name) for name in table.column_names])


# A kind of line, and the kind of rows in a cache.
LINES = {
    "query": "queries",
    "call": "calls",
    "failure": "failures",
    "score": "scores",
    "plan": "plans",
}


def line_of(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The object on the line of a row; a column that came later is left out where it is null.

    So what a cache held before there was such a column is the same line as then.
    """
    added = ADDED.get(LINES[kind], {})
    kept = {name: value for name, value in row.items() if value is not None or name not in added}
    return {"kind": kind, **kept}


def checked_row(line: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """(kind in the cache, row) of a line.

    Raises:
        InputError: an unknown kind, a column missing or of another type, a key that is not that of
            the content, or a pool that no pool file could hold.
    """
    kind = LINES.get(str(line.get("kind")))
    if kind is None:
        raise InputError(
            f"unknown kind {line.get('kind')!r:.40}: {where}; known: {', '.join(LINES)}"
        )
    for name in KINDS[kind].names:
        if name not in line and name not in ADDED.get(kind, {}):
            raise InputError(f"{name} is missing: {where}; it has {', '.join(line):.120}")
    row: dict[str, Any] = {name: line.get(name) for name in KINDS[kind].names}
    if fault := row_fault(kind, row):
        raise InputError(f"{fault}: {where}; export again")
    if kind == "plans":
        stored_pool(row["pool"], where)
    return kind, row


HEADER = "cache"
DIGEST = "sha256"
BATCH = 1024
OnLines = Callable[[int, int], None]
Progress = Callable[[str, int, int], None]


def no_progress(_: str, done: int, total: int) -> None:
    """The `Progress` of a caller that shows none."""


@dataclass(frozen=True)
class Header:
    """The first line of a file.

    Attributes:
        counts: lines of each kind of rows.
        sha256: of all bytes after the first line, in hexadecimal; None where a person who wrote
            the file left it out.
    """

    counts: Counter[str]
    sha256: str | None

    def line(self) -> bytes:
        """The header as it stands in the file."""
        return json_line({"kind": HEADER, "format": FORMAT, **self.counts, DIGEST: self.sha256})


def export_jsonl(root: Path, out: Path, on_lines: Progress = no_progress) -> Counter[str]:
    """Write all rows of the cache at `root`, each once; returns how many of each kind.

    Args:
        root: the cache's folder.
        out: the file; it appears when it is whole.
        on_lines: told ("export", done, total).

    Raises:
        CacheError: nothing there, damaged, or merged by a compaction meanwhile.
        WorldError: the disk is full or failed.
    """
    reader = CacheReader(root)
    counts = Counter(
        {kind: reader.number(f"SELECT count(*) FROM {kind}") for kind in LINES.values()}  # noqa: S608 - our own names
    )
    total = hashlib.sha256()
    with atomic_file(out) as file:
        file.write(Header(counts, total.hexdigest()).line())  # as long as the right one
        for done, line in enumerate(_lines(reader), start=1):
            total.update(line)
            file.write(line)
            if done % BATCH == 0:
                on_lines("export", done, counts.total())
        file.seek(0)
        file.write(Header(counts, total.hexdigest()).line())
    return counts


def _lines(reader: CacheReader) -> Iterator[bytes]:
    for line, kind in LINES.items():
        rows = _last_rows(reader, kind) if kind in LAST_WINS else _first_rows(reader, kind)
        try:
            for row in rows:
                yield json_line(line_of(line, row))
        except (ValueError, pa.ArrowException) as error:  # not UTF-8, or no number
            raise DamagedPart(
                f"a row of {kind} that no line can hold: {reader.root}; not written by this "
                "program, find the part with `hierrouter cache verify`"
            ) from error


def _first_rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a kind, each once, where it stands first."""
    seen: set[tuple[Any, ...]] = set()
    for part in reader.parts:
        if part.kind != kind:
            continue
        try:
            for batch in part_batches(part):
                for row in batch.to_pylist():
                    identity = tuple(row[name] for name in IDENTITY[kind])
                    if identity not in seen:
                        seen.add(identity)
                        yield row
        except FileNotFoundError:
            raise CacheError(
                f"the cache was compacted meanwhile: {reader.root}; export it again"
            ) from None


def _last_rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a kind of which there are few, each once, where it stands last."""
    names = ", ".join(f'"{name}"' for name in KINDS[kind].names)
    rows = reader.sql(f"SELECT {names} FROM {kind}_rows").to_pylist()  # noqa: S608 - our own names
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        identity = tuple(row[name] for name in IDENTITY[kind])
        found.pop(identity, None)
        found[identity] = row
    yield from found.values()


def import_jsonl(path: Path, root: Path, on_lines: Progress = no_progress) -> Merge:
    """Add what is in the file to the cache at `root`, which is made where there is none.

    Args:
        path: written by `export_jsonl`.
        root: the cache's folder.
        on_lines: told ("check" or "import", done, total).

    Raises:
        InputError: a bad line, or a file that ends early; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed; run again, what is there is not written twice.
    """
    for _ in _checked(path, lambda done, total: on_lines("check", done, total)):
        pass
    plans = []
    with merging(root) as merge:
        for kind, row in _checked(path, lambda done, total: on_lines("import", done, total)):
            if kind == "plans":
                plans.append(row)
            else:
                merge.add(kind, row)
        merge.flush()
        _add_plans(merge, plans)
    return merge


def read_header(path: Path) -> Header:
    """What the first line of a file says of the others.

    Raises:
        InputError: there is no such file, or no header.
    """
    require_file(path)
    number, line = next(raw_lines(path))
    return _header(parse_object(line, f"{path}:{number}"), f"{path}:{number}")


def _checked(path: Path, on_lines: OnLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of each line after the header; all of them must be what the header says."""
    header = read_header(path)
    total = hashlib.sha256()
    found: Counter[str] = Counter()
    for number, line in raw_lines(path):
        if number == 1:
            continue
        total.update(line)
        if not line.strip():
            continue
        where = f"{path}:{number}"
        kind, row = checked_row(parse_object(line, where), where)
        found[kind] += 1
        if found.total() % BATCH == 0:
            on_lines(found.total(), header.counts.total())
        yield kind, row
    _require_whole(header, Header(found, total.hexdigest()), path)


def _require_whole(said: Header, found: Header, path: Path) -> None:
    for kind, count in said.counts.items():
        if found.counts[kind] != count:
            raise InputError(
                f"{found.counts[kind]} {kind} where the header says {count}: {path}; the file is "
                "not whole, export again"
            )
    if said.sha256 not in (None, found.sha256):
        raise InputError(
            f"edited after the export, its {DIGEST} is not that of the header: {path}; export "
            "again, or see docs/interchange.md for files of your own"
        )


def _header(line: dict[str, Any], where: str) -> Header:
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
    return Header(Counter(counts), sha256)


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
    merge.another_plan = not (merge.reader and is_latest(merge.reader, wanted))
    if due or merge.another_plan:
        merge.writer.append("plans", pa.Table.from_pylist([*due, last], schema=KINDS["plans"]))

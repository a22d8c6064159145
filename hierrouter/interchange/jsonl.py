"""A whole cache as JSON lines, and back.

In: a cache. Out: a header with the number of lines of each kind, then queries, calls, failures,
scores and plans, a line each; imported again they give the same keys and the same reports. Both
ways go line by line: memory grows with the keys, not with the texts. An import reads the file twice
and writes nothing before every line was checked. Not covered: embeddings, which are derived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter.interchange.files import json_line, written
from hierrouter.interchange.lines import HEADER, LINES, checked_row
from hierrouter.interchange.merge import Merge, merging
from hierrouter.interchange.rows import json_lines, require_file
from hierrouter_cache.errors import CacheError, InputError
from hierrouter_cache.reader import CacheReader, StoredPlan
from hierrouter_cache.schema import FORMAT, IDENTITY, KINDS

BATCH = 1024
OnLines = Callable[[int, int], None]
Progress = Callable[[str, int, int], None]


def no_progress(_: str, done: int, total: int) -> None:
    """The `Progress` of a caller that shows none."""


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
    counts = Counter({kind: _count(reader, kind) for kind in LINES.values()})
    done = 0
    with written(out) as file:
        file.write(json_line({"kind": HEADER, "format": FORMAT, **counts}))
        for line, kind in LINES.items():
            for row in _rows(reader, kind):
                file.write(json_line({"kind": line, **row}))
                done += 1
                if done % BATCH == 0:
                    on_lines("export", done, counts.total())
    return counts


def _count(reader: CacheReader, kind: str) -> int:
    return int(reader.sql(f"SELECT count(*) AS n FROM {kind}")["n"][0].as_py())  # noqa: S608


def _rows(reader: CacheReader, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a kind, each once; of plans each where it stands last."""
    if kind == "plans":  # few, and their order says which one is the latest
        yield from _plans(reader)
        return
    seen: set[tuple[Any, ...]] = set()
    for part in reader.parts:
        if part.kind != kind:
            continue
        try:
            with pq.ParquetFile(part.path) as file:
                for batch in file.iter_batches(batch_size=BATCH, columns=KINDS[kind].names):
                    for row in batch.to_pylist():
                        identity = tuple(row[name] for name in IDENTITY[kind])
                        if identity not in seen:
                            seen.add(identity)
                            yield row
        except FileNotFoundError:
            raise CacheError(
                f"the cache was compacted meanwhile: {reader.root}; export it again"
            ) from None


def _plans(reader: CacheReader) -> Iterator[dict[str, Any]]:
    parts = [part for part in reader.parts if part.kind == "plans"]
    found: dict[str, dict[str, Any]] = {}
    for part in sorted(parts, key=lambda part: (part.seq, part.path.name)):
        for row in pq.read_table(part.path, columns=KINDS["plans"].names).to_pylist():
            found.pop(row["plan"], None)
            found[row["plan"]] = row
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


def _checked(path: Path, on_lines: OnLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of each line after the header, which must be as many as it says."""
    require_file(path)
    lines = json_lines(path)
    where, header = next(lines, (str(path), {}))
    wanted = _header(header, where)
    found: Counter[str] = Counter()
    for done, (where, line) in enumerate(lines, start=1):
        kind, row = checked_row(line, where)
        found[kind] += 1
        if done % BATCH == 0:
            on_lines(done, wanted.total())
        yield kind, row
    for kind, count in wanted.items():
        if found[kind] != count:
            raise InputError(
                f"{found[kind]} {kind} where the header says {count}: {path}; the file is not "
                "whole, export again"
            )


def _header(line: dict[str, Any], where: str) -> Counter[str]:
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
    return Counter(counts)


def _add_plans(merge: Merge, plans: list[dict[str, Any]]) -> None:
    """The plans in their order; the file's last one is then the cache's latest."""
    if not plans:
        return
    known: set[str] = set()
    latest = None
    if merge.reader and merge.reader.has("plans"):
        known = set(merge.reader.sql("SELECT plan FROM plans_rows")["plan"].to_pylist())
        latest = merge.reader.latest_plan()
    *earlier, last = plans
    due = [plan for plan in earlier if plan["plan"] not in known]
    if due or latest != StoredPlan(last["pool"], tuple(last["queries"])):
        merge.writer.append("plans", pa.Table.from_pylist([*due, last], schema=KINDS["plans"]))

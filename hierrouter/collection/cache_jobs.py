"""The jobs on a whole cache: look into it, ask it, repair it, and copy it to and from a mirror.

Each job is declared once, see `hierrouter.declarations`. The modules that do the work are imported
when a job runs, because they need pyarrow and duckdb.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_text
from hierrouter.declarations.declaration import Flag, OnCount, declaration, ignore_count
from hierrouter_cache import CACHE

if TYPE_CHECKING:
    import pyarrow as pa

    from hierrouter_cache.maintenance import Compaction
    from hierrouter_cache.mirror import PullResult

Mirror = Annotated[str, Flag("", "URL", "A folder, s3://, gs://, abfs://, ...", check=check_text)]


@declaration
class CacheInfo:
    """Count what a cache has for the queries of its last collection.

    Attributes:
        cache: its folder.
        pool: name or TOML file; None is the pool of the last collection.
        models: some of the pool's; None is all.
        hops: at most those of the pool; None is all.
        incomplete: whether to list the queries with missing calls.
    """

    cache: flags.Cache = CACHE
    pool: flags.Pool = None
    models: flags.Models = None
    hops: flags.Hops = None
    incomplete: Annotated[
        bool, Flag("--incomplete", help="Name the queries that lack something.")
    ] = False

    def run(self) -> dict[str, Any]:
        """Return the counts by name, see `hierrouter.replay.inspection.cache_info`.

        Raises:
            CacheError: there is no cache, or it is damaged.
            InputError: an unknown pool, model or number of hops.
        """
        from hierrouter.replay.inspection import cache_info

        return cache_info(self.cache, self.pool, self.models, self.hops, self.incomplete)


@declaration
class Select:
    """Answer a SELECT over the pool and queries of the last collection.

    Attributes:
        question: the SELECT; `hierrouter_cache.sql` lists the views.
        cache: the cache's folder.
    """

    question: Annotated[str, Flag("", "SELECT", "One SELECT statement.", check=check_text)]
    cache: flags.Cache = CACHE

    def run(self) -> pa.Table:
        """Return the rows.

        Raises:
            InputError: see `hierrouter_cache.sql.ask`.
            CacheError: there is no cache, or it is damaged.
        """
        from hierrouter.replay.inspection import ask_cache

        return ask_cache(self.cache, self.question)


def rows_as_json(rows: pa.Table) -> str:
    """Return the rows of a SELECT as JSON lines, an object a row."""
    lines = []
    for row in rows.to_pylist():
        values = {name: _json_value(value) for name, value in row.items()}
        lines.append(json.dumps(values, default=str, allow_nan=False) + "\n")
    return "".join(lines)


def _json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: sums are decimals in DuckDB, and JSON has no NaN."""
    if isinstance(value, list):
        return [_json_value(entry) for entry in value]
    if isinstance(value, dict):
        return {str(name): _json_value(entry) for name, entry in value.items()}
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def rows_as_csv(rows: pa.Table) -> str:
    """Return the rows of a SELECT as CSV, in which no cell is a formula for a spreadsheet."""
    from hierrouter.tables import csv_text

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_text(name) for name in rows.column_names])
    for row in rows.to_pylist():
        writer.writerow(
            [csv_text(cell) if isinstance(cell, str) else cell for cell in row.values()]
        )
    return text.getvalue()


@dataclass(frozen=True)
class CompactionResult:
    """The result of merging the files of a cache.

    Attributes:
        parts: how many parts and bytes there were, and are.
        embedding_files_removed: how many embedding files fewer there are.
    """

    parts: Compaction
    embedding_files_removed: int

    def __str__(self) -> str:
        parts = self.parts
        return (
            f"{parts.parts_before:,} parts -> {parts.parts_after:,}, "
            f"{parts.bytes_before:,} bytes -> {parts.bytes_after:,}; "
            f"{self.embedding_files_removed} embedding files fewer"
        )


@declaration
class Compact:
    """Merge many small files of a cache into few large ones.

    Attributes:
        cache: its folder.
    """

    cache: flags.Cache = CACHE

    def run(self, on_parts: OnCount = ignore_count) -> CompactionResult:
        """Merge parts, then embedding files.

        Args:
            on_parts: called with (parts merged, parts to merge).

        Raises:
            CacheError: there is no cache, a collector is at work, or a part is damaged.
            WorldError: the disk is full or failed; everything that was committed is safe.
        """
        from hierrouter_cache.embeddings import merge_embeddings
        from hierrouter_cache.maintenance import compact

        parts = compact(self.cache, on_progress=on_parts)
        return CompactionResult(parts, merge_embeddings(self.cache))


@dataclass(frozen=True)
class RepairResult:
    """The files of a cache that were damaged or missing.

    Attributes:
        quarantined: (name, what was wrong) of each damaged file, which is in `quarantine/` now.
        missing: (name, what was wrong) of each file that is gone, and was given up.
        lost_plan: the last plan, if it was given up; None if it is there.
    """

    quarantined: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]
    lost_plan: str | None

    def __str__(self) -> str:
        lines = [f"moved to quarantine: {name}: {fault}" for name, fault in self.quarantined]
        lines += [f"given up: {name}: {fault}" for name, fault in self.missing]
        if self.lost_plan:
            lines.append(
                f"the last plan was given up: {self.lost_plan}; collect with the same --datasets "
                "and --pool, or import, once more: all that is there is used again"
            )
        lines.append(
            f"{len(self.quarantined)} damaged parts moved, {len(self.missing)} missing ones given "
            "up; the others are sound"
        )
        return "\n".join(lines)


@declaration
class Repair:
    """Move the damaged parts of a cache to `quarantine/`.

    Attributes:
        cache: its folder.
    """

    cache: flags.Cache = CACHE

    def run(self) -> RepairResult:
        """Move damaged parts aside, and give up missing ones.

        Raises:
            CacheError: there is no cache, or a collector is at work.
            WorldError: a file cannot be moved.
        """
        from hierrouter_cache.chain import FAULT_MISSING, glance
        from hierrouter_cache.maintenance import quarantine

        faults = quarantine(self.cache)
        return RepairResult(
            quarantined=tuple(fault for fault in faults if fault[1] != FAULT_MISSING),
            missing=tuple(fault for fault in faults if fault[1] == FAULT_MISSING),
            lost_plan=glance(self.cache).lost_plan,
        )


@declaration
class Push:
    """Copy every part of a cache that a mirror lacks.

    Attributes:
        url: of the mirror.
        cache: the cache's folder.
    """

    url: Mirror
    cache: flags.Cache = CACHE

    def run(self, on_parts: OnCount = ignore_count) -> tuple[int, str]:
        """Copy the parts; nothing in the mirror is changed.

        Args:
            on_parts: called with (parts copied, parts to copy).

        Returns:
            (number of parts copied, name of the mirror).

        Raises:
            CacheError: there is no cache, a part of it is damaged, or it keeps changing.
            InputError: an address that cannot be used.
            WorldError: the mirror failed.
        """
        from hierrouter_cache.mirror import push
        from hierrouter_cache.stores import store_at

        store = store_at(self.url)
        return push(self.cache, store, on_parts), str(store)


@declaration
class Pull:
    """Copy every part of a mirror that a cache lacks.

    Attributes:
        url: of the mirror.
        cache: the cache's folder, made if it does not exist.
    """

    url: Mirror
    cache: flags.Cache = CACHE

    def run(self, on_parts: OnCount = ignore_count) -> PullResult:
        """Copy the parts; nothing in the cache is changed.

        Args:
            on_parts: called with (parts copied, parts to copy).

        Returns:
            The number of parts copied, and those that contradict the cache and were left out.

        Raises:
            CacheError: the mirror is empty, or a part of either side is damaged.
            InputError: an address that cannot be used.
            WorldError: the mirror or the disk failed; copied parts are kept, except scores.
        """
        from hierrouter_cache.mirror import pull
        from hierrouter_cache.stores import store_at

        return pull(store_at(self.url), self.cache, on_parts, may_be_empty=False)

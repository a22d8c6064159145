"""`hierrouter cache`: look into a cache, ask it, and take it elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hierrouter.collection.cache_jobs import (
    CacheInfo,
    Compact,
    Pull,
    Push,
    Repair,
    Select,
    rows_as_csv,
    rows_as_json,
)
from hierrouter.collection.transfer import Export, Import
from hierrouter.tables import one_line, safe_text
from hierrouter_cache.errors import CacheError
from hierrouter_cli import console, options
from hierrouter_cli.declared import with_flags
from hierrouter_cli.help import GroupPage, add
from hierrouter_cli.selecting import labelled_bar

MAX_SHOWN_ROWS = 100
MAX_CELL_WIDTH = 60
TRANSFER_LABELS = {"check": "check lines", "import": "import", "export": "export"}

app = typer.Typer(cls=GroupPage, help="Look into a trajectory cache, repair it, ask it questions.")


@add(app, "cache info")
@with_flags
def info(*, counting: CacheInfo, format: options.ShortFormat = "text") -> None:
    """Queries, nodes, parts, bytes, and whether the trees are complete."""
    counts = counting.run()
    if format == "json":
        console.put_json(counts, sort_keys=True)
        return
    incomplete_queries = counts.pop("incomplete", ())
    for name, value in counts.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        console.put(safe_text(f"{name:<18}{text}") + "\n")
    for query in incomplete_queries:
        line = (
            f"{query['query']}: {query['missing_nodes']} nodes, {query['missing_direct']} direct "
            "calls missing"
        )
        console.put(safe_text(line) + "\n")


@add(app, "cache compact", "Merge many small files into few large ones.")
@with_flags
def compact(*, compacting: Compact) -> None:
    """Merge many small files into few large ones; everything is served as before."""
    with console.bar("merging parts") as on_parts:
        result = compacting.run(on_parts)
    console.put(f"{result}\n")


@add(app, "cache repair", "Move damaged parts aside.")
@with_flags
def repair(*, repairing: Repair) -> None:
    """Move damaged parts to quarantine/; `collect` then asks only for what was in them."""
    console.put(f"{repairing.run()}\n")


@add(app, "cache sql", "Answer a SELECT over nodes, queries, scores, routes, spend.")
@with_flags
def sql(
    *,
    selecting: Select,
    format: Annotated[str, options.format_flag("text", "json", "csv")] = "text",
) -> None:
    """Answer a SELECT over the views nodes, queries, scores, routes, spend; nothing can be changed.

    Text shows the first 100 rows and cuts long cells; json (one object a line) and csv hold all.
    """
    rows = selecting.run()
    if format == "json":
        console.put(rows_as_json(rows))
        return
    if format == "csv":
        console.put(rows_as_csv(rows))
        return
    shown_rows = rows.slice(0, MAX_SHOWN_ROWS).to_pylist()
    console.put_columns(
        [one_line(name) for name in rows.column_names],
        [[_cell_text(value) for value in row.values()] for row in shown_rows],
        MAX_CELL_WIDTH,
    )
    if rows.num_rows > MAX_SHOWN_ROWS:
        console.say(
            f"the first {MAX_SHOWN_ROWS} of {rows.num_rows:,} rows; --format csv has them all"
        )


@add(app, "cache import", "Add the answers in a file.")
@with_flags
def import_file(*, importing: Import) -> None:
    """Add the answers in a file to a cache; nothing is written before all of it was checked.

    Tables of single answers become context-free trees: each hop carries its model's own answer.
    """
    with labelled_bar("open", TRANSFER_LABELS) as on_progress:
        result = importing.run(on_progress)
    for note in result.notes:
        console.say(f"import: {note}")
    console.put(f"{result.line}\n")


@add(app, "cache export", "Write it as JSON lines.")
@with_flags
def export_file(*, exporting: Export) -> None:
    """Write a whole cache as our JSON lines."""
    exporting.check()
    with labelled_bar("open", TRANSFER_LABELS) as on_progress:
        counts = exporting.run(on_progress)
    rows = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    console.say(f"export: {rows}")
    console.put(f"{exporting.out}\n")


@add(app, "cache push", "Copy to a mirror what it lacks.")
@with_flags
def push(*, pushing: Push) -> None:
    """Copy every part that a mirror lacks; nothing there is changed."""
    with console.bar("copying parts") as on_parts:
        count, store = pushing.run(on_parts)
    console.put(f"{count:,} parts copied to {store}\n")


@add(app, "cache pull", "Copy from a mirror what is lacking here.")
@with_flags
def pull(*, pulling: Pull) -> None:
    """Copy every part of a mirror that this cache lacks; nothing here is changed."""
    with console.bar("copying parts") as on_parts:
        result = pulling.run(on_parts)
    console.put(f"{result.copied:,} parts copied from {result.store}\n")
    if result.conflicts:
        raise CacheError(result.note)


def _cell_text(value: Any) -> str:
    """Return a value as one short line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None:
        return ""
    return one_line(str(value), MAX_CELL_WIDTH)

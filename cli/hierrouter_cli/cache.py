"""`hierrouter cache`: look into a cache, ask it, and take it elsewhere."""

from __future__ import annotations

from typing import Annotated

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
from hierrouter.declarations.flags import LOSSES, OWN
from hierrouter.tables import rows_as_text, safe_text
from hierrouter_cache.errors import CacheError
from hierrouter_cli import console, declared
from hierrouter_cli.declared import (
    DERIVATION_LABELS,
    GroupPage,
    add,
    labelled_bar,
    make_importable,
    with_flags,
)

TRANSFER_LABELS = {"check": "check lines", "import": "import", "export": "export"}

app = typer.Typer(cls=GroupPage, help="Look into a trajectory cache, repair it, ask it questions.")


@add(app, "cache info")
@with_flags
def info(*, counting: CacheInfo, format: declared.ShortFormat = "text") -> None:
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


@add(app, "cache sql", "Answer a SELECT over nodes, queries, scores, verdicts, routes, spend.")
@with_flags
def sql(
    *,
    selecting: Select,
    format: Annotated[str, declared.format_flag("text", "json", "csv")] = "text",
) -> None:
    """Answer a SELECT over the views nodes, queries, scores, verdicts, routes and spend.

    Nothing can be changed. No row and no cell is cut. A terminal breaks long texts into lines, and
    shows a row as a list if it has too many columns; elsewhere a row is one line. json (one object
    a line) and csv keep line breaks and every digit.
    """
    rows = selecting.run()
    if format == "json":
        console.put(rows_as_json(rows))
    elif format == "csv":
        console.put(rows_as_csv(rows))
    else:
        console.put(rows_as_text(rows, console.terminal_width()))


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


@add(app, "cache export", "Write it as JSON lines, or for another tool.")
@with_flags
def export_file(*, exporting: Export) -> None:
    """Write a whole cache as our JSON lines, or its direct calls for LLMRouter or RouterBench.

    The flags that choose models, scores or an encoder are for the formats of other tools.
    """
    exporting.check()
    make_importable(exporting.score_name)
    labels = {**TRANSFER_LABELS, **DERIVATION_LABELS, "embed": "embed questions"}
    with labelled_bar("open", labels) as on_progress, console.foreign_output_on_stderr():
        counts = exporting.run(on_progress)
    if exporting.format == OWN:
        rows = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        console.say(f"export: {rows}")
    else:
        left_out = f", {counts['left_out']:,} queries left out" if counts["left_out"] else ""
        console.say(
            f"export: direct calls of {counts['queries']:,} queries x {counts['models']} models, "
            f"score {exporting.score_name}{left_out}"
        )
        losses = "; ".join(LOSSES[exporting.format])
        console.say(f"export: {exporting.format} has no place for: {losses}")
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

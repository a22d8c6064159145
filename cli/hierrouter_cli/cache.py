"""`hierrouter cache`: look into a cache, ask it, take it elsewhere."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierrouter.collection.formats import IMPORTS, NOTES
from hierrouter.tables import one_line
from hierrouter_cli import console, options
from hierrouter_cli.help import GroupPage, add

if TYPE_CHECKING:
    import pyarrow as pa

    from hierrouter.collection.tables import Answers
    from hierrouter.collection.transfer import ImportResult
    from hierrouter.pools.pool import Pool

ROWS_SHOWN = 100
CELL_SHOWN = 60


def sql(
    question: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT statement.")],
    cache: options.Cache = options.DEFAULT_CACHE,
    format: Annotated[str, options.format_flag("text", "json", "csv")] = "text",
) -> None:
    """Answer a SELECT over the views nodes, queries, scores, routes, spend; nothing can be changed.

    Text shows the first 100 rows and cuts long cells; json (one object a line) and csv hold all.
    """
    from hierrouter.replay.inspection import ask_cache

    answer = ask_cache(cache, question)
    console.put({"text": _text, "json": _json, "csv": _csv}[format](answer))
    if format == "text" and answer.num_rows > ROWS_SHOWN:
        console.say(
            f"the first {ROWS_SHOWN} of {answer.num_rows:,} rows; --format csv has them all"
        )


def _text(answer: pa.Table) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for name in answer.column_names:
        table.add_column(Text(one_line(name)), overflow="ellipsis", max_width=CELL_SHOWN)
    for row in answer.slice(0, ROWS_SHOWN).to_pylist():
        table.add_row(*(Text(_short(value)) for value in row.values()))
    page = Console(file=io.StringIO(), width=(CELL_SHOWN + 3) * answer.num_columns)
    page.print(table)
    return "\n".join(line.rstrip() for line in page.file.getvalue().splitlines()) + "\n"  # type: ignore[attr-defined]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else one_line(str(value), CELL_SHOWN)


def _json(answer: pa.Table) -> str:
    rows = ({name: _plain(value) for name, value in row.items()} for row in answer.to_pylist())
    return "".join(json.dumps(row, default=str, allow_nan=False) + "\n" for row in rows)


def _plain(value: Any) -> Any:
    """Sums are decimals in DuckDB, and JSON has no NaN and no infinity."""
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(answer: pa.Table) -> str:
    from hierrouter.tables import csv_text

    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([csv_text(name) for name in answer.column_names])
    for row in answer.to_pylist():
        cells = (csv_text(cell) if isinstance(cell, str) else cell for cell in row.values())
        writer.writerow(list(cells))
    return sink.getvalue()


LABELS = {"check": "check lines", "import": "import", "export": "export"}
GAPS_NAMED = 5  # models that lack most


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to read.")],
    format: Annotated[
        str | None,
        options.choice(
            "--format", IMPORTS, "Format of the file; default: by its columns.", what="format"
        ),
    ] = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    hops: Annotated[
        int | None,
        options.value(
            "--hops", "N", "Hops of the trees; default: 2, or those of the chains.", min=1
        ),
    ] = None,
    seed: options.Seed = options.DEFAULT_SEED,
    price: options.Price = None,
) -> None:
    """Add the answers in a file to a cache; nothing is written before all of it was checked.

    Tables of single answers become context-free trees: each hop carries its model's own answer.
    """
    from hierrouter.collection.transfer import import_
    from hierrouter.pools.files import price_lists
    from hierrouter.pools.pool import POOL_PRICES, rates_of

    rates = rates_of(price_lists([], price or [])[POOL_PRICES])
    prices = {name: {"in": rate.tokens_in, "out": rate.tokens_out} for name, rate in rates.items()}
    with _progress() as show:
        found = import_(
            file, cache, format=format, hops=hops, seed=seed, prices=prices, progress=show
        )
    if not found.digest_known:
        console.say("import: no sha256 in the header, so nobody can tell whether a line was edited")
    if found.answers and found.pool:
        _say_answers(found, found.answers, found.pool)
    _say_merge(found)


def export_file(
    out: Annotated[Path, options.value("--out", "FILE", "File to make, named .jsonl.")],
    cache: options.Cache = options.DEFAULT_CACHE,
) -> None:
    """Write a whole cache as our JSON lines."""
    from hierrouter.collection.transfer import export

    with _progress() as on_progress:
        counts = export(cache, out, progress=on_progress)
    rows = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    console.say(f"export: {rows}")
    console.put(f"{out}\n")


def _say_answers(found: ImportResult, answers: Answers, pool: Pool) -> None:
    kind = (
        "context-free: later hops are the models' own answers, no model saw an earlier one"
        if pool.context_free
        else "chains: only the paths that the file has, so open some with --models"
    )
    console.say(
        f"import: {found.format}, {len(answers.queries):,} queries x {len(pool.models)} models, "
        f"{pool.hops} hops; {kind}"
    )
    for model in pool.models:
        if model.name != model.model:
            console.say(f"import: model {model.model} is called {model.name} here")
    short = {model.model: model.name for model in pool.models}
    for name, count in answers.lacking.most_common(GAPS_NAMED):
        console.say(f"import: {count:,} queries lack an answer of {short.get(name, name)}")
    if answers.lacking:
        more = len(answers.lacking) - GAPS_NAMED
        others = f"{more} more models lack some; " if more > 0 else ""
        console.say(
            f"import: {others}leave models out with --without, or these queries with "
            "--allow-incomplete"
        )
    has_references = all(query.answers for query in answers.queries)
    if not has_references:
        console.say("import: no reference answers in the file; use --scorer given")
    if found.unpriced:
        console.say("import: prices unknown: 1 per token for every model; reprice with --prices")
        console.say("import: cost counts tokens; take a small alpha such as 1e-5")
    unscored = answers.scores.count(None)
    if unscored < len(answers.scores):
        if has_references:
            console.say("import: it has given scores: --scorer given")
        if unscored:
            console.say(
                f"import: {unscored:,} answers have no score; --scorer given will refuse them"
            )
    if found.format in NOTES:
        console.say(f"import: {NOTES[found.format]}")


def _say_merge(found: ImportResult) -> None:
    console.put(f"{found.line}\n")
    if found.merge.another_plan and not any(found.merge.added.values()):
        console.say("import: train and report now open the models and queries of this file")
    for kind, count in found.merge.different.items():
        if count:
            console.say(
                f"import: {count:,} {kind} with another content under a key of the cache; "
                "what was there stays"
            )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with console.bar("open") as show:
        yield lambda what, done, total: show(done, total, label=LABELS[what])


app = typer.Typer(cls=GroupPage, help="Look into a trajectory cache, repair it, ask it questions.")


@add(app, "cache info")
def info(
    cache: options.Cache = options.DEFAULT_CACHE,
    pool: options.PoolName = None,
    models: options.Models = None,
    hops: options.Hops = None,
    incomplete: Annotated[
        bool, options.switch("--incomplete", "Name the queries that lack something.")
    ] = False,
    format: options.ShortFormat = "text",
) -> None:
    """Queries, nodes, parts, bytes, and whether the trees are complete."""
    from hierrouter.replay.inspection import cache_info
    from hierrouter.tables import safe_text

    found = cache_info(cache, pool, options.split_names(models), hops, incomplete)
    if format == "json":
        console.put_json(found, sort_keys=True)
        return
    lacking = found.pop("incomplete", ())
    for key, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        console.put(safe_text(f"{key:<18}{shown}") + "\n")
    for query in lacking:
        nodes, direct = query["missing_nodes"], query["missing_direct"]
        line = f"{query['query']}: {nodes} nodes, {direct} direct calls missing"
        console.put(safe_text(line) + "\n")


@add(app, "cache compact", "Merge many small files into few large ones.")
def compact(cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Merge many small files into few large ones; everything is served as before."""
    from hierrouter_cache.embeddings import merge_embeddings
    from hierrouter_cache.maintenance import compact as merge

    with console.bar("merging parts") as show:
        done = merge(cache, on_progress=show)
    fewer = merge_embeddings(cache)
    console.put(
        f"{done.parts_before:,} parts -> {done.parts_after:,}, "
        f"{done.bytes_before:,} bytes -> {done.bytes_after:,}; {fewer} embedding files fewer\n"
    )


@add(app, "cache repair", "Move damaged parts aside.")
def repair(cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Move damaged parts to quarantine/; `collect` then asks only for what was in them."""
    from hierrouter_cache.chain import FAULT_MISSING, glance
    from hierrouter_cache.maintenance import quarantine

    moved = quarantine(cache)
    for name, why in moved:
        console.put(
            f"{'given up' if why == FAULT_MISSING else 'moved to quarantine'}: {name}: {why}\n"
        )
    if plan := glance(cache).lost_plan:
        console.put(
            f"the last plan was given up: {plan}; collect with the same --datasets and "
            "--pool, or import, once more: all that is there is used again\n"
        )
    lost = [name for name, why in moved if why == FAULT_MISSING]
    console.put(
        f"{len(moved) - len(lost)} damaged parts moved, {len(lost)} missing ones given up; "
        "the others are sound\n"
    )


add(app, "cache sql", "Answer a SELECT over nodes, queries, scores, routes, spend.")(sql)
add(app, "cache import", "Add the answers in a file.")(import_file)
add(app, "cache export", "Write it as JSON lines.")(export_file)
Mirror = Annotated[str, typer.Argument(metavar="URL", help="A folder, s3://, gs://, abfs://, ...")]


@add(app, "cache push", "Copy to a mirror what it lacks.")
def push(url: Mirror, cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Copy every part that a mirror lacks; nothing there is changed."""
    from hierrouter_cache.mirror import push as copy
    from hierrouter_cache.stores import store_at

    store = store_at(url)
    with console.bar("copying parts") as on_part:
        copied = copy(cache, store, on_part)
    console.put(f"{copied:,} parts copied to {store}\n")


@add(app, "cache pull", "Copy from a mirror what is lacking here.")
def pull(url: Mirror, cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Copy every part of a mirror that this cache lacks; nothing here is changed."""
    from hierrouter_cache.mirror import pull as copy
    from hierrouter_cache.mirror import require_no_conflicts
    from hierrouter_cache.stores import store_at

    store = store_at(url)
    with console.bar("copying parts") as on_part:
        pulled = copy(store, cache, on_part, may_be_empty=False)
    console.put(f"{pulled.copied:,} parts copied from {store}\n")
    require_no_conflicts(pulled)

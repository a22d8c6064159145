"""`hierrouter cache`: look into a cache."""

from __future__ import annotations

from typing import Annotated

import typer

from hierrouter_cli import console, interchange, options, parsing, sql
from hierrouter_cli.help_page import GroupPage, add

app = typer.Typer(cls=GroupPage, help="Look into a trajectory cache, repair it, ask it questions.")


@add(app, "cache info")
def info(
    cache: options.Cache = options.DEFAULT_CACHE,
    pool: options.PoolName = None,
    models: options.Models = None,
    hops: options.Hops = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Name the queries that lack something.")
    ] = False,
    format: options.ShortFormat = "text",
) -> None:
    """Queries, nodes, parts, bytes, and whether the trees are complete."""
    from hierrouter.inspection import cache_info
    from hierrouter.report.text import safe_text

    parsing.check_format(format, options.SHORT_FORMATS)
    found = cache_info(cache, pool, parsing.split_names(models), hops, incomplete)
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


@add(app, "cache verify")
def verify(
    cache: options.Cache = options.DEFAULT_CACHE,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Compute every score again, too.")
    ] = False,
) -> None:
    """Check every byte and every row; exit 3 names what is damaged."""
    from hierrouter.inspection import damaged_files, verify_cache
    from hierrouter_cache.errors import DamagedPart

    try:
        with console.progress_bars() as bars:
            bar = bars.add_task("checking rows", total=None, note="")
            lines = verify_cache(
                cache, rescore, lambda rows, total: bars.update(bar, advance=rows, total=total)
            )
    except DamagedPart:
        damaged = damaged_files(cache)
        for line in damaged:
            console.say(f"damaged: {line}")
        if not damaged:  # the bytes are right, what they say is not
            raise
        raise DamagedPart(
            f"damaged files: {len(damaged)} in {cache}; move them aside with "
            f"`hierrouter cache repair --cache {cache}`, then collect again"
        ) from None
    for line in lines:
        console.put(line + "\n")


@add(app, "cache compact", "Merge many small files into few large ones.")
def compact(cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Merge many small files into few large ones; everything is served as before."""
    from hierrouter_cache.compact import compact as merge
    from hierrouter_cache.embedding_merge import merge_embeddings

    with console.bar("merging parts") as show:
        done = merge(cache, on_part=show)
    fewer = merge_embeddings(cache)
    console.put(
        f"{done.parts_before:,} parts -> {done.parts_after:,}, "
        f"{done.bytes_before:,} bytes -> {done.bytes_after:,}; {fewer} embedding files fewer\n"
    )


@add(app, "cache repair", "Move damaged parts aside.")
def repair(cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Move damaged parts to quarantine/; `collect` then asks only for what was in them."""
    from hierrouter_cache.parts import quarantined_plan
    from hierrouter_cache.repair import quarantine

    moved = quarantine(cache)
    for name, why in moved:
        console.put(f"moved to quarantine: {name}: {why}\n")
    if plan := quarantined_plan(cache):
        console.put(
            f"the last plan was moved aside: {plan}; collect with the same --datasets and "
            "--pool, or import, once more: all that is there is used again\n"
        )
    console.put(f"{len(moved)} damaged parts moved; the others are sound\n")


add(app, "cache sql", "Answer a SELECT over nodes, queries, scores, routes.")(sql.sql)
add(app, "cache import", "Add the answers in a file.")(interchange.import_file)
add(app, "cache export", "Write it as JSON lines, or in a peer's format.")(interchange.export_file)
Mirror = Annotated[str, typer.Argument(metavar="URL", help="A folder, s3://, gs://, abfs://, ...")]


@add(app, "cache push", "Copy to a mirror what it lacks.")
def push(url: Mirror, cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Copy every part that a mirror lacks; nothing there is changed."""
    from hierrouter_cache.remote import push as copy
    from hierrouter_cache.stores import store_at

    store = store_at(url)
    with console.bar("copying parts") as on_part:
        copied = copy(cache, store, on_part)
    console.put(f"{copied:,} parts copied to {store}\n")


@add(app, "cache pull", "Copy from a mirror what is lacking here.")
def pull(url: Mirror, cache: options.Cache = options.DEFAULT_CACHE) -> None:
    """Copy every part of a mirror that this cache lacks; nothing here is changed."""
    from hierrouter_cache.remote import pull as copy
    from hierrouter_cache.remote import require_no_rivals
    from hierrouter_cache.stores import store_at

    store = store_at(url)
    with console.bar("copying parts") as on_part:
        pulled = copy(store, cache, on_part, may_be_empty=False)
    console.put(f"{pulled.copied:,} parts copied from {store}\n")
    require_no_rivals(pulled)

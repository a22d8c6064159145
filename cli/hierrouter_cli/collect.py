"""`hierrouter collect`: run every route, once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from hierrouter_cli import console, options
from hierrouter_cli.opening import open_tree, select

if TYPE_CHECKING:
    from hierrouter.collect.summary import Progress, Summary
    from hierrouter.pool import Pool
    from hierrouter.query import Query
    from hierrouter_cache.tree import RouteTree

NAMED = 5  # changed queries; the others are counted


def collect(
    datasets: options.Datasets = None,
    pool: options.PoolName = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    limit: options.Limit = None,
    seed: options.SeedOfDraw = None,
    data: options.Data = Path("data"),
    encoder: options.Encoder = None,
) -> None:
    """Run every model sequence for each query and store what came back.

    Only calls that are not in the cache are made, so the same command goes on after any
    interruption. Without --datasets, --limit and --seed it goes on with the queries that this cache
    was collected for last, and without --pool with their pool; a new cache gets the testbed.
    """
    from hierrouter.collect.plan import planned
    from hierrouter.pool_file import load_pool

    last = planned(cache) if (datasets, limit, seed) == (None, None, None) else None
    if last:
        console.say(f"collect: going on with what {cache} was collected for last")
        run_collect(cache, load_pool(pool) if pool else last.pool, last.queries, encoder)
        return
    names = options.split_names(datasets) or ["testbed"]
    chosen = load_pool(pool or ("testbed" if _all_testbed(names) else "paper"))
    drawn = load_queries(names, limit, options.DEFAULT_SEED if seed is None else seed, data)
    run_collect(cache, chosen, drawn, encoder)


def run_collect(
    cache: Path, pool: Pool, queries: Sequence[Query], encoder_name: str | None
) -> RouteTree:
    """Collect, embed and open the tree."""
    from hierrouter.collect.scheduler import collect as collect_tree
    from hierrouter.collect.summary import require_answers

    per_query = pool.routes.calls + len(pool.everyone)
    with _finish_part_on_interrupt() as stop:
        console.say(
            f"collect: {len(queries):,} queries x ({pool.routes.calls} nodes + "
            f"{len(pool.everyone)} direct calls), equal prompts once, into {cache}"
        )
        names_of = ", ".join(f"{model.name} ({model.model})" for model in pool.everyone)
        console.say(f"collect: {pool.hops} hops, {names_of}")
        if not any(query.split == "test" for query in queries):
            console.say(
                "note: no test query among these, and reports need some; take a larger --limit"
            )
        with progress(len(queries) * per_query) as report:
            summary = collect_tree(pool, queries, cache, report, stop)
    console.say(summary_line(summary))
    require_answers(summary)
    return open_tree(cache, select(encoder=encoder_name))


def summary_line(summary: Summary) -> str:
    """What a collection did, in one line."""
    tokens = summary.tokens_in + summary.tokens_out
    rate = f", {tokens / summary.seconds:,.0f} tokens/s" if summary.calls else ""
    found = f"{summary.wanted - summary.missing:,} of " if summary.missing else ""
    return (
        f"collected: {found}{summary.wanted:,} nodes and direct calls of "
        f"{summary.queries:,} queries; "
        f"{summary.calls} calls made, {summary.earlier} already there{rate}"
    )


def changed_line(names: Sequence[str]) -> str:
    """Which queries are not what they were when they were collected, in one line."""
    queries = "1 query" if len(names) == 1 else f"{len(names):,} queries"
    more = ", ..." if len(names) > NAMED else ""
    return (
        f"collect: {queries} changed: {', '.join(names[:NAMED])}{more}; "
        "asked anew, what was collected before stays"
    )


@contextmanager
def progress(nodes: int) -> Iterator[Progress]:
    """A bar for each model at each level, with tokens per second."""
    from time import perf_counter

    from hierrouter.collect.summary import Progress

    with console.progress_bars() as bars:
        current = bars.add_task("starting", total=None, note=f"{nodes:,} nodes at most")
        seen = {"tokens": 0, "started": perf_counter()}

        def on_level(label: str, calls: int) -> None:
            seen.update(tokens=0, started=perf_counter())
            bars.reset(current, total=calls, description=label, note="")

        def on_calls(calls: int, tokens: int) -> None:
            seen["tokens"] += tokens
            rate = seen["tokens"] / max(perf_counter() - seen["started"], 1e-9)
            bars.update(current, advance=calls, note=f"{rate:,.0f} tokens/s")

        def on_changed(names: Sequence[str]) -> None:
            console.say(changed_line(names))

        yield Progress(on_level, on_calls, on_changed)


def load_queries(names: list[str], limit: int | None, seed: int, data: Path) -> list[Query]:
    """The queries of these datasets; says how many hold text that had to be mended."""
    from hierrouter.collect.datasets import load_queries as load

    queries = load(names, limit, seed, data)
    if replaced := sum("\N{REPLACEMENT CHARACTER}" in query.question for query in queries):
        console.say(f"collect: U+FFFD in {replaced} questions: the file had invalid unicode there")
    return queries


@contextmanager
def _finish_part_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the running part be committed; the second one stops at once."""
    asked = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.say("interrupted: committing the running part (Ctrl-C again to stop at once)")

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)


def _all_testbed(names: list[str]) -> bool:
    from hierrouter.testbed import FAMILIES

    return all(name in ("testbed", *FAMILIES) for name in names)

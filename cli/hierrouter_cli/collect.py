"""`hierrouter collect`: run every route, once."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from types import FrameType
from typing import TYPE_CHECKING

from hierrouter.collection.collect import Collect
from hierrouter.tables import money
from hierrouter_cli import console, declared
from hierrouter_cli.declared import DERIVATION_LABELS, labelled_bar, with_flags

if TYPE_CHECKING:
    from hierrouter.collection.collection_plan import CollectionPlan
    from hierrouter.collection.progress import Progress, Summary

QUICKSTART_SECONDS_PER_LINE = 30.0


@with_flags
def collect(
    *, collecting: Collect, dry_run: declared.DryRun = False, format: declared.ShortFormat = "text"
) -> None:
    """Run every model sequence for each query and store what came back.

    Only calls that are not in the cache are made, so the same command goes on after any
    interruption. Without --datasets, --limit and --seed it goes on with the queries that this cache
    was collected for last, and without --pool with their pool; a new cache gets the testbed.
    """
    collecting.check()
    plan = collecting.plan(console.say, with_mirror=not dry_run)
    if dry_run:
        show_estimate(plan, format)
        return
    plan.check(collecting.allow_large)
    # Ray and its processes write lines of their own.
    with console.results_alone() if plan.on_ray else nullcontext():
        summary = make_calls(plan)
    with labelled_bar("open", DERIVATION_LABELS) as on_derive:
        plan.finish(on_derive, console.say)
    if format == "json":
        console.put_json(asdict(summary), sort_keys=True)


def make_calls(plan: CollectionPlan, brief: bool = False) -> Summary:
    """Make every missing call of the plan, or of the shard; show what is being done.

    Args:
        plan: what to collect.
        brief: say nothing before it is done.
    """
    from hierrouter.collection.progress import require_answers, spending_table

    progress = None
    try:
        with _finish_part_on_interrupt() as stop, _library_notes():
            if not brief:
                _announce(plan)
            every_s = QUICKSTART_SECONDS_PER_LINE if brief else None
            with progress_display(plan.max_calls, every_s) as progress:
                summary = plan.run(progress, say_note, stop)
        console.say(summary_line(summary))
    finally:  # money that was spent is shown after an interruption or an error, too
        if not brief and progress and progress.summary and progress.summary.spent:
            table = spending_table(progress.summary.spent, plan.pool.currency)
            console.say(repr(table))
    require_answers(summary)
    return summary


@contextmanager
def progress_display(nodes: int, every_s: float | None = None) -> Iterator[Progress]:
    """Show bars on a terminal, else lines.

    Args:
        nodes: calls at most.
        every_s: seconds between two lines; None is the default.
    """
    from hierrouter.collection.progress import SECONDS_PER_LINE, Meter, progress_lines

    if not sys.stderr.isatty():
        meter = progress_lines(console.say, SECONDS_PER_LINE if every_s is None else every_s)
        yield meter.progress(console.say)
        return
    meter = Meter()
    # A bar for each model at each level, with tokens per second and what was spent.
    with console.progress_bars() as bars:
        task = bars.add_task("starting", total=nodes, note="nodes at most")

        def on_level(label: str, calls: int) -> None:
            meter.on_level(label, calls)
            bars.reset(task, total=calls, description=label, note="")

        def show(calls: int) -> None:
            note = f"{meter.tokens_per_s:,.0f} tokens/s, spent {money(meter.spent)}"
            if meter.failed:
                note += f", {meter.failed:,} failed"
            bars.update(task, advance=calls, note=note)

        meter.on_done = show
        yield replace(meter.progress(console.say), on_level=on_level)


def _announce(plan: CollectionPlan) -> None:
    """Say what is collected, and which models are called where."""
    pool = plan.pool
    queries = plan.queries
    share = f"shard {plan.shard} of " if plan.shard else ""
    console.say(
        f"collect: {share}{len(queries):,} queries x ({pool.with_least_draws.layout.calls} nodes + "
        f"{pool.direct_calls} direct calls), equal prompts once, into {plan.cache}"
    )
    models = []
    for model in pool.all_models:
        on_server = model.backend == "openai" and model.endpoint
        server = f" at {on_server.address}" if on_server else ""
        models.append(f"{model.name} ({model.model}{server})")
    console.say(f"collect: {pool.hops} hops, {', '.join(models)}")
    if not any(query.split == "test" for query in queries):
        console.say("note: no test query among these, and reports need some; take a larger --limit")


def say_note(note: str) -> None:
    """Print a note of a mirror or a cluster, which may be empty."""
    if note:
        console.say(f"note: {note}")


def summary_line(summary: Summary) -> str:
    """Return what a collection did, in one line."""
    tokens = summary.tokens_in + summary.tokens_out
    rate = f", {tokens / summary.seconds:,.0f} tokens/s" if summary.seconds else ""
    absent = summary.missing + summary.pruned
    present = f"{summary.wanted - absent:,} of " if absent else ""
    left_out = f", {summary.pruned:,} left out" if summary.pruned else ""
    return (
        f"collected: {present}{summary.wanted:,} nodes and direct calls of "
        f"{summary.queries:,} queries; "
        f"{summary.calls:,} calls made, {summary.earlier:,} already there{left_out}{rate}"
    )


@contextmanager
def _library_notes() -> Iterator[None]:
    """Print what the library logs while it works, such as a server that it waits for."""
    logger = logging.getLogger("hierrouter")
    handler = logging.Handler()
    handler.emit = lambda record: say_note(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def _finish_part_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C finish and commit what has begun; the second stops at once."""
    is_interrupted = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True
        console.say("interrupted: finishing and committing what has begun (again to stop at once)")

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def show_estimate(plan: CollectionPlan, format: str) -> None:
    """Print calls, tokens, time, cost and disk of a collection; call and write nothing.

    Raises:
        WorldError: the weights of a model that is to be called cannot be had.
    """
    from hierrouter.collection.adaptive import calls_line
    from hierrouter.collection.estimate import estimate_tables
    from hierrouter.engines.preflight import require_models, weights_notes

    if plan.adaptive:
        console.say(calls_line(plan.pool, plan.queries))
    estimate = plan.estimate(counts_start=True)
    if format == "json":
        console.put_json(estimate.as_object(), sort_keys=True)
    else:
        console.put_tables(estimate_tables(estimate.calls))
        for note in (*estimate.notes, *weights_notes(plan.pool, estimate.weights)):
            console.say(f"note: {note}")
    require_models(plan.pool, estimate.weights)

"""`hierrouter collect`: run every route, once."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hierrouter.replay.open_tree import OpenTree
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options
from hierrouter_cli.selecting import open_tree

if TYPE_CHECKING:
    from hierrouter.collection.adaptive import Adaptive
    from hierrouter.collection.collect import Planned
    from hierrouter.collection.plan import Shard
    from hierrouter.collection.progress import Progress, Summary


@contextmanager
def progress(nodes: int, every_s: float | None = None) -> Iterator[Progress]:
    """Bars or lines, whichever suits stderr; `every_s` is the time between two lines."""
    from hierrouter.collection.progress import SECONDS_PER_LINE, Meter, progress_lines

    if not sys.stderr.isatty():
        meter = progress_lines(console.say, SECONDS_PER_LINE if every_s is None else every_s)
        yield meter.progress(console.say)
        return
    meter = Meter()
    # A bar for each model at each level, with tokens per second and what was spent.
    with console.progress_bars() as bars:
        current = bars.add_task("starting", total=nodes, note="nodes at most")

        def on_level(label: str, calls: int) -> None:
            meter.on_level(label, calls)
            bars.reset(current, total=calls, description=label, note="")

        def show(calls: int) -> None:
            note = f"{meter.tokens_per_s:,.0f} tokens/s, spent {money(meter.spent)}"
            failed = f", {meter.failed:,} failed" if meter.failed else ""
            bars.update(current, advance=calls, note=note + failed)

        meter.on_done = show
        yield replace(meter.progress(console.say), on_level=on_level)


def make_calls(found: Planned, brief: bool = False) -> Summary:
    """Make every missing call of the plan, or of the shard; says what is being done.

    `brief`: not before it is done.
    """
    from hierrouter.collection.collect import make_calls as call_models
    from hierrouter.collection.progress import require_answers, spending_table

    per_query = found.pool.routes.calls + len(found.pool.all_models)
    report = None
    try:
        with _finish_part_on_interrupt() as stop, _notes_are_said():
            if not brief:
                _announce(found)
            with progress(len(found.queries) * per_query, 30.0 if brief else None) as report:
                summary = call_models(found, report, say_note, stop)
        console.say(summary_line(summary))
    finally:  # an interruption or an error is no reason not to know
        if not brief and report and report.summary and (spent := report.summary.spent):
            console.say(repr(spending_table(spent, found.pool.currency)))
    require_answers(summary)
    return summary


def _announce(found: Planned) -> None:
    pool, queries, shard = found.pool, found.queries, found.shard
    share = f"shard {shard} of " if shard else ""
    console.say(
        f"collect: {share}{len(queries):,} queries x ({pool.routes.calls} nodes + "
        f"{len(pool.all_models)} direct calls), equal prompts once, into {found.cache}"
    )
    called = []
    for model in pool.all_models:
        on_server = model.backend == "openai" and model.endpoint
        server = f" at {on_server.address}" if on_server else ""
        called.append(f"{model.name} ({model.model}{server})")
    console.say(f"collect: {pool.hops} hops, {', '.join(called)}")
    if not any(query.split == "test" for query in queries):
        console.say("note: no test query among these, and reports need some; take a larger --limit")


def say_note(note: str) -> None:
    """What a mirror or a cluster has to say; nothing where that is nothing."""
    if note:
        console.say(f"note: {note}")


def say_standing(cache: Path, shard: Shard) -> None:
    """How far the shards of the plan are, and what to do when all of them are done."""
    from hierrouter.collection.plan import shard_status

    status = shard_status(cache, shard.count)
    console.say(
        f"shard {shard} is complete: {len(status.complete)} of {shard.count} shards are, "
        f"{status.present:,} of {status.expected:,} nodes and direct calls of the whole "
        "plan are there"
    )
    if len(status.complete) == shard.count:
        console.say("all shards are complete: `hierrouter collect` without --shard embeds them")


def summary_line(summary: Summary) -> str:
    """What a collection did, in one line."""
    tokens = summary.tokens_in + summary.tokens_out
    rate = f", {tokens / summary.seconds:,.0f} tokens/s" if summary.seconds else ""
    gone = summary.missing + summary.pruned
    found = f"{summary.wanted - gone:,} of " if gone else ""
    left = f", {summary.pruned:,} left out" if summary.pruned else ""
    return (
        f"collected: {found}{summary.wanted:,} nodes and direct calls of "
        f"{summary.queries:,} queries; "
        f"{summary.calls:,} calls made, {summary.earlier:,} already there{left}{rate}"
    )


@contextmanager
def _notes_are_said() -> Iterator[None]:
    """What the library notes while it works, such as a server that is waited for."""
    library, sayer = logging.getLogger("hierrouter"), logging.Handler()
    sayer.emit = lambda record: say_note(record.getMessage())  # type: ignore[method-assign]
    library.addHandler(sayer)
    try:
        yield
    finally:
        library.removeHandler(sayer)


@contextmanager
def _finish_part_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets what has begun be finished and committed; the second stops at once."""
    asked = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.say("interrupted: finishing and committing what has begun (again to stop at once)")

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)


def show_estimate(plan: Planned, format: str) -> None:
    """Print calls, tokens, time, cost and disk of a collection; calls and writes nothing.

    Raises WorldError: the weights of a model that is to be called cannot be had.
    """
    from hierrouter.collection.estimate import estimate, estimate_object, estimate_table
    from hierrouter.engines.preflight import require_models, weights_needed, weights_notes

    pool, found = plan.pool, estimate(plan.pool, plan.own, plan.cache)
    told, limited = [*found.notes], dict[str, Any]()
    if (limit := plan.max_spend) is not None:
        cost, spent = found.total.cost, plan.spent
        above = None if cost is None else spent + cost > limit
        limited = {"max_spend": limit, "spent_before": spent, "above_max_spend": above}
        due_cost = "unknown" if cost is None else money(cost)
        which = "perhaps above" if above is None else "above" if above else "within"
        told.append(f"spent before {money(spent)}, due {due_cost}: {which} --max-spend {limit:g}")
    due = found.models_due
    needed = list(weights_needed(model for model in pool.all_models if model.name in due))
    if format == "json":
        weights = [asdict(each) for each in needed]
        console.put_json({**estimate_object(found), "weights": weights, **limited}, sort_keys=True)
    else:
        console.put_tables([estimate_table(found)])
        for note in (*told, *weights_notes(pool, needed)):
            console.say(f"note: {note}")
    require_models(pool, needed)


def collect(
    datasets: options.DatasetsOfDraw = None,
    pool: options.AnyPool = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    limit: options.LimitOfDraw = None,
    seed: options.SeedOfDraw = None,
    data: options.Data = Path("data"),
    encoder: options.Encoder = None,
    no_references: options.NoReferences = False,
    adaptive: options.AdaptiveOnly = False,
    alphas: options.AdaptiveAlphas = None,
    until: options.Until = None,
    allow_stop: options.AllowStop = False,
    allow_return: options.AllowReturn = False,
    max_spend: options.MaxSpend = None,
    dry_run: options.DryRun = False,
    format: options.ShortFormat = "text",
    yes: options.Yes = False,
    backend: options.Backend = None,
    base_url: options.BaseUrl = None,
    api_key_env: options.ApiKeyEnv = None,
    timeout: options.Timeout = None,
    insecure: options.Insecure = False,
    allow_endpoint: options.AllowEndpoint = None,
    device: options.Device = None,
    shard: options.ShardOf = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    remote: options.Remote = None,
) -> None:
    """Run every model sequence for each query and store what came back.

    Only calls that are not in the cache are made, so the same command goes on after any
    interruption. Without --datasets, --limit and --seed it goes on with the queries that this cache
    was collected for last, and without --pool with their pool; a new cache gets the testbed.
    """
    from hierrouter.collection.adaptive import calls_line
    from hierrouter.collection.collect import planned
    from hierrouter.collection.estimate import require_consent
    from hierrouter.engines.encoders import require_encoder
    from hierrouter_cache.mirror import exchange
    from hierrouter_cache.stores import store_at

    machines = _machines(engine, shard, workers, ray_address, remote)
    if remote and dry_run:
        console.say("note: a dry run does not look at the mirror; `hierrouter cache pull` does")
    elif remote:
        say_note(exchange(cache, store_at(remote)).note)
    called = {
        "backend": backend,
        "base_url": base_url,
        "api_key_env": api_key_env,
        "timeout_s": timeout,
        "insecure": insecure or None,
        "device": device,
    }
    names = options.split_names(datasets)
    found = planned(
        names, pool, cache, limit, seed, data, called, console.say, allow_endpoint or ()
    )
    may = _adaptive(adaptive, alphas, until, allow_stop, allow_return)
    found = replace(found, **machines, adaptive=may, encoder=encoder, max_spend=max_spend)
    if no_references:
        found = replace(found, pool=replace(found.pool, references=()))
    if dry_run:
        if may:
            console.say(calls_line(found.pool, found.queries))
        show_estimate(found, format)
        return
    if not yes:
        require_consent(found.pool, found.own, cache)
    if encoder:
        require_encoder(encoder)
    summary = make_calls(found)
    if found.shard:
        say_standing(cache, found.shard)
    else:
        tree = open_tree(OpenTree(cache=cache, encoder=encoder))
        if tree.unembedded:
            console.say(f"collect: nothing is embedded yet: {tree.unembedded}")
    if format == "json":
        console.put_json(asdict(summary), sort_keys=True)


def _adaptive(
    asked: bool, alphas: str | None, until: float | None, allow_stop: bool, allow_return: bool
) -> Adaptive | None:
    """What may matter, where only that is to be collected."""
    from hierrouter.collection.adaptive import Adaptive

    if not asked:
        if alphas or until is not None or allow_stop or allow_return:
            raise InputError(
                "--alphas, --until, --allow-stop and --allow-return are for --adaptive; add it"
            )
        return None
    given = options.parse_alphas(alphas) if alphas else ()
    return Adaptive(given or (), allow_stop, allow_return, until)


def _machines(
    engine: str, shard: str | None, workers: int | None, address: str | None, remote: str | None
) -> dict[str, Any]:
    """What `Planned` says of who makes the calls."""
    from hierrouter.collection.plan import parse_shard

    on_ray = engine == "ray"
    if on_ray and shard:
        raise InputError("--shard and --engine ray: Ray makes shards itself; leave --shard out")
    if not on_ray and (workers or address):
        raise InputError("--workers and --ray-address are for Ray; add --engine ray")
    if address and address != "auto" and not address.startswith("ray://"):
        raise InputError(f"not a cluster: --ray-address {address}; use auto or ray://HOST:10001")
    return {
        "shard": parse_shard(shard) if shard else None,
        "on_ray": on_ray,
        "workers": workers,
        "address": address,
        "remote": remote,
    }

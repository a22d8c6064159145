"""`hierrouter off-policy` and `learn-from`: what a log of traffic tells, and what it teaches."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter.pools.pool import Pool
    from hierrouter.serving.logs import LogShape


def off_policy(
    log: Annotated[
        Path | None, options.value("--log", "FILE", "Episodes as JSON lines, from a server, say.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    alpha: options.ShownAlpha = None,
    savings: Annotated[
        bool, options.switch("--savings", "What the logged router cost, less each model by itself.")
    ] = False,
    format: options.Format = "text",
) -> None:
    """Estimate what a trained router would earn, from episodes that another policy played.

    No model is called, and no cache is needed: the log has the texts. The router is that of the
    newest `train`, or of --checkpoint.
    """
    from hierrouter import __version__
    from hierrouter.learning.training import training_remarks
    from hierrouter.runs.checkpoint import router_at
    from hierrouter.serving.logs import LogShape, read_log
    from hierrouter.serving.off_policy import as_json, long_table, result_tables, value_from_log
    from hierrouter.serving.router import live_run

    if log is None:
        raise InputError("no log; give --log FILE")
    run = checkpoint or live_run(alpha)
    trained = router_at(run, alpha)
    origin, shown_at = trained.origin, trained.alpha if alpha is None else alpha
    shape = LogShape(origin.models, origin.hops, origin.rate)
    if savings:
        _show_savings(log, shape, shown_at, format)
        return
    for said in (*training_remarks(trained, shown_at), f"{run} at alpha {shown_at:g}"):
        console.say(f"off-policy: {said}")
    episodes = read_log(log, shape, lambda said: console.say(f"off-policy: {said}"))
    source = {
        "version": __version__,
        "checkpoint": str(run),
        "seed": origin.seed,
        "trained_on": origin.fingerprint,
        "log": str(log),
    }
    with console.bar("estimate", note=f"{len(episodes):,} episodes"):
        result = value_from_log(trained, episodes, shown_at, source)
    console.put_as(format, result, as_json, long_table, result_tables)


def _show_savings(log: Path, shape: LogShape, alpha: float, format: str) -> None:
    from hierrouter.serving.estimators import INTERVAL_LEVEL
    from hierrouter.serving.logs import read_spending
    from hierrouter.serving.off_policy import savings, savings_table
    from hierrouter.tables import Column, Line, Table, json_text

    found = read_spending(log, shape, lambda said: console.say(f"off-policy: {said}"))
    console.put_as(
        format,
        savings(found, shape.models),
        lambda rows: json_text({"level": INTERVAL_LEVEL, "rows": rows}, "rows"),
        lambda rows: Table(
            "savings",
            tuple(map(Column, rows[0])),
            tuple(Line("", tuple(row.values())) for row in rows),
        ),
        lambda rows: [savings_table(rows, alpha)],
    )


def learn_from(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="What `hierrouter serve --log` wrote.")
    ],
    judge: Annotated[
        str,
        options.value(
            "--judge",
            "consensus|thumbs|JUDGE.toml|FILE",
            "What is right: what the pool's answers agree on; answers whose line has a good "
            "`quality`; a model, see docs/scorers.md; or JSON lines of question and answers.",
        ),
    ] = "consensus",
    checkpoint: options.Checkpoint = None,
    alpha: options.ShownAlpha = None,
    candidate: Annotated[
        Path | None, options.run_flag("--candidate", "Judge this router instead of training one.")
    ] = None,
    pool: options.AnyPool = None,
    allow_endpoint: options.AllowEndpoint = None,
    cache: options.Cache = Path("caches/traffic"),
    limit: Annotated[
        int, options.value("--limit", "N", "Questions that are sampled, at most.", min=1)
    ] = 500,
    scorer: options.Scorer = options.DEFAULT_SCORER,
    seed: options.Seed = options.DEFAULT_SEED,
    out: options.Out = None,
    yes: options.Yes = False,
    format: options.ShortFormat = "text",
) -> None:
    """Collect a sample of the questions of a log, learn from it, and say whether that is better.

    The new router and the one in service (see `deploy`) are compared on questions that neither of
    them learned from. One that is not shown to be better is not deployed, but as a shadow.
    """
    from hierrouter.collection.collection_plan import CollectionPlan
    from hierrouter.collection.estimate import require_consent
    from hierrouter.runs.checkpoint import router_at
    from hierrouter.runs.folders import RUNS
    from hierrouter.serving import learn
    from hierrouter.serving.router import live_run
    from hierrouter.serving.versions import Service, load_service, save_service
    from hierrouter_cli.collect import make_calls
    from hierrouter_cli.train import callbacks_with_bars

    traffic = learn.read_traffic(log, limit, seed)
    service = load_service(RUNS)
    serving = checkpoint or Path(service.run if service else live_run(alpha))
    old = router_at(serving, alpha)
    asked = _pool_of(serving, pool, allow_endpoint)
    queries = (
        traffic.queries
        if judge == learn.CONSENSUS_JUDGE
        else learn.judge_queries(traffic, judge, cache)
    )
    console.say(
        f"learn-from: {traffic.lines:,} lines, {traffic.distinct:,} questions, {len(queries):,} "
        f"taken, as {serving} is in service"
    )
    if not yes:
        require_consent(asked, queries, cache)
    make_calls(CollectionPlan(asked, queries, cache))
    if judge == learn.CONSENSUS_JUDGE:
        queries = learn.judge_queries(traffic, judge, cache)
        make_calls(CollectionPlan(asked, queries, cache))  # none: it writes down what is right
    tree = learn.open_traffic(cache, old, judge if judge.endswith(".toml") else scorer)
    if candidate is None:
        run = learn.retrain(tree, old, out, callbacks_with_bars())
        candidate = run.folder
    verdict = learn.compare_routers(old, router_at(candidate, old.alpha), tree.split("test"))
    service = (service or Service(str(serving))).with_verdict(
        str(candidate), "" if verdict.is_better else str(verdict)
    )
    save_service(service, RUNS)
    if format == "json":
        console.put_json(learn.as_json(traffic, len(queries), candidate, verdict))
        return
    console.put(f"{candidate}: {verdict}\n")
    if verdict.is_better:
        console.say(f"learn-from: next, `hierrouter deploy {candidate} --shadow`")


def _pool_of(run: Path, pool: str | None, allowed: Collection[str] | None) -> Pool:
    """The models that a run's router calls, references left out."""
    from dataclasses import replace

    from hierrouter.pools.files import load_pool
    from hierrouter.runs import bundle

    if pool is not None:
        return replace(load_pool(pool), references=())
    found = bundle.load_bundle(run)
    if found is None:
        raise InputError(f"no live.json, so no pool: {run}; give --pool")
    return replace(bundle.callable_pool(found, run, allowed or ()), references=())

"""`hierrouter quickstart`: the whole job on the testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierrouter_cli import console, options
from hierrouter_cli.collect import load_queries
from hierrouter_cli.collecting import run_collect
from hierrouter_cli.learning import train_router
from hierrouter_cli.report import make_report, show_summary, write
from hierrouter_cli.sweep import automatic, run_sweep, table
from hierrouter_cli.train import report_line


def quickstart(
    alpha: options.Alpha = str(options.DEFAULT_ALPHA),
    limit: options.Limit = None,
    seed: options.Seed = options.DEFAULT_SEED,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Default: caches/default and runs/quickstart-*."),
    ] = None,
) -> None:
    """Collect, train, sweep alpha and report on three tiny models that come with the package.

    About two minutes on two cores. Interrupted, it goes on where it stopped.
    """
    from hierrouter.learn.config import SWEEP, preset
    from hierrouter.learn.objective import Objective
    from hierrouter.pool_file import load_pool
    from hierrouter.report.worst import CASES
    from hierrouter.runs import quickstart_folders

    value = options.parse_alpha(alpha)
    folders = quickstart_folders(out)
    console.say("1/4 collect: every route of every question, each model call once")
    queries = load_queries(["testbed"], limit, seed, Path("data"))
    tree = run_collect(folders.cache, load_pool("testbed"), queries, None)
    console.say("2/4 train: PPO on the replayed tree, no model is called any more")
    trained = train_router(tree, Objective(value), preset("default"), seed, folders.train)
    console.say(f"trained: {report_line(trained, tree)}")
    console.say("3/4 sweep-alpha: one network for every price of cost, by enumeration")
    swept = run_sweep(tree, automatic(tree), SWEEP, [seed], folders.sweep)
    console.put(table(swept, tree) + "\n")
    console.say("4/4 report: exact values on the test fold, intervals by bootstrap over queries")
    result = make_report(tree, value, folders.cache, folders.train, folders.sweep, worst=CASES)
    folders.report.mkdir(parents=True, exist_ok=True)
    page = write(result, folders.report)
    show_summary(result)
    console.put(f"page: {page}\n")

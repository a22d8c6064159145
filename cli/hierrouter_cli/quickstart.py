"""`hierrouter quickstart`: the whole job on the testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.collect import load_queries
from hierrouter_cli.collecting import run_collect
from hierrouter_cli.learning import keep_for_live, train_router
from hierrouter_cli.report import say_what, show_summary, write
from hierrouter_cli.sweep import automatic, run_sweep, table
from hierrouter_cli.train import report_line


def quickstart(
    alpha: options.Alpha = str(options.DEFAULT_ALPHA),
    limit: options.LimitOfDraw = None,
    seed: options.Seed = options.DEFAULT_SEED,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="For everything; default caches/default and runs/quickstart-*.",
        ),
    ] = None,
) -> None:
    """Collect, train, sweep alpha and report on three tiny models that come with the package.

    About two minutes on two cores. Interrupted, it goes on where it stopped.
    """
    from hierrouter.learn.config import SWEEP, preset
    from hierrouter.learn.objective import Objective
    from hierrouter.pool_file import load_pool
    from hierrouter.pricing import POOL
    from hierrouter.report.worst import CASES
    from hierrouter.reporting import Reported, make_report
    from hierrouter.runs import quickstart_folders
    from hierrouter.shown import shown_router
    from hierrouter.trees import training_tree

    value = parsing.parse_alpha(alpha)
    folders = quickstart_folders(out)
    console.say("1/4 collect: every route of every question, each model call once")
    queries = load_queries(["testbed"], limit, seed, Path("data"))
    tree = run_collect(folders.cache, load_pool("testbed"), queries)
    console.say("2/4 train: PPO on the replayed tree, no model is called any more")
    learned_from = training_tree(tree)
    trained = train_router(learned_from, Objective(value), preset("default"), seed, folders.train)
    keep_for_live(folders.cache, None, learned_from, folders.train)
    console.say(f"trained: {report_line(trained, learned_from)}")
    console.say("3/4 sweep-alpha: one network for every price of cost, by enumeration")
    swept = run_sweep(learned_from, automatic(learned_from), SWEEP, [seed], folders.sweep)
    keep_for_live(folders.cache, None, learned_from, folders.sweep)
    console.put(table(swept, learned_from) + "\n")
    console.say("4/4 report: exact values on the test fold, intervals by bootstrap over queries")
    shown = shown_router(tree, value, folders.train, folders.sweep, with_sweep=True)
    reported = Reported(folders.cache, {POOL: tree}, shown, worst=CASES)
    say_what(reported)
    result = make_report(reported)
    folders.report.mkdir(parents=True, exist_ok=True)
    page = write(result, folders.report)
    show_summary(result)
    console.put(f"page: {page}\n")
    if out:
        where = f"--cache {folders.cache} --checkpoint {folders.train}"
        console.say(f"to go on: hierrouter report {where} --sweep {folders.sweep}")

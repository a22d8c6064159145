"""`hierrouter quickstart`: the whole job on the testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.collect import run_collect
from hierrouter_cli.report import say_what, show_summary
from hierrouter_cli.train import watch


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
    from hierrouter.collection.collect import DATA, Machines, Planned, noted_queries
    from hierrouter.learning.config import SWEEP, Objective, preset
    from hierrouter.learning.run import (
        Reached,
        keep_for_live,
        sweep_table,
        train_members,
        train_router,
    )
    from hierrouter.learning.runs import quickstart_folders
    from hierrouter.learning.selection import shown_router
    from hierrouter.learning.sweep import automatic_grid
    from hierrouter.pools.files import load_pool
    from hierrouter.pools.pool import POOL
    from hierrouter.replay.opening import training_tree
    from hierrouter.reports.report import FinishedReport, made_of

    value = parsing.parse_alpha(alpha)
    folders = quickstart_folders(out)
    console.say("1/4 collect: every route of every question, each model call once")
    queries = noted_queries(["testbed"], limit, seed, DATA, console.say)
    tree = run_collect(Planned(load_pool("testbed"), queries, folders.cache, Machines()))
    console.say("2/4 train: PPO on the replayed tree, no model is called any more")
    learned_from = training_tree(tree)
    objective, followed = Objective(value), watch()
    trained = train_router(
        learned_from, objective, preset("default"), seed, folders.train, followed
    )
    keep_for_live(learned_from, folders.train)
    console.say(f"trained: {Reached.by(trained, learned_from)}")
    console.say("3/4 sweep-alpha: one network for every price of cost, by enumeration")
    grid = automatic_grid(learned_from)
    swept = train_members(learned_from, grid, SWEEP, [seed], False, folders.sweep, followed)
    keep_for_live(learned_from, folders.sweep)
    console.put(sweep_table(swept, learned_from) + "\n")
    console.say("4/4 report: exact values on the test fold, intervals by bootstrap over queries")
    shown = shown_router(tree, value, folders.train, folders.sweep, with_sweep=True)
    reported = made_of({POOL: tree}, shown, "test")
    say_what(reported)
    finished = FinishedReport.of(reported)
    folders.report.mkdir(parents=True, exist_ok=True)
    page = finished.write(folders.report)
    show_summary(finished.result)
    console.put(f"page: {page}\n")
    if out:
        where = f"--cache {folders.cache} --checkpoint {folders.train}"
        console.say(f"to go on: hierrouter report {where} --sweep {folders.sweep}")

"""`hierrouter compare`: the usual routers beside the learned one."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

from hierrouter.replay.open_tree import OpenTree
from hierrouter_cli import console, options
from hierrouter_cli.declared import with_flags
from hierrouter_cli.report import TEST, log_looks, say_if_few, say_shown
from hierrouter_cli.selecting import named_baselines, open_tree, own_policies


@with_flags
def compare(
    *,
    alpha: options.ShownAlpha = None,
    opening: OpenTree,
    checkpoint: options.Checkpoint = None,
    sweep: options.Sweep = None,
    split: options.Split = TEST,
    baselines: Annotated[
        str | None, options.baselines_flag("Names, or your own; default: all.")
    ] = None,
    sets: Annotated[
        str, options.value("--sets", "A,B", "A: one direct call; B: whole routes.")
    ] = "A,B",
    policy: options.Policies = None,
    seed: options.Seed = options.DEFAULT_SEED,
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Fit the baselines on the train fold, and compare them with the learned router.

    Text also writes everything as JSON; the other formats write it only where --out says.
    """
    with console.bar("start"):  # which imports what learns
        from hierrouter.learning.baselines.arms import require_sets
        from hierrouter.reports.comparison import (
            as_json,
            compare_selected,
            contest_tables,
            long_table,
        )
        from hierrouter.runs.folders import check_out, draft_of, new_run
        from hierrouter.runs.selection import as_trained, select_run

    check_out(out)
    chosen = named_baselines(baselines)
    policies = own_policies(policy)
    wanted = require_sets(options.split_names(sets) or [])
    tree = open_tree(as_trained(opening, checkpoint))
    shown = select_run(tree, alpha, checkpoint, sweep)
    say_if_few(tree, split, "every figure rests on them")
    say_shown("compare", shown, split, with_alpha=True)
    # What a user's own baseline prints is no result of ours.
    with console.bar("fit") as on_fitted, contextlib.redirect_stdout(sys.stderr):
        found = compare_selected(tree, shown, chosen, wanted, split, seed, on_fitted, policies)
    log_looks("compare", tree, split, [shown.run], found.look)
    console.put_as(format, found, as_json, long_table, contest_tables)
    if out or format == "text":
        folder = new_run("compare", out)
        with draft_of(folder) as draft:
            name = found.write(draft).name
        console.say(f"compare: {folder / name}")

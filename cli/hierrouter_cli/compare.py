"""`hierrouter compare`: the usual routers beside the learned one."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options
from hierrouter_cli.report import TEST, log_looks, say_if_few, say_shown
from hierrouter_cli.selecting import Selected, as_trained, make_importable, own_policies, selecting

if TYPE_CHECKING:
    from hierrouter.evaluation.policies import OwnPolicy
    from hierrouter.learning.baselines.arms import Baseline
    from hierrouter.replay.tree import Tree


@selecting
def compare(
    *,
    alpha: options.ShownAlpha = None,
    selected: Selected,
    checkpoint: options.Checkpoint = None,
    sweep: options.Sweep = None,
    split: options.Split = TEST,
    baselines: Annotated[
        str | None,
        options.value(
            "--baselines",
            "A,B|MODULE:CLASS",
            "Names, or your own; default: all.",
            offer_list=options.BASELINES,
        ),
    ] = None,
    sets: Annotated[
        str, options.value("--sets", "A,B", "A: one direct call; B: whole routes.")
    ] = "A,B",
    policy: options.Policies = None,
    seed: options.Seed = options.DEFAULT_SEED,
    all_alphas: Annotated[
        bool,
        options.switch(
            "--all-alphas",
            "A leaderboard: train every learner, fit every baseline, at three alphas.",
        ),
    ] = False,
    seeds: options.Seeds = 5,
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Fit the baselines on the train fold, and compare them with the learned router.

    Text also writes everything as JSON; the other formats write it only where --out says. With
    --all-alphas everybody is trained anew, at a quarter of the middle alpha, there, and at four
    times it.
    """
    from hierrouter.learning.baselines.answers import answers_for
    from hierrouter.learning.baselines.arms import require_sets, usable_sets
    from hierrouter.learning.baselines.registry import baselines as named
    from hierrouter.learning.run_folders import check_out, drafted, new_run
    from hierrouter.learning.selection import select_run
    from hierrouter.reports.comparison import as_json, compared, contest_tables, long_table

    check_out(out)
    make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        chosen = named(options.split_names(baselines))
    policies = own_policies(policy)
    wanted = require_sets(options.split_names(sets) or [])
    if all_alphas:
        given = {
            "--alpha": alpha,
            "--checkpoint": checkpoint,
            "--sweep": sweep,
            "--state": selected.state,
            "--allow-return": selected.allow_return or None,
        }
        for flag, value in given.items():
            if value is not None:
                raise InputError(
                    f"--all-alphas trains everybody anew, at alphas and views of its own: {flag}; "
                    "leave it out"
                )
        _leaderboard(selected, chosen, wanted, policies, (seed, seeds), split, format, out)
        return
    tree = as_trained(selected, checkpoint).open()
    answers = answers_for(tree.root, tree, chosen, usable_sets(tree, wanted), tree.pool)
    shown = select_run(tree, alpha, checkpoint, sweep)
    say_if_few(tree, split, "every figure rests on them")
    say_shown("compare", shown, split, with_alpha=True)
    # What a user's own baseline prints is no result of ours.
    with console.bar("fit") as on_fitted, contextlib.redirect_stdout(sys.stderr):
        found = compared(tree, shown, chosen, wanted, answers, split, seed, on_fitted, policies)
    log_looks("compare", tree, split, [shown.run], found.look)
    console.put_as(format, found, as_json, long_table, contest_tables)
    if out or format == "text":
        folder = new_run("compare", out)
        with drafted(folder) as draft:
            name = found.write(draft).name
        console.say(f"compare: {folder / name}")


def _leaderboard(
    selected: Selected,
    chosen: Sequence[Baseline],
    sets: Sequence[str],
    policies: Sequence[OwnPolicy],
    draws: tuple[int, int],
    split: str,
    format: str,
    out: Path | None,
) -> None:
    """The leaderboard on stdout, and with text as JSON in a folder; `draws`: first seed, count."""
    from hierrouter.learning.run_folders import drafted, new_run
    from hierrouter.reports.leaderboard import as_json, leaderboard, leaderboard_tables, long_table
    from hierrouter_cache.writer import write_atomically

    @functools.cache
    def opened(view: str, allow_return: bool) -> Tree:
        return replace(selected, state=view, allow_return=allow_return).open()

    seed, seeds = draws
    with console.bar("place") as on_placed, contextlib.redirect_stdout(sys.stderr):
        found = leaderboard(
            opened, chosen, sets, policies, seed=seed, seeds=seeds, split=split, on_placed=on_placed
        )
    console.put_as(format, found, as_json, long_table, leaderboard_tables)
    if out or format == "text":
        folder = new_run("compare", out)
        with drafted(folder) as draft:
            write_atomically(draft / "leaderboard.json", as_json(found).encode())
        console.say(f"compare: {folder / 'leaderboard.json'}")

"""`hierrouter report`: tables, figures and a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options
from hierrouter_cli.learning import say_if_few
from hierrouter_cli.opening import open_trees
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.comparison import DeferTo
    from hierrouter.learn.sweep import Sweep
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter.report.results import Report
    from hierrouter_cache.tree import RouteTree

PAGE = "report.html"


@selecting
def report(
    *,
    alpha: options.ShownAlpha = None,
    selected: Selected,
    checkpoint: options.Checkpoint = None,
    sweep: Annotated[
        Path | None, typer.Option("--sweep", metavar="DIR", help="Default: the latest sweep.")
    ] = None,
    defer_to: options.DeferTo = None,
    defer_share: options.DeferShare = None,
    split: options.Split = "test",
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Evaluate exactly on the test fold and show it.

    Text also writes a self-contained page with all figures; the other formats write it only where
    --out says.
    """
    from hierrouter.price_lists import price_lists
    from hierrouter.runs import check_out, new_run

    options.check_format(format)
    options.check_split(split)
    check_out(out)
    value = None if alpha is None else options.parse_alpha(alpha)
    share = options.parse_share(defer_share, defer_to)
    lists = price_lists(selected.prices or [], selected.price or [])
    selection = as_trained(selected, checkpoint).unpriced()
    trees = open_trees(selected.cache, selection, [given.prices for given in lists])
    tree = trees[0]
    # What needs torch comes after all that can be refused without it.
    from hierrouter.comparison import DeferTo
    from hierrouter.report.worst import CASES

    page = out is not None or format == "text"
    result = make_report(
        tree,
        value,
        selected.cache,
        checkpoint or find_run(tree, "train", value),
        sweep or find_run(tree, "sweep-alpha"),
        split,
        {given.name: priced for given, priced in zip(lists, trees, strict=True)},
        named=checkpoint is not None,
        defer=DeferTo(defer_to, share) if defer_to is not None else None,
        worst=CASES if page else 0,
        pool=selected.pool,
    )
    show(result, format)
    if page:
        console.say(f"report: page {write(result, new_run('report', out))}")


def find_run(tree: RouteTree, command: str, alpha: float | None = None) -> Path | None:
    """The run to show, see `hierrouter.latest_runs`; says so where another view hides a better."""
    from hierrouter.latest_runs import latest_run, overlooked_run

    if other := overlooked_run(tree, command, alpha):
        flags = [f"--state {other.view}"] if other.view != tree.view else []
        flags += [f"--encoder {other.encoder}"] if other.encoder != tree.encoder else []
        which = "it learned" if other.same_tree else "if it learned"
        console.say(
            f"report: {other.folder} is not shown: {which} from this tree, seen in another way; "
            f"try `hierrouter report {' '.join(flags)}`"
        )
    return latest_run(tree, command, alpha)


def make_report(
    tree: RouteTree,
    alpha: float | None,
    cache: Path,
    trained_in: Path | None,
    swept_in: Path | None,
    split: str = "test",
    price_lists: Mapping[str, RouteTree] | None = None,
    named: bool = False,
    defer: DeferTo | None = None,
    worst: int = 0,
    pool: str | None = None,
) -> Report:
    """Load what was trained and compare it on one fold, under one price list or several.

    Args:
        named: the user named the checkpoint, so no other router is shown for it.
        defer: where the router hands over what it doubts.
        worst: how many of the router's largest regrets to show with their answers, at most.
        pool: that the tree was opened with, for these answers.

    Raises:
        InputError: something does not fit together, or there is nothing to hand over.
    """
    from dataclasses import replace

    from hierrouter.comparison import compare, require_deferrable
    from hierrouter.explain import explain_worst
    from hierrouter.learn.checkpoint import router_at
    from hierrouter.learn.sweep import load_sweep
    from hierrouter.provenance import provenance

    sweep = load_sweep(swept_in) if swept_in else None
    trained = router_at(trained_in, alpha) if trained_in else None
    if alpha is None:
        alpha = trained.alpha if trained else options.DEFAULT_ALPHA
    if not named and (from_sweep := _from_sweep(trained, sweep, alpha)):
        trained, trained_in = from_sweep, swept_in
    if defer:
        require_deferrable(tree, trained, defer)
    _say_origin(trained, tree, alpha)
    say_if_few(tree, split, "every figure rests on them")
    _say_sources(trained_in, swept_in, split, alpha)
    several = price_lists if price_lists and len(price_lists) > 1 else {}
    source = provenance(tree, cache, trained_in, trained, swept_in, several)
    result = compare(
        tree,
        alpha,
        trained,
        sweep,
        source,
        split,
        price_lists=several,
        exact=_learned_by_enumeration(tree, trained),
        defer=defer,
    )
    if trained is None or not worst:
        return result
    return replace(
        result, worst=tuple(explain_worst(cache, tree, split, alpha, trained, worst, pool))
    )


def _learned_by_enumeration(tree: RouteTree, trained: TrainedRouter | None) -> TrainedRouter | None:
    """The newest such router for the objective of one that learned from episodes."""
    from hierrouter.latest_runs import run_by_enumeration
    from hierrouter.learn.checkpoint import router_at

    if trained is None or trained.origin.config.algo != "ppo":
        return None
    found = run_by_enumeration(tree, trained)
    return router_at(found, None) if found else None


def _from_sweep(
    trained: TrainedRouter | None, sweep: Sweep | None, alpha: float
) -> TrainedRouter | None:
    """A sweep's router, where it is for this alpha and the one trained is not."""
    if sweep is None or (trained and trained.alpha == alpha):
        return None
    router = sweep.like(trained, alpha)
    if router:
        console.say(
            f"report: no run of `train` for alpha {alpha:g} on this tree; the sweep's network is "
            f"shown, seed {router.origin.seed}"
        )
    return router


def _say_origin(trained: TrainedRouter | None, tree: RouteTree, alpha: float) -> None:
    """Where the router shown is not quite what a reader would think."""
    if trained is None:
        console.say("report: no router trained on this tree; baselines only (`hierrouter train`)")
        return
    fingerprint = trained.origin.fingerprint
    if fingerprint != tree.fingerprint:
        what = "under other prices" if tree.same_content(fingerprint) else "on other data"
        console.say(f"report: the router was trained {what} than shown here")
    if trained.alpha != alpha:
        console.say(
            f"report: the router was trained at alpha {trained.alpha:g}, shown at {alpha:g}"
        )


def _say_sources(trained_in: Path | None, swept_in: Path | None, split: str, alpha: float) -> None:
    found = f"checkpoint {trained_in or 'none'}, sweep {swept_in or 'none'}"
    console.say(f"report: {split} fold at alpha {alpha:g}; {found}")


def write(result: Report, folder: Path) -> Path:
    """The page and the JSON in `folder`; returns the page."""
    from hierrouter.report.page import as_html
    from hierrouter.report.serialise import as_json
    from hierrouter_cache.writer import write_atomically

    write_atomically(folder / "report.json", as_json(result).encode())
    page = folder / PAGE
    write_atomically(page, as_html(result).encode())
    return page


def show(result: Report, format: str) -> None:
    """The report on stdout."""
    from hierrouter.report.serialise import as_json
    from hierrouter.report.tables import long_table, report_tables

    console.put_as(format, result, as_json, long_table, report_tables)


def show_summary(result: Report) -> None:
    """Quality by dataset, and the table with rewards and intervals: what fits a screen."""
    from hierrouter.report.tables import quality_table, summary_table

    console.put_tables([quality_table(result), summary_table(result)])

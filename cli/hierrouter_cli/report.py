"""`hierrouter report`: tables, figures and a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options
from hierrouter_cli.learning import say_if_few
from hierrouter_cli.opening import open_trees, select

if TYPE_CHECKING:
    from hierrouter.learn.sweep import Sweep
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter.report.results import Report
    from hierrouter_cache.tree import RouteTree

PAGE = "report.html"


def report(
    alpha: Annotated[
        str | None,
        typer.Option("--alpha", metavar="X", help="Default: the alpha the router was trained at."),
    ] = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    pool: options.PoolName = None,
    models: options.Models = None,
    hops: options.Hops = None,
    datasets: options.Datasets = None,
    limit: options.Limit = None,
    encoder: options.Encoder = None,
    state: options.State = None,
    scorer: options.Scorer = options.DEFAULT_SCORER,
    prices: options.PriceFiles = None,
    price: options.Price = None,
    allow_incomplete: options.AllowIncomplete = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Default: that of the latest run."),
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option("--sweep", metavar="DIR", help="Default: the latest sweep.")
    ] = None,
    split: Annotated[str, typer.Option("--split", metavar="train|validation|test")] = "test",
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Evaluate exactly on the test fold and show it.

    Text also writes a self-contained page with all figures; the other formats write it only where
    --out says.
    """
    from hierrouter.learn.checkpoint import load_checkpoint
    from hierrouter.price_lists import price_lists
    from hierrouter.runs import check_out, new_run

    options.check_format(format)
    options.check_split(split)
    check_out(out)
    value = None if alpha is None else options.parse_alpha(alpha)
    lists = price_lists(prices or [], price or [])
    if checkpoint:
        origin = load_checkpoint(checkpoint).origin
        encoder, state = encoder or origin.encoder, state or origin.view
    selection = select(
        pool=pool,
        models=models,
        hops=hops,
        datasets=datasets,
        limit=limit,
        encoder=encoder,
        state=state,
        scorer=scorer,
        allow_incomplete=allow_incomplete,
    )
    trees = open_trees(cache, selection, [given.prices for given in lists])
    tree = trees[0]
    result = make_report(
        tree,
        value,
        cache,
        checkpoint or latest_for(tree, "train", value),
        sweep or latest_for(tree, "sweep-alpha"),
        split,
        {given.name: priced for given, priced in zip(lists, trees, strict=True)},
        named=checkpoint is not None,
    )
    show(result, format)
    if out or format == "text":
        console.say(f"report: page {write(result, new_run('report', out))}")


def latest_for(tree: RouteTree, command: str, alpha: float | None = None) -> Path | None:
    """The newest finished run of a command that learned from this very tree, seen in this way.

    Where there is none, the newest one that learned from it under other prices.

    Args:
        alpha: runs for this alpha come before newer ones for another.
    """
    from hierrouter.learn.checkpoint import description_of
    from hierrouter.runs import finished_runs

    found = [
        (run, said)
        for run in finished_runs(command)
        if (said := description_of(run))
        and (said["view"], said["encoder"]) == (tree.view, tree.encoder)
        and tree.same_content(str(said["fingerprint"]))
    ]
    found.sort(
        key=lambda item: (
            item[1]["fingerprint"] != tree.fingerprint,
            alpha is not None and item[1].get("objective", {}).get("alpha") != alpha,
        )
    )
    return found[0][0] if found else None


def make_report(
    tree: RouteTree,
    alpha: float | None,
    cache: Path,
    trained_in: Path | None,
    swept_in: Path | None,
    split: str = "test",
    price_lists: Mapping[str, RouteTree] | None = None,
    named: bool = False,
) -> Report:
    """Load what was trained and compare it on one fold, under one price list or several.

    Args:
        named: the user named the checkpoint, so no other router is shown for it.
    """
    from hierrouter.comparison import compare
    from hierrouter.learn.checkpoint import router_at
    from hierrouter.learn.sweep import load_sweep

    sweep = load_sweep(swept_in) if swept_in else None
    trained = router_at(trained_in, alpha) if trained_in else None
    if alpha is None:
        alpha = trained.alpha if trained else options.DEFAULT_ALPHA
    if not named and (from_sweep := _from_sweep(trained, sweep, alpha)):
        trained, trained_in = from_sweep, swept_in
    _say_origin(trained, tree, alpha)
    say_if_few(tree, split, "every figure rests on them")
    _say_sources(trained_in, swept_in, split, alpha)
    several = price_lists if price_lists and len(price_lists) > 1 else {}
    source = provenance(tree, cache, trained_in, trained, swept_in, several)
    exact = _learned_by_enumeration(tree, trained)
    return compare(tree, alpha, trained, sweep, source, split, price_lists=several, exact=exact)


def _learned_by_enumeration(tree: RouteTree, trained: TrainedRouter | None) -> TrainedRouter | None:
    """The newest such router for the objective of one that learned from episodes."""
    from dataclasses import asdict

    from hierrouter.learn.checkpoint import description_of, router_at
    from hierrouter.runs import finished_runs

    if trained is None or trained.origin.config.algo != "ppo":
        return None
    wanted = {
        "algo": "exact",
        "fingerprint": trained.origin.fingerprint,
        "objective": asdict(trained.objective),
        "view": tree.view,
        "encoder": tree.encoder,
    }
    for run in finished_runs("train"):
        said = description_of(run)
        if all(said.get(name) == value for name, value in wanted.items()):
            return router_at(run, None)
    return None


def _from_sweep(
    trained: TrainedRouter | None, sweep: Sweep | None, alpha: float
) -> TrainedRouter | None:
    """A sweep's router, where it is for this alpha and the one trained is not."""
    from dataclasses import replace

    if sweep is None or (trained and trained.alpha == alpha):
        return None
    routers = [
        router
        for router in sweep.at(alpha)
        if trained is None or replace(trained.objective, alpha=alpha) == router.objective
    ]
    if not routers:
        return None
    console.say(
        f"report: no run of `train` for alpha {alpha:g} on this tree; the sweep's network is "
        f"shown, seed {routers[0].origin.seed}"
    )
    return routers[0]


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


def provenance(
    tree: RouteTree,
    cache: Path,
    trained_in: Path | None,
    trained: TrainedRouter | None,
    swept_in: Path | None,
    price_lists: Mapping[str, RouteTree],
) -> dict[str, object]:
    """Where every number of a report comes from."""
    from hierrouter import __version__
    from hierrouter.pricing import price_table

    return {
        "version": __version__,
        "cache": str(cache),
        "tree": tree.fingerprint,
        "prices": price_table(tree),
        "price_lists": {name: price_table(priced) for name, priced in price_lists.items()},
        "left_out": tree.left_out,
        "context_free": tree.context_free,
        "checkpoint": str(trained_in) if trained_in else None,
        "sweep": str(swept_in) if swept_in else None,
        "seed": trained.origin.seed if trained else None,
        "algo": trained.origin.config.algo if trained else None,
        "preset": trained.origin.config.preset if trained else None,
        "encoder": trained.origin.encoder if trained else None,
        "view": trained.origin.view if trained else None,
        "trained_alpha": trained.alpha if trained else None,
        "allow_stop": trained.objective.allow_stop if trained else None,
        "max_cost": trained.objective.max_cost if trained else None,
        "trained_on": trained.origin.fingerprint if trained else None,
    }


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
    from hierrouter.report.render import as_csv, as_latex, as_markdown
    from hierrouter.report.serialise import as_json
    from hierrouter.report.tables import long_table, report_tables

    if format == "json":
        console.put(as_json(result))
    elif format == "csv":
        console.put(as_csv(long_table(result)))
    elif format == "text":
        console.put_tables(report_tables(result))
    else:
        render = as_markdown if format == "md" else as_latex
        console.put("\n".join(render(table) for table in report_tables(result)))


def show_summary(result: Report) -> None:
    """Quality by dataset, and the table with rewards and intervals: what fits a screen."""
    from hierrouter.report.tables import quality_table, summary_table

    console.put_tables([quality_table(result), summary_table(result)])

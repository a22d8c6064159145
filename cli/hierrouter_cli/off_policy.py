"""`hierrouter off-policy`: what a router would earn, from another policy's log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options
from hierrouter_cli.report import look_at, say_shown
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.learning.selection import SelectedRun
    from hierrouter.learning.training import TrainedRouter
    from hierrouter.serving.logs import Episode
    from hierrouter_cache.tree import RouteTree


@selecting
def off_policy(
    selected: Selected,
    log: Annotated[
        Path | None, options.value("--log", "FILE", "Episodes as JSON lines, from a server, say.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    alpha: options.ShownAlpha = None,
    format: options.Format = "text",
) -> None:
    """Estimate what a trained router would earn, from episodes that another policy played.

    No model is called. Where the questions are in the cache the exact value stands beside it.
    """
    from hierrouter.serving.logs import LogShape, has_texts, read_log
    from hierrouter.serving.off_policy import as_json, long_table, result_tables, value_from_log

    if log is None:
        raise InputError("no log; give --log FILE")
    texts = has_texts(log)
    if texts and (selected.prices or selected.price):
        raise InputError(
            f"prices are for a cache: --prices, --price; {log} carries its texts and is priced as "
            "logged, tokens as the router was trained; leave them out"
        )
    shown, tree = _router(selected, checkpoint, alpha, texts)
    run, trained = shown.required()
    say_shown("off-policy", shown, with_alpha=True)
    rate = trained.origin.rate if tree is None else [(a, b) for a, b in tree.rate.tolist()]
    shape = LogShape(trained.origin.models, trained.origin.hops, rate)
    episodes = read_log(log, shape, lambda said: console.say(f"off-policy: {said}"))
    if tree is not None and _is_tested(episodes, tree):
        look_at("off-policy", tree, "test", shown, log=str(log))
    source = {**_provenance(selected, tree, run, trained), "log": str(log)}
    with console.bar("estimate", note=f"{len(episodes):,} episodes"):
        result = value_from_log(trained, episodes, tree, shown.alpha, source)
    console.put_as(format, result, as_json, long_table, result_tables)


def _router(
    selected: Selected, checkpoint: Path | None, alpha: float | None, texts: bool
) -> tuple[SelectedRun, RouteTree | None]:
    """The router to be valued, and the tree, unless the log has texts."""
    from hierrouter.learning.checkpoint import router_at
    from hierrouter.learning.selection import SelectedRun, select_run, training_remarks

    if checkpoint and texts:
        trained = router_at(checkpoint, alpha)
        value = trained.alpha if alpha is None else alpha
        remarks = training_remarks(trained, value)
        return SelectedRun(checkpoint, trained, value, remarks=remarks), None
    tree = as_trained(selected, checkpoint).open()
    return select_run(tree, alpha, checkpoint), None if texts else tree


def _is_tested(episodes: Iterable[Episode], tree: RouteTree) -> bool:
    """Whether a log has a question of the test fold."""
    named = zip(tree.query_ids, tree.datasets, tree.splits, strict=True)
    tested = {
        (query, name)
        for query, dataset, split in named
        if split == "test"
        for name in (dataset, "")
    }
    return any((episode.query, episode.dataset) in tested for episode in episodes)


def _provenance(
    selected: Selected, tree: RouteTree | None, run: Path, trained: TrainedRouter
) -> dict[str, Any]:
    """Where every number comes from."""
    from hierrouter import __version__
    from hierrouter.learning.selection import provenance

    if tree is not None:
        return provenance(tree, selected.cache, run, trained, None, {})
    return {
        "version": __version__,
        "checkpoint": str(run),
        "seed": trained.origin.seed,
        "trained_on": trained.origin.fingerprint,
    }

"""What a reader must know beside the figures of a report.

In: what a report compares, see `comparison`. Out: sentences: what is odd about the data, prices
that differ from those of the training, what sampling cost, how a budget or a limit is kept. Not
covered: the figures themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from hierrouter.data_notes import cost_notes, data_notes
from hierrouter.evaluate.bounds import best_direct_call
from hierrouter.evaluate.budget import optimum_at_mean_cost
from hierrouter.evaluate.outcome import mean_outcome
from hierrouter.learn.limits import under_limit
from hierrouter.learn.origin import Origin
from hierrouter.learn.sweep import Sweep
from hierrouter.learn.trained import TrainedRouter
from hierrouter.report.intervals import estimates, stream_of_all
from hierrouter.report.results import Bootstrap
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

TIE = 5e-4  # of R; less is 0.000 in a sentence


def remarks(
    tree: RouteTree,
    fold: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    sweep: Sweep | None,
    price_lists: Mapping[str, RouteTree],
    exact: TrainedRouter | None,
    bootstrap: Bootstrap,
) -> list[str]:
    """Sentences to stand beside the figures, none where all is plain.

    Args:
        tree: all folds.
        fold: the one that is shown.
        alpha: cost penalty that is shown.
        trained: the router that is shown.
        sweep: the routers of the frontier.
        price_lists: the same tree under each price list, where there are several.
        exact: a router for the same objective that was learned by enumeration.
        bootstrap: how intervals are made.
    """
    return [
        *data_notes(tree),
        *cost_notes(fold, alpha),
        *_direct_notes(tree, fold, alpha, trained),
        *_price_notes(trained, sweep, price_lists, tree),
        *_stop_notes(trained, sweep),
        *_budget_notes(fold, trained),
        *_limit_notes(fold, trained),
        *_sampling_notes(fold, alpha, trained, sweep, exact, bootstrap),
    ]


def _direct_notes(
    tree: RouteTree, fold: RouteTree, alpha: float, trained: TrainedRouter | None
) -> list[str]:
    """Whether one direct call, its model chosen on train, earns more than the router."""
    learned_from = tree.split("train")
    if trained is None or not len(learned_from):
        return []
    direct = best_direct_call(learned_from, alpha, fold)
    if direct is None:
        return []
    lead = (direct.reward(alpha) - trained.outcome(fold).reward(alpha)).mean()
    if lead <= TIE:
        return []
    said = f"One direct call of {direct.name} earns {lead:+.3f} R more than HierRouter here"
    if trained.objective.allow_stop:
        return [f"{said}."]
    return [f"{said}, which makes all its hops: --allow-stop trains one that need not."]


def _price_notes(
    trained: TrainedRouter | None,
    sweep: Sweep | None,
    lists: Mapping[str, RouteTree],
    tree: RouteTree,
) -> list[str]:
    """Which routers learned under other prices than they are shown under."""
    strange = [
        name for name, priced in lists.items() if trained and _other_prices(trained.origin, priced)
    ]
    notes = []
    if strange:
        notes.append(f"HierRouter was trained under other prices than {', '.join(strange)}.")
    elif trained and _other_prices(trained.origin, tree):
        notes.append("HierRouter was trained under other prices than these.")
    if sweep and _other_prices(sweep.origin, tree):
        notes.append("The sweep was trained under other prices than its frontier shows.")
    return notes


def _other_prices(origin: Origin, tree: RouteTree) -> bool:
    return origin.fingerprint != tree.fingerprint and tree.same_content(origin.fingerprint)


def _stop_notes(trained: TrainedRouter | None, sweep: Sweep | None) -> list[str]:
    """Whether the frontier is of routers that may do more, or less, than the one of the tables."""
    if trained is None or sweep is None:
        return []
    router, swept = trained.objective.allow_stop, sweep.allow_stop
    if router == swept:
        return []
    if router:
        return ["The router of the tables may stop early, those of the frontier may not."]
    return ["The routers of the frontier may stop early, the one of the tables may not."]


def _budget_notes(fold: RouteTree, trained: TrainedRouter | None) -> list[str]:
    """How a router keeps the mean cost it was chosen for, and the best that could be done."""
    if trained is None or trained.budget is None:
        return []
    reached = trained.outcome(fold)
    start = (
        f"HierRouter was trained for a mean cost of {trained.budget:g} a query; on this fold it "
        f"costs {reached.cost.mean():.4g}, with Q {reached.quality.mean():.4f}."
    )
    try:
        best = optimum_at_mean_cost(fold, trained.budget, trained.objective.allow_stop).outcome
    except InputError:
        return [f"{start} No policy is that cheap here."]
    return [f"{start} With hindsight Q is at most {best.quality.mean():.4f} at that mean cost."]


def _limit_notes(fold: RouteTree, trained: TrainedRouter | None) -> list[str]:
    """How a router keeps its limit on the cost of each query, and what the limit costs."""
    if trained is None or trained.objective.max_cost is None:
        return []
    found = under_limit(trained, fold)
    return [
        f"HierRouter is limited to a cost of {found.limit:g} a query: {found.share_over:.1%} of "
        f"the queries cost more, {found.impossible:.1%} have no route within it. With hindsight R "
        f"is at most {found.bound:.4f} at alpha {trained.alpha:g}; with the calls that are open to "
        f"it, {found.masked:.4f}."
    ]


def _sampling_notes(
    fold: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    sweep: Sweep | None,
    exact: TrainedRouter | None,
    bootstrap: Bootstrap,
) -> list[str]:
    """What sampling cost: a router learned from episodes beside one learned by enumeration."""
    if trained is None or trained.origin.config.algo != "ppo":
        return []
    what, others = "the same router", [exact] if exact else []
    if not others and sweep:
        what, others = (
            "the sweep's network for every alpha",
            [
                router
                for router in sweep.at(alpha)
                if router.origin.config.algo == "exact" and router.objective == trained.objective
            ],
        )
    if not others:
        return []
    without = mean_outcome([router.outcome(fold) for router in others]).reward(alpha)
    sampled = trained.outcome(fold).reward(alpha)
    every = stream_of_all(fold.datasets)
    [found] = estimates((without - sampled)[None], bootstrap, every)
    return [
        f"HierRouter was learned from sampled episodes; learned by enumeration ({what}) R would be "
        f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}] from this, "
        f"{bootstrap.level:.0%} interval, paired by query."
    ]

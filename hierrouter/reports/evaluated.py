"""Everything a report compares on one fold, and what has to be said beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import (
    best_direct_call,
    best_nodes,
    best_route_per_dataset,
    oracle,
    random_policy,
    split_regret,
)
from hierrouter.evaluation.budget import optimum_at_mean_cost
from hierrouter.evaluation.calls import DepthPoint, depth_curve
from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.evaluation.metrics import apgr, call_performance_threshold
from hierrouter.evaluation.outcome import (
    ROUTER,
    Outcome,
    fixed_routes,
    from_endings,
    mean_outcome,
    single_calls,
)
from hierrouter.evaluation.policies import OwnPolicy, policy_endings, require_other_names
from hierrouter.learning.deferral import Deferral, calibrated, direct_call
from hierrouter.learning.loop import choosing_fold
from hierrouter.learning.sweep import Sweep
from hierrouter.learning.trained import Origin, TrainedRouter, under_limit
from hierrouter.replay.inspection import cost_notes, data_notes
from hierrouter.reports.analysis import add_analysis, add_regret
from hierrouter.reports.build import FrontierPoint, add_depths, build_report, check_settings
from hierrouter.reports.results import (
    COST_UNIT,
    COST_UNIT_IN_OUT,
    HandingOver,
    PairFigures,
    Report,
    learning_curve,
    route_map,
)
from hierrouter.reports.values import Bootstrap, Estimates, estimates
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

DEFERRAL_POINTS = 101  # of a curve at most: shares about a hundredth apart


@dataclass(frozen=True)
class DeferTo:
    """A stronger model to hand over to, and how often.

    Attributes:
        stronger: one of the tree's direct calls.
        share: at most this share of the queries, from 0 to 1; None is what gives the highest R.
    """

    stronger: str
    share: float | None = None


def report_on(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    sweep: Sweep | None,
    provenance: Mapping[str, Any],
    split: str = "test",
    bootstrap: Bootstrap | None = None,
    price_lists: Mapping[str, RouteTree] | None = None,
    exact: TrainedRouter | None = None,
    defer: DeferTo | None = None,
    policies: Sequence[OwnPolicy] = (),
) -> Report:
    """Evaluate every policy on one fold at one alpha.

    Args:
        tree: all folds; what is chosen from data is chosen on "train", but for the best fixed
            route of the gap, which is that of the fold shown.
        alpha: cost penalty of the reward R = Q - alpha * C.
        trained: the router, or None where nothing has been trained yet.
        sweep: routers for other alphas, for the frontier.
        provenance: where all this came from.
        split: the fold to evaluate on.
        bootstrap: how intervals are made.
        price_lists: the same tree under several price lists, by the list's name, `tree` among
            them. What is chosen under prices is chosen under each on its own; the router is the
            same one and sees the costs of each.
        exact: a router for the same objective that was learned by enumeration, to say what sampling
            cost; without it the sweep's network is taken.
        defer: where to hand over what `trained` doubts, one more baseline; see
            `require_deferrable`. The threshold is chosen on the validation fold, on "train" where
            there is none.
        policies: the user's own; where the router may stop early, they may, too.

    Raises:
        InputError: an unknown or empty fold, a router made for another tree, an unknown model to
            hand over to, settings out of range, or a policy of the user's own that fails.
    """
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to report on; collect more queries")
    lists = dict(price_lists or {})
    found = Estimates(fold.datasets, bootstrap)
    check_settings(alpha, found.bootstrap)
    learned, stop = _learned(fold, sweep), trained is not None and trained.objective.allow_stop
    endings = trained.endings(fold) if trained else None
    deferral = calibrated(trained, tree, defer.stronger, defer.share) if trained and defer else None

    def outcomes(priced: RouteTree) -> tuple[list[Outcome], dict[str, NDArray[np.float64]]]:
        return _outcomes(priced, alpha, trained, split, deferral, policies)

    everybody, asked = outcomes(tree)
    if stop and endings is not None:
        add_depths(found, fold, endings, alpha)
    swept_stop = sweep is not None and sweep.allow_stop
    cost_range = add_analysis(found, tree, split, alpha, trained, endings, learned, swept_stop)
    for name, ends in asked.items():
        add_regret(found, name, split_regret(fold, alpha, ends, stop))
    return build_report(
        found,
        everybody,
        alpha=alpha,
        split=split,
        scorer=tree.scorer,
        provenance=provenance,
        frontier=[*learned, *_bound(fold, sweep)],
        price_lists={
            name: everybody if priced is tree else outcomes(priced)[0]
            for name, priced in lists.items()
        },
        cost_unit=cost_unit([tree, *lists.values()]),
        notes=tuple(remarks(tree, fold, alpha, trained, sweep, lists, exact, found.bootstrap)),
        depth_curve=tuple(_depth_curve(fold, sweep)),
        deferral=_handing_over(fold, alpha, deferral, defer.share if defer else None),
        cost_range=cost_range,
        route_map=route_map(fold, endings, best_nodes(fold, alpha, stop), found.columns),
        learning=learning_curve(trained, tree, choosing_fold(tree)) if trained else None,
    )


def require_deferrable(tree: RouteTree, trained: TrainedRouter | None, defer: DeferTo) -> None:
    """Refuse to hand over what cannot be, before anything is evaluated.

    Raises:
        InputError: there is no router, or no direct call of this model.
    """
    direct_call(tree, defer.stronger)
    if trained is None:
        raise InputError(
            f"no router that could hand over to {defer.stronger}: none was trained on this tree; "
            "run `hierrouter train` first"
        )


def _outcomes(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    split: str,
    deferral: Deferral | None,
    policies: Sequence[OwnPolicy],
) -> tuple[list[Outcome], dict[str, NDArray[np.float64]]]:
    """Every policy on a fold under the prices of `tree`, and where the user's own end, by name.

    Where the router may stop early, fixed routes, bounds and the user's own may, too.
    """
    fold, chosen_on = tree.split(split), tree.split("train")
    stop = trained is not None and trained.objective.allow_stop
    outcomes = [*single_calls(fold), *fixed_routes(fold, stop), random_policy(fold, stop)]
    if len(chosen_on):
        outcomes.append(best_route_per_dataset(chosen_on, alpha, fold, stop))
    outcomes.append(oracle(fold, alpha, stop))
    require_other_names(policies, [ROUTER, *(one.name for one in outcomes)])
    asked = {one.name: policy_endings(fold, one, alpha, stop) for one in policies}
    if deferral:
        both = deferral.outcome(fold)
        named = f"{both.name}, else {deferral.stronger}"
        outcomes.append(replace(both, name=named, kind="baseline"))
    outcomes += [from_endings(fold, ends, name, "baseline") for name, ends in asked.items()]
    return [*outcomes, trained.outcome(fold)] if trained else outcomes, asked


def _learned(fold: RouteTree, sweep: Sweep | None) -> list[FrontierPoint]:
    """The points of a sweep, each the mean of its seeds."""
    if sweep is None:
        return []
    return [
        FrontierPoint(alpha, tuple(router.outcome(fold) for router in routers))
        for alpha, routers in zip(sweep.alphas, sweep.routers, strict=True)
    ]


def _bound(fold: RouteTree, sweep: Sweep | None) -> list[FrontierPoint]:
    """The tree oracle at the alphas of a sweep."""
    if sweep is None:
        return []
    stop = sweep.allow_stop
    return [FrontierPoint(alpha, (oracle(fold, alpha, stop),)) for alpha in sweep.alphas]


def _depth_curve(fold: RouteTree, sweep: Sweep | None) -> list[DepthPoint]:
    """Where the routers of a sweep stop, if they may: each point the mean of its seeds."""
    if sweep is None or not sweep.allow_stop:
        return []
    endings = {
        alpha: np.mean([router.endings(fold) for router in routers], axis=0)
        for alpha, routers in zip(sweep.alphas, sweep.routers, strict=True)
    }
    return depth_curve(fold, endings)


def _handing_over(
    fold: RouteTree, alpha: float, deferral: Deferral | None, share_allowed: float | None
) -> HandingOver | None:
    """What the router and the stronger model behind it do on a fold, at any threshold."""
    if deferral is None:
        return None
    on_fold = deferral.on(fold)
    curve = tuple(on_fold.curve(alpha, DEFERRAL_POINTS))
    return HandingOver(
        stronger=deferral.stronger,
        chosen_on=deferral.chosen_on,
        share_allowed=share_allowed,
        chosen=on_fold.point(deferral.threshold, alpha),
        curve=curve,
        pair=pair_figures(curve),
    )


def pair_figures(curve: Sequence[DeferralPoint]) -> PairFigures:
    """APGR and CPT of a router and the stronger model behind it (Ong et al. 2024).

    Args:
        curve: by rising share, from handing over nothing to handing over all.
    """
    share = np.array([point.share for point in curve])
    quality = np.array([point.quality for point in curve])
    return PairFigures(
        apgr=apgr(share, quality),
        cpt_50=call_performance_threshold(share, quality, 0.5),
        cpt_80=call_performance_threshold(share, quality, 0.8),
    )


def cost_unit(trees: Sequence[RouteTree]) -> str:
    """The paper's unit where every model has one rate, in and out."""
    rates = np.concatenate([rate for tree in trees for rate in (tree.rate, tree.direct.rate)])
    single = bool((rates[:, 0] == rates[:, 1]).all())
    return COST_UNIT if single else COST_UNIT_IN_OUT


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
        best = optimum_at_mean_cost(fold, trained.budget, trained.objective.allow_stop)
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
    everything = Estimates(fold.datasets, bootstrap).every
    [found] = estimates((without - sampled)[None], bootstrap, everything)
    return [
        f"HierRouter was learned from sampled episodes; learned by enumeration ({what}) R would be "
        f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}] from this, "
        f"{bootstrap.level:.0%} interval, paired by query."
    ]

"""Everything a report compares on one fold, and what has to be said beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation import bounds
from hierrouter.evaluation.budget import optimum_at_mean_cost, policy_break_points
from hierrouter.evaluation.outcome import ROUTER, Outcome, fixed_routes, from_endings, single_calls
from hierrouter.evaluation.policies import OwnPolicy, policy_endings, require_distinct_names
from hierrouter.learning.config import Objective
from hierrouter.learning.deferral import Deferral, calibrate, direct_call
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import Origin, TrainedRouter
from hierrouter.replay.inspection import cost_notes, data_notes
from hierrouter.reports import results
from hierrouter.reports.analysis import add_analysis, add_regret
from hierrouter.reports.build import add_depths, build_report
from hierrouter.reports.values import ALL, Bootstrap, Estimates
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import ALL_FOLDS, RouteTree

DEFERRAL_POINTS = 101  # of a curve at most: shares about a hundredth apart


@dataclass(frozen=True)
class DeferTo:
    """A stronger model to hand over to, and how often.

    Attributes:
        share: at most this share of the queries, from 0 to 1; None is what gives the highest R.
    """

    stronger: str
    share: float | None = None


def report_on(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    sweep: TrainedSweep | None,
    provenance: Mapping[str, Any],
    split: str = "test",
    bootstrap: Bootstrap | None = None,
    price_lists: Mapping[str, RouteTree] | None = None,
    defer: DeferTo | None = None,
    policies: Sequence[OwnPolicy] = (),
    p95_below: float | None = None,
) -> results.Report:
    """Evaluate every policy on one fold at one alpha.

    Raises InputError: an unknown or empty fold, a dataset called "all", a router made for another
    tree, an unknown model to hand over to, an alpha that is none, or a policy of the user's own
    that fails.

    Args:
        tree: all folds; what is chosen from data is chosen on "train", but for the best fixed
            route of the gap, which is that of the fold shown.
        price_lists: the same tree under several price lists, by the list's name, `tree` among
            them; one list needs no table of its own. What is chosen under prices is chosen under
            each on its own; the router is the same one and sees the costs of each.
        defer: where to hand over what `trained` doubts, one more baseline; see
            `require_deferrable`. The threshold is chosen on the validation fold, on "train" where
            there is none.
        policies: the user's own; what the router may do, they may, too.
        p95_below: name the best fixed route whose 95th percentile has at most so many seconds.
    """
    untrained = Objective(alpha)  # refuses what is no alpha
    lists = dict(price_lists or {"": tree})
    several = lists if len(lists) > 1 else {}
    fold = _fold(tree, split)
    found = Estimates(fold.datasets, bootstrap)
    every = {
        name: value_policies(priced, alpha, trained, split, policies)
        for name, priced in lists.items()
    }
    mine = next(every[name] for name, priced in lists.items() if priced is tree)
    may = trained.objective if trained else untrained
    learned = [(one.alpha, one.outcome(fold)) for one in sweep.routers] if sweep else []
    points = policy_break_points(fold, may.ends_early)
    deferral = calibrate(trained, tree, defer.stronger, defer.share) if trained and defer else None
    if may.ends_early and mine.endings is not None:
        add_depths(found, fold, mine.endings, alpha)
    swept_stop = sweep is not None and sweep.objective.ends_early
    add_analysis(found, tree, split, alpha, trained, mine.endings)
    for name, ends in mine.own.items():
        lost = bounds.split_regret(fold, alpha, ends, may.ends_early, may.allow_return)
        add_regret(found, name, lost)
    bound = [(price, bounds.oracle(fold, price, swept_stop)) for price, _ in learned]
    return build_report(
        found,
        mine.outcomes(deferral),
        alpha=alpha,
        split=split,
        scorer=tree.scorer,
        provenance=provenance,
        frontier=[*learned, *bound],
        price_lists={name: every[name].outcomes(deferral) for name in several},
        cost_unit=tree.cost_unit,
        constant=trained.constant_route if trained else "",
        p95_below=p95_below,
        deciding_alphas=(float(points[0]), float(points[-1])) if len(points) else None,
        notes=(
            *(ALL_NOTES if split == ALL_FOLDS else ()),
            *data_notes(tree),
            *cost_notes(fold, alpha),
            *([f"{IS_ROUTE}: {trained.why_constant}."] if trained and trained.constant else ()),
            *_direct_notes(tree, fold, alpha, trained, mine.router),
            *_price_notes(trained, sweep, several, tree),
            *_stop_notes(trained, sweep),
            *_budget_notes(fold, trained, mine.router),
        ),
        deferral=_handing_over(fold, alpha, deferral, defer.share if defer else None),
    )


ALL_NOTES = (
    "These are the queries of all folds: whatever learned has seen most of them, so this is no "
    "test.",
)


def _fold(tree: RouteTree, split: str) -> RouteTree:
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to report on; add queries")
    if ALL in fold.datasets:
        raise InputError(f"a dataset is called {ALL!r}: report; rename it, {ALL!r} is the total")
    return fold


def require_deferrable(tree: RouteTree, trained: TrainedRouter | None, defer: DeferTo) -> None:
    """Refuse to hand over what cannot be, before anything is evaluated.

    Raises InputError: there is no router, or no direct call of this model.
    """
    direct_call(tree, defer.stronger)
    if trained is None:
        raise InputError(
            f"no router that could hand over to {defer.stronger}: none was trained on this tree; "
            "run `hierrouter train` first"
        )


@dataclass(frozen=True)
class Valued:
    """Every policy on a fold under one price list; a router that hands over comes on top.

    Attributes:
        bounds: direct calls, fixed routes, chance, and the best that could be done.
        own: how policies of the user's own end, by name: float64[queries, endings].
        endings: how the router ends, likewise; None without one.
    """

    fold: RouteTree
    bounds: tuple[Outcome, ...]
    own: Mapping[str, NDArray[np.float64]]
    endings: NDArray[np.float64] | None

    @cached_property
    def router(self) -> Outcome | None:
        """What the router does; None without one."""
        if self.endings is None:
            return None
        return from_endings(self.fold, self.endings, ROUTER, "router")

    def outcomes(self, deferral: Deferral | None) -> list[Outcome]:
        """All of them, in the order of a report."""
        found = list(self.bounds)
        if deferral:
            both = deferral.outcome(self.fold)
            named = f"{both.name}, else {deferral.stronger}"
            found.append(replace(both, name=named, kind="baseline"))
        for name, ends in self.own.items():
            found.append(from_endings(self.fold, ends, name, "baseline"))
        return [*found, self.router] if self.router else found


def value_policies(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    split: str,
    policies: Sequence[OwnPolicy],
) -> Valued:
    """Ask every policy on a fold, under the prices of `tree`; see `report_on`.

    Where the router may end early, fixed routes and bounds may, too; the user's own may do all
    that it may.
    """
    fold, chosen_on = _fold(tree, split), tree.split("train")
    may = trained.objective if trained else Objective(alpha)
    stop = may.ends_early
    known = [*single_calls(fold), *fixed_routes(fold, stop), bounds.random_policy(fold, stop)]
    if len(chosen_on):
        known.append(bounds.best_route_per_dataset(chosen_on, alpha, fold, stop))
    known.append(bounds.oracle(fold, alpha, stop))
    require_distinct_names(policies, [ROUTER, *(one.name for one in known)])
    return Valued(
        fold,
        tuple(known),
        {
            one.name: policy_endings(fold, one, alpha, may.allow_stop, may.allow_return)
            for one in policies
        },
        trained.endings(fold) if trained else None,
    )


def _handing_over(
    fold: RouteTree, alpha: float, deferral: Deferral | None, share_allowed: float | None
) -> results.HandingOver | None:
    """What the router and the stronger model behind it do on a fold, at any threshold."""
    if deferral is None:
        return None
    on_fold = deferral.on_fold(fold)
    return results.HandingOver(
        stronger=deferral.stronger,
        chosen_on=deferral.chosen_on,
        share_allowed=share_allowed,
        chosen=on_fold.point(deferral.threshold, alpha),
        curve=tuple(on_fold.curve(alpha, DEFERRAL_POINTS)),
    )


IS_ROUTE = "HierRouter is one fixed route here"
TIE = 5e-4  # of R; less is 0.000 in a sentence


def _direct_notes(
    tree: RouteTree,
    fold: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    router: Outcome | None,
) -> list[str]:
    """Whether one direct call, its model chosen on train, earns more than the router."""
    learned_from = tree.split("train")
    if trained is None or router is None or not len(learned_from):
        return []
    direct = bounds.best_direct_call(learned_from, alpha, fold)
    lead = 0.0 if direct is None else (direct.reward(alpha) - router.reward(alpha)).mean()
    if direct is None or lead <= TIE:
        return []
    said = f"One direct call of {direct.name} earns {lead:+.3f} R more than HierRouter here"
    if trained.objective.ends_early:
        return [f"{said}."]
    return [f"{said}, which makes all its hops: --allow-stop trains one that need not."]


def _price_notes(
    trained: TrainedRouter | None,
    sweep: TrainedSweep | None,
    lists: Mapping[str, RouteTree],
    tree: RouteTree,
) -> list[str]:
    """Which routers learned under other prices than they are shown under."""
    shown = lists or {"these": tree}
    strange = [
        name for name, priced in shown.items() if trained and _other_prices(trained.origin, priced)
    ]
    notes = []
    if strange:
        notes.append(f"HierRouter was trained under other prices than {', '.join(strange)}.")
    if sweep and _other_prices(sweep.origin, tree):
        notes.append("The sweep was trained under other prices than its frontier shows.")
    return notes


def _other_prices(origin: Origin, tree: RouteTree) -> bool:
    return origin.fingerprint != tree.fingerprint and tree.same_content(origin.fingerprint)


def _stop_notes(trained: TrainedRouter | None, sweep: TrainedSweep | None) -> list[str]:
    """Whether the frontier is of routers that may do more, or less, than the one of the tables."""
    if not trained or not sweep or trained.objective.ends_early == sweep.objective.ends_early:
        return []
    if trained.objective.ends_early:
        return ["The router of the tables may stop early, those of the frontier may not."]
    return ["The routers of the frontier may stop early, the one of the tables may not."]


def _budget_notes(
    fold: RouteTree, trained: TrainedRouter | None, router: Outcome | None
) -> list[str]:
    """How a router keeps the mean cost it was chosen for, and the best that could be done."""
    if trained is None or router is None or trained.budget is None:
        return []
    start = (
        f"HierRouter was trained for a mean cost of {trained.budget:g} a query; on this fold it "
        f"costs {money(router.cost.mean())}, with Q {router.quality.mean():.4f}."
    )
    try:
        best = optimum_at_mean_cost(fold, trained.budget, trained.objective.ends_early)
    except InputError:
        return [f"{start} No policy is that cheap here."]
    return [f"{start} With hindsight Q is at most {best.quality.mean():.4f} at that mean cost."]

"""Everything a report compares, on one fold.

In: a tree with its folds, a trained router, the routers of a sweep. Out: `Report`: direct calls,
fixed routes, baselines chosen on the train fold, the tree oracle and the router, alone and with a
stronger model to hand over to, all evaluated exactly on the fold asked for, under one price list or
several. Not covered: how it is shown (`hierrouter.report`), and what has to be said beside the
figures (`remarks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.analysis.analyse import analyse
from hierrouter.analysis.losses import policy_regret
from hierrouter.evaluate.bounds import (
    best_nodes,
    best_route_per_dataset,
    oracle,
    random_policy,
)
from hierrouter.evaluate.depth import DepthPoint, depth_curve
from hierrouter.evaluate.outcome import ROUTER, Outcome, fixed_routes, from_endings, single_calls
from hierrouter.evaluate.policies import OwnPolicy, policy_endings, require_other_names
from hierrouter.learn.deferral import Deferral, calibrated, direct_call
from hierrouter.learn.folds import choosing_fold
from hierrouter.learn.sweep import Sweep
from hierrouter.learn.trained import TrainedRouter
from hierrouter.remarks import remarks
from hierrouter.report.build import build_report, check_settings, columns_of
from hierrouter.report.deferral import pair_figures
from hierrouter.report.depth_rows import depth_rows
from hierrouter.report.intervals import stream_of_all
from hierrouter.report.learning import learning_curve
from hierrouter.report.priced import priced_rows
from hierrouter.report.results import (
    COST_UNIT,
    COST_UNIT_IN_OUT,
    Bootstrap,
    HandingOver,
    Report,
)
from hierrouter.report.route_map import route_map
from hierrouter.report.swept import FrontierPoint
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import SPLITS, RouteTree

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
    if split not in SPLITS:
        raise InputError(f"unknown split: {split}; known: {', '.join(SPLITS)}")
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to report on; collect more queries")
    lists = dict(price_lists or {})
    bootstrap = bootstrap or Bootstrap()
    check_settings(alpha, bootstrap)
    learned, swept_stop = _learned(fold, sweep), sweep is not None and sweep.allow_stop
    endings, stop = trained.endings(fold) if trained else None, _may_stop(trained)
    deferral = calibrated(trained, tree, defer.stronger, defer.share) if trained and defer else None

    def asked_on(shown: RouteTree) -> dict[str, NDArray[np.float64]]:
        return {one.name: policy_endings(shown, one, alpha, stop) for one in policies}

    others = [*single_calls(fold), *fixed_routes(fold, stop), *_baselines(tree, alpha, fold, stop)]
    require_other_names(policies, [ROUTER, *(one.name for one in others)])
    asked = asked_on(fold)
    outcomes = _outcomes(tree, alpha, trained, split, deferral, asked)
    return build_report(
        fold.datasets,
        outcomes,
        alpha=alpha,
        split=split,
        scorer=tree.scorer,
        provenance=provenance,
        bootstrap=bootstrap,
        frontier=[*learned, *_bound(fold, sweep)],
        cost_unit=cost_unit([tree, *lists.values()]),
        notes=remarks(tree, fold, alpha, trained, sweep, lists, exact, bootstrap),
        price_lists=[
            priced_rows(
                name,
                fold.datasets,
                outcomes
                if priced is tree
                else _outcomes(
                    priced,
                    alpha,
                    trained,
                    split,
                    deferral,
                    asked_on(priced.split(split)),
                ),
                alpha,
                bootstrap,
            )
            for name, priced in lists.items()
        ],
        depths=depth_rows(fold, endings, alpha, bootstrap, stream_of_all(fold.datasets))
        if stop and endings is not None
        else (),
        depth_curve=_depth_curve(fold, sweep),
        deferral=_handing_over(tree, fold, alpha, deferral, defer.share if defer else None),
        analysis=analyse(tree, split, alpha, trained, endings, learned, swept_stop, bootstrap),
        route_map=route_map(
            fold, endings, best_nodes(fold, alpha, stop), columns_of(fold.datasets)
        ),
        learning=learning_curve(trained, tree, choosing_fold(tree)) if trained else None,
        policy_regret={
            name: policy_regret(fold, alpha, ends, stop, bootstrap) for name, ends in asked.items()
        },
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
    asked: Mapping[str, NDArray[np.float64]],
) -> list[Outcome]:
    """Every policy on a fold, under the prices of `tree`.

    Where the router may stop early, fixed routes and bounds may, too.

    Args:
        asked: where the user's own policies end under these prices, by name.
    """
    fold, stop = tree.split(split), _may_stop(trained)
    outcomes = [*single_calls(fold), *fixed_routes(fold, stop)]
    outcomes += _baselines(tree, alpha, fold, stop)
    if deferral:
        both = deferral.outcome(fold)
        named = f"{both.name}, else {deferral.stronger}"
        outcomes.append(replace(both, name=named, kind="baseline"))
    outcomes += [from_endings(fold, ends, name, "baseline") for name, ends in asked.items()]
    return [*outcomes, trained.outcome(fold)] if trained else outcomes


def _may_stop(trained: TrainedRouter | None) -> bool:
    return trained is not None and trained.objective.allow_stop


def _baselines(tree: RouteTree, alpha: float, fold: RouteTree, stop: bool) -> list[Outcome]:
    chosen_on = tree.split("train")
    informed = [best_route_per_dataset(chosen_on, alpha, fold, stop)] if len(chosen_on) else []
    return [random_policy(fold, stop), *informed, oracle(fold, alpha, stop)]


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
    tree: RouteTree,
    fold: RouteTree,
    alpha: float,
    deferral: Deferral | None,
    share_allowed: float | None,
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


def cost_unit(trees: Sequence[RouteTree]) -> str:
    """The paper's unit where every model has one rate, in and out."""
    rates = np.concatenate([rate for tree in trees for rate in (tree.rate, tree.direct.rate)])
    single = bool((rates[:, 0] == rates[:, 1]).all())
    return COST_UNIT if single else COST_UNIT_IN_OUT

"""Everything a report compares, on one fold.

In: a tree with its folds, a trained router, the routers of a sweep. Out: `Report`: direct calls,
fixed routes, baselines chosen on the train fold, the tree oracle and the router, all evaluated
exactly on the fold asked for. Not covered: how it is shown (`hierrouter.report`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hierrouter.evaluate.bounds import best_route_per_dataset, oracle, random_policy
from hierrouter.evaluate.outcome import Outcome, fixed_routes, single_calls
from hierrouter.learn.trained import TrainedRouter
from hierrouter.report.build import FrontierPoint, build_report
from hierrouter.report.results import Bootstrap, Report
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import SPLITS, RouteTree


def compare(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    swept: Sequence[TrainedRouter],
    provenance: Mapping[str, Any],
    split: str = "test",
    bootstrap: Bootstrap | None = None,
) -> Report:
    """Evaluate every policy on one fold at one alpha.

    Args:
        tree: all folds; what is chosen from data is chosen on "train".
        alpha: cost penalty of the reward R = Q - alpha * C.
        trained: the router, or None where nothing has been trained yet.
        swept: routers trained at other alphas, for the frontier.
        provenance: where all this came from.
        split: the fold to evaluate on.
        bootstrap: how intervals are made.

    Raises:
        InputError: an unknown or empty fold, or a router made for another tree.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split: {split}; known: {', '.join(SPLITS)}")
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to report on; collect more queries")
    outcomes = [*single_calls(fold), *fixed_routes(fold), *_baselines(tree, alpha, fold)]
    if trained:
        outcomes.append(trained.outcome(fold))
    return build_report(
        fold.datasets,
        outcomes,
        alpha=alpha,
        split=split,
        scorer=tree.scorer,
        provenance=provenance,
        bootstrap=bootstrap,
        frontier=_frontier(fold, swept),
    )


def _baselines(tree: RouteTree, alpha: float, fold: RouteTree) -> list[Outcome]:
    chosen_on = tree.split("train")
    informed = [best_route_per_dataset(chosen_on, alpha, fold)] if len(chosen_on) else []
    return [random_policy(fold), *informed, oracle(fold, alpha)]


def _frontier(fold: RouteTree, swept: Sequence[TrainedRouter]) -> list[FrontierPoint]:
    learned = [FrontierPoint(router.alpha, router.outcome(fold)) for router in swept]
    bound = [FrontierPoint(point.alpha, oracle(fold, point.alpha)) for point in learned]
    return learned + bound

"""What a report says beside its policies: bounds, looks, regret and reliability."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation import bounds, outcome
from hierrouter.evaluation.intervals import share_interval
from hierrouter.evaluation.looks import looks_per_dataset
from hierrouter.learning.config import Objective
from hierrouter.learning.training import TrainedRouter
from hierrouter.replay.tree import Tree, first_call_confidence
from hierrouter.reports.values import Estimate, Estimates
from hierrouter.tables import finite_or_none
from hierrouter_cache.tree import RouteTree


def add_analysis(
    found: Estimates,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: NDArray[np.float64] | None,
) -> None:
    """The ladder, what a look is worth, the router's regret and reliability.

    Raises InputError: a router made for another tree.

    Args:
        tree: all folds.
        split: the fold to analyse, not empty.
        trained: the router; where it may stop early, chance, fixed routes and bounds may, too.
        endings: float64[queries, endings], how that router's episodes end on the fold; None
            without one.
    """
    fold, train = tree.split(split), tree.split("train")
    may = trained.objective if trained else Objective(alpha)
    stop = may.ends_early
    ladder = bounds.ladder(train, alpha, fold, stop)
    for rung, one in ladder.items():
        # Oracles, chance and classifiers choose none.
        chosen = one.name if one.kind in ("single", "route") else rung
        worth = {"quality": one.quality, "cost": one.cost, "reward": one.reward(alpha)}
        found.add("ladder", worth, found.columns, rung=rung, policy=chosen)
    if isinstance(tree, Tree) and len(train) and tree.hops > 1:
        _add_looks(found, tree, split, alpha, stop, ladder[bounds.BEST_ROUTE_PER_DATASET])
    if endings is not None:
        regret = bounds.split_regret(fold, alpha, endings, stop, may.allow_return)
        add_regret(found, outcome.ROUTER, regret)
    # Other learners' probabilities are exploration, and those of one fixed route say nothing.
    if trained and trained.holds_out and trained.alpha == alpha and not trained.constant:
        _add_reliability(found, fold, trained)


def _add_looks(
    found: Estimates, tree: Tree, split: str, alpha: float, stop: bool, blind: outcome.Outcome
) -> None:
    """What a look at the first answer adds to `blind`, the best route of each dataset."""
    sure = first_call_confidence(tree)
    train, fold = ((tree.split(name), sure[tree.rows(name)]) for name in ("train", split))
    rules, looked = looks_per_dataset(train, fold, alpha, stop)
    more = {
        "quality": looked.quality - blind.quality,
        "cost": alpha * (looked.cost - blind.cost),
        "reward": looked.reward(alpha) - blind.reward(alpha),
    }
    for dataset in found.columns:
        rule = rules.get(dataset)
        said = rule.name(tree.models, tree.routes) if rule else None
        found.add("looks", more, [dataset], policy=said)


def _add_reliability(found: Estimates, fold: RouteTree, trained: TrainedRouter) -> None:
    """How often a value model's choices were the best, by how likely it said that was."""
    table, how = trained.probabilities(fold), found.bootstrap
    query, said, best = bounds.greedy_decisions(fold, trained.actions, table, trained.alpha)
    for least, below in pairwise(bounds.RELIABILITY_EDGES):
        if (here := (said >= least) & (said < below)).any():
            draws = how.draws(found.every)
            ends = share_interval(query[here], best[here], how.n, how.level, draws)
            figures = {
                "least": Estimate(least),
                "below": Estimate(finite_or_none(below)),
                "said": Estimate(float(said[here].mean())),
                "best": Estimate(float(best[here].mean()), *ends),
            }
            found.state("reliability", figures, policy=outcome.ROUTER, n=int(here.sum()))


def add_regret(found: Estimates, policy: str, regret: outcome.Floats) -> None:
    """A policy's regret by dataset, and its parts.

    `regret`: float64[queries, choices], see `split_regret`.
    """
    parts = {
        "whole": regret.sum(axis=1),
        "plan": regret[:, 0],
        "adaptivity": regret[:, 1:].sum(axis=1),
    }
    found.add("regret", parts, found.columns, policy=policy)

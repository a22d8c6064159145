"""Depth by query: a router that may stop does so where a first answer is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.outcome import ending, greedy
from hierrouter.learning.config import Objective, preset, training_config
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import train
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree

STOPPING = Objective(0.05, allow_stop=True)


def early_tree(families: tuple[int, ...]) -> RouteTree:
    """The planted tree; in some families the first model of the right route is right already."""
    tree = planted_tree(luck=0.0)
    early = np.isin(tree.datasets, [f"family-{number}" for number in families])
    leaves = tree.score[:, tree.routes.leaves]
    first = leaves.reshape(len(tree), len(tree.models), -1).max(axis=2)
    score = tree.score.copy()
    score[:, tree.routes.level(1)] = np.where(early[:, None], first, 0)
    return replace(tree, score=score)


def mean_depth(trained: TrainedRouter, fold: RouteTree, families: tuple[int, ...]) -> float:
    """Mean number of calls of the greedy policy on the queries of these families."""
    of = np.isin(fold.datasets, [f"family-{number}" for number in families])
    table = greedy(trained.probabilities(fold), fold.base_rate)
    return float((ending(trained.actions, table) @ fold.routes.depth())[of].mean())


@pytest.mark.parametrize("algo", ["ppo", "exact"])
@pytest.mark.parametrize("early", [(0, 1, 2, 3, 4), (0, 2, 4)], ids=["always", "by query"])
def test_it_stops_where_the_first_answer_is_right(algo: str, early: tuple[int, ...]) -> None:
    tree = early_tree(early)
    fold, alpha = tree.split("test"), STOPPING.alpha
    trained = train(tree, STOPPING, training_config("default", algo, 12), seed=0)
    bound = oracle(fold, alpha, allow_stop=True).reward(alpha).mean()
    assert trained.outcome(fold).reward(alpha).mean() >= 0.95 * bound
    assert oracle(fold, alpha).reward(alpha).mean() < 0.98 * bound  # stopping is worth something
    assert mean_depth(trained, fold, early) == pytest.approx(1, abs=0.05)
    late = tuple({0, 1, 2, 3, 4} - set(early))
    assert not late or mean_depth(trained, fold, late) == pytest.approx(2, abs=0.05)


def test_a_router_without_stop_never_stops() -> None:
    tree = early_tree((0, 1))
    trained = train(tree, Objective(0.05), preset("default", "exact"), seed=0)
    assert mean_depth(trained, tree, (0, 1, 2, 3, 4)) == 2

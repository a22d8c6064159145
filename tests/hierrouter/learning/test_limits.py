"""Budgets: for the mean cost of a query, and for every single one."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.evaluation.budget import Ceilings, optimum_at_mean_cost
from hierrouter.learning.checkpoint import load_checkpoint, save_checkpoint
from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.sweep import TrainedSweep, meet_budget
from hierrouter.learning.training import TrainedRouter, train, under_limit
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import decided


def cost_of(trained: TrainedRouter, fold: RouteTree) -> float:
    return float(trained.outcome(fold).cost.mean())


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_budget_is_met_and_made_use_of(
    planted: RouteTree, every_alpha: TrainedSweep, share: float
) -> None:
    fold = every_alpha.at(0.0).judged(planted)
    dear, cheap = (cost_of(every_alpha.at(alpha), fold) for alpha in (0.0, 5.0))
    budget = cheap + share * (dear - cheap)
    trained = meet_budget(every_alpha, planted, budget)
    reached = trained.outcome(fold)
    assert reached.cost.mean() <= budget * (1 + 1e-9)
    assert reached.cost.mean() > cheap
    assert cost_of(every_alpha.at(trained.alpha * 0.9), fold) >= reached.cost.mean()
    best = optimum_at_mean_cost(fold, budget).quality.mean()
    assert 0.8 * best <= reached.quality.mean() <= best


def test_the_least_budget_is_told_and_the_greatest_buys_the_best(
    planted: RouteTree, every_alpha: TrainedSweep
) -> None:
    message = r"no router is that cheap: --budget 0.1; at .* costs (\S+) per query, allow at least"
    with pytest.raises(InputError, match=message) as caught:
        meet_budget(every_alpha, planted, 0.1)
    told = re.search(message, str(caught.value))
    assert told
    cheapest = 1.001 * float(told[1])  # it is told with four digits
    trained = meet_budget(every_alpha, planted, cheapest)
    assert cost_of(trained, trained.judged(planted)) <= cheapest
    assert meet_budget(every_alpha, planted, 1e9).alpha == 0


def sure_limit(fold: RouteTree) -> float:
    """A limit at which every query of the fold has a first call that is sure to stay within it.

    By hand, of the route that calls the cheapest model twice: its first prompt is known, its
    answers are at most the longest ones, its second prompt at most that much longer.
    """
    ceilings, first = Ceilings.of(fold), 1
    second = fold.routes.child(first, 0)
    prompts = 2 * fold.tokens_in[:, first] + ceilings.growth[second]
    tokens = prompts + ceilings.longest[first] + ceilings.longest[second]
    return float((fold.rate[0, 0] * tokens).max())


@pytest.fixture(scope="module")
def limited(planted: RouteTree) -> TrainedRouter:
    limit = 1.5 * sure_limit(planted.split("train"))
    return train(planted, Objective(0.0, max_cost=limit), ExactConfig(epochs=8), seed=0)


def test_a_router_keeps_to_its_limit_and_is_near_the_best_within_it(
    planted: RouteTree, every_alpha: TrainedSweep, limited: TrainedRouter
) -> None:
    limit, free = limited.objective.max_cost, every_alpha.at(0.0)
    assert limit is not None
    for name, most in (("train", 0.0), ("test", 0.01)):
        fold = planted.split(name)
        found, reached = under_limit(limited, fold), limited.outcome(fold)
        assert found.limit == limit and found.share_over <= most
        assert 0.9 * found.masked <= reached.quality.mean() <= found.masked + 1e-9
        assert name == "test" or reached.cost.max() <= limit * (1 + 1e-9)
        assert (free.outcome(fold).cost > limit).mean() > 0.2  # the limit is felt
    with pytest.raises(ValueError, match="without a limit"):
        under_limit(free, fold)


def test_a_limit_is_kept_in_the_checkpoint(
    planted: RouteTree, limited: TrainedRouter, tmp_path: Path
) -> None:
    save_checkpoint(limited, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert loaded.objective == limited.objective
    expected = limited.probabilities(planted)
    assert (expected == 0).any()
    np.testing.assert_array_equal(loaded.probabilities(planted), expected)


def test_live_choices_are_those_of_the_fold(planted: RouteTree, limited: TrainedRouter) -> None:
    fold = planted.split("test")
    routes, chances, ends = fold.routes, limited.probabilities(fold), limited.endings(fold)
    masked = 0
    for query in range(len(fold)):
        node = 0
        while node < routes.states:
            path, cost = routes.path(node), float(fold.cost[query, node])
            prompts = fold.tokens_in[query, routes.child(node, np.arange(routes.models))]
            live = fold.embedding_at(np.array([query]), np.array([node]))[0], path, cost, prompts
            found = decided(limited, *live)
            np.testing.assert_allclose(found, chances[query, node], atol=1e-5)
            masked += int((chances[query, node] == 0).sum())
            node = int(routes.child(node, found.argmax()))
        assert ends[query, node] == 1
    assert masked


def test_a_limit_needs_prompts_and_ceilings(planted: RouteTree, limited: TrainedRouter) -> None:
    embedding = planted.embedding_at(np.array([0]), np.array([0]))[0]
    with pytest.raises(ValueError, match="needs `prompts`"):
        decided(limited, embedding, (), 0.0)
    lost = replace(limited, ceilings=None)
    with pytest.raises(ValueError, match="needs `ceilings`"):
        lost.probabilities(planted)
    with pytest.raises(ValueError, match="needs `ceilings`"):
        decided(lost, embedding, (), 0.0)

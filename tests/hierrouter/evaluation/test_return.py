"""Giving any answer of the route, against plain loops over every episode and every policy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation import bounds
from hierrouter.evaluation.outcome import (
    Actions,
    ending_probabilities,
    ending_reward,
    policy_outcome,
)
from hierrouter.evaluation.policies import policy_endings, policy_table
from hierrouter.learning import exact
from hierrouter.replay.env import ReplayEnv, walk
from hierrouter.reports.build import add_depths
from hierrouter.reports.estimates import Bootstrap, EstimateTable, pivot
from hierrouter.runs.evaluate import evaluate
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation import enumeration as by_hand
from tests.hierrouter.evaluation.enumeration import Path, alphas, node, seeds, small_trees
from tests.hierrouter.trees import random_tree, returning, showing_leaves


def worth(tree: RouteTree, query: int, path: Path, given: int, alpha: float) -> float:
    """R of these calls where answer `given`, counted from 1, is the one that is given."""
    price = alpha * by_hand.cost(tree, query, path)
    return by_hand.quality(tree, query, path[:given]) - price


def exact_optimum(tree: RouteTree, alpha: float, stop: bool, returns: bool) -> np.ndarray:
    """R of the best action at every state, from the last choice back, as learning values them."""
    tree = returning(tree, returns)
    actions = Actions(tree.layout, stop)
    pays = torch.from_numpy(ending_reward(tree, alpha))
    table, illegal = torch.from_numpy(table_for(tree, actions, 0)), ~actions.legal()
    for _ in range(actions.steps):  # policy improvement: a level is right after each
        values = exact.action_values(actions, table, pays)
        values = values.masked_fill(torch.from_numpy(illegal), -np.inf)
        table = torch.nn.functional.one_hot(values.argmax(dim=2), actions.count).double()
    walked = walk(
        actions,
        pays.numpy(),
        np.arange(len(tree)),
        lambda state: table.reshape(-1, actions.count)[state].argmax(dim=1).numpy(),
    )
    found = exact.expected_return(actions, table, pays).numpy()
    assert walked.reward.sum(axis=1).tolist() == found.tolist()
    return found


@by_hand.unhurried
@given(small_trees, alphas, st.booleans())
def test_it_never_lowers_what_can_be_reached(tree: RouteTree, alpha: float, stop: bool) -> None:
    reached = []
    for returns in (False, True):
        ends = [
            (path, answer)
            for path in by_hand.paths(tree, stop or returns)
            for answer in (range(1, len(path) + 1) if returns else [len(path)])
        ]
        best = [max(worth(tree, q, *end, alpha) for end in ends) for q in range(len(tree))]
        assert bounds.oracle(tree, alpha, stop or returns).reward(alpha).tolist() == best
        assert exact_optimum(tree, alpha, stop, returns).tolist() == best
        reached.append(best)
    assert (np.array(reached[1]) >= reached[0]).all()


def table_for(tree: RouteTree, actions: Actions, seed: int) -> np.ndarray:
    """Some policy that does what is legal."""
    shape = (len(tree), actions.states, actions.count)
    weight = np.random.default_rng(seed).gamma(1.0, size=shape) * actions.legal()
    return weight / weight.sum(axis=2, keepdims=True)


@by_hand.unhurried
@given(small_trees, alphas, st.booleans(), seeds)
def test_expectations_are_sums_over_all_episodes(
    tree: RouteTree, alpha: float, stop: bool, seed: int
) -> None:
    tree = tree.with_returns
    actions = Actions(tree.layout, stop)
    table, models, hops = table_for(tree, actions, seed), len(tree.models), tree.hops
    expected = np.zeros((len(tree), 3))  # Q, C and calls

    def follow(query: int, path: Path, chance: float) -> None:
        row = chance * table[query, node(tree, path)]
        for answer in range(1, len(path) + 1):
            end(query, path, answer, row[actions.calls + answer - 1])
        for model in range(models) if len(path) < hops else ():
            follow(query, (*path, model), row[model])
            if stop:
                end(query, (*path, model), len(path) + 1, row[models + model])

    def end(query: int, path: Path, answer: int, chance: float) -> None:
        quality, cost = by_hand.quality(tree, query, path[:answer]), by_hand.cost(tree, query, path)
        expected[query] += chance * np.array([quality, cost, len(path)])

    for query in range(len(tree)):
        follow(query, (), 1.0)
    ends = ending_probabilities(actions, table)
    outcome = policy_outcome(tree, actions, table, "x", "router")
    np.testing.assert_allclose(outcome.quality, expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(outcome.cost, expected[:, 1])
    reward = outcome.reward(alpha)
    estimates = EstimateTable(tree.datasets, Bootstrap(n=2))
    add_depths(estimates, tree, ends, alpha)
    depths = pivot(estimates.lines(), "depths", "hop")
    assert sum(depth.share * depth.hop for depth in depths) == pytest.approx(expected[:, 2].mean())
    for which, mean in (
        ("share", 1),
        ("quality", outcome.quality.mean()),
        ("cost", outcome.cost.mean()),
        ("reward", reward.mean()),
    ):
        over = [1 if which == "share" else depth.share for depth in depths if depth.share]
        parts = [getattr(depth, which) for depth in depths if depth.share]
        assert np.dot(over, parts) == pytest.approx(mean)
    lost = bounds.split_regret(tree, alpha, ends, stop)
    assert lost.shape == (len(tree), hops + 1)
    assert lost.min() > -1e-9
    best = bounds.oracle(tree, alpha, allow_stop=True).reward(alpha)
    np.testing.assert_allclose(lost.sum(axis=1), best - reward, atol=1e-9)
    pays = torch.from_numpy(ending_reward(tree, alpha))
    policy = torch.from_numpy(table)
    assert exact.expected_return(actions, policy, pays).numpy() == pytest.approx(reward)
    values = exact.action_values(actions, policy, pays).numpy()
    np.testing.assert_allclose((table * values)[:, 0].sum(axis=1), reward, atol=1e-9)


def test_a_rule_of_the_users_own_gives_the_first_answer() -> None:
    tree = random_tree(Layout.full(2, 2), 5, seed=0)
    asked = []

    def rule(seen: object) -> str:
        asked.append(seen["stage"])  # type: ignore[index]
        return "model-0" if seen["stage"] < 2 else "return>1"  # type: ignore[index]

    found = evaluate(tree, rule, alpha=0.1, allow_return=True)
    first = tree.layout.node((0,)), tree.layout.node((0, 0))
    np.testing.assert_array_equal(found.quality, tree.score[:, first[0]])
    np.testing.assert_array_equal(found.cost, tree.cost[:, first[1]])
    assert sorted(set(asked)) == [0, 1, 2]
    # Who knows nothing of it gives the last answer; at the start there is none.
    steady = evaluate(tree, lambda seen: 1, alpha=0.1, allow_return=True)
    np.testing.assert_array_equal(steady.quality, tree.score[:, tree.layout.node((1, 1))])
    tree = tree.with_returns
    table = policy_table(tree, lambda seen: [0.5, 0.5], 0.1)
    assert table.shape == (5, 7, 4)
    ends = policy_endings(tree, table, 0.1, False)
    np.testing.assert_allclose(ends[:, tree.layout.leaves], 0.25)
    with pytest.raises(InputError, match=r"not offered: return>2: .*: 0 model-0, 1 mod"):
        evaluate(tree, lambda seen: 3, alpha=0.1, allow_return=True)


@pytest.mark.parametrize("stop", [False, True])
def test_an_environment_pays_for_the_answer_that_is_given(stop: bool) -> None:
    tree = showing_leaves(random_tree(Layout.full(2, 2), 3, seed=1))
    env = ReplayEnv(tree.with_returns, 0.1, stop)
    returns = env.actions.calls
    leaf = tree.layout.node((0, 1))
    for action, column in ((returns, 1), (returns + 1, leaf), (0, leaf)):
        env.reset(options={"query": 2})
        assert [env.step(call)[2] for call in (0, 1)] == [False, False]
        observation, reward, ended, *_ = env.step(action)
        assert (ended, observation["stage"]) == (True, 2)
        assert reward == tree.score[2, column] - 0.1 * tree.cost[2, leaf]
    env.reset(options={"query": 2})
    assert env.step(returns)[1:3] == (tree.score[2, 0], True)  # of nothing, in a cache 0
    with pytest.raises(InputError, match="open the cache with allow_return"):
        ReplayEnv(random_tree(Layout.full(2, 2), 3, seed=1).with_returns, 0.1)

"""Giving any answer of the route, against plain loops over every episode and every policy."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation import bounds, calls, metrics
from hierrouter.evaluation.outcome import (
    Actions,
    ended_at,
    ending,
    ending_reward,
    pairs,
    policy_outcome,
)
from hierrouter.evaluation.policies import policy_endings, policy_table
from hierrouter.learning import network
from hierrouter.learning.evaluate import evaluate
from hierrouter.replay.env import ReplayEnv, walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation import enumeration as by_hand
from tests.hierrouter.evaluation.enumeration import Path, alphas, node, seeds, small_trees
from tests.hierrouter.trees import random_tree, showing_leaves


def worth(tree: RouteTree, query: int, path: Path, given: int, alpha: float) -> float:
    """R of these calls where answer `given`, counted from 1, is the one that is given."""
    price = alpha * by_hand.cost(tree, query, path)
    return by_hand.quality(tree, query, path[:given]) - price


def best_policy(
    tree: RouteTree, seen: np.ndarray, alpha: float, stop: bool, returns: bool
) -> float:
    """The most that a policy earns in sum which tells queries apart by what it has seen so far."""

    def alike(queries: list[int], path: Path) -> Iterator[list[int]]:
        for look in {seen[query, node(tree, path)] for query in queries}:
            yield [query for query in queries if seen[query, node(tree, path)] == look]

    def best(queries: list[int], path: Path) -> float:
        earned = []
        if returns:
            for answer in range(1, len(path) + 1):
                earned.append(sum(worth(tree, q, path, answer, alpha) for q in queries))
        for model in range(len(tree.models)) if len(path) < tree.hops else ():
            after = (*path, model)
            last = sum(worth(tree, query, after, len(after), alpha) for query in queries)
            if stop or (len(after) == tree.hops and not returns):
                earned.append(last)
            if len(after) < tree.hops or returns:
                earned.append(sum(best(group, after) for group in alike(queries, after)))
        return max(earned)

    return sum(best(group, ()) for group in alike(list(range(len(tree))), ()))


@by_hand.unhurried
@given(small_trees, alphas, st.booleans(), seeds)
def test_it_never_lowers_what_can_be_reached(
    tree: RouteTree, alpha: float, stop: bool, seed: int
) -> None:
    oracles, optima = [], []
    seen = np.random.default_rng(seed).integers(0, 2, (len(tree), tree.routes.nodes))
    for returns in (False, True):
        ends = [
            (path, answer)
            for path in by_hand.paths(tree, stop or returns)
            for answer in (range(1, len(path) + 1) if returns else [len(path)])
        ]
        best = [max(worth(tree, q, *end, alpha) for end in ends) for q in range(len(tree))]
        oracle = bounds.oracle(tree, alpha, stop or returns).reward(alpha)
        assert oracle.tolist() == best
        shown = seen if returns else seen[:, : tree.routes.states]
        found = calls.measurable_optimum(tree, shown, alpha, stop, returns).reward(alpha).sum()
        assert found == best_policy(tree, seen, alpha, stop, returns)
        told = np.broadcast_to(np.arange(len(tree))[:, None], shown.shape)  # knows each query
        knowing = calls.measurable_optimum(tree, told, alpha, stop, returns)
        assert knowing.reward(alpha).tolist() == best
        oracles.append(oracle)
        optima.append(found)
    assert (oracles[1] >= oracles[0]).all()
    assert optima[1] >= optima[0]


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
    actions = Actions(tree.routes, stop, allow_return=True)
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
    ends = ending(actions, table)
    outcome = policy_outcome(tree, actions, table, "x", "router")
    np.testing.assert_allclose(outcome.quality, expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(outcome.cost, expected[:, 1])
    reward = outcome.reward(alpha)
    made = metrics.call_mix(tree.routes, ends).sum(axis=(1, 2))
    np.testing.assert_allclose(made, expected[:, 2])
    depths = calls.by_depth(tree, ends)
    assert sum(depth.share * depth.calls for depth in depths) == pytest.approx(made.mean())
    for which, mean in (("quality", outcome.quality.mean()), ("cost", outcome.cost.mean())):
        parts = [depth.share * getattr(depth, which) for depth in depths if depth.share]
        assert sum(parts) == pytest.approx(mean)
    lost = bounds.split_regret(tree, alpha, ends, stop, allow_return=True)
    assert lost.shape == (len(tree), hops + 1)
    assert lost.min() > -1e-9
    best = bounds.oracle(tree, alpha, allow_stop=True).reward(alpha)
    np.testing.assert_allclose(lost.sum(axis=1), best - reward, atol=1e-9)
    pays = torch.from_numpy(ending_reward(tree, alpha, actions.width))
    policy = torch.from_numpy(table)
    assert network.expected_return(actions, policy, pays).numpy() == pytest.approx(reward)
    values = network.action_values(actions, policy, pays).numpy()
    np.testing.assert_allclose((table * values)[:, 0].sum(axis=1), reward, atol=1e-9)


@given(small_trees, seeds)
def test_choosing_the_best_action_backwards_is_the_oracle(tree: RouteTree, seed: int) -> None:
    actions, alpha = Actions(tree.routes, allow_return=True), 0.25
    pays = torch.from_numpy(ending_reward(tree, alpha, actions.width))
    table = torch.from_numpy(table_for(tree, actions, seed))
    legal = torch.from_numpy(actions.legal())
    for _ in range(actions.steps):  # policy improvement, a level a time
        values = network.action_values(actions, table, pays).masked_fill(~legal, -np.inf)
        table = torch.nn.functional.one_hot(values.argmax(dim=2), actions.count).double()
    best = bounds.oracle(tree, alpha, allow_stop=True).reward(alpha)
    np.testing.assert_allclose(network.expected_return(actions, table, pays).numpy(), best)
    walked = walk(
        actions,
        pays.numpy(),
        np.arange(len(tree)),
        lambda state: table.reshape(-1, actions.count)[state].argmax(dim=1).numpy(),
    )
    np.testing.assert_allclose(walked.reward.sum(axis=1), best)


def test_what_ends_where_has_one_number() -> None:
    routes = Routes(3, 3)
    at, gives, number = pairs(routes)
    assert len(at) == routes.nodes + 9 + 2 * 27
    for ended in range(1, routes.nodes):
        path = routes.path(ended)
        for answer in range(1, 4):
            ending_number = number[ended, answer - 1]
            given = routes.node(path[: min(answer, len(path))])
            assert (at[ending_number], gives[ending_number]) == (ended, given)
    ends = np.random.default_rng(0).random((2, len(at)))
    np.testing.assert_allclose(ended_at(routes, ends), ends @ np.eye(routes.nodes)[at])


def test_a_rule_of_the_users_own_gives_the_first_answer() -> None:
    tree = random_tree(Routes(2, 2), 5, seed=0)
    asked = []

    def rule(seen: object) -> str:
        asked.append(seen["stage"])  # type: ignore[index]
        return "model-0" if seen["stage"] < 2 else "return>1"  # type: ignore[index]

    found = evaluate(tree, rule, alpha=0.1, allow_return=True)
    first = tree.routes.node((0,)), tree.routes.node((0, 0))
    np.testing.assert_array_equal(found.quality, tree.score[:, first[0]])
    np.testing.assert_array_equal(found.cost, tree.cost[:, first[1]])
    assert sorted(set(asked)) == [0, 1, 2]
    # Who knows nothing of it gives the last answer; at the start there is none.
    steady = evaluate(tree, lambda seen: 1, alpha=0.1, allow_return=True)
    np.testing.assert_array_equal(steady.quality, tree.score[:, tree.routes.node((1, 1))])
    table = policy_table(tree, lambda seen: [0.5, 0.5], 0.1, allow_return=True)
    assert table.shape == (5, 7, 4)
    ends = policy_endings(tree, table, 0.1, False, True)
    np.testing.assert_allclose(ends[:, tree.routes.leaves], 0.25)
    with pytest.raises(InputError, match=r"no such action: 'return>2'.*: 0 model-0, 1 mod"):
        evaluate(tree, lambda seen: 3, alpha=0.1, allow_return=True)


@pytest.mark.parametrize("stop", [False, True])
def test_an_environment_pays_for_the_answer_that_is_given(stop: bool) -> None:
    tree = showing_leaves(random_tree(Routes(2, 2), 3, seed=1))
    env = ReplayEnv(tree, 0.1, stop, allow_return=True)
    returns = env.actions.calls
    leaf = tree.routes.node((0, 1))
    for action, column in ((returns, 1), (returns + 1, leaf), (0, leaf)):
        env.reset(options={"query": 2})
        assert [env.step(call)[2] for call in (0, 1)] == [False, False]
        observation, reward, ended, *_ = env.step(action)
        assert (ended, observation["stage"]) == (True, 2)
        assert reward == tree.score[2, column] - 0.1 * tree.cost[2, leaf]
    env.reset(options={"query": 2})
    assert env.step(returns)[1:3] == (tree.score[2, 0], True)  # of nothing, in a cache 0
    with pytest.raises(InputError, match="open the cache with allow_return"):
        ReplayEnv(random_tree(Routes(2, 2), 3, seed=1), 0.1, allow_return=True)

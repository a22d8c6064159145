"""What a further call brings: depth, repair, information."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.evaluation import calls
from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.calls import Depth, measurable_optimum, observations
from hierrouter.evaluation.outcome import Actions, ending, policy_outcome
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    cost,
    node,
    quality,
    seeds,
    small_trees,
    unhurried,
)
from tests.hierrouter.evaluation.test_outcome import random_table, trees
from tests.hierrouter.trees import random_tree, two_step_tree


@given(trees, st.lists(st.integers(0, 2**16), min_size=1, max_size=4, unique=True))
def test_points_of_curves_are_policies_and_depths_add_up(tree: RouteTree, seeds: list[int]) -> None:
    actions = Actions(tree.routes, allow_stop=True)
    tables = {seed / 1000: random_table(tree, seed, allow_stop=True) for seed in seeds}
    endings = {alpha: ending(actions, table) for alpha, table in tables.items()}
    curve = calls.depth_curve(tree, endings)
    assert sorted(point.alpha for point in curve) == sorted(tables)
    assert [point.beyond_first for point in curve] == sorted(point.beyond_first for point in curve)
    for point in curve:
        outcome = policy_outcome(tree, actions, tables[point.alpha], "x", "router")
        depths = calls.by_depth(tree, endings[point.alpha])
        assert [depth.calls for depth in depths] == list(range(1, tree.hops + 1))
        whole = [
            sum(depth.share * (getattr(depth, name) or 0) for depth in depths)
            for name in ("quality", "cost", "calls")
        ]
        assert (point.quality, point.cost, point.calls) == pytest.approx(tuple(whole))
        assert whole[:2] == pytest.approx([outcome.quality.mean(), outcome.cost.mean()])
        assert point.beyond_first == pytest.approx(sum(depth.share for depth in depths[1:]))


def test_a_hand_made_policy() -> None:
    """One query stops after its first call, the other one draws between stopping and going on."""
    tree = replace(
        random_tree(Routes(1, 2), 2, 0),
        score=np.array([[0, 1.0, 0.5], [0, 0.0, 1.0]]),
        tokens_in=np.ones((2, 3), dtype=np.int64),
        tokens_out=np.zeros((2, 3), dtype=np.int64),
        rate=np.ones((1, 2)),
    )
    endings = np.array([[0, 1, 0], [0, 0.5, 0.5]])
    first, second = calls.by_depth(tree, endings)
    assert first == Depth(calls=1, share=0.75, quality=pytest.approx(2 / 3), cost=1.0)
    assert second == Depth(calls=2, share=0.25, quality=1.0, cost=2.0)
    (point,) = calls.depth_curve(tree, {0.1: endings})
    assert (point.beyond_first, point.calls, point.quality, point.cost) == (0.25, 1.25, 0.75, 1.25)


def test_a_depth_without_answers_has_no_means() -> None:
    tree = random_tree(Routes(2, 3), 4, 0)
    first, second, third = calls.by_depth(tree, ending(Actions(tree.routes), random_table(tree, 0)))
    assert first == Depth(1, 0.0, None, None)
    assert second == Depth(2, 0.0, None, None)
    assert third.share == pytest.approx(1)


@unhurried
@given(small_trees)
def test_repair_is_what_counting_routes_gives(tree: RouteTree) -> None:
    pool = range(len(tree.models))
    found = calls.repair_matrices(tree)
    assert [matrix.hop for matrix in found] == list(range(2, tree.hops + 1))
    for matrix, query, first, second in itertools.product(found, range(len(tree)), pool, pool):
        before = [(*path, first) for path in itertools.product(pool, repeat=matrix.hop - 2)]
        pairs = [(path, (*path, second)) for path in before]
        right = [[tree.accuracy[query, node(tree, path)] == 1 for path in pair] for pair in pairs]
        change = [quality(tree, query, new) - quality(tree, query, old) for old, new in pairs]
        for values, expected in (
            (matrix.right[:, :, None], [was for was, _ in right]),
            (matrix.repair, [now and not was for was, now in right]),
            (matrix.damage, [was and not now for was, now in right]),
            (matrix.quality, change),
            (matrix.cost, [cost(tree, query, new) - cost(tree, query, old) for old, new in pairs]),
        ):
            at = min(second, values.shape[2] - 1)
            assert values[query, first, at] == pytest.approx(np.mean(expected))


@unhurried
@given(small_trees)
def test_repair_less_damage_is_the_change_in_accuracy_of_fractions_too(tree: RouteTree) -> None:
    verdicts = np.random.default_rng(len(tree)).random(tree.accuracy.shape)
    for matrix in calls.repair_matrices(replace(tree, accuracy=verdicts, score=verdicts)):
        np.testing.assert_allclose(matrix.repair - matrix.damage, matrix.quality, atol=1e-12)
        assert (matrix.repair <= 1 - matrix.right[..., None]).all()
        assert (matrix.damage <= matrix.right[..., None]).all()


def optimum(tree: RouteTree, observation: np.ndarray, alpha: float, stop: bool = False) -> float:
    return measurable_optimum(tree, observation, alpha, stop).reward(alpha).mean()


def histories(tree: RouteTree, observation: np.ndarray) -> list[list[tuple[int, ...]]]:
    """What a policy with a memory knows at each state: o_0, a_0, o_1, a_1, ... o_t."""
    routes = tree.routes
    known = []
    for query in range(len(tree)):
        known.append([(int(observation[query, 0]),)])
        for state in range(1, routes.states):
            before = known[query][routes.parent(state)]
            known[query].append((*before, routes.action(state), int(observation[query, state])))
    return known


def enumerated_optimum(
    tree: RouteTree, observation: np.ndarray, alpha: float, actions: Actions
) -> float:
    """The best mean reward over all maps from histories to actions, tried one by one."""
    known = histories(tree, observation)
    distinct = sorted({history for query in known for history in query})
    reward = tree.node_reward(alpha)
    legal = [
        np.flatnonzero(actions.legal()[tree.routes.node(history[1::2])]) for history in distinct
    ]
    best = -np.inf
    for chosen in itertools.product(*legal):
        policy = dict(zip(distinct, chosen, strict=True))
        total = 0.0
        for query in range(len(tree)):
            node, over = 0, False
            while not over:
                action = policy[known[query][node]]
                node, _, over = actions.after(node, action)
            total += reward[query, node]
        best = max(best, total / len(tree))
    return best


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(2, 2, False), (2, 2, True), (3, 1, True), (4, 1, False)]),
    st.integers(1, 3),
    st.floats(0, 0.5),
    seeds,
)
def test_no_policy_with_a_memory_is_better_and_one_is_as_good(
    shape: tuple[int, int, bool], queries: int, alpha: float, seed: int
) -> None:
    models, hops, stop = shape
    tree = random_tree(Routes(models, hops), queries, seed)
    observation = np.random.default_rng(seed).integers(0, 2, (len(tree), tree.routes.states))
    best = enumerated_optimum(tree, observation, alpha, Actions(tree.routes, stop))
    assert optimum(tree, observation, alpha, stop) == pytest.approx(best)


@given(trees, st.booleans(), st.floats(0, 0.5))
def test_nothing_seen_is_worth_the_best_fixed_route_and_the_question_the_oracle(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    nothing = np.zeros((len(tree), tree.routes.states), dtype=np.int64)
    fixed = best_fixed_route(tree, alpha, tree, stop).reward(alpha).mean()
    assert optimum(tree, nothing, alpha, stop) == pytest.approx(fixed)
    best = oracle(tree, alpha, stop)
    informed = measurable_optimum(tree, observations(tree), alpha, stop)
    np.testing.assert_allclose(informed.reward(alpha), best.reward(alpha))
    np.testing.assert_allclose(informed.cost, best.cost)


@pytest.mark.parametrize("models", [2, 3, 5])
def test_what_each_view_of_the_planted_tree_is_worth(models: int) -> None:
    blind, asked = 2 / (models * (models + 1)), 2 / (models + 1)
    for view, worth in {"context": 1, "query+answer": 1, "query": asked, "stage": blind}.items():
        tree = two_step_tree(models=models, copies=(1, 0, 0), view=view)
        best = measurable_optimum(tree, observations(tree), 0.005)
        assert best.quality.mean() == pytest.approx(worth)
        assert best.reward(0.005).mean() == pytest.approx(worth - 2 * 0.005)
        assert best.kind == "oracle"


def test_states_that_look_the_same_have_the_same_number() -> None:
    tree = two_step_tree(models=2, copies=(1, 0, 0))
    number = observations(tree)
    looks = [
        (tree.embedding[query, node].tobytes(), tree.cost[query, node], min(node, 1))
        for query in range(len(tree))
        for node in range(tree.routes.states)
    ]
    for (one, first), (other, second) in itertools.product(
        zip(looks, number.ravel(), strict=True), repeat=2
    ):
        assert (one == other) == (first == second)


def test_stage_and_cost_tell_states_apart_in_every_view() -> None:
    tree = two_step_tree(models=2, copies=(1, 0, 0), view="stage")
    assert observations(tree).tolist() == [[0, 1, 1]] * len(tree)
    for rate, number in [((0.01, 0.02), [0, 1, 2]), ((0.0, 0.0), [0, 1, 1])]:
        priced = replace(tree, rate=np.tile(rate, (2, 1)).T)
        assert observations(priced).tolist() == [number] * len(tree)

"""What a further call brings: depth, repair, information."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.calls import (
    Depth,
    by_depth,
    depth_curve,
    measurable_optimum,
    observations,
    repair_matrices,
)
from hierrouter.evaluation.outcome import Actions, ending, policy_outcome
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    cost,
    mean,
    node,
    quality,
    small_trees,
    unhurried,
)
from tests.hierrouter.evaluation.test_outcome import trees
from tests.hierrouter.trees import random_tree, two_step_tree


def stopping_table(tree: RouteTree, seed: int) -> tuple[Actions, np.ndarray]:
    actions = Actions(tree.routes, allow_stop=True)
    shape = (len(tree), tree.routes.states)
    table = np.random.default_rng(seed).dirichlet(np.ones(actions.count), shape) * actions.legal()
    return actions, table / table.sum(axis=2, keepdims=True)


@given(trees, st.integers(0, 2**16))
def test_the_depths_add_up_to_the_whole_policy(tree: RouteTree, seed: int) -> None:
    actions, table = stopping_table(tree, seed)
    depths = by_depth(tree, ending(actions, table))
    outcome = policy_outcome(tree, actions, table, "x", "router")
    answered = [depth for depth in depths if depth.share > 0]
    assert [depth.calls for depth in depths] == list(range(1, tree.hops + 1))
    assert sum(depth.share for depth in depths) == pytest.approx(1)
    quality = sum(depth.share * depth.quality for depth in answered)
    assert quality == pytest.approx(outcome.quality.mean())
    assert sum(depth.share * depth.cost for depth in answered) == pytest.approx(outcome.cost.mean())


@given(trees, st.lists(st.integers(0, 2**16), min_size=1, max_size=4, unique=True))
def test_each_point_of_the_curve_is_a_policy(tree: RouteTree, seeds: list[int]) -> None:
    tables = {seed / 1000: stopping_table(tree, seed) for seed in seeds}
    curve = depth_curve(tree, {alpha: ending(*table) for alpha, table in tables.items()})
    assert sorted(point.alpha for point in curve) == sorted(tables)
    assert [point.beyond_first for point in curve] == sorted(point.beyond_first for point in curve)
    for point in curve:
        actions, table = tables[point.alpha]
        outcome = policy_outcome(tree, actions, table, "x", "router")
        depths = by_depth(tree, ending(actions, table))
        assert point.quality == pytest.approx(outcome.quality.mean())
        assert point.cost == pytest.approx(outcome.cost.mean())
        assert point.beyond_first == pytest.approx(sum(depth.share for depth in depths[1:]))
        assert point.calls == pytest.approx(sum(depth.share * depth.calls for depth in depths))


def test_a_hand_made_policy() -> None:
    """One query stops after its first call, the other one draws between stopping and going on."""
    tree = random_tree(Routes(1, 2), 2, 0)
    tree = replace(
        tree,
        score=np.array([[0, 1.0, 0.5], [0, 0.0, 1.0]]),
        tokens_in=np.ones((2, 3), dtype=np.int64),
        tokens_out=np.zeros((2, 3), dtype=np.int64),
        rate=np.ones((1, 2)),
    )
    endings = np.array([[0, 1, 0], [0, 0.5, 0.5]])
    first, second = by_depth(tree, endings)
    assert first == Depth(calls=1, share=0.75, quality=pytest.approx(2 / 3), cost=1.0)
    assert second == Depth(calls=2, share=0.25, quality=1.0, cost=2.0)
    (point,) = depth_curve(tree, {0.1: endings})
    assert (point.beyond_first, point.calls, point.quality, point.cost) == (0.25, 1.25, 0.75, 1.25)


def test_a_depth_without_answers_has_no_means() -> None:
    tree = random_tree(Routes(2, 3), 4, 0)
    table = np.full((4, tree.routes.states, 2), 0.5)
    first, second, third = by_depth(tree, ending(Actions(tree.routes), table))
    assert first == Depth(1, 0.0, None, None)
    assert second == Depth(2, 0.0, None, None)
    assert third.share == pytest.approx(1)


@unhurried
@given(small_trees)
def test_it_is_what_counting_routes_gives(tree: RouteTree) -> None:
    pool = range(len(tree.models))
    found = repair_matrices(tree)
    assert [matrix.hop for matrix in found] == list(range(2, tree.hops + 1))
    for matrix, query, first, second in itertools.product(found, range(len(tree)), pool, pool):
        before = [(*path, first) for path in itertools.product(pool, repeat=matrix.hop - 2)]
        pairs = [(path, (*path, second)) for path in before]
        right = [[tree.accuracy[query, node(tree, path)] == 1 for path in pair] for pair in pairs]
        here = query, first, second
        assert matrix.right[query, first] == pytest.approx(mean([was for was, _ in right]))
        assert matrix.repair[here] == pytest.approx(mean([is_ and not was for was, is_ in right]))
        assert matrix.damage[here] == pytest.approx(mean([was and not is_ for was, is_ in right]))
        change = [quality(tree, query, new) - quality(tree, query, old) for old, new in pairs]
        assert matrix.quality[here] == pytest.approx(mean(change))
        spent = [cost(tree, query, new) - cost(tree, query, old) for old, new in pairs]
        assert matrix.cost[here] == pytest.approx(mean(spent))


@unhurried
@given(small_trees)
def test_repair_less_damage_is_the_change_in_accuracy_of_fractions_too(tree: RouteTree) -> None:
    verdicts = np.random.default_rng(len(tree)).random(tree.accuracy.shape)
    fractions = replace(tree, accuracy=verdicts, score=verdicts)
    for matrix in repair_matrices(fractions):
        np.testing.assert_allclose(matrix.repair - matrix.damage, matrix.quality, atol=1e-12)
        assert (matrix.repair <= 1 - matrix.right[..., None]).all()
        assert (matrix.damage <= matrix.right[..., None]).all()


def test_a_hand_made_second_hop() -> None:
    """Model 1 mends what model 0 broke on one of two queries, and breaks its own answer."""
    tree = random_tree(Routes(2, 2), 2, 0)
    tree = replace(tree, accuracy=np.array([[0.0, 0, 1, 0, 1, 1, 0], [0.0, 0, 1, 0, 0, 1, 1]]))
    (matrix,) = repair_matrices(tree)
    assert matrix.right.mean(axis=0).tolist() == [0, 1]
    assert matrix.repair.mean(axis=0).tolist() == [[0, 0.5], [0, 0]]
    assert matrix.damage.mean(axis=0).tolist() == [[0, 0], [0, 0.5]]


def test_one_hop_repairs_nothing() -> None:
    assert repair_matrices(random_tree(Routes(2, 1), 2, 0)) == []


ALPHA = 0.005
ROUNDING = 1e-9
seeds = st.integers(0, 2**16)


def seen(tree: RouteTree, kinds: int, seed: int) -> np.ndarray:
    shape = (len(tree), tree.routes.states)
    return np.random.default_rng(seed).integers(0, kinds, shape)


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
                node = tree.routes.child(node, actions.model(action))
                over = bool(actions.ends(node, action))
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
    observation = seen(tree, 2, seed)
    best = enumerated_optimum(tree, observation, alpha, Actions(tree.routes, stop))
    assert optimum(tree, observation, alpha, stop) == pytest.approx(best)


@given(trees, st.booleans(), st.floats(0, 0.5), seeds)
def test_no_policy_without_a_memory_is_better(
    tree: RouteTree, stop: bool, alpha: float, seed: int
) -> None:
    actions, observation = Actions(tree.routes, stop), seen(tree, 3, seed)
    rows = np.random.default_rng(seed).dirichlet(np.full(actions.count, 0.3), 3) + 1e-9
    table = rows[observation] * actions.legal()
    table /= table.sum(axis=2, keepdims=True)
    outcome = policy_outcome(tree, actions, table, "x", "router")
    assert outcome.reward(alpha).mean() <= optimum(tree, observation, alpha, stop) + ROUNDING


@given(trees, st.booleans(), st.floats(0, 0.5), seeds)
def test_who_sees_more_can_do_at_least_as_well(
    tree: RouteTree, stop: bool, alpha: float, seed: int
) -> None:
    fine = seen(tree, 6, seed)
    assert optimum(tree, fine // 2, alpha, stop) <= optimum(tree, fine, alpha, stop) + ROUNDING


@given(trees, st.booleans(), st.floats(0, 0.5))
def test_seeing_nothing_is_worth_the_best_fixed_route(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    nothing = np.zeros((len(tree), tree.routes.states), dtype=np.int64)
    fixed = best_fixed_route(tree, alpha, tree, stop).reward(alpha).mean()
    assert optimum(tree, nothing, alpha, stop) == pytest.approx(fixed)


@given(trees, st.booleans(), st.floats(0, 0.5))
def test_knowing_the_question_is_worth_the_oracle(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    best, known = oracle(tree, alpha, stop), observations(tree)
    informed = measurable_optimum(tree, known, alpha, stop)
    np.testing.assert_allclose(informed.reward(alpha), best.reward(alpha))
    np.testing.assert_allclose(informed.cost, best.cost)


def test_what_was_seen_before_is_remembered() -> None:
    """Two questions, the same answer: which second call is right follows from the question."""
    tree = random_tree(Routes(2, 2), 2, 0)
    tree = replace(tree, score=np.array([[0.0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0]]))
    assert optimum(tree, np.array([[0, 9, 9], [1, 9, 9]]), 0.0) == 1.0
    assert optimum(tree, np.array([[0, 9, 9], [0, 9, 9]]), 0.0) == 0.5


def test_stopping_is_decided_before_the_answer_is_seen() -> None:
    """One call is right for one of two equal questions; only its answer tells for which."""
    tree = random_tree(Routes(1, 2), 2, 0)
    tree = replace(tree, score=np.array([[0, 1.0, 0], [0, 0, 1.0]]))
    after = np.array([[0, 1], [0, 2]])
    assert optimum(tree, after, 0.0, stop=True) == 0.5


@pytest.mark.parametrize(
    ("view", "worth"),
    [("context", 1), ("query+answer", 1), ("query", 2 / 4), ("stage", 2 / 12)],
)
def test_what_each_view_of_the_planted_tree_is_worth(view: str, worth: float) -> None:
    tree = two_step_tree(models=3, view=view)
    for fold in ("train", "validation", "test"):
        part = tree.split(fold)
        best = measurable_optimum(part, observations(part), ALPHA)
        assert best.quality.mean() == pytest.approx(worth)
        assert best.reward(ALPHA).mean() == pytest.approx(worth - 2 * ALPHA)
        assert best.kind == "oracle"


@pytest.mark.parametrize("models", [2, 3, 5])
def test_the_planted_tree_for_any_number_of_models(models: int) -> None:
    worth = {"context": 1, "query": 2 / (models + 1), "stage": 2 / (models * (models + 1))}
    for view, wanted in worth.items():
        tree = two_step_tree(models=models, copies=(1, 0, 0), view=view)
        assert optimum(tree, observations(tree), 0.0) == pytest.approx(wanted)


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

"""The best policy of a view against every policy of that view."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.calls import measurable_optimum, observations
from hierrouter.evaluation.outcome import Actions, policy_outcome
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_exact import trees
from tests.hierrouter.trees import random_tree, two_step_tree

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
        for node in range(1, routes.states):
            before = known[query][routes.parent(node)]
            known[query].append((*before, routes.action(node), int(observation[query, node])))
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
    for view, quality in worth.items():
        tree = two_step_tree(models=models, copies=(1, 0, 0), view=view)
        assert optimum(tree, observations(tree), 0.0) == pytest.approx(quality)


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

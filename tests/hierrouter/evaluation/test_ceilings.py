"""A mask that keeps queries within a budget, by what is known before a call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.budget import Ceilings, affordable, affordable_at
from hierrouter.evaluation.outcome import Actions, ending
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_exact import shapes
from tests.hierrouter.trees import random_tree

ROUNDING = 1e-9
seeds = st.integers(0, 2**16)
shares = st.floats(0, 1.2)


def fold(routes: Routes, queries: int, seed: int) -> RouteTree:
    """A random tree whose prompts grow; a token out costs more than a token in."""
    tree = random_tree(routes, queries, seed)
    rng = np.random.default_rng(seed)
    tokens_in = rng.integers(1, 9, tree.tokens_in.shape) + 6 * routes.depth()
    rate = 0.25 * rng.integers(1, 4, tree.rate.shape)
    return replace(tree, tokens_in=tokens_in, rate=rate)


folds = st.builds(fold, shapes, st.integers(1, 5), seeds)


def budget_of(tree: RouteTree, share: float) -> float:
    return share * tree.cost.max()


def to_the_end(
    chosen_on: RouteTree, tree: RouteTree, actions: Actions, node: int, stop: bool, prompt: int
) -> float:
    """Ceiling of the call that leads to a node and of the cheapest calls that must follow."""
    rate_in, rate_out = tree.rate[tree.routes.action(node)]
    total = rate_in * prompt + rate_out * chosen_on.tokens_out[:, node].max()
    if stop or node >= tree.routes.states:
        return total
    options = []
    for model in range(tree.routes.models):
        child = tree.routes.child(node, model)
        growth = (chosen_on.tokens_in[:, child] - chosen_on.tokens_in[:, node]).max()
        for last in {False, actions.allow_stop}:
            options.append(to_the_end(chosen_on, tree, actions, child, last, prompt + growth))
    return total + min(options)


def totals(chosen_on: RouteTree, tree: RouteTree, actions: Actions) -> np.ndarray:
    """What was spent and the ceiling of the rest, for each action one by one; inf: illegal."""
    total = np.full((len(tree), tree.routes.states, actions.count), np.inf)
    for query, state, action in np.ndindex(*total.shape):
        if actions.legal()[state, action]:
            node = int(tree.routes.child(state, actions.model(action)))
            total[query, state, action] = tree.cost[query, state] + to_the_end(
                chosen_on, tree, actions, node, actions.stops(action), tree.tokens_in[query, node]
            )
    return total


@given(shapes, st.integers(1, 3), st.integers(1, 3), st.booleans(), shares, seeds)
def test_what_is_affordable_is_what_an_enumeration_of_ceilings_says(
    routes: Routes, trained: int, queries: int, stop: bool, share: float, seed: int
) -> None:
    chosen_on, tree = fold(routes, trained, seed), fold(routes, queries, seed + 1)
    actions, budget = Actions(routes, stop), budget_of(tree, share)
    total = totals(chosen_on, tree, actions)
    allowed = affordable(Ceilings.of(chosen_on), tree, budget, actions)
    for query, state in np.ndindex(*allowed.shape[:2]):
        fits = total[query, state] <= budget + ROUNDING
        if fits.any():
            np.testing.assert_array_equal(allowed[query, state], fits)
        else:
            assert np.flatnonzero(allowed[query, state]).tolist() == [total[query, state].argmin()]


@given(folds, st.booleans(), shares)
def test_a_query_that_could_start_stays_within_while_the_ceilings_hold(
    tree: RouteTree, stop: bool, share: float
) -> None:
    actions, budget = Actions(tree.routes, stop), budget_of(tree, share)
    allowed = affordable(Ceilings.of(tree), tree, budget, actions)
    could_start = (totals(tree, tree, actions)[:, 0] <= budget).any(axis=1)
    reached = ending(actions, allowed.astype(float)) > 0
    assert (reached & (tree.cost > budget + ROUNDING))[could_start].sum() == 0


@given(shapes, st.booleans(), shares, seeds, seeds)
def test_nothing_is_used_that_is_not_known_before_the_call(
    routes: Routes, stop: bool, share: float, seed: int, other: int
) -> None:
    chosen_on, tree = fold(routes, 3, seed), fold(routes, 3, seed + 1)
    actions, budget = Actions(routes, stop), budget_of(tree, share)
    allowed = affordable(Ceilings.of(chosen_on), tree, budget, actions)
    changed = fold(routes, 3, other)
    for level in range(routes.hops):
        later = routes.level_start(level + 1)
        tokens_out, tokens_in = tree.tokens_out.copy(), tree.tokens_in.copy()
        tokens_out[:, later:] = changed.tokens_out[:, later:]
        beyond = routes.level_start(level + 2)
        tokens_in[:, beyond:] = changed.tokens_in[:, beyond:]
        another = replace(tree, tokens_out=tokens_out, tokens_in=tokens_in, score=changed.score)
        states = routes.level(level)
        unchanged = affordable(Ceilings.of(chosen_on), another, budget, actions)[:, states]
        np.testing.assert_array_equal(unchanged, allowed[:, states])


@given(folds, st.booleans())
def test_without_a_limit_all_that_is_legal_is_affordable(tree: RouteTree, stop: bool) -> None:
    actions = Actions(tree.routes, stop)
    allowed = affordable(Ceilings.of(tree), tree, np.inf, actions)
    np.testing.assert_array_equal(allowed, np.broadcast_to(actions.legal(), allowed.shape))


@given(folds, st.booleans())
def test_without_money_one_legal_action_stays(tree: RouteTree, stop: bool) -> None:
    actions = Actions(tree.routes, stop)
    allowed = affordable(Ceilings.of(tree), tree, 0.0, actions)
    assert (allowed.sum(axis=2) == 1).all()
    assert not (allowed & ~actions.legal()).any()


@given(shapes, st.booleans(), shares, seeds)
def test_a_live_state_is_allowed_what_the_tree_says(
    routes: Routes, stop: bool, share: float, seed: int
) -> None:
    ceilings, tree = Ceilings.of(fold(routes, 3, seed)), fold(routes, 3, seed + 1)
    actions, budget = Actions(routes, stop), budget_of(tree, share)
    allowed = affordable(ceilings, tree, budget, actions)
    for query, state in np.ndindex(*allowed.shape[:2]):
        prompts = tree.tokens_in[query, routes.child(state, np.arange(routes.models))]
        path, cost = routes.path(state), float(tree.cost[query, state])
        live = affordable_at(ceilings, actions, tree.rate, budget, path, prompts, cost)
        np.testing.assert_array_equal(live, allowed[query, state])


def test_a_live_state_needs_the_prompt_of_every_model() -> None:
    tree = fold(Routes(3, 2), 2, seed=0)
    ceilings, actions = Ceilings.of(tree), Actions(tree.routes)
    with pytest.raises(ValueError, match="3 models need as many prompts"):
        affordable_at(ceilings, actions, tree.rate, 1.0, (), np.array([5]), 0.0)


def test_a_long_question_closes_the_dear_model_for_itself_only() -> None:
    """Answers of at most 2 tokens; model 1 costs twice as much as model 0."""
    chosen_on = random_tree(Routes(2, 1), 2, 0)
    chosen_on = replace(
        chosen_on,
        tokens_in=np.array([[0, 5, 5], [0, 9, 9]]),
        tokens_out=np.array([[0, 1, 2], [0, 2, 1]]),
        rate=np.array([[1.0, 1.0], [2.0, 2.0]]),
    )
    allowed = affordable(Ceilings.of(chosen_on), chosen_on, 14.0, Actions(chosen_on.routes))
    assert allowed.tolist() == [[[True, True]], [[True, False]]]

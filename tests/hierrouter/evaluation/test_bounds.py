"""Bounds, the ladder of them, and the regret to the highest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation import bounds
from hierrouter.evaluation.bounds import ladder, oracle, split_regret
from hierrouter.evaluation.outcome import (
    Actions,
    call_probability,
    continuation_probability,
    ending_probabilities,
    fixed_routes,
    policy_outcome,
)
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation import enumeration as by_hand
from tests.hierrouter.evaluation.enumeration import Path, alphas, node, paths, reward, seeds
from tests.hierrouter.evaluation.test_outcome import random_table, trees
from tests.hierrouter.trees import planted_tree, random_tree

ROUNDING = 1e-9
sizes = st.integers(1, 4)
RUNGS = (
    *("random", "best single call", "best fixed route", "best route per dataset"),
    *("one-hop oracle", "tree oracle", "anytime oracle"),
)


@given(trees, st.booleans(), st.floats(0, 5), seeds)
def test_nothing_beats_the_oracle_or_loses_to_the_worst_route(
    tree: RouteTree, stop: bool, alpha: float, seed: int
) -> None:
    actions = Actions(tree.layout, stop)
    best = oracle(tree, alpha, stop).reward(alpha)
    worst = tree.node_reward(alpha)[:, actions.endings].min(axis=1)
    table = random_table(tree, seed, allow_stop=stop)
    anything = policy_outcome(tree, actions, table, "x", "router")
    for outcome in [*fixed_routes(tree, stop), anything, bounds.random_policy(tree, stop)]:
        assert (outcome.reward(alpha) <= best + ROUNDING).all()
        assert (outcome.reward(alpha) >= worst - ROUNDING).all()


@given(trees, st.booleans())
def test_the_oracle_breaks_ties_by_cost(tree: RouteTree, stop: bool) -> None:
    endings = Actions(tree.layout, stop).endings
    quality, cost = tree.score[:, endings], tree.cost[:, endings]
    cheapest = np.where(quality == quality.max(axis=1, keepdims=True), cost, np.inf).min(axis=1)
    np.testing.assert_array_equal(oracle(tree, 0.0, stop).cost, cheapest)


def folds(routes: Layout, train: int, shown: int, seed: int) -> tuple[RouteTree, RouteTree]:
    """Two folds of one tree of two datasets."""
    names = tuple(f"data-{number % 2}" for number in range(train + shown))
    tree = replace(random_tree(routes, train + shown, seed), datasets=names)
    return tree.select(np.arange(train)), tree.select(np.arange(train, train + shown))


def rungs(chosen_on: RouteTree, alpha: float, tree: RouteTree, stop: bool = False) -> dict:
    """R of each query, by the rung's name."""
    found = ladder(chosen_on, alpha, tree, stop)
    return {name: outcome.reward(alpha).tolist() for name, outcome in found.items()}


def direct_cost(tree: RouteTree, query: int, model: int) -> float:
    calls, column = tree.direct, tree.direct.models.index(tree.models[model])
    tokens = calls.tokens_in[query, column], calls.tokens_out[query, column]
    return float(calls.rate[column] @ tokens)


def direct_reward(tree: RouteTree, query: int, model: int, alpha: float) -> float:
    column = tree.direct.models.index(tree.models[model])
    return float(tree.direct.score[query, column] - alpha * direct_cost(tree, query, model))


def best_direct(tree: RouteTree, alpha: float) -> int:
    """The model whose direct calls are the best over all queries; ties: the cheaper, the first."""

    def rank(model: int) -> tuple[float, float]:
        queries = range(len(tree))
        worth = sum(direct_reward(tree, query, model, alpha) for query in queries)
        return -worth, sum(direct_cost(tree, query, model) for query in queries)

    return min(range(len(tree.models)), key=rank)


@by_hand.unhurried
@given(by_hand.small_shapes, sizes, sizes, seeds, alphas, st.booleans())
def test_each_rung_is_what_an_enumeration_finds(
    routes: Layout, train: int, shown: int, seed: int, alpha: float, stop: bool
) -> None:
    chosen_on, tree = folds(routes, train, shown, seed)
    found = rungs(chosen_on, alpha, tree, stop)
    assert tuple(found) == RUNGS
    known, options = range(train), paths(tree, stop)
    fixed = by_hand.best_path(chosen_on, known, alpha, options)
    single = best_direct(chosen_on, alpha)
    for query in range(shown):
        same = [row for row in known if chosen_on.datasets[row] == tree.datasets[query]]
        informed = by_hand.best_path(chosen_on, same or known, alpha, options)
        every = [reward(tree, query, path, alpha) for path in options]
        whole = [reward(tree, query, path, alpha) for path in paths(tree, False)]
        any_length = [reward(tree, query, path, alpha) for path in paths(tree, True)]
        asked = [direct_reward(tree, query, model, alpha) for model in range(routes.call_actions)]
        assert found["random"][query] == pytest.approx(np.mean(every))
        assert found["best single call"][query] == direct_reward(tree, query, single, alpha)
        assert found["best fixed route"][query] == reward(tree, query, fixed, alpha)
        assert found["best route per dataset"][query] == reward(tree, query, informed, alpha)
        assert found["one-hop oracle"][query] == max(asked)
        assert found["tree oracle"][query] == max(whole)
        assert found["anytime oracle"][query] == max(any_length)


def without_direct(tree: RouteTree, model: int) -> RouteTree:
    """The tree without the direct calls of one model."""
    calls = tree.direct
    kept = [number for number in range(len(calls.models)) if number != model]
    columns = ("score", "accuracy", "tokens_in", "tokens_out")
    fewer = {name: getattr(calls, name)[:, kept] for name in columns}
    models = tuple(calls.models[number] for number in kept)
    return replace(tree, direct=replace(calls, models=models, rate=calls.rate[kept], **fewer))


@by_hand.unhurried
@given(by_hand.small_shapes, sizes, seeds, alphas)
def test_a_model_without_direct_calls_is_not_missed(
    routes: Layout, shown: int, seed: int, alpha: float
) -> None:
    chosen_on, tree = (without_direct(fold, 0) for fold in folds(routes, 2, shown, seed))
    found = rungs(chosen_on, alpha, tree)
    best = bounds.best_direct_call(chosen_on, alpha, tree)
    if routes.call_actions == 1:
        assert best is bounds.direct_oracle(tree, alpha) is None
        missing = {"best single call", "one-hop oracle"}
        assert list(found) == [name for name in RUNGS if name not in missing]
        return
    assert best is not None
    assert best.name in tree.models[1:]
    for query in range(shown):
        asked = [
            direct_reward(tree, query, model, alpha) for model in range(1, routes.call_actions)
        ]
        assert found["one-hop oracle"][query] == max(asked)


def test_reference_models_are_in_no_rung() -> None:
    tree = planted_tree()
    direct = replace(tree.direct, score=tree.direct.score.copy())
    direct.score[:, -1] = 1  # the large model is always right, and dear
    better = replace(tree, direct=direct)
    assert rungs(better, 0.0, better) == rungs(tree, 0.0, tree)


def assisted_reward(
    tree: RouteTree, query: int, table: np.ndarray, alpha: float, choices: int, path: Path = ()
) -> float:
    """Expected R if a policy makes the next `choices` decisions and the oracle all later ones."""
    stop = table.shape[2] > len(tree.models)
    if choices == 0:
        ahead = [route for route in paths(tree, stop) if route[: len(path)] == path != route]
        return max(reward(tree, query, route, alpha) for route in ahead)
    total = 0.0
    for action, probability in enumerate(table[query, node(tree, path)]):
        further = (*path, action % len(tree.models))
        if action >= len(tree.models) or len(further) == tree.hops:
            total += probability * reward(tree, query, further, alpha)
        else:
            total += probability * assisted_reward(tree, query, table, alpha, choices - 1, further)
    return total


@by_hand.unhurried
@given(by_hand.small_trees, seeds, alphas, st.booleans())
def test_each_part_of_the_regret_is_what_walking_the_choices_gives(
    tree: RouteTree, seed: int, alpha: float, stop: bool
) -> None:
    table = random_table(tree, seed, allow_stop=stop)
    parts = split_regret(tree, alpha, ending_probabilities(Actions(tree.layout, stop), table), stop)
    assert parts.shape == (len(tree), tree.hops)
    assert (parts >= -1e-12).all()
    for query in range(len(tree)):
        worth = [assisted_reward(tree, query, table, alpha, made) for made in range(tree.hops + 1)]
        np.testing.assert_allclose(parts[query], -np.diff(worth), atol=1e-12)


@by_hand.unhurried
@given(by_hand.small_trees, seeds, st.booleans())
def test_visits_are_the_sums_of_the_endings_below(tree: RouteTree, seed: int, stop: bool) -> None:
    endings = ending_probabilities(
        Actions(tree.layout, stop), random_table(tree, seed, allow_stop=stop)
    )
    visits, deciding = (
        call_probability(tree.layout, endings),
        continuation_probability(tree.layout, endings),
    )
    for path in [(), *paths(tree, True)]:
        below = [node(tree, route) for route in paths(tree, True) if route[: len(path)] == path]
        here = node(tree, path)
        np.testing.assert_allclose(visits[:, here], endings[:, below].sum(axis=1))
        if len(path) < tree.hops:
            further = [column for column in below if column != here]
            np.testing.assert_allclose(deciding[:, here], endings[:, further].sum(axis=1))


def test_an_oracle_that_may_not_stop_is_no_measure_of_a_policy_that_does() -> None:
    tree = planted_tree()
    endings = np.zeros((len(tree), tree.layout.nodes))
    endings[:, 1] = 1
    with pytest.raises(ValueError, match="end before L calls"):
        split_regret(tree, 0.1, endings)
    assert split_regret(tree, 0.1, endings, allow_stop=True)[:, 1].max() == 0


def test_who_says_nothing_may_not_stop() -> None:
    tree = random_tree(Layout.full(2, 3), 5, 0)
    for bound in (
        lambda *stop: bounds.best_ahead(tree, 1.0, *stop),
        lambda *stop: bounds.best_nodes(tree, 1.0, *stop),
        lambda *stop: bounds.best_ending(tree, 1.0, *stop),
        lambda *stop: bounds.best_fixed_route(tree, 1.0, tree, *stop).cost,
        lambda *stop: bounds.best_route_per_dataset(tree, 1.0, tree, *stop).cost,
        lambda *stop: bounds.oracle(tree, 1.0, *stop).cost,
        lambda *stop: bounds.random_policy(tree, *stop).cost,
        lambda *stop: ladder(tree, 1.0, tree, *stop)["random"].cost,
    ):
        np.testing.assert_array_equal(bound(), bound(False))
        assert not np.array_equal(bound(), bound(True))

"""Bounds, the ladder of them, and the regret to the highest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import (
    MEANINGS,
    Rung,
    best_ahead,
    best_direct_call,
    best_fixed_route,
    best_route_per_dataset,
    direct_oracle,
    gap_closed,
    ladder,
    oracle,
    random_policy,
    split_regret,
)
from hierrouter.evaluation.outcome import (
    Actions,
    Outcome,
    called,
    ending,
    fixed_routes,
    going_on,
    mean_outcome,
    policy_outcome,
    single_calls,
)
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    Path,
    alphas,
    best_path,
    cost,
    mean,
    mixed_tree,
    node,
    paths,
    quality,
    reward,
    seeds,
    small_shapes,
    small_trees,
    unhurried,
)
from tests.hierrouter.evaluation.test_outcome import random_table, trees
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree

any_alpha = st.floats(0, 5)
ROUNDING = 1e-9


@given(trees, st.booleans(), any_alpha, st.integers(0, 2**16))
def test_nothing_beats_the_oracle_or_loses_to_the_worst_route(
    tree: RouteTree, stop: bool, alpha: float, seed: int
) -> None:
    actions = Actions(tree.routes, stop)
    best = oracle(tree, alpha, stop).reward(alpha)
    worst = tree.node_reward(alpha)[:, actions.endings].min(axis=1)
    table = random_table(tree, seed, allow_stop=stop)
    anything = policy_outcome(tree, actions, table, "x", "router")
    for outcome in [*fixed_routes(tree, stop), anything, random_policy(tree, stop)]:
        assert (outcome.reward(alpha) <= best + ROUNDING).all()
        assert (outcome.reward(alpha) >= worst - ROUNDING).all()


@given(trees, st.booleans(), any_alpha)
def test_the_best_fixed_route_is_best_where_it_was_chosen(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    chosen = best_fixed_route(tree, alpha, tree, stop).reward(alpha).mean()
    routes = fixed_routes(tree, stop)
    assert chosen >= max(route.reward(alpha).mean() for route in routes) - ROUNDING
    informed = best_route_per_dataset(tree, alpha, tree, stop).reward(alpha).mean()
    best = oracle(tree, alpha, stop).reward(alpha).mean()
    assert chosen - ROUNDING <= informed <= best + ROUNDING


@given(trees, any_alpha)
def test_being_allowed_to_stop_costs_the_oracle_nothing(tree: RouteTree, alpha: float) -> None:
    free, bound = (oracle(tree, alpha, stop).reward(alpha) for stop in (True, False))
    assert (free >= bound).all()


@given(trees, st.booleans())
def test_the_oracle_breaks_ties_by_cost(tree: RouteTree, stop: bool) -> None:
    endings = Actions(tree.routes, stop).endings
    quality, cost = tree.score[:, endings], tree.cost[:, endings]
    cheapest = np.where(quality == quality.max(axis=1, keepdims=True), cost, np.inf).min(axis=1)
    np.testing.assert_array_equal(oracle(tree, 0.0, stop).cost, cheapest)


def test_equal_routes_go_to_the_cheaper_then_to_the_lower_number() -> None:
    tree = random_tree(Routes(3, 1), 1, 0)
    tree = replace(
        tree,
        score=np.array([[0.0, 1, 1, 1]]),
        tokens_in=np.array([[0, 9, 1, 1]]),
        tokens_out=np.zeros((1, 4), dtype=np.int64),
        rate=np.ones((3, 2)),
    )
    assert best_fixed_route(tree, 0.0, tree).name == "model-1"
    assert oracle(tree, 0.0).cost.tolist() == [1.0]


def test_a_route_is_chosen_on_one_tree_and_taken_on_another() -> None:
    chosen_on, tree = (random_tree(Routes(2, 2), 4, seed) for seed in (1, 2))
    route = best_fixed_route(chosen_on, 0.1, tree)
    leaf = chosen_on.reward(0.1).mean(axis=0).argmax()
    np.testing.assert_array_equal(route.quality, tree.score[:, tree.routes.states + leaf])


def test_an_unknown_dataset_takes_the_best_route_over_all() -> None:
    chosen_on = random_tree(Routes(2, 2), 4, 1)
    tree = replace(chosen_on, datasets=("new",) * 4)
    taken = best_route_per_dataset(chosen_on, 0.1, tree)
    np.testing.assert_array_equal(taken.quality, best_fixed_route(chosen_on, 0.1, tree).quality)


def test_each_dataset_takes_its_own_best_route() -> None:
    tree = replace(random_tree(Routes(2, 2), 12, 3), datasets=("a", "b", "c") * 4)
    taken = best_route_per_dataset(tree, 0.1, tree)
    for first in range(3):
        part = tree.select(np.arange(first, 12, 3))
        alone = best_fixed_route(part, 0.1, part)
        np.testing.assert_array_equal(taken.quality[first::3], alone.quality)
        np.testing.assert_array_equal(taken.cost[first::3], alone.cost)


@given(trees, st.sampled_from([0.0, 0.002, 0.01, 0.1]))
def test_direct_calls_are_chosen_by_what_they_are_worth(tree: RouteTree, alpha: float) -> None:
    called = [call for call in single_calls(tree) if call.kind == "single"]
    worth = np.array([call.reward(alpha) for call in called])
    best, each = best_direct_call(tree, alpha, tree), direct_oracle(tree, alpha)
    assert best is not None
    assert each is not None
    assert best.reward(alpha).mean() >= worth.mean(axis=1).max() - ROUNDING
    np.testing.assert_allclose(each.reward(alpha), worth.max(axis=0))


def test_gap_closed() -> None:
    assert gap_closed(router=0.75, fixed=0.5, best=1.0) == 0.5
    assert gap_closed(router=0.9, fixed=0.5, best=0.9) == 1
    assert gap_closed(router=0.5, fixed=0.5, best=0.5) is None
    assert gap_closed(router=0.4, fixed=0.5, best=0.504) is None
    assert gap_closed(router=0.0025, fixed=0.0, best=0.005) == 0.5


def test_the_mean_of_policies_is_that_of_each_query() -> None:
    one = Outcome("one", "router", np.array([1.0, 0.0, 0.5]), np.array([1.0, 0, 0]), np.arange(3.0))
    other = Outcome("two", "route", np.array([0.0, 0.0, 1.0]), np.ones(3), np.array([2.0, 5, 0]))
    mean = mean_outcome([one, other])
    assert (mean.name, mean.kind) == ("one", "router")
    assert mean.quality.tolist() == [0.5, 0.0, 0.75]
    assert mean.accuracy.tolist() == [1.0, 0.5, 0.5]
    assert mean.cost.tolist() == [1.0, 3.0, 1.0]


sizes = st.integers(1, 4)


def folds(routes: Routes, train: int, shown: int, seed: int) -> tuple[RouteTree, RouteTree]:
    """Two folds of one tree."""
    tree = mixed_tree(routes, train + shown, seed)
    return tree.select(np.arange(train)), tree.select(np.arange(train, train + shown))


def rungs(found: list[Rung], alpha: float) -> dict[str, list[float]]:
    return {rung.name: rung.outcome.reward(alpha).tolist() for rung in found}


def direct_cost(tree: RouteTree, query: int, model: int) -> float:
    calls, column = tree.direct, tree.direct.models.index(tree.models[model])
    rate_in, rate_out = calls.rate[column]
    return float(
        rate_in * calls.tokens_in[query, column] + rate_out * calls.tokens_out[query, column]
    )


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


def without_direct(tree: RouteTree, model: int) -> RouteTree:
    """The tree without the direct calls of one model."""
    kept = [number for number in range(len(tree.direct.models)) if number != model]
    calls = replace(
        tree.direct,
        models=tuple(tree.direct.models[number] for number in kept),
        score=tree.direct.score[:, kept],
        accuracy=tree.direct.accuracy[:, kept],
        tokens_in=tree.direct.tokens_in[:, kept],
        tokens_out=tree.direct.tokens_out[:, kept],
        rate=tree.direct.rate[kept],
    )
    return replace(tree, direct=calls)


@unhurried
@given(small_shapes, sizes, sizes, seeds, alphas, st.booleans())
def test_each_rung_is_what_an_enumeration_finds(
    routes: Routes, train: int, shown: int, seed: int, alpha: float, stop: bool
) -> None:
    chosen_on, tree = folds(routes, train, shown, seed)
    found = rungs(ladder(chosen_on, alpha, tree, stop), alpha)
    assert list(found) == list(MEANINGS)
    known, options = range(train), paths(tree, stop)
    fixed, single = best_path(chosen_on, known, alpha, options), best_direct(chosen_on, alpha)
    for query in range(shown):
        same = [row for row in known if chosen_on.datasets[row] == tree.datasets[query]]
        informed = best_path(chosen_on, same or known, alpha, options)
        every = [reward(tree, query, path, alpha) for path in options]
        whole = [reward(tree, query, path, alpha) for path in paths(tree, False)]
        any_length = [reward(tree, query, path, alpha) for path in paths(tree, True)]
        asked = [direct_reward(tree, query, model, alpha) for model in range(routes.models)]
        assert found["random"][query] == pytest.approx(mean(every))
        assert found["best single call"][query] == direct_reward(tree, query, single, alpha)
        assert found["best fixed route"][query] == reward(tree, query, fixed, alpha)
        assert found["best route per dataset"][query] == reward(tree, query, informed, alpha)
        assert found["one-hop oracle"][query] == max(asked)
        assert found["tree oracle"][query] == max(whole)
        assert found["anytime oracle"][query] == max(any_length)


@unhurried
@given(small_shapes, sizes, seeds)
def test_an_oracle_spends_no_more_than_its_reward_needs(
    routes: Routes, shown: int, seed: int
) -> None:
    """At alpha 0 most queries have several best routes."""
    chosen_on, tree = folds(routes, 1, shown, seed)
    best = {rung.name: rung.outcome for rung in ladder(chosen_on, 0.0, tree)}["tree oracle"]
    for query in range(shown):
        highest = max(quality(tree, query, path) for path in paths(tree, False))
        cheapest = min(
            cost(tree, query, path)
            for path in paths(tree, False)
            if quality(tree, query, path) == highest
        )
        assert best.cost[query] == cheapest


@unhurried
@given(small_shapes, sizes, seeds, alphas)
def test_a_model_without_direct_calls_is_not_missed(
    routes: Routes, shown: int, seed: int, alpha: float
) -> None:
    chosen_on, tree = folds(routes, 2, shown, seed)
    fewer = without_direct(tree, 0)
    best, single = (
        direct_oracle(fewer, alpha),
        best_direct_call(without_direct(chosen_on, 0), alpha, fewer),
    )
    if routes.models == 1:
        assert best is None
        assert single is None
        names = list(rungs(ladder(without_direct(chosen_on, 0), alpha, fewer), alpha))
        assert names == [name for name in MEANINGS if "single" not in name and "hop" not in name]
        return
    assert best is not None
    assert single is not None
    assert single.name in tree.models[1:]
    for query in range(shown):
        others = range(1, routes.models)
        asked = [direct_reward(tree, query, model, alpha) for model in others]
        assert best.reward(alpha)[query] == max(asked)


def test_reference_models_are_in_no_rung() -> None:
    tree = planted_tree()
    direct = replace(tree.direct, score=tree.direct.score.copy())
    direct.score[:, -1] = 1  # the large model is always right, and dear
    better = replace(tree, direct=direct)
    assert rungs(ladder(better, 0.0, better), 0.0) == rungs(ladder(tree, 0.0, tree), 0.0)


def test_without_a_train_fold_nothing_is_chosen() -> None:
    tree = planted_tree()
    names = [rung.name for rung in ladder(tree.select(np.arange(0)), 0.1, tree)]
    assert names == ["random", "one-hop oracle", "tree oracle", "anytime oracle"]


def test_the_ladder_rises_on_a_tree_with_a_plan() -> None:
    tree = planted_tree()
    found = ladder(tree.split("train"), 0.0, tree.split("test"))
    means = {rung.name: rung.outcome.reward(0.0).mean() for rung in found}
    order = ["random", "best fixed route", "best route per dataset", "tree oracle"]
    worth = [means[name] for name in order]
    assert worth == sorted(worth)
    assert worth[-1] - worth[-2] > 0.1


Table = np.ndarray


def helped(
    tree: RouteTree, query: int, table: Table, alpha: float, choices: int, path: Path = ()
) -> float:
    """Expected R of who makes the next `choices` choices of a policy, then the best ones."""
    stop = table.shape[2] > len(tree.models)
    if choices == 0:
        ahead = [route for route in paths(tree, stop) if route[: len(path)] == path != route]
        return max(reward(tree, query, route, alpha) for route in ahead)
    total = 0.0
    for action, probability in enumerate(table[query, node(tree, path)]):
        model = action % len(tree.models)
        further = (*path, model)
        if action >= len(tree.models) or len(further) == tree.hops:
            total += probability * reward(tree, query, further, alpha)
        else:
            total += probability * helped(tree, query, table, alpha, choices - 1, further)
    return total


@unhurried
@given(small_trees, seeds, alphas, st.booleans())
def test_each_part_is_what_walking_the_choices_gives(
    tree: RouteTree, seed: int, alpha: float, stop: bool
) -> None:
    table = random_table(tree, seed, allow_stop=stop)
    parts = split_regret(tree, alpha, ending(Actions(tree.routes, stop), table), stop).parts
    assert parts.shape == (len(tree), tree.hops)
    for query in range(len(tree)):
        worth = [helped(tree, query, table, alpha, made) for made in range(tree.hops + 1)]
        np.testing.assert_allclose(parts[query], -np.diff(worth), atol=1e-12)


@unhurried
@given(small_trees, seeds, st.floats(0, 5), st.booleans())
def test_the_parts_add_up_to_the_regret_and_none_is_a_gain(
    tree: RouteTree, seed: int, alpha: float, stop: bool
) -> None:
    actions, table = Actions(tree.routes, stop), random_table(tree, seed, allow_stop=stop)
    split = split_regret(tree, alpha, ending(actions, table), stop)
    policy = policy_outcome(tree, actions, table, "x", "router")
    lost = oracle(tree, alpha, stop).reward(alpha) - policy.reward(alpha)
    np.testing.assert_allclose(split.total, lost, atol=1e-12)
    np.testing.assert_allclose(split.plan + split.adaptivity, lost, atol=1e-12)
    assert (split.parts >= -1e-12).all()


@unhurried
@given(small_trees, seeds, st.booleans())
def test_visits_are_the_sums_of_the_endings_below(tree: RouteTree, seed: int, stop: bool) -> None:
    table = random_table(tree, seed, allow_stop=stop)
    endings = ending(Actions(tree.routes, stop), table)
    visits, deciding = called(tree.routes, endings), going_on(tree.routes, endings)
    for path in [(), *paths(tree, True)]:
        below = [node(tree, route) for route in paths(tree, True) if route[: len(path)] == path]
        here = node(tree, path)
        np.testing.assert_allclose(visits[:, here], endings[:, below].sum(axis=1))
        if len(path) < tree.hops:
            further = [column for column in below if column != here]
            np.testing.assert_allclose(deciding[:, here], endings[:, further].sum(axis=1))


def test_who_sees_the_question_only_loses_by_adaptivity_alone() -> None:
    """The right first model is known; the second one is guessed, right in 2 of 4 cases."""
    tree = two_step_tree().split("train")
    asked = np.array([int(name[-1]) for name in tree.datasets])
    table, rows = np.zeros((len(tree), tree.routes.states, 3)), np.arange(len(tree))
    table[rows, 0, asked] = 1
    table[rows, 1:, (asked + 1) % 3] = 1
    split = split_regret(tree, 0.0, ending(Actions(tree.routes), table))
    assert split.plan.max() == 0
    assert split.adaptivity.mean() == pytest.approx(0.5)


def test_an_oracle_that_may_not_stop_is_no_measure_of_a_policy_that_does() -> None:
    tree = planted_tree()
    endings = np.zeros((len(tree), tree.routes.nodes))
    endings[:, 1] = 1
    with pytest.raises(ValueError, match="end before L calls"):
        split_regret(tree, 0.1, endings)
    assert split_regret(tree, 0.1, endings, allow_stop=True).parts[:, 1].max() == 0


def test_who_may_stop_has_more_ahead_and_who_says_nothing_may_not() -> None:
    tree = random_tree(Routes(2, 3), 5, 0)
    bound, free = (best_ahead(tree, 1.0, stop) for stop in (False, True))
    assert (free >= bound).all()
    assert (free > bound).any()
    np.testing.assert_array_equal(best_ahead(tree, 1.0), bound)

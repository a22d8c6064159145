"""Each rung is what plain loops over routes find, whatever the shape of the tree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import MEANINGS, Rung, best_direct_call, direct_oracle, ladder
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    alphas,
    best_path,
    cost,
    mean,
    mixed_tree,
    paths,
    quality,
    reward,
    seeds,
    small_shapes,
    unhurried,
)
from tests.hierrouter.trees import planted_tree

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

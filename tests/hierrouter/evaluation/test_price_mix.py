"""The mix at every price against oracles of trees with that price."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.budget import PriceMix, price_mix
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    Path,
    alphas,
    best_path,
    cost,
    paths,
    reward,
    seeds,
    unhurried,
)
from tests.hierrouter.trees import random_tree

MODEL = 0
rivals = st.builds(Routes, st.integers(2, 3), st.integers(1, 2))
rival_trees = st.builds(random_tree, rivals, st.integers(1, 3), seeds)


def dearer(tree: RouteTree, factor: float) -> RouteTree:
    """The tree with the first model's rates multiplied."""
    rate = tree.rate.copy()
    rate[MODEL] *= factor
    return replace(tree, rate=rate)


def share_of(chosen: Sequence[Path]) -> float:
    made = [model for path in chosen for model in path]
    return made.count(MODEL) / len(made)


def best_paths(tree: RouteTree, alpha: float, stop: bool) -> list[Path]:
    """The oracle's routes: the best, of these the cheapest, of these the first."""
    return [best_path(tree, [query], alpha, paths(tree, stop)) for query in range(len(tree))]


def exact_best(tree: RouteTree, factor: Fraction, alpha: float, stop: bool) -> list[Path]:
    """The same in fractions, so that ties are ties at any price factor."""
    free = dearer(tree, 0.0)

    def rank(query: int, path: Path) -> tuple[Fraction, Fraction]:
        rest = Fraction(cost(free, query, path))
        spent = rest + factor * (Fraction(cost(tree, query, path)) - rest)
        score = Fraction(reward(tree, query, path, 0.0))
        return Fraction(alpha) * spent - score, spent

    queries = range(len(tree))
    return [min(paths(tree, stop), key=lambda path: rank(query, path)) for query in queries]


def corners(tree: RouteTree, alpha: float, stop: bool) -> list[Fraction]:
    """Every price factor above 0 at which two routes of a query tie."""
    free, found = dearer(tree, 0.0), set()
    for query in range(len(tree)):
        lines = set()
        for path in paths(tree, stop):
            rest, whole = cost(free, query, path), cost(tree, query, path)
            worth = reward(tree, query, path, 0.0)
            lines.add((Fraction(whole) - Fraction(rest), Fraction(rest), Fraction(worth)))
        for own, rest, worth in lines:
            for own2, rest2, worth2 in lines:
                if own == own2:
                    continue
                if alpha == 0:
                    found.add((rest2 - rest) / (own - own2))
                else:
                    fixed = (worth - worth2) / Fraction(alpha) + rest2 - rest
                    found.add(fixed / (own - own2))
    return sorted(factor for factor in found if factor > 0)


@unhurried
@given(rival_trees, alphas, st.booleans())
def test_between_any_two_ties_the_mix_is_that_of_an_enumeration(
    tree: RouteTree, alpha: float, stop: bool
) -> None:
    mix = price_mix(tree, tree.models[MODEL], alpha, stop)
    edges = [Fraction(0), *corners(tree, alpha, stop)]
    edges.append(edges[-1] + 1)
    last, lowest = Fraction(0), Fraction(0)
    for low, high in itertools.pairwise(edges):
        middle = (low + high) / 2
        share = share_of(exact_best(tree, middle, alpha, stop))
        assert mix.at(np.array(float(middle))) == pytest.approx(share, abs=1e-12)
        last, lowest = (high if share > 0 else last), (high if share >= 0.5 else lowest)
    for found, expected in ((mix.leaves, last), (mix.last_at(0.5), lowest)):
        if expected == edges[-1]:
            assert found == np.inf
        else:
            assert found == pytest.approx(float(expected))


@unhurried
@given(rival_trees, alphas, st.booleans(), st.integers(1, 7))
def test_at_a_price_it_is_the_oracle_of_a_tree_with_that_price(
    tree: RouteTree, alpha: float, stop: bool, eighths: int
) -> None:
    factor = eighths / 8
    mix = price_mix(tree, tree.models[MODEL], alpha, stop)
    if np.abs(mix.factor - factor).min() > 1e-9:
        chosen = best_paths(dearer(tree, factor), alpha, stop)
        assert mix.at(np.array([factor]))[0] == pytest.approx(share_of(chosen))


def two_models() -> RouteTree:
    """Model 0 is right where model 1 is half right; costs 1 and 1, alpha 1/4 makes it worth 3."""
    tree = random_tree(Routes(2, 1), 2, 0)
    return replace(
        tree,
        score=np.array([[0, 1.0, 0.5], [0, 0.75, 0.5]]),
        tokens_in=np.ones((2, 3), dtype=np.int64),
        tokens_out=np.zeros((2, 3), dtype=np.int64),
        rate=np.ones((2, 2)),
    )


def test_a_hand_made_price() -> None:
    mix = price_mix(two_models(), "model-0", 0.25)
    assert mix.factor.tolist() == [0, 2, 3]
    assert mix.share.tolist() == [1, 0.5, 0]
    assert (mix.leaves, mix.last_at(0.5), mix.last_at(0.9), mix.last_at(0)) == (3, 3, 2, np.inf)
    assert mix.at(np.array([0, 1, 2.5, 3, 9])).tolist() == [1, 1, 0.5, 0, 0]


def test_a_model_that_no_price_lets_in() -> None:
    worse = replace(two_models(), score=np.array([[0, 0.0, 0.5], [0, 0.0, 0.5]]))
    mix = price_mix(worse, "model-0", 0.25)
    assert (mix.leaves, mix.last_at(0.05)) == (0, 0)


def test_a_model_that_would_enter_below_its_price() -> None:
    dear = replace(two_models(), rate=np.array([[8.0, 8.0], [1.0, 1.0]]))
    mix = price_mix(dear, "model-0", 0.25)
    assert mix.at(np.array(1.0)) == 0
    assert mix.leaves == 3 / 8


def test_at_alpha_0_a_price_decides_among_equally_good_routes_only() -> None:
    tree = replace(two_models(), score=np.array([[0, 0.5, 0.5], [0, 1.0, 0.5]]))
    mix = price_mix(tree, "model-0", 0.0)
    assert (mix.factor.tolist(), mix.share.tolist()) == ([0, 1], [1, 0.5])
    assert mix.leaves == np.inf


def test_the_only_model_never_leaves() -> None:
    assert price_mix(random_tree(Routes(1, 2), 3, 0), "model-0", 1.0).leaves == np.inf


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InputError, match="no such model in the pool: calc; known: model-0"):
        price_mix(two_models(), "calc", 0.1)


def test_of_routes_worth_the_same_at_any_price_the_cheapest_counts() -> None:
    """0>0 costs 2 and is right, 0>1 costs 1 and is wrong: the same R, and model 1 is free there."""
    tree = random_tree(Routes(2, 2), 1, 0)
    tokens = np.array([[0, 1, 9, 1, 0, 9, 9]])
    tree = replace(
        tree,
        score=np.array([[0, 0, 0, 1.0, 0.0, 0.0, 0.0]]),
        tokens_in=tokens,
        tokens_out=np.zeros_like(tokens),
        rate=np.ones((2, 2)),
    )
    assert price_mix(tree, "model-1", 1.0).at(np.array(1.0)) == 0.5


def test_the_last_piece_that_holds_counts_even_if_shares_rise_and_are_small() -> None:
    mix = PriceMix("x", np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5, 0.01, 0.0]))
    assert (mix.leaves, mix.last_at(0.05), mix.last_at(0.6)) == (3, 2, 0)

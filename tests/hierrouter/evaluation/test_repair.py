"""Repairs and damages against a count, route by route."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from hierrouter.evaluation.calls import repair_matrices
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    cost,
    mean,
    node,
    quality,
    small_trees,
    unhurried,
)
from tests.hierrouter.trees import random_tree


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

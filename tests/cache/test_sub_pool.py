"""A part of a tree is the tree that a part of the pool gives."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import DirectCalls, Routes, RouteTree, kept_nodes, sub_pool
from tests.hierrouter.trees import random_tree

SAME = ("score", "accuracy", "tokens_in", "tokens_out", "rate", "cost", "embedding")


def assert_same(part: RouteTree, expected: RouteTree) -> None:
    for name in SAME:
        assert np.array_equal(getattr(part, name), getattr(expected, name)), name
    for field in fields(DirectCalls):
        found = getattr(part.direct, field.name), getattr(expected.direct, field.name)
        assert np.array_equal(*found), field.name
    assert part.models == expected.models


def test_a_part_is_what_opening_fewer_models_gives(testbed_cache: Path) -> None:
    whole = open_tree(testbed_cache)
    for models in itertools.permutations(whole.models, 2):
        assert_same(sub_pool(whole, models), open_tree(testbed_cache, Selection(models=models)))


def test_every_kept_node_has_the_path_it_had() -> None:
    whole, part = Routes(5, 3), Routes(3, 3)
    chosen = np.array([4, 0, 2])
    for node, before in enumerate(kept_nodes(whole, chosen)):
        assert whole.path(int(before)) == tuple(chosen[list(part.path(node))])


def test_all_models_are_the_whole_and_parts_of_parts_are_parts() -> None:
    tree = random_tree(Routes(4, 2), 5, 0)
    first, second, third, last = tree.models
    assert_same(sub_pool(tree, tree.models), tree)
    nested = sub_pool(sub_pool(tree, (last, first, third)), (third, last))
    assert_same(nested, sub_pool(tree, (third, last)))
    assert sub_pool(tree, (first, second)).content != sub_pool(tree, (second, first)).content


def test_reference_models_stay() -> None:
    tree = random_tree(Routes(3, 1), 4, 0)
    assert sub_pool(tree, tree.models[1:]).direct.models == (*tree.models[1:], "large")
    assert len(sub_pool(tree, tree.models[1:]).content) == len(tree.content) == 32


@pytest.mark.parametrize("models", [(), ("model-0", "model-0"), ("model-0", "model-9")])
def test_no_model_one_twice_or_an_unknown_one_is_refused(models: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=f"no sub-pool: {', '.join(models) or 'no model'}; name"):
        sub_pool(random_tree(Routes(3, 2), 4, 0), models)

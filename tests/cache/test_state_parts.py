from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter_cache.tree import RouteTree, StatePart
from tests.cache import rows
from tests.cache.test_loading import fill, load


@pytest.fixture
def tree(tmp_path: Path) -> RouteTree:
    """Two queries of three states, each with a vector of two numbers."""
    fill(tmp_path)
    return load(tmp_path, rows.spec("ab", 2))


def with_question(tree: RouteTree) -> RouteTree:
    """The same with one more part: the number of the query, in one column."""
    number = np.arange(len(tree), dtype=np.float32)[:, None]
    row = np.repeat(np.arange(len(tree))[:, None], tree.routes.states, axis=1)
    return replace(tree, parts=(*tree.parts, StatePart(number, row)))


def test_parts_stand_side_by_side(tree: RouteTree) -> None:
    both = with_question(tree)
    assert both.dim == tree.dim + 1
    assert np.array_equal(both.embedding[..., :-1], tree.embedding)
    assert both.embedding[..., -1].tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_some_states_have_the_vectors_that_all_have(tree: RouteTree, parts: int) -> None:
    shown = replace(tree, parts=with_question(tree).parts[:parts])
    query, node = np.array([1, 0, 1, 1]), np.array([2, 1, 0, 2])
    some = shown.embedding_at(query, node)
    assert some.dtype == np.float32
    assert some.shape == (4, shown.dim)
    assert np.array_equal(some, shown.embedding[query, node])


def test_without_parts_there_is_nothing_to_see(tree: RouteTree) -> None:
    blind = replace(tree, parts=())
    assert blind.dim == 0
    assert blind.embedding.shape == (2, 3, 0)
    assert blind.select(np.array([1])).embedding.shape == (1, 3, 0)


def test_a_selection_keeps_every_part(tree: RouteTree) -> None:
    both = with_question(tree)
    second = both.select(np.array([1]))
    assert np.array_equal(second.embedding, both.embedding[1:])
    shared = zip(second.parts, both.parts, strict=True)
    assert all(chosen.vectors is whole.vectors for chosen, whole in shared)


def test_what_is_handed_out_is_a_copy(tree: RouteTree) -> None:
    before = tree.embedding
    tree.embedding[:] = 7
    tree.embedding_at(np.array([0]), np.array([0]))[:] = 7
    assert np.array_equal(tree.embedding, before)

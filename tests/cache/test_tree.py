"""The arithmetic of node numbers and prices, and the tree as dense arrays."""

import itertools
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import (
    Layout,
    Rate,
    RouteTree,
    StatePart,
    cost_of,
    rate_table,
    total_cost,
)
from tests.cache import rows

SHAPES = st.builds(Layout.full, st.integers(1, 5), st.integers(1, 4))


def test_two_models_two_hops_as_drawn_in_the_docstring() -> None:
    routes = Layout.full(2, 2)
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert [routes.path(node) for node in range(routes.nodes)] == paths
    assert (routes.inner, routes.calls, routes.leaves) == (3, 6, slice(3, 7))
    assert routes.name(4, ("calc", "text")) == "calc>text"


@given(SHAPES)
def test_numbers_paths_and_levels_agree(routes: Layout) -> None:
    states, depth = np.arange(routes.inner), routes.depth()
    for action in range(routes.call_actions):
        for state, child in zip(states, routes.child(states, np.array(action)), strict=True):
            assert (routes.parent[child], routes.action[child]) == (state, action)
    for node in range(routes.nodes):
        path = routes.path(node)
        assert (routes.node(path), depth[node]) == (node, len(path))
    levels = [range(routes.nodes)[routes.level(level)] for level in range(routes.hops + 1)]
    assert [node for level in levels for node in level] == list(range(routes.nodes))
    assert [set(depth[level]) for level in levels] == [{level} for level in range(len(levels))]
    assert levels[-1] == range(routes.nodes)[routes.leaves]


@pytest.mark.parametrize(("models", "hops"), [(0, 2), (2, 0), (-1, 2), (2, -1)])
def test_no_tree_without_models_or_hops(models: int, hops: int) -> None:
    with pytest.raises(ValueError, match="at least 1 model"):
        Layout.full(models, hops)


def test_a_call_costs_its_tokens_times_their_rates() -> None:
    tokens_in, tokens_out = np.array([3, 0, 7]), np.array([2, 4, 0])
    assert cost_of(tokens_in, tokens_out, np.array([2.0, 5.0])).tolist() == [16, 20, 14]
    each = np.array([[2.0, 5.0], [1.0, 1.0], [0.0, 3.0]])
    assert cost_of(tokens_in, tokens_out, each).tolist() == [16, 4, 0]


def test_with_one_rate_tokens_are_added_first() -> None:
    assert 0.1 * 1 + 0.1 * 5 != 0.1 * (1 + 5)
    found = cost_of(np.array([1]), np.array([5]), np.array([0.1, 0.1]))
    assert found.tolist() == [0.1 * (1 + 5)]


@given(st.builds(Layout.full, st.integers(1, 3), st.integers(1, 3)), st.integers(0, 2**16))
def test_a_node_costs_all_calls_on_the_way_to_it(routes: Layout, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens_in, tokens_out = rng.integers(0, 9, (2, 2, routes.nodes))
    rate = rng.integers(0, 3, (routes.call_actions, 2)) / 4  # sums of quarters are exact
    found = total_cost(routes, tokens_in, tokens_out, rate)
    for node in range(routes.nodes):
        path = routes.path(node)
        made = [routes.node(path[: hop + 1]) for hop in range(len(path))]
        expected = sum(
            rate[model, 0] * tokens_in[:, call] + rate[model, 1] * tokens_out[:, call]
            for model, call in zip(path, made, strict=True)
        )
        assert (found[:, node] == expected).all()


def test_rates_are_in_the_order_of_the_models() -> None:
    prices = {"a": Rate.base(0.5), "b": Rate(1.0, 2.0), "c": Rate.base(9.0)}
    assert rate_table(("b", "a"), prices).tolist() == [[1.0, 2.0], [0.5, 0.5]]
    assert rate_table((), prices).shape == (0, 2)


@pytest.fixture
def tree(tmp_path: Path) -> RouteTree:
    """Two queries of three states, each with a vector of two numbers."""
    return rows.load(rows.fill(tmp_path))


def test_a_tree_is_dense(tree: RouteTree) -> None:
    right = tree.layout.node((0, 1))
    assert tree.query_ids == rows.QUESTIONS
    assert np.argwhere(tree.score).tolist() == [[0, right], [1, right]]
    assert tree.tokens_in[:, 1:].tolist() == [[3] * 6] * 2
    assert tree.cost[0].tolist() == [0, 5, 5, 10, 10, 10, 10]
    assert tree.reward(0.01)[0].tolist() == pytest.approx([-0.1, 0.9, -0.1, -0.1])
    assert tree.embedding.shape == (2, 3, 2)
    assert len(np.unique(tree.embedding.reshape(-1, 2), axis=0)) == 6
    assert tree.direct.cost.tolist() == [[5, 5], [5, 5]]


def test_a_price_changes_costs_and_the_end_of_the_fingerprint(tmp_path: Path) -> None:
    rows.fill(tmp_path)
    tree, dear, shallow = (
        rows.load(tmp_path, "ab", hops, rate) for hops, rate in ((2, 1.0), (2, 2.0), (1, 1.0))
    )
    assert dear.cost[0].tolist() == [0, 10, 5, 20, 15, 15, 10]
    assert dear.base_rate.tolist() == [2, 1]
    assert tree.content == dear.content
    assert re.fullmatch(rf"{tree.content}-[0-9a-f]{{8}}", tree.fingerprint)
    assert tree.fingerprint != dear.fingerprint
    assert tree.same_content(dear.fingerprint)
    assert not tree.same_content(shallow.fingerprint)


def test_a_selection_keeps_rows_together(tree: RouteTree) -> None:
    tree = replace(with_question(tree), splits=("validation", "train"))
    second = tree.select(np.array([1]))
    assert second.query_ids == tree.split("train").query_ids == ("two",)
    assert tree.split("validation").query_ids == ("one",)
    assert len(tree.split("test")) == 0
    with pytest.raises(InputError, match="unknown split: tests; known: train, validation, test"):
        tree.split("tests")
    folds = "1 train, 1 validation"
    shown = f"RouteTree(2 queries ({folds}), 2 models (a, b), 2 hops, Q is token_f1)"
    assert repr(tree) == shown
    assert np.array_equal(second.embedding, tree.embedding[1:])
    shared = zip(second.parts, tree.parts, strict=True)
    assert all(chosen.vectors is whole.vectors for chosen, whole in shared)


def with_question(tree: RouteTree) -> RouteTree:
    """The same with one more part: the number of the query, in one column."""
    number = np.arange(len(tree), dtype=np.float32)[:, None]
    row = np.repeat(np.arange(len(tree))[:, None], tree.layout.inner, axis=1)
    return replace(tree, parts=(*tree.parts, StatePart(number, row)))


def test_parts_stand_side_by_side(tree: RouteTree) -> None:
    both = with_question(tree)
    assert both.dim == tree.dim + 1
    assert np.array_equal(both.embedding[..., :-1], tree.embedding)
    assert both.embedding[..., -1].tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_some_states_have_the_vectors_that_all_have(tree: RouteTree, parts: int) -> None:
    shown = replace(tree, parts=with_question(tree).parts[:parts])
    assert shown.embedding.shape == (2, 3, shown.dim) == (2, 3, (0, 2, 3)[parts])
    query, node = np.array([1, 0, 1, 1]), np.array([2, 1, 0, 2])
    some = shown.embedding_at(query, node)
    assert some.dtype == np.float32
    assert some.shape == (4, shown.dim)
    assert np.array_equal(some, shown.embedding[query, node])
    assert shown.select(np.array([1])).embedding.shape == (1, 3, shown.dim)


def test_what_is_shared_cannot_be_changed(tree: RouteTree) -> None:
    for value in (tree, tree.layout, tree.direct, tree.parts[0], Rate.base(1.0)):
        with pytest.raises(FrozenInstanceError):
            setattr(value, fields(value)[0].name, None)


def test_what_is_handed_out_is_a_copy(tree: RouteTree) -> None:
    before = tree.embedding
    tree.embedding[:] = 7
    tree.embedding_at(np.array([0]), np.array([0]))[:] = 7
    assert np.array_equal(tree.embedding, before)


def test_fewer_models_are_a_part_of_the_same_tree(tmp_path: Path) -> None:
    whole = rows.load(rows.fill(tmp_path, "abc"), "abc", rate=2.0)
    for models in itertools.permutations("abc", 2):
        part = rows.load(tmp_path, "".join(models), rate=2.0)
        chosen = np.array(["abc".index(name) for name in models])
        paths = (chosen[list(part.layout.path(node))] for node in range(part.layout.nodes))
        kept = [whole.layout.node(tuple(path)) for path in paths]
        for name in ("score", "accuracy", "tokens_in", "tokens_out", "cost"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[:, kept]), name
        assert np.array_equal(part.embedding, whole.embedding[:, kept[: part.layout.inner]])
        assert part.direct.models == models
        assert np.array_equal(part.direct.score, whole.direct.score[:, chosen])
        assert np.array_equal(part.rate, whole.rate[chosen])
    assert rows.load(tmp_path, "cab", hops=1).layout.calls == 3

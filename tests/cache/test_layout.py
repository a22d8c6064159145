"""Layouts of any shape, against plain loops over paths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hierrouter_cache.layout import NEWEST, NOT_OFFERED, Layout, size_fault

Path = tuple[tuple[int, int], ...]  # (action, draw) of each call


@st.composite
def layouts(draw: DrawFn) -> Layout:
    """Any layout of up to three actions, four hops and three draws; not all are offered."""
    actions = draw(st.integers(1, 3))
    hops = draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 3), min_size=actions, max_size=actions))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))

    def offered(path: tuple[int, ...]) -> Sequence[int]:
        if len(path) == hops:
            return []
        chosen = np.flatnonzero(rng.random(actions) < 0.6).tolist()
        return chosen or ([0] if not path else [])

    return Layout.grown(actions, offered, lambda action: counts[action])


any_layout = st.one_of(layouts(), st.builds(Layout.full, st.integers(1, 3), st.integers(1, 3)))


def path_of(layout: Layout, node: int) -> Path:
    path: list[tuple[int, int]] = []
    while node:
        path.append((int(layout.action[node]), int(layout.draw[node])))
        node = int(layout.parent[node])
    return tuple(reversed(path))


@given(any_layout)
def test_inner_nodes_come_first_and_both_kinds_are_breadth_first(layout: Layout) -> None:
    paths = [path_of(layout, node) for node in range(layout.nodes)]
    assert len(set(paths)) == len(paths)
    has_children = {path[:-1] for path in paths if path}
    assert [path in has_children for path in paths] == [
        node < layout.inner for node in range(layout.nodes)
    ]
    for part in (paths[: layout.inner], paths[layout.inner :]):
        assert part == sorted(part, key=lambda path: (len(path), path))
    assert layout.hops == max(map(len, paths))
    assert layout.depth().tolist() == list(map(len, paths))
    for node, path in enumerate(paths):
        assert layout.path(node) == tuple(action for action, _ in path)
        if all(draw == 0 for _, draw in path):
            assert layout.node(layout.path(node)) == node


@given(any_layout, st.sampled_from([(), (1,), (1, 2), (NEWEST,)]))
def test_json_has_the_whole_layout(layout: Layout, give_backs: tuple[int, ...]) -> None:
    layout = layout.with_give_backs(give_backs)
    again = Layout.from_object(layout.as_object())
    assert again == layout
    assert hash(again) == hash(layout)
    assert again.give_backs == give_backs
    assert again.with_give_backs(()) == layout.without_give_backs


@given(any_layout, st.integers(0, 2**16))
def test_the_order_of_the_nodes_does_not_matter(layout: Layout, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(layout.nodes)
    position = np.argsort(order)
    parent = np.where(layout.parent[order] < 0, -1, position[layout.parent[order]])
    again, found = Layout.sorted(
        layout.call_actions, parent, layout.action[order], layout.draw[order]
    )
    assert again == layout
    assert order[found].tolist() == list(range(layout.nodes))


@given(any_layout, st.integers(0, 2**16))
def test_levels_spread_and_gather_as_loops_do(layout: Layout, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.random((2, layout.nodes))
    weight = rng.random((2, layout.nodes))
    reached = {0}
    for hop, level in enumerate(layout.levels):
        states = np.arange(layout.nodes)[level.states].tolist()
        assert states == [node for node in range(layout.inner) if layout.depth()[node] == hop]
        gathered = level.gather(values, fill=-1.0, weight=weight)
        chances = rng.random((2, len(states), layout.call_actions))
        for row, state in enumerate(states):
            for action in range(layout.call_actions):
                children = [
                    node
                    for node in range(1, layout.nodes)
                    if (layout.parent[node], layout.action[node]) == (state, action)
                ]
                drawn = layout.draws_of_calls[state, action]
                assert drawn[drawn != NOT_OFFERED].tolist() == sorted(
                    children, key=layout.draw.__getitem__
                )
                assert layout.children[state, action] == (drawn[0] if children else NOT_OFFERED)
                expected = (values * weight)[:, children].sum(axis=1) if children else [-1.0] * 2
                np.testing.assert_allclose(gathered[:, row, action], expected)
        for calls in level.calls:
            nodes = range(calls.nodes.start, calls.nodes.stop)
            assert reached.isdisjoint(nodes)
            reached |= set(nodes)
            spread = calls.spread(chances)
            for column, node in enumerate(nodes):
                assert (node < layout.inner) == calls.is_inner
                row = states.index(layout.parent[node])
                np.testing.assert_array_equal(
                    spread[:, column], chances[:, row, layout.action[node]]
                )
    assert reached == set(range(layout.nodes))


@given(any_layout)
def test_returning_offers_each_answer_of_the_route_once(layout: Layout) -> None:
    returning = layout.with_returns
    assert returning.states == layout.nodes
    assert returning.steps == layout.hops + 1
    offers: list[tuple[int, int]] = []
    for node in range(layout.nodes):
        route = layout.nodes_to(node)
        for column in range(layout.hops):
            ending = returning.give_back[node, column]
            if column < len(route):
                assert returning.ending_node[ending] == node
                assert returning.answer_node[ending] == route[column]
                offers.append((node, route[column]))
            else:
                assert ending == NOT_OFFERED
    assert len(set(offers)) == len(offers) == returning.endings - 1  # the root ends nothing
    listed = [
        (int(np.arange(layout.nodes)[level.states][row]), int(returning.answer_node[ending]))
        for level in returning.levels
        for row, _, ending in level.give_backs
    ]
    assert sorted(listed) == sorted(offers)


@given(layouts())
def test_an_end_without_a_call_is_offered_at_inner_nodes(layout: Layout) -> None:
    stopping = layout.with_give_backs((NEWEST,))
    assert (stopping.states, stopping.endings) == (layout.inner, layout.nodes)
    assert stopping.give_back[0, 0] == NOT_OFFERED
    assert stopping.give_back[1:, 0].tolist() == list(range(1, layout.inner))


@given(any_layout)
def test_a_layout_without_draws_has_the_same_fixed_routes(layout: Layout) -> None:
    plain = layout.without_draws
    assert plain.draws == 1
    assert plain.without_draws is plain
    routes = {layout.path(node) for node in range(layout.nodes)}
    assert sorted(plain.path(node) for node in range(plain.nodes)) == sorted(routes)


@given(any_layout, st.integers(1, 4))
def test_a_cut_layout_has_the_routes_up_to_there(layout: Layout, hops: int) -> None:
    cut = layout.cut(hops)
    kept = {path for node in range(layout.nodes) if len(path := path_of(layout, node)) <= hops}
    assert {path_of(cut, node) for node in range(cut.nodes)} == kept


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        ([-1, -1, 0], "2 nodes without a parent"),
        ([-1, 2, 1], "2 nodes do not descend from the root"),
        ([1, 0, 0], "0 nodes without a parent"),
    ],
)
def test_what_is_no_tree_is_refused(parent: list[int], message: str) -> None:
    count = len(parent)
    action = np.arange(count) - 1
    with pytest.raises(ValueError, match=message):
        Layout.sorted(3, np.array(parent), action, np.zeros(count, np.int64))


@pytest.mark.parametrize(
    "values",
    [
        {"models": 2},
        {"models": 0, "hops": 1},
        {"actions": 1, "parent": [-1, 0, 0], "action": [-1, 0, 0], "draw": [0, 0, 0]},
        {"actions": 2, "parent": [-1, 0, 0], "action": [-1, 1, 0], "draw": [0, 0, 0]},
        {"actions": 1, "parent": [-1], "action": [-1], "draw": [0]},
        [{"models": 2, "hops": 1}],
        "layout",
        {"models": 10, "hops": 30},
        {"models": 1, "hops": 10**9},
        {"models": 10**9, "hops": 1},
        {"models": 2.0, "hops": 1},
        {"models": "2", "hops": 1},
        {"models": 2, "hops": 1, "give_backs": [1, 1]},
        {"models": 2, "hops": 1, "give_backs": [10**9]},
        {"models": 2, "hops": 1, "give_backs": ["1"]},
        {"actions": 2, "parent": [-1, 2, 1], "action": [-1, 0, 0], "draw": [0, 0, 0]},
        {"actions": 1, "parent": [-1, 10**30], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, 5], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, -1], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-5, 0], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, 0], "action": [-1, 1], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, 0], "action": [-1, 0], "draw": [0, 99_999]},
        {"actions": 10**9, "parent": [-1, 0], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, 0.5], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, True], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [[-1], [0]], "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, 0], "action": [-1], "draw": [0, 0]},
        {"actions": 1, "parent": [], "action": [], "draw": []},
        {"actions": 1, "parent": {"-1": 0}, "action": [-1, 0], "draw": [0, 0]},
        {"actions": 1, "parent": [-1, 0] * 60_000, "action": [-1, 0], "draw": [0, 0]},
        {
            "actions": 1,
            "parent": list(range(-1, 100)),
            "action": [-1, *[0] * 100],
            "draw": [0] * 101,
        },
    ],
    ids=lambda values: f"{values!r:.60}",
)
def test_json_that_describes_no_layout_is_refused(values: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Layout.from_object(values)


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ((231, 896, 743, 15, 10), None),  # a real log of agents
        ((1, 100_001, 5, 5, 1), "100,001 nodes, at most 100,000"),
        ((1_000, 50_000, 5, 5, 1), "1,000 queries times 50,000 nodes, at most 20,000,000"),
        (
            (10, 5_000, 4_000, 4_000, 1),
            "4,000 inner nodes times 4,000 actions times 10 queries, at most 20,000,000",
        ),
        (
            (1, 50_000, 1_000, 10, 9_000),
            "1,000 inner nodes times 10 actions times 9,000 draws, at most 20,000,000",
        ),
    ],
)
def test_a_layout_is_counted_before_it_is_made(counts: tuple[int, ...], fault: str | None) -> None:
    assert size_fault(*counts) == fault


def test_a_layout_with_too_many_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1,000 nodes"):
        Layout.grown(10, lambda path: range(10), max_nodes=1_000)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter_cache.tree import Routes

shapes = st.builds(Routes, st.integers(1, 5), st.integers(1, 4))


def test_two_models_two_hops_as_drawn_in_the_docstring() -> None:
    routes = Routes(2, 2)
    assert [routes.path(node) for node in range(routes.nodes)] == [
        (),
        (0,),
        (1,),
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert (routes.states, routes.calls, routes.leaves) == (3, 6, slice(3, 7))
    assert routes.name(4, ("calc", "text")) == "calc>text"


@pytest.mark.parametrize(("models", "hops", "calls"), [(3, 2, 12), (3, 3, 39), (4, 2, 20)])
def test_calls_a_query(models: int, hops: int, calls: int) -> None:
    assert Routes(models, hops).calls == calls


@given(shapes)
def test_path_and_node_are_inverse(routes: Routes) -> None:
    for node in range(routes.nodes):
        assert routes.node(routes.path(node)) == node


@given(shapes)
def test_child_parent_action_agree(routes: Routes) -> None:
    states = np.arange(routes.states)
    for action in range(routes.models):
        for state, child in zip(states, routes.child(states, np.array(action)), strict=True):
            assert routes.parent(int(child)) == state
            assert routes.action(int(child)) == action


@given(shapes)
def test_depth_is_length_of_path(routes: Routes) -> None:
    assert routes.depth().tolist() == [len(routes.path(node)) for node in range(routes.nodes)]


@given(shapes)
def test_levels_follow_each_other_and_hold_all_nodes(routes: Routes) -> None:
    depth = routes.depth()
    levels = [range(routes.nodes)[routes.level(level)] for level in range(routes.hops + 1)]
    assert [node for level in levels for node in level] == list(range(routes.nodes))
    assert [set(depth[level]) for level in levels] == [{level} for level in range(len(levels))]
    assert levels[-1] == range(routes.nodes)[routes.leaves]


@pytest.mark.parametrize(("models", "hops"), [(0, 2), (2, 0), (-1, 2), (2, -1)])
def test_no_tree_without_models_or_hops(models: int, hops: int) -> None:
    with pytest.raises(ValueError, match="at least 1 model"):
        Routes(models, hops)

"""Action numbers say which model to call, and whether that call is the last."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from hierrouter.evaluation.outcome import Actions
from hierrouter_cache.tree import Routes
from tests.hierrouter.evaluation.test_exact import all_actions, every_episode


def test_without_stop_an_action_is_a_model() -> None:
    actions = Actions(Routes(3, 2))
    assert actions.count == 3
    assert actions.model(np.arange(3)).tolist() == [0, 1, 2]
    assert not actions.stops(np.arange(3)).any()
    assert actions.legal().all()
    assert range(13)[actions.endings] == range(4, 13)


def test_with_stop_every_model_comes_twice() -> None:
    actions = Actions(Routes(3, 2), allow_stop=True)
    assert actions.count == 6
    assert actions.model(np.arange(6)).tolist() == [0, 1, 2, 0, 1, 2]
    assert actions.stops(np.arange(6)).tolist() == [False] * 3 + [True] * 3
    assert range(13)[actions.endings] == range(1, 13)


def test_at_the_last_call_stopping_is_no_choice() -> None:
    legal = Actions(Routes(2, 2), allow_stop=True).legal()
    assert legal.tolist() == [[True] * 4, [True, True, False, False], [True, True, False, False]]
    assert Actions(Routes(2, 1), allow_stop=True).legal().tolist() == [[True, True, False, False]]


@given(all_actions)
def test_there_is_one_legal_way_to_end_at_each_ending(actions: Actions) -> None:
    legal, routes = actions.legal(), actions.routes
    ends = [
        node
        for made, node in every_episode(actions)
        if all(
            legal[routes.node(routes.path(node)[:hop]), action] for hop, action in enumerate(made)
        )
    ]
    assert sorted(ends) == list(range(routes.nodes)[actions.endings])


@given(all_actions)
def test_an_episode_is_over_at_a_leaf_or_where_it_stops(actions: Actions) -> None:
    routes = actions.routes
    inner, leaf = np.array([1]), np.array([routes.nodes - 1])
    for action in range(actions.count):
        chosen = np.array([action])
        assert actions.ends(leaf, chosen).all()
        if routes.hops > 1:
            assert actions.ends(inner, chosen).all() == (action >= routes.models)

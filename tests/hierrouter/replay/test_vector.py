"""Thousands of episodes at once are the same episodes as one by one."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import (
    Actions,
    Draws,
    LegalActions,
    ending_reward,
    policy_outcome,
)
from hierrouter.replay.env import QueryStream, ReplayEnv, ReplayVectorEnv, walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import ragged_layouts, unhurried
from tests.hierrouter.evaluation.test_outcome import all_actions
from tests.hierrouter.trees import (
    planted_tree,
    ragged_tree,
    random_tree,
    returning,
    showing_leaves,
    two_step_tree,
)

ALPHA = 0.05
QUERIES = 7
EPISODES = 5


@pytest.fixture
def tree() -> RouteTree:
    return random_tree(Layout.full(2, 3), QUERIES, seed=0)


@given(all_actions, st.booleans(), st.integers(0, 2**16))
def test_every_step_is_that_of_single_environments(
    actions: Actions, allow_return: bool, seed: int
) -> None:
    tree = returning(showing_leaves(random_tree(actions.layout, QUERIES, seed)), allow_return)
    actions = replace(actions, layout=tree.layout)
    single = [ReplayEnv(tree, ALPHA, actions.allow_stop) for _ in range(EPISODES)]
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES, actions.allow_stop, observation="features")
    observations, infos = envs.reset(seed=seed)
    begin(single, infos, range(EPISODES), observations)
    rng = np.random.default_rng(seed)
    for _ in range(3 * actions.layout.hops):
        chosen = rng.integers(0, actions.count, EPISODES)
        observations, reward, ended, truncated, infos = envs.step(chosen)
        steps = [env.step(action) for env, action in zip(single, chosen, strict=True)]
        assert reward.tolist() == [step[1] for step in steps]
        assert ended.tolist() == [step[2] for step in steps]
        assert not truncated.any()
        for number, (observation, *_, info) in enumerate(steps):
            if ended[number]:
                same(infos["final_obs"][number], observation)
                same(row(infos["final_info"], number), info)
            else:
                same({key: value[number] for key, value in observations.items()}, observation)
                same(row(infos, number), info)
            assert (
                envs.action_masks()[number].tolist() == row(infos, number)["action_mask"].tolist()
            )
        begin(single, infos, np.flatnonzero(ended), observations)


def begin(single: list[ReplayEnv], infos: dict[str, Any], which: Any, observations: Any) -> None:
    """Start the episodes that the vector environment has started."""
    for number in which:
        env = single[number]
        position = env.tree.query_ids.index(infos["query"][number])
        observation, info = env.reset(options={"query": position})
        same(row(infos, number), info)
        same({key: value[number] for key, value in observations.items()}, observation)


def row(infos: dict[str, Any], number: int) -> dict[str, Any]:
    keys = ("query", "node", "state", "action_mask")
    assert all(infos[f"_{key}"][number] for key in keys)
    return {key: infos[key][number] for key in keys}


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key], value, err_msg=key)


@given(all_actions, st.integers(0, 2**16))
def test_an_observation_is_the_number_of_the_state(actions: Actions, seed: int) -> None:
    tree = random_tree(actions.layout, QUERIES, seed)
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES, actions.allow_stop)
    state, infos = envs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(3 * actions.layout.hops):
        assert state.dtype == np.int64
        assert state in envs.observation_space
        np.testing.assert_array_equal(state, infos["state"])
        state, _, ended, _, infos = envs.step(rng.integers(0, actions.count, EPISODES))
        last = infos.get("final_obs", np.full(EPISODES, None))
        assert last.tolist() == [envs.end if over else None for over in ended]


@given(all_actions, st.booleans(), st.integers(0, 2**16))
def test_random_legal_play_is_drawn_from_the_masks(
    actions: Actions, allow_return: bool, seed: int
) -> None:
    tree = returning(showing_leaves(random_tree(actions.layout, QUERIES, seed)), allow_return)
    actions = replace(actions, layout=tree.layout)
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES, actions.allow_stop)
    assert envs.action_masks().shape == (EPISODES, actions.count)
    assert not envs.action_masks().any()  # no episode is under way
    envs.action_space.seed(seed)
    _, infos = envs.reset(seed=seed)
    for _ in range(3 * actions.steps):
        masks = envs.action_masks()
        assert masks.dtype == np.bool_ and masks.any(axis=1).all()
        np.testing.assert_array_equal(masks, actions.legal()[infos["node"]])
        chosen = envs.action_space.sample(mask=tuple(infos["action_mask"]))
        assert masks[np.arange(EPISODES), chosen].all()
        masks[:] = False  # they are the caller's own
        _, _, ended, _, infos = envs.step(chosen)
        if ended.any():
            assert not infos["final_info"]["action_mask"].any()


@pytest.mark.parametrize("view", ["context", "query+answer", "query", "stage"])
def test_what_is_observed_lies_in_the_space(view: str) -> None:
    envs = ReplayVectorEnv(two_step_tree(view=view), ALPHA, 6, True, observation="features")
    envs.action_space.seed(0)
    observations, _ = envs.reset(seed=0)
    for _ in range(6):
        assert observations in envs.observation_space
        observations, *_, infos = envs.step(envs.action_space.sample())
        for last in infos.get("final_obs", []):
            assert last is None or last in envs.single_observation_space


def test_queries_come_as_a_stream_draws_them_and_a_seed_begins_anew(tree: RouteTree) -> None:
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES, allow_stop=True)
    envs.action_space.seed(0)
    for seed in (4, None, 4):
        if seed is not None:
            stream = QueryStream(QUERIES, np_random(seed)[0])
        infos, ended = envs.reset(seed=seed)[1], np.full(EPISODES, True)
        for _ in range(20):
            wanted = [tree.query_ids[at] for at in stream.draw(int(ended.sum()))]
            assert infos["query"][ended].tolist() == wanted
            _, _, ended, _, infos = envs.step(envs.action_space.sample())
        stream.draw(int(ended.sum()))


def test_what_was_handed_out_does_not_change(tree: RouteTree) -> None:
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES, allow_stop=True)
    state, infos = envs.reset(seed=0)
    kept = state.copy(), {key: value.copy() for key, value in infos.items()}
    for action in (0, 3, 1):
        envs.step(np.full(EPISODES, action))
    np.testing.assert_array_equal(state, kept[0])
    for key, value in infos.items():
        np.testing.assert_array_equal(value, kept[1][key])


def test_gymnasiums_wrappers_count_whole_episodes() -> None:
    tree = planted_tree(dim=8, hops=3)
    envs = RecordEpisodeStatistics(ReplayVectorEnv(tree, ALPHA, 4))
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    _, infos = envs.reset(seed=0)
    ids = infos["query"]
    for action in (2, 0, 1):
        *_, infos = envs.step(np.full(4, action))
    position = [tree.query_ids.index(name) for name in ids]
    leaf = tree.layout.node((2, 0, 1))
    assert infos["episode"]["l"].tolist() == [3] * 4
    np.testing.assert_array_equal(infos["episode"]["r"], tree.node_reward(ALPHA)[position, leaf])


@pytest.mark.parametrize(
    ("actions", "message"),
    [([0, 2], "not among 2"), ([-1, 0], "not among 2"), ([0], r"2 actions wanted, .* \(1,\)")],
)
def test_actions_that_are_not_there_fail(tree: RouteTree, actions: list[int], message: str) -> None:
    envs = ReplayVectorEnv(tree, ALPHA, 2)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        envs.step(actions)
    envs.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match=message):
        envs.step(actions)


@pytest.mark.parametrize(
    "asked", [1, [1], [0, 1, 2, 3, -1], [0, 1, 2, 3, QUERIES], [0.5] * EPISODES]
)
def test_queries_can_be_chosen_if_they_are_there(tree: RouteTree, asked: object) -> None:
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES)
    _, infos = envs.reset(options={"query": [4, 4, 1, 0, 6]})
    assert infos["query"].tolist() == ["q4", "q4", "q1", "q0", "q6"]
    with pytest.raises(ValueError, match="query must be"):
        envs.reset(options={"query": asked})


# --- batched rollouts play the very episodes that environments one by one would


def scripted(models: int, state: np.ndarray) -> np.ndarray:
    """Some fixed function from states to actions."""
    return (7919 * state + state // 3) % models


@given(all_actions, st.integers(0, 2**16))
def test_walking_together_is_walking_alone(actions: Actions, seed: int) -> None:
    tree = random_tree(actions.layout, 4, seed)
    query = np.random.default_rng(seed).integers(0, 4, 9)
    rollouts = walk(actions, tree.node_reward(ALPHA), query, partial(scripted, actions.count))
    env = ReplayEnv(tree, ALPHA, actions.allow_stop)
    for episode, position in enumerate(query):
        _, info = env.reset(options={"query": position})
        terminated, hop = False, 0
        while not terminated:
            assert rollouts.alive[episode, hop]
            assert rollouts.state[episode, hop] == info["state"]
            _, reward, terminated, _, info = env.step(rollouts.action[episode, hop])
            assert rollouts.reward[episode, hop] == reward
            assert rollouts.last[episode, hop] == terminated
            hop += 1
        assert rollouts.length[episode] == hop
        assert not rollouts.alive[episode, hop:].any()
        assert not rollouts.reward[episode, hop:].any()


def test_the_policy_is_asked_about_episodes_that_go_on_and_no_others() -> None:
    actions, asked = Actions(Layout.full(2, 3), allow_stop=True), []

    def act(state: np.ndarray) -> np.ndarray:
        asked.append(state // actions.layout.inner)
        return np.where(asked[-1] % 2, 2, 0)  # odd queries stop at once

    tree = random_tree(actions.layout, 4, 0)
    rollouts = walk(actions, tree.node_reward(ALPHA), np.arange(4), act)
    assert [queries.tolist() for queries in asked] == [[0, 1, 2, 3], [0, 2], [0, 2]]
    assert rollouts.length.tolist() == [3, 1, 3, 1]


@given(st.integers(1, 30), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 99))
def test_no_query_comes_twice_before_all_have_come_once_however_many_are_drawn(
    queries: int, draws: list[int], seed: int
) -> None:
    stream, alone = (QueryStream(queries, np.random.default_rng(seed)) for _ in range(2))
    drawn = [query for count in draws for query in stream.draw(count).tolist()]
    assert drawn == [int(alone.draw(1)[0]) for _ in range(sum(draws))]
    for start in range(0, len(drawn), queries):
        epoch = drawn[start : start + queries]
        assert len(set(epoch)) == len(epoch)


def test_there_must_be_a_query_to_draw() -> None:
    with pytest.raises(ValueError, match="no queries"):
        QueryStream(0, np.random.default_rng(0))


# Trees with draws, and with routes that some queries lack.


@st.composite
def ragged_games(draw: st.DrawFn) -> tuple[RouteTree, bool]:
    """A ragged tree whose states have vectors, perhaps with `stop` after an answer."""
    layout = draw(ragged_layouts())
    tree = ragged_tree(layout, QUERIES, draw(st.integers(0, 2**16)))
    if draw(st.booleans()):
        tree = tree.with_layout(layout.with_give_backs((NEWEST,)))
    return tree, draw(st.booleans())


def advanced(rng: np.random.Generator, numbers: int) -> np.random.Generator:
    """A copy of a generator after it has drawn some numbers."""
    bits = np.random.PCG64()
    bits.state = rng.bit_generator.state
    bits.advance(numbers)
    return np.random.Generator(bits)


@unhurried
@given(ragged_games(), st.integers(0, 2**16))
def test_with_draws_and_holes_each_step_is_that_of_single_environments(
    game: tuple[RouteTree, bool], seed: int
) -> None:
    """Both take the draw to which the same number of the generator leads."""
    tree, stop = game
    single = [ReplayEnv(tree, ALPHA, stop) for _ in range(EPISODES)]
    envs = ReplayVectorEnv(tree, ALPHA, EPISODES, stop, observation="features")
    observations, infos = envs.reset(seed=seed)
    begin(single, infos, range(EPISODES), observations)
    rng = np.random.default_rng(seed)
    for _ in range(3 * tree.hops):
        scores = envs.action_masks() * rng.random((EPISODES, envs.actions.count))
        chosen = scores.argmax(axis=1)
        for number, env in enumerate(single):
            env.np_random = advanced(envs.np_random, number if tree.layout.draws > 1 else 0)
        observations, reward, ended, _, infos = envs.step(chosen)
        steps = [env.step(action) for env, action in zip(single, chosen, strict=True)]
        assert reward.tolist() == [step[1] for step in steps]
        assert ended.tolist() == [step[2] for step in steps]
        for number, (observation, *_, info) in enumerate(steps):
            values = {key: value[number] for key, value in observations.items()}
            over = ended[number]
            same(infos["final_obs"][number] if over else values, observation)
            same(row(infos["final_info"] if over else infos, number), info)
            if not over:
                assert info["action_mask"].any()
                assert tree.weight is not None
                assert tree.weight[tree.query_ids.index(info["query"]), info["node"]] > 0
        begin(single, infos, np.flatnonzero(ended), observations)


@unhurried
@given(ragged_games(), st.integers(0, 2**16))
def test_the_mean_over_episodes_is_the_exact_value(game: tuple[RouteTree, bool], seed: int) -> None:
    tree, stop = game
    actions = Actions(tree.layout, stop)
    rng = np.random.default_rng(seed)
    legal = LegalActions.of(tree, actions).table
    table = rng.gamma(1.0, size=(QUERIES, actions.states, actions.count)) * legal
    table /= np.maximum(table.sum(axis=2, keepdims=True), 1e-300)
    exact = policy_outcome(tree, actions, table, "x", "router").reward(ALPHA)
    chances = table.reshape(-1, actions.count).cumsum(axis=1)

    def act(state: np.ndarray) -> np.ndarray:
        drawn = rng.random(len(state)) * chances[state, -1]
        return (chances[state] <= drawn[:, None]).sum(axis=1)

    episodes = 400
    query = np.repeat(np.arange(QUERIES), episodes)
    draws = Draws.of(tree, np.random.default_rng(seed))
    rollouts = walk(actions, ending_reward(tree, ALPHA), query, act, draws)
    rewards = rollouts.reward.sum(axis=1).reshape(QUERIES, episodes)
    error = rewards.std(axis=1) / np.sqrt(episodes)
    # Seven queries an example: six standard errors are passed by chance in none of them. An ending
    # of small probability may come in no episode, so the error is 0 there.
    assert (np.abs(rewards.mean(axis=1) - exact) <= 6 * error + 0.02).all()
    assert legal.reshape(-1, actions.count)[
        rollouts.state[rollouts.alive], rollouts.action[rollouts.alive]
    ].all()


def test_a_policy_that_chooses_what_a_query_does_not_offer_is_told_so() -> None:
    tree = ragged_tree(Layout.full(2, 2), QUERIES, 3, missing=0.6)
    actions = Actions(tree.layout)
    draws = Draws.of(tree, np.random.default_rng(0))
    assert tree.offered is not None
    query = int(np.flatnonzero(~tree.offered[:, 0, 1])[0])
    with pytest.raises(InputError, match=r"^the policy takes action 1 at node 0 of a query that"):
        walk(
            actions,
            tree.node_reward(ALPHA),
            np.array([query]),
            lambda state: np.ones(len(state), np.int64),
            draws,
        )
    # An environment has a reward for each action: of a call that is not there, the last answer's.
    env = ReplayEnv(tree, ALPHA)
    env.reset(options={"query": query})
    _, reward, ended, _, info = env.step(np.int64(1))
    assert ended and info["node"] == 0 and reward == tree.node_reward(ALPHA)[query, 0]


@unhurried
@given(ragged_games())
def test_a_ragged_tree_passes_the_checks_of_gymnasium(game: tuple[RouteTree, bool]) -> None:
    tree, stop = game
    check_env(ReplayEnv(tree, ALPHA, stop), skip_render_check=True)

"""The environment keeps Gymnasium's contract and the paper's."""

from __future__ import annotations

import tracemalloc
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hierrouter.evaluation.bounds import random_policy
from hierrouter.replay.env import ReplayEnv, feature_space
from hierrouter_cache.tree import Routes
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree

ALPHA = 0.05


@pytest.fixture
def env() -> ReplayEnv:
    return ReplayEnv(planted_tree(dim=8, hops=3), ALPHA)


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_gymnasium_has_nothing_to_complain_about(hops: int, allow_stop: bool) -> None:
    env = ReplayEnv(planted_tree(dim=8, hops=hops), ALPHA, allow_stop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Without a registered spec the checker cannot build the other render modes: there are none.
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("view", ["query+answer", "query", "stage"])
def test_nor_about_other_views(view: str) -> None:
    env = ReplayEnv(two_step_tree(view=view), ALPHA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


def test_an_episode_is_a_route_of_its_query(env: ReplayEnv) -> None:
    tree, query, actions = env.tree, 7, (2, 0, 1)
    observation, info = env.reset(options={"query": query})
    assert info == {"query": "q7", "node": 0, "state": query * tree.routes.states}
    for hop, action in enumerate(actions):
        node = tree.routes.node(actions[:hop])
        assert observation["stage"] == hop
        assert observation["cost"][0] == pytest.approx(tree.cost[query, node])
        np.testing.assert_array_equal(observation["embedding"], tree.embedding[query, node])
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        assert not truncated
        if not terminated:
            assert reward == 0
    leaf = tree.routes.node(actions)
    assert terminated
    assert reward == tree.score[query, leaf] - ALPHA * tree.cost[query, leaf]
    assert info == {"query": "q7", "node": leaf, "state": len(tree) * tree.routes.states}
    assert not observation["embedding"].any()
    assert observation["stage"] == 3


def test_an_action_of_the_second_half_stops() -> None:
    env = ReplayEnv(planted_tree(dim=8, hops=3), ALPHA, allow_stop=True)
    tree, query, models = env.tree, 7, 3
    assert env.action_space.n == 2 * models
    for made, path in [((3 + 2,), (2,)), ((1, 3 + 2), (1, 2)), ((1, 2, 3 + 0), (1, 2, 0))]:
        env.reset(options={"query": query})
        steps = [env.step(np.int64(action)) for action in made]
        assert [terminated for _, _, terminated, _, _ in steps] == [False] * (len(made) - 1) + [
            True
        ]
        observation, reward, _, _, info = steps[-1]
        node = tree.routes.node(path)
        assert info["node"] == node
        assert reward == tree.score[query, node] - ALPHA * tree.cost[query, node]
        assert observation["stage"] == len(made)
        assert not observation["embedding"].any()


def test_a_step_before_the_first_reset_is_an_error(env: ReplayEnv) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(np.int64(0))


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_is_not_there_is_an_error(env: ReplayEnv, action: int) -> None:
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match=f"no action {action} among 3"):
        env.step(np.int64(action))


def test_a_step_after_the_end_is_an_error(env: ReplayEnv) -> None:
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.int64(0))
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(np.int64(0))


def test_the_same_seed_draws_the_same_queries(env: ReplayEnv) -> None:
    def drawn() -> list[str]:
        first = env.reset(seed=3)[1]["query"]
        return [first, *(env.reset()[1]["query"] for _ in range(20))]

    assert drawn() == drawn()
    assert len(set(drawn())) > 10


def test_sampled_returns_agree_with_the_exact_value() -> None:
    env = ReplayEnv(random_tree(Routes(3, 2), queries=20, seed=0), ALPHA)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    returns = np.array([_random_return(env, rng) for _ in range(10_000)])
    exact = random_policy(env.tree).reward(ALPHA).mean()
    assert abs(returns.mean() - exact) < 4 * returns.std() / np.sqrt(len(returns))


def _random_return(env: ReplayEnv, rng: np.random.Generator) -> float:
    env.reset()
    terminated, reward = False, 0.0
    while not terminated:
        _, reward, terminated, _, _ = env.step(rng.integers(3))
    return reward


@pytest.mark.parametrize("asked", [-1, 999, [1], 1.5, "0"])
def test_a_query_that_is_not_there_is_an_error(env: ReplayEnv, asked: object) -> None:
    with pytest.raises(ValueError, match="query must be"):
        env.reset(options={"query": asked})


@pytest.mark.parametrize(("value", "expected"), [(3.0, 3), (-3.0, 3), (0.5, 1)])
def test_a_space_holds_every_vector_and_copies_none(value: float, expected: float) -> None:
    tree = random_tree(Routes(2, 2), 3, seed=0)
    [part] = tree.parts
    vectors = np.zeros((100_000, part.vectors.shape[1]), dtype=np.float32)
    vectors[7, 1] = value
    large = replace(tree, parts=(replace(part, vectors=vectors),))
    tracemalloc.start()
    embedding = feature_space(large)["embedding"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (embedding.low.min(), embedding.high.max()) == (-expected, expected)
    assert peak < vectors.nbytes / 2

"""Gymnasium's contract and the paper's; Stable-Baselines3 takes the environment as it is."""

import tracemalloc
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common import env_checker

from hierrouter.replay.env import ReplayEnv, ReplayVectorEnv, feature_space
from hierrouter_cache.tree import Routes
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree

ALPHA = 0.05


@pytest.fixture
def env() -> ReplayEnv:
    return ReplayEnv(planted_tree(dim=8, hops=3), ALPHA)


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("view", ["context", "query+answer", "query", "stage"])
def test_gymnasium_and_its_users_have_nothing_to_complain_about(
    view: str, allow_stop: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Without a registered spec the checker cannot build the other render modes: there are none.
        check_env(ReplayEnv(two_step_tree(view=view), ALPHA, allow_stop), skip_render_check=True)
        env_checker.check_env(ReplayEnv(two_step_tree(view=view), ALPHA, allow_stop))


def test_gymnasium_knows_the_environment() -> None:
    tree = two_step_tree()
    made = gymnasium.make("hierrouter/Replay-v0", tree=tree, alpha=ALPHA)
    assert isinstance(made.unwrapped, ReplayEnv)
    assert made.reset(seed=3)[1] == ReplayEnv(tree, ALPHA).reset(seed=3)[1]
    assert len({made.reset()[1]["query"] for _ in range(20)}) > 5
    many = gymnasium.make_vec(
        "hierrouter/Replay-v0",
        num_envs=4,
        vectorization_mode="vector_entry_point",
        tree=tree,
        alpha=ALPHA,
        allow_stop=True,
    )
    assert isinstance(many.unwrapped, ReplayVectorEnv)


@pytest.mark.parametrize(
    ("stop", "made"), [(False, (2, 0, 1)), (True, (5,)), (True, (1, 5)), (True, (1, 2, 3))]
)
def test_an_episode_is_a_route_of_its_query(stop: bool, made: tuple[int, ...]) -> None:
    """With stop an action of the second half ends it."""
    env, query = ReplayEnv(planted_tree(dim=8, hops=3), ALPHA, stop), 7
    tree, path = env.tree, tuple(action % 3 for action in made)
    assert env.action_space.n == (6 if stop else 3)
    observation, info = env.reset(options={"query": query})
    assert info == {"query": "q7", "node": 0, "state": query * tree.routes.states}
    for hop, action in enumerate(made):
        node = tree.routes.node(path[:hop])
        assert observation["stage"] == hop
        assert observation["cost"][0] == pytest.approx(tree.cost[query, node])
        np.testing.assert_array_equal(observation["embedding"], tree.embedding[query, node])
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        assert (terminated, truncated) == (hop == len(made) - 1, False)
        assert terminated or reward == 0
    end = tree.routes.node(path)
    assert reward == tree.score[query, end] - ALPHA * tree.cost[query, end]
    assert info == {"query": "q7", "node": end, "state": len(tree) * tree.routes.states}
    assert not observation["embedding"].any()
    assert observation["stage"] == len(made)


def test_a_step_before_the_start_or_after_the_end_is_an_error(env: ReplayEnv) -> None:
    for begin in (lambda: None, lambda: [env.reset(seed=0), *(env.step(0) for _ in range(3))]):
        begin()
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            env.step(np.int64(0))


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_is_not_there_is_an_error(env: ReplayEnv, action: int) -> None:
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match=f"no action {action} among 3"):
        env.step(np.int64(action))


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

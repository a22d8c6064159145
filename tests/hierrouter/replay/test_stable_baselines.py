"""Stable-Baselines3 takes both environments as they are."""

import warnings

import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import VecMonitor

from hierrouter.evaluation.bounds import random_policy
from hierrouter.replay.env import ReplayEnv, ReplayVectorEnv
from hierrouter.replay.stable_baselines import StableBaselinesEnv
from hierrouter_cache.tree import Routes
from tests.hierrouter.trees import random_tree, two_step_tree

ALPHA = 0.05


@pytest.mark.parametrize("view", ["context", "stage"])
@pytest.mark.parametrize("allow_stop", [False, True])
def test_its_checker_has_nothing_to_complain_about(view: str, allow_stop: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(ReplayEnv(two_step_tree(view=view), ALPHA, allow_stop))


def adapted(num_envs: int, allow_stop: bool = False) -> StableBaselinesEnv:
    tree = random_tree(Routes(2, 2), 12, seed=0)
    return StableBaselinesEnv(
        ReplayVectorEnv(tree, ALPHA, num_envs, allow_stop, observation="features")
    )


def test_steps_are_those_of_the_vector_environment() -> None:
    env, twin = adapted(6, allow_stop=True), adapted(6, allow_stop=True).env
    env.seed(3)
    observations, (expected, _) = env.reset(), twin.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(6):
        for key, value in expected.items():
            np.testing.assert_array_equal(observations[key], value)
        actions = rng.integers(0, 4, 6)
        observations, reward, ended, told = env.step(actions)
        expected, paid, done, _, infos = twin.step(actions)
        np.testing.assert_array_equal(reward, paid.astype(np.float32))
        np.testing.assert_array_equal(ended, done)
        for number in range(6):
            assert ("terminal_observation" in told[number]) == done[number]
            if done[number]:
                last = infos["final_obs"][number]
                np.testing.assert_array_equal(
                    told[number]["terminal_observation"]["cost"], last["cost"]
                )


def test_its_ppo_learns_on_the_adapter() -> None:
    env = VecMonitor(adapted(32, allow_stop=True))
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=64, gamma=1.0, seed=0, device="cpu")
    model.learn(32 * 8 * 12)
    late = np.mean([episode["r"] for episode in model.ep_info_buffer])
    assert late > random_policy(env.venv.env.tree, allow_stop=True).reward(ALPHA).mean() + 0.05


def test_its_off_policy_algorithms_run_on_the_adapter() -> None:
    model = DQN("MultiInputPolicy", adapted(4), learning_starts=16, seed=0, device="cpu")
    model.learn(64)
    assert model.replay_buffer.size() == 16


def test_episodes_have_no_environments_of_their_own() -> None:
    env = adapted(3)
    assert env.get_attr("num_envs") == [3, 3, 3]
    assert env.get_attr("num_envs", indices=[0, 2]) == [3, 3]
    assert env.env_is_wrapped(VecMonitor, indices=1) == [False]
    env.set_attr("num_envs", 3)
    with pytest.raises(NotImplementedError, match="episodes are rows"):
        env.env_method("render")

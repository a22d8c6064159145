"""The vectorised environment as Stable-Baselines3 has it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from hierrouter.replay.env import Observations, ReplayVectorEnv

Indices = None | int | Iterable[int]
Step = tuple[Observations, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]


class StableBaselinesEnv(VecEnv):
    """Steps a `ReplayVectorEnv`; episodes begin anew in the step in which they end."""

    def __init__(self, env: ReplayVectorEnv) -> None:
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._actions = np.zeros(env.num_envs, dtype=np.int64)

    def reset(self) -> Observations:
        """Start all episodes, with the seed that `seed()` was given last."""
        observations, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        return observations

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Remember int64[num_envs] for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> Step:
        """Observations, float32[num_envs] rewards, bool[num_envs] ends, a dictionary each."""
        observations, reward, ended, _, infos = self.env.step(self._actions)
        told: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for number in np.flatnonzero(ended):
            told[number]["terminal_observation"] = infos["final_obs"][number]
        return observations, reward.astype(np.float32), ended, told

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The attribute of the one environment, for each episode asked for."""
        return [getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set the attribute of the one environment."""
        setattr(self.env, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """There is no environment a method could be called on.

        Raises NotImplementedError: always.
        """
        raise NotImplementedError(f"{method_name}: episodes are rows, not environments")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Never: there are no single environments."""
        return [False] * len(list(self._get_indices(indices)))

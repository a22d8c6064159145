"""Thousands of replayed episodes that step together.

In: a `RouteTree`, alpha, a number of episodes. Out: `ReplayVectorEnv`, a Gymnasium vector
environment without any environment in it: a step is arithmetic on node numbers. Not covered:
whole episodes at once, see `rollouts`; Stable-Baselines3, see `stable_baselines`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from hierrouter.actions import Actions
from hierrouter.replay.env import chosen_queries, feature_space
from hierrouter.replay.rollouts import QueryStream
from hierrouter_cache.tree import RouteTree

Features = dict[str, NDArray[np.generic]]
Observations = NDArray[np.int64] | Features
Infos = dict[str, Any]
Step = tuple[
    Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]


class ReplayVectorEnv(VectorEnv[Observations, ArrayLike, NDArray[Any]]):  # type: ignore[misc]
    """Many `ReplayEnv` at once: the same actions on the same queries give the same episodes.

    ## Observation Space
    `observation="state"`: the number of the state, `position * states + node`, for policies that
    hold the tree's vectors themselves; 8 bytes. The highest number, `len(tree) * states`, is no
    state: it stands for the end, in `final_obs` only.
    `observation="features"`: the dictionary of `ReplayEnv`, batched.

    ## Starting State
    Queries in random order, none twice before all have been drawn once.
    `reset(options={"query": positions})` takes one given query for each episode instead.

    ## Episode End
    As in `ReplayEnv`; the next episode begins in the same step (`AutoresetMode.SAME_STEP`). The
    observation is the new episode's; the old one's last is in `infos["final_obs"]`, its information
    in `infos["final_info"]`, both where `infos["_final_obs"]` is true.

    ## Information
    `query`, `node` and `state` as in `ReplayEnv`, each an array.

    ## Arguments
    * `tree`, `alpha`, `allow_stop`: as in `ReplayEnv`.
    * `num_envs`: how many episodes are under way at any time.
    * `observation`: "state" or "features".
    """

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        tree: RouteTree,
        alpha: float,
        num_envs: int,
        allow_stop: bool = False,
        observation: Literal["state", "features"] = "state",
    ) -> None:
        self.tree = tree
        self.num_envs = num_envs
        self.actions = Actions(tree.routes, allow_stop)
        self.end = len(tree) * tree.routes.states
        self.single_action_space = spaces.Discrete(self.actions.count)
        self.single_observation_space = (
            spaces.Discrete(self.end + 1) if observation == "state" else feature_space(tree)
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._shows_state = observation == "state"
        self._reward = tree.node_reward(alpha)
        self._depth = tree.routes.depth()
        self._ids = np.array(tree.query_ids, dtype=object)
        self._queries: QueryStream | None = None
        self._query = np.zeros(num_envs, dtype=np.int64)
        self._node = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Infos]:
        """Start all episodes; see the class docstring for `options`.

        A seed begins the order of the queries anew; without one it goes on.

        Raises:
            ValueError: not one query of the tree is asked for in each episode.
        """
        super().reset(seed=seed)
        if seed is not None or self._queries is None:
            self._queries = QueryStream(len(self.tree), self.np_random)
        chosen = chosen_queries(options, (self.num_envs,), self.tree)
        self._query = self._queries.draw(self.num_envs) if chosen is None else chosen
        self._node = np.zeros(self.num_envs, dtype=np.int64)
        return self._observe(), self._infos()

    def step(self, actions: ArrayLike) -> Step:
        """Call one model in each episode.

        Args:
            actions: int64[num_envs].

        Raises:
            gymnasium.error.ResetNeeded: `reset` has not been called.
            gymnasium.error.InvalidAction: there is no such action.
        """
        if self._queries is None:
            raise gymnasium.error.ResetNeeded("no episode is under way; call reset()")
        chosen = self._checked(actions)
        self._node = self.tree.routes.child(self._node, self.actions.model(chosen))
        ended = self.actions.ends(self._node, chosen)
        reward = np.where(ended, self._reward[self._query, self._node], 0.0)
        final = self._begin_anew(ended, self._queries) if ended.any() else {}
        return self._observe(), reward, ended, np.zeros_like(ended), {**self._infos(), **final}

    def _checked(self, actions: ArrayLike) -> NDArray[np.int64]:
        chosen = np.asarray(actions, dtype=np.int64)
        if chosen.shape != self._node.shape:
            raise gymnasium.error.InvalidAction(
                f"{self.num_envs} actions wanted, got an array of shape {chosen.shape}"
            )
        if chosen.min() < 0 or chosen.max() >= self.actions.count:
            raise gymnasium.error.InvalidAction(f"an action is not among {self.actions.count}")
        return chosen

    def _begin_anew(self, ended: NDArray[np.bool_], queries: QueryStream) -> Infos:
        """Start the next episode where one has ended; returns what is told of the old ones."""
        final = {
            "final_obs": self._last_observations(ended),
            "_final_obs": ended,
            "final_info": self._infos(ended),
            "_final_info": ended,
        }
        self._query = self._query.copy()
        self._query[ended] = queries.draw(int(ended.sum()))
        self._node = np.where(ended, 0, self._node)
        return final

    def _infos(self, ended: NDArray[np.bool_] | None = None) -> Infos:
        """Of all episodes, or of those that have ended."""
        known = np.ones(self.num_envs, dtype=np.bool_) if ended is None else ended
        values = {
            "query": self._ids[self._query],
            "node": self._node,
            "state": self._state() if ended is None else np.full(self.num_envs, self.end),
        }
        return {**values, **{f"_{key}": known for key in values}}

    def _state(self) -> NDArray[np.int64]:
        return self._query * self.tree.routes.states + self._node

    def _observe(self) -> Observations:
        return self._state() if self._shows_state else self._features()

    def _features(self) -> Features:
        return {
            "embedding": self.tree.embedding_at(self._query, self._node),
            "stage": self._depth[self._node],
            "cost": self.tree.cost[self._query, self._node].astype(np.float32)[:, None],
        }

    def _last_observations(self, ended: NDArray[np.bool_]) -> NDArray[np.object_]:
        """object[num_envs]: one observation each, as Gymnasium has it; None where none is last."""
        last = np.full(self.num_envs, None, dtype=object)
        if self._shows_state:
            last[ended] = self.end
            return last
        blank = np.zeros(self.tree.dim, dtype=np.float32)
        blank.flags.writeable = False
        cost = self.tree.cost[self._query, self._node].astype(np.float32)[:, None]
        for number in np.flatnonzero(ended):
            stage = self._depth[self._node[number]]
            last[number] = {"embedding": blank, "stage": stage, "cost": cost[number]}
        return last

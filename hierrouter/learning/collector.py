"""The replayed tree as Tianshou takes it: a collector of whole episodes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.data import Batch, CollectStats, ReplayBuffer, to_numpy
from tianshou.data.collector import BaseCollector

from hierrouter.evaluation.outcome import ending_reward
from hierrouter.replay.env import QueryStream, ReplayVectorEnv, Rollouts, walk
from hierrouter_cache.tree import RouteTree

CAPACITY = 65_536  # transitions of the buffer that a collector makes where it is given none


def to_buffer(rollouts: Rollouts) -> ReplayBuffer:
    """All transitions, episode after episode.

    `obs_next` of a last hop is state 0: an episode that has terminated has no next state, and
    Tianshou masks its value.
    """
    made, following = rollouts.alive, np.zeros_like(rollouts.state)
    following[:, :-1] = rollouts.state[:, 1:]
    terminated = rollouts.last[made]
    return ReplayBuffer.from_data(
        obs=rollouts.state[made],
        act=rollouts.action[made],
        rew=rollouts.reward[made],
        terminated=terminated,
        truncated=np.zeros(len(terminated), dtype=bool),
        done=terminated,
        obs_next=following[made],
    )


class Played(ReplayVectorEnv):
    """What Tianshou asks an environment: how many episodes it steps together."""

    def __len__(self) -> int:
        return self.num_envs


class Collected(CollectStats):  # type: ignore[misc]
    """Counts of a collection, however the clock was set meanwhile."""

    def set_collect_time(self, collect_time: float, update_collect_speed: bool = True) -> None:
        """Tianshou refuses what is below 0, and would end a training."""
        super().set_collect_time(max(collect_time, 1e-9), update_collect_speed)


class TreeCollector(BaseCollector[CollectStats]):  # type: ignore[misc]
    """Tianshou's collector interface on a replayed tree: whole episodes, all walking together.

    A collection takes at most L forward passes of the policy, L + 1 with return, however many
    episodes it has. What the policy sees are the numbers of states, int64[n], as in
    `ReplayVectorEnv`. By steps, as many episodes are played as it takes to make them; none is cut.

    Args:
        allow_stop: whether an episode may end before L calls.
        allow_return: whether it may end after any answer, with any answer of its route.
        buffer: where transitions go, a plain `ReplayBuffer`; by default a new one.
        seed: of the order of the queries, none of which comes twice before all have come once, and
            of random actions.
        draw: gives int64[n], the queries of the next n episodes, instead of that order; a test
            collector takes `np.arange`, and as many episodes as there are queries.
        reward: float64[queries, endings], what an episode pays that ends so, instead of R.
    """

    def __init__(
        self,
        policy: Any,
        tree: RouteTree,
        alpha: float,
        allow_stop: bool = False,
        *,
        allow_return: bool = False,
        buffer: ReplayBuffer | None = None,
        seed: int = 0,
        draw: Callable[[int], NDArray[np.int64]] | None = None,
        reward: NDArray[np.float64] | None = None,
    ) -> None:
        played = Played(tree, alpha, 1, allow_stop, allow_return=allow_return)
        held = ReplayBuffer(CAPACITY) if buffer is None else buffer
        super().__init__(policy, played, held)
        self.tree = tree
        self.actions = played.actions
        self._rng = np.random.default_rng(seed)
        self._draw = QueryStream(len(tree), self._rng).draw if draw is None else draw
        plain = ending_reward(tree, alpha, self.actions.width) if reward is None else reward
        self._reward = plain

    @torch.no_grad()
    def _collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        random: bool = False,
        render: float | None = None,
        gym_reset_kwargs: dict[str, Any] | None = None,
    ) -> CollectStats:
        """What `collect` of Tianshou does; there is nothing to render."""
        act, hops = self._at_random if random else self._act, self.actions.steps
        wanted = n_episode or -(-(n_step or 0) // hops)
        returns, lengths = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
        while wanted > 0:
            walked = walk(self.actions, self._reward, self._draw(wanted), act)
            self.buffer.update(to_buffer(walked))
            returns.append(walked.reward.sum(axis=1))
            lengths.append(walked.length)
            short = 0 if n_step is None else n_step - sum(int(made.sum()) for made in lengths)
            wanted = -(-short // hops)
        reward, length = np.concatenate(returns), np.concatenate(lengths)
        steps, episodes = int(length.sum()), len(length)
        self.collect_step += steps
        self.collect_episode += episodes
        return Collected.with_autogenerated_stats(reward, length, episodes, steps)

    def _act(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        return to_numpy(self.policy(Batch(obs=state, info=Batch())).act)

    def _at_random(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        legal = self.actions.legal()[state % self.actions.states]
        chances = legal * self._rng.random(legal.shape)
        return chances.argmax(axis=1)

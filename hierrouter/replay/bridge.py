"""Rollouts in the shape that Tianshou's PPO reads.

In: `Rollouts`. Out: a Tianshou `ReplayBuffer` written in one piece, whose observations are state
numbers, 8 bytes each. It replaces Tianshou's `Collector` and its per-environment bookkeeping:
episodes are complete, so there is nothing unfinished to keep apart.
"""

from __future__ import annotations

import numpy as np
from tianshou.data import ReplayBuffer

from hierrouter.replay.rollouts import Rollouts


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

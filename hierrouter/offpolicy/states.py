"""What is known of the states of a log.

Out: `LoggedStates`: at each state that an episode passed, what a regression reads and what the
policy to be valued would do. Not covered: where that comes from, see `cached` and `given`; what
came of it, see `log`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import Routes


@dataclass(frozen=True)
class LoggedStates:
    """The states that the episodes of a log passed, each distinct one once.

    Attributes:
        row: int64[episodes, L], the state before each call; after the end any one.
        features: float32[states, d], see `state_features`.
        target: float64[states, A], what the policy to be valued does there.
    """

    row: NDArray[np.int64]
    features: NDArray[np.float32]
    target: NDArray[np.float64]

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """float64[episodes, L, A]: the policy to be valued before each call."""
        return self.target[self.row]


def state_features(
    routes: Routes,
    embedding: NDArray[np.float32],
    node: NDArray[np.int64],
    spent: NDArray[np.float64],
) -> NDArray[np.float32]:
    """float32[states, dim + (L - 1) * M + 1]: texts, which model was called at each hop, and cost.

    Args:
        embedding: float32[states, dim].
        node: int64[states], node numbers.
        spent: float64[states], C_t; it is divided by the largest.
    """
    cost = spent / (spent.max(initial=0.0) or 1.0)
    columns = [embedding, _called(routes)[node], cost[:, None]]
    return np.concatenate(columns, axis=1).astype(np.float32)


def widened(target: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """float64[states, count]: a policy's table with zeros for actions that it does not know.

    A policy that never stops early has M columns, where the log may have 2M actions.
    """
    return np.pad(target, ((0, 0), (0, count - target.shape[1])))


def _called(routes: Routes) -> NDArray[np.float32]:
    """float32[states, (L - 1) * M]: 1 where a model was called at a hop on the way to a state."""
    called = np.zeros((routes.states, routes.hops - 1, routes.models), dtype=np.float32)
    for node in range(routes.states):
        for hop, model in enumerate(routes.path(node)):
            called[node, hop, model] = 1.0
    return called.reshape(routes.states, -1)

"""All episodes of an iteration walk the tree together.

In: the rewards of a tree's leaves, the queries to play, and a function from states to actions.
Out: `Rollouts`, in L calls of that function whatever the number of episodes. A state is a number,
`query * states + node`; the table it points into (embedding, stage, cost) stays with the policy.
Not covered: learning, and Tianshou's data types; see `bridge`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import Routes

# From state numbers, int64[episodes], to actions, int64[episodes].
Act = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class Rollouts:
    """Whole episodes, one a row (paper section 3.1).

    Attributes:
        state: int64[episodes, L], the state number before each call.
        action: int64[episodes, L], the model called.
        reward: float64[episodes, L], 0 before the last hop, then R = Q - alpha * C.
    """

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]


def walk(
    routes: Routes, leaf_reward: NDArray[np.float64], query: NDArray[np.int64], act: Act
) -> Rollouts:
    """Play one episode on each of the given queries.

    Args:
        routes: shape of the tree.
        leaf_reward: float64[queries, leaves], see `RouteTree.reward`.
        query: int64[episodes], positions of queries; they may repeat.
        act: the policy; it is called L times, with the states of all episodes.
    """
    shape = (len(query), routes.hops)
    state = np.empty(shape, dtype=np.int64)
    action = np.empty(shape, dtype=np.int64)
    node = np.zeros(len(query), dtype=np.int64)
    for hop in range(routes.hops):
        state[:, hop] = query * routes.states + node
        action[:, hop] = act(state[:, hop])
        node = routes.child(node, action[:, hop])
    reward = np.zeros(shape)
    reward[:, -1] = leaf_reward[query, node - routes.states]
    return Rollouts(state, action, reward)


class QueryStream:
    """Queries in random order, none twice before all have been drawn once."""

    def __init__(self, queries: int, rng: np.random.Generator) -> None:
        """Draw from positions 0 to `queries - 1`."""
        if queries < 1:
            raise ValueError("no queries to draw from")
        self._queries = queries
        self._rng = rng
        self._waiting = np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> NDArray[np.int64]:
        """int64[count]: the next queries; a new shuffle starts where one is used up."""
        while len(self._waiting) < count:
            shuffled = self._rng.permutation(self._queries)
            self._waiting = np.concatenate([self._waiting, shuffled])
        drawn, self._waiting = self._waiting[:count], self._waiting[count:]
        return drawn

"""All episodes of an iteration walk the tree together.

In: the rewards of a tree's nodes, the queries to play, and a function from states to actions.
Out: `Rollouts`, in L calls of that function whatever the number of episodes. A state is a number,
`query * states + node`; the table it points into (embedding, stage, cost) stays with the policy.
Not covered: learning, and Tianshou's data types; see `bridge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions

# From state numbers, int64[episodes], to actions, int64[episodes].
Act = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class Rollouts:
    """Whole episodes, one a row (paper section 3.1).

    Attributes:
        state: int64[episodes, L], the state number before each call; 0 after the end.
        action: int64[episodes, L], see `Actions`; 0 after the end.
        reward: float64[episodes, L], R = Q - alpha * C at the last call, else 0.
        length: int64[episodes], calls made, 1 to L.
    """

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    length: NDArray[np.int64]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """bool[episodes, L]: whether a call was made."""
        return np.arange(self.state.shape[1]) < self.length[:, None]

    @property
    def last(self) -> NDArray[np.bool_]:
        """bool[episodes, L]: whether the call was the last one of its episode."""
        last: NDArray[np.bool_] = np.arange(1, self.state.shape[1] + 1) == self.length[:, None]
        return last


def walk(
    actions: Actions, reward: NDArray[np.float64], query: NDArray[np.int64], act: Act
) -> Rollouts:
    """Play one episode on each of the given queries.

    Args:
        actions: what may be chosen; whether a choice is legal is left to the policy.
        reward: float64[queries, nodes], see `RouteTree.node_reward`.
        query: int64[episodes], positions of queries; they may repeat.
        act: the policy; it is called at most L times, with the states of all episodes that go on.
    """
    routes, shape = actions.routes, (len(query), actions.routes.hops)
    rollouts = Rollouts(
        state=np.zeros(shape, dtype=np.int64),
        action=np.zeros(shape, dtype=np.int64),
        reward=np.zeros(shape),
        length=np.full(len(query), routes.hops),
    )
    playing = np.arange(len(query))
    node = np.zeros(len(query), dtype=np.int64)
    for hop in range(routes.hops):
        state = query[playing] * routes.states + node
        action = act(state)
        node = routes.child(node, actions.model(action))
        rollouts.state[playing, hop] = state
        rollouts.action[playing, hop] = action
        over = actions.ends(node, action)
        if over.any():
            ended = playing[over]
            rollouts.length[ended] = hop + 1
            rollouts.reward[ended, hop] = reward[query[ended], node[over]]
            playing, node = playing[~over], node[~over]
        if not len(playing):
            break
    return rollouts


class QueryStream:
    """Queries in random order, none twice before all have been drawn once."""

    def __init__(self, queries: int, rng: np.random.Generator) -> None:
        """Draw from positions 0 to `queries - 1`."""
        if queries < 1:
            raise ValueError("no queries to draw from")
        self._queries = queries
        self._rng = rng
        self.waiting = np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> NDArray[np.int64]:
        """int64[count]: the next queries; a new shuffle starts where one is used up."""
        short = count - len(self.waiting)
        if short > 0:
            epochs = math.ceil(short / self._queries)
            shuffled = [self._rng.permutation(self._queries) for _ in range(epochs)]
            self.waiting = np.concatenate([self.waiting, *shuffled])
        drawn, self.waiting = self.waiting[:count], self.waiting[count:]
        return drawn

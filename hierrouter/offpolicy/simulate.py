"""Logs of a policy that never ran.

In: a tree, where every call has been made already, and the probabilities of a logging policy. Out:
a `Log` with the very probabilities the calls were drawn with; its questions are numbered by their
positions in the tree. Not covered: which policies, see `logging_policy`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.offpolicy.log import Log
from hierrouter.replay.rollouts import Rollouts, walk
from hierrouter_cache.tree import RouteTree


def simulated(
    tree: RouteTree,
    actions: Actions,
    logging: NDArray[np.float64],
    position: NDArray[np.int64],
    rng: np.random.Generator,
) -> Log:
    """Play one episode on each of the given questions.

    Args:
        logging: float64[queries, states, A], rows sum to 1.
        position: int64[episodes], of questions in the tree; they may repeat.
        rng: source of the calls.
    """
    table = logging.reshape(-1, actions.count)
    up_to = table.cumsum(axis=1)
    up_to /= up_to[:, -1:]

    def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
        drawn: NDArray[np.int64] = (up_to[state] <= rng.random((len(state), 1))).sum(axis=1)
        return drawn

    unpaid = np.zeros((len(tree), tree.routes.nodes))  # Q and C are logged, R follows from alpha
    rollouts = walk(actions, unpaid, position, act)
    propensity = np.where(rollouts.alive, table[rollouts.state, rollouts.action], 1.0)
    return logged(tree, actions, position, rollouts, propensity)


def logged(
    tree: RouteTree,
    actions: Actions,
    position: NDArray[np.int64],
    rollouts: Rollouts,
    propensity: NDArray[np.float64],
) -> Log:
    """What a log says of these episodes: nothing of what was not called.

    Args:
        position: int64[episodes], of each question in the tree.
        propensity: float64[episodes, L], of each action.
    """
    alive, states = rollouts.alive, tree.routes.states
    before = rollouts.state % states
    after = tree.routes.child(before, actions.model(rollouts.action))
    query = position[:, None]
    cost = np.where(alive, tree.cost[query, after] - tree.cost[query, before], 0.0)
    rows = np.arange(len(position))
    return Log(
        actions=actions,
        query=position,
        action=rollouts.action,
        propensity=propensity,
        length=rollouts.length,
        quality=tree.score[position, after[rows, rollouts.length - 1]],
        cost=cost,
    )

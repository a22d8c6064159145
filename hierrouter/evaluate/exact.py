"""The exact value of a policy, by enumeration.

In: action probabilities at every state of a tree. Out: where its episodes end and how probably,
and so the policy's expected quality and cost with no sampling error. Not covered: networks; a
policy is a table here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.outcome import Kind, Outcome, from_endings
from hierrouter_cache.tree import RouteTree


def ending(actions: Actions, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability of ending at each node: the product of the decisions on the way.

    Args:
        actions: what may be chosen.
        probabilities: float64[queries, states, A], rows sum to 1; the root is state 0.

    Returns:
        float64[queries, nodes], rows sum to 1; 0 at nodes where no episode can end.
    """
    routes, queries = actions.routes, len(probabilities)
    ends = np.zeros((queries, routes.nodes))
    going_on = np.ones((queries, 1))
    for level in range(routes.hops):
        decided = going_on[:, :, None] * probabilities[:, routes.level(level)]
        going_on = decided[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            ends[:, routes.level(level + 1)] = decided[:, :, routes.models :].reshape(queries, -1)
    ends[:, routes.leaves] += going_on
    return ends


def greedy(
    probabilities: NDArray[np.float64], base_rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The table of the greedy policy: 1 for the most probable action, 0 for the others.

    Ties go to the cheaper model per token, then to stopping, then to the lower action. The price
    of a token is known before the call; its number is not, and a policy must not look ahead.

    Args:
        probabilities: float64[..., A], A = M or 2M; see `Actions`.
        base_rate: float64[M], cost per token.

    Returns:
        float64[..., A], one-hot.
    """
    count = probabilities.shape[-1]
    stopping_first = np.roll(np.arange(count), len(base_rate))
    best = probabilities.max(axis=-1, keepdims=True)
    price = np.where(probabilities == best, np.resize(base_rate, count), np.inf)
    choice = stopping_first[price[..., stopping_first].argmin(axis=-1)]
    one_hot: NDArray[np.float64] = np.eye(count)[choice]
    return one_hot


def policy_outcome(
    tree: RouteTree,
    actions: Actions,
    probabilities: NDArray[np.float64],
    name: str,
    kind: Kind,
) -> Outcome:
    """The exact outcome of a policy given as a table.

    Args:
        actions: what the columns of the table mean.
        probabilities: float64[queries, states, A]; see `greedy` for a deterministic policy.
    """
    return from_endings(tree, ending(actions, probabilities), name, kind)

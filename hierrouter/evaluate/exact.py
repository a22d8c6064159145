"""The exact value of a policy, by enumeration.

In: action probabilities at every state of a tree. Out: the probability of every route, and so
the policy's expected quality and cost with no sampling error. Not covered: networks; a policy is
a table here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.outcome import Kind, Outcome, from_leaves
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree


def reach(routes: Routes, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability of ending at each leaf: the product of the decisions on the way.

    Args:
        routes: shape of the tree.
        probabilities: float64[queries, states, M], rows sum to 1; the root is state 0.

    Returns:
        float64[queries, leaves].
    """
    queries = len(probabilities)
    arriving = np.ones((queries, 1))
    for level in range(routes.hops):
        decision = probabilities[:, routes.level(level)]
        arriving = (arriving[:, :, None] * decision).reshape(queries, -1)
    return arriving


def greedy(
    probabilities: NDArray[np.float64], base_rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The table of the greedy policy: 1 for the most probable model, 0 for the others.

    Ties go to the cheaper model per token, then to the lower action. The price of a token is
    known before the call; its number is not, and a policy must not look ahead.

    Args:
        probabilities: float64[..., M].
        base_rate: float64[M], cost per token.

    Returns:
        float64[..., M], one-hot.
    """
    best = probabilities.max(axis=-1, keepdims=True)
    price = np.where(probabilities == best, base_rate, np.inf)
    one_hot: NDArray[np.float64] = np.eye(probabilities.shape[-1])[price.argmin(axis=-1)]
    return one_hot


def policy_outcome(
    tree: RouteTree, probabilities: NDArray[np.float64], name: str, kind: Kind
) -> Outcome:
    """The exact outcome of a policy given as a table.

    Args:
        probabilities: float64[queries, states, M]; see `greedy` for a deterministic policy.
    """
    return from_leaves(tree, reach(tree.routes, probabilities), name, kind)

"""How often a policy makes each call of a tree.

In: where its episodes end and how probably (`exact.ending`). Out: the probability that a decision
is due at each state, and that the call of each node is made. Not covered: what the calls are
worth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import Routes


def going_on(routes: Routes, endings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability that an episode comes to each state and does not end there.

    Args:
        endings: float64[queries, nodes], rows sum to 1.

    Returns:
        float64[queries, states]; 1 at the root.
    """
    reached = endings.copy()
    deciding = np.empty((len(endings), routes.states))
    for level in reversed(range(routes.hops)):
        below = reached[:, routes.level(level + 1)].reshape(len(endings), -1, routes.models)
        deciding[:, routes.level(level)] = below.sum(axis=2)
        reached[:, routes.level(level)] += deciding[:, routes.level(level)]
    return deciding


def called(routes: Routes, endings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability that the call of each node is made, whether or not the episode goes on.

    Args:
        endings: float64[queries, nodes], rows sum to 1.

    Returns:
        float64[queries, nodes]; 1 at the root, which is no call.
    """
    reached = endings.copy()
    reached[:, : routes.states] += going_on(routes, endings)
    return reached

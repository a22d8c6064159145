"""A log's questions in a tree.

In: a tree, a policy to be valued as a table. Out: the `LoggedStates` of a log whose questions are
cached: of the tree only what was seen at the states that its episodes passed. Not covered:
estimators; they get no tree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.offpolicy.log import Log
from hierrouter.offpolicy.states import LoggedStates, state_features, widened
from hierrouter_cache.tree import RouteTree


def states_in_tree(log: Log, tree: RouteTree, target: NDArray[np.float64]) -> LoggedStates:
    """What was seen at the states of a log.

    Args:
        log: episodes on the questions of `tree`, by their positions there.
        target: float64[queries, states, A'], the policy to be valued at every state.
    """
    states = tree.routes.states
    number = log.query[:, None] * states + log.node
    visited, row = np.unique(number, return_inverse=True)
    query, node = np.divmod(visited, states)
    seen, spent = tree.embedding_at(query, node), tree.cost[query, node]
    return LoggedStates(
        row=row.reshape(number.shape),
        features=state_features(tree.routes, seen, node, spent),
        target=widened(target[query, node], log.actions.count),
    )

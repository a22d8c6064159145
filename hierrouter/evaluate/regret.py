"""What a policy loses to the tree oracle, and where.

In: a tree, alpha, and where a policy's episodes end (`exact.ending`). Out: its regret on each
query, split by the decision that caused it, exactly. Let W(l) be the mean R of who makes the first
l choices of the policy and then the best ones in hindsight; W(0) is the tree oracle, W(L) the
policy. Choice l costs W(l - 1) - W(l), never below 0, and these parts add up to the regret.

    plan          W(0) - W(1): the first choice, made before any answer is seen (open loop)
    adaptivity    W(1) - W(L): the later ones, made after answers (closed loop)

With `allow_stop` a choice is a model and whether to stop with it (paper appendix A). Not covered:
whether a part could have been avoided: hindsight knows every answer, see `information`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.reach import going_on
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Regret:
    """The regret of a policy on each query, by the choice that caused it.

    Attributes:
        parts: float64[queries, L]; column 0 is the plan, column l what choice l + 1 lost. Not
            below 0, but for rounding.
    """

    parts: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """float64[queries]: R of the tree oracle less R of the policy."""
        total: NDArray[np.float64] = self.parts.sum(axis=1)
        return total

    @property
    def plan(self) -> NDArray[np.float64]:
        """float64[queries]: lost by the first choice."""
        return self.parts[:, 0]

    @property
    def adaptivity(self) -> NDArray[np.float64]:
        """float64[queries]: lost by all later choices; 0 where L is 1."""
        later: NDArray[np.float64] = self.parts[:, 1:].sum(axis=1)
        return later


def split_regret(
    tree: RouteTree, alpha: float, endings: NDArray[np.float64], allow_stop: bool = False
) -> Regret:
    """The regret of a policy to the tree oracle, split by choice.

    Args:
        endings: float64[queries, nodes], rows sum to 1. Of a stochastic policy all values are
            expectations; the mean of several seeds is one.
        allow_stop: whether the oracle, too, may end before L calls.

    Raises:
        ValueError: episodes end where none can.
    """
    possible = Actions(tree.routes, allow_stop).endings
    if endings[:, : possible.start].any():
        raise ValueError("episodes end before L calls; allow the oracle to stop, too")
    return Regret(-np.diff(_helped(tree, alpha, endings, allow_stop), axis=1))


def best_ahead(tree: RouteTree, alpha: float, allow_stop: bool = False) -> NDArray[np.float64]:
    """float64[queries, states]: the highest R of all endings below each state, itself left out."""
    routes, reward = tree.routes, tree.node_reward(alpha)
    best, ahead = reward[:, routes.leaves], []
    for level in reversed(range(routes.hops)):
        best = best.reshape(len(tree), -1, routes.models).max(axis=2)
        ahead.append(best)
        if allow_stop:
            best = np.maximum(best, reward[:, routes.level(level)])
    return np.concatenate(ahead[::-1], axis=1)


def _helped(
    tree: RouteTree, alpha: float, endings: NDArray[np.float64], allow_stop: bool
) -> NDArray[np.float64]:
    """float64[queries, L + 1]: W(0) to W(L)."""
    routes = tree.routes
    ended = endings * tree.node_reward(alpha)
    rest = going_on(routes, endings) * best_ahead(tree, alpha, allow_stop)
    worth = [ended.sum(axis=1)]
    for level in reversed(range(routes.hops)):
        stopped = ended[:, : routes.level_start(level + 1)].sum(axis=1)
        worth.append(stopped + rest[:, routes.level(level)].sum(axis=1))
    return np.stack(worth[::-1], axis=1)

"""At which price a model is worth calling.

In: a tree, a model, alpha. Out: the model's share of the tree oracle's calls as a function of x,
where its rates are multiplied by x and all others stay. The reward of a route is a straight line
in x, so each query's choice changes at the corners of an upper envelope: all changes are found
exactly, without a search. Not covered: what a trained router would call under other prices;
direct calls.

Traps: the last x at which a model is called at all hangs on a single query; the x at which it
still has 5 % of the calls is the steadier figure. Shares need not fall all the way: a dearer
model can be called more often in shorter calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.hulls import Hulls
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import total_cost
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class PriceMix:
    """A model's share of the tree oracle's calls, constant between price factors.

    Attributes:
        model: whose rates are multiplied.
        factor: float64[pieces], ascending from 0; piece k reaches from factor[k] to factor[k + 1],
            the last one to infinity. At the factors themselves routes tie.
        share: float64[pieces], in [0, 1].
    """

    model: str
    factor: NDArray[np.float64]
    share: NDArray[np.float64]

    def at(self, factor: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[...]: the share at some factors, at least 0; where routes tie, just above."""
        return self.share[np.searchsorted(self.factor, factor, side="right") - 1]

    def last_at(self, share: float) -> float:
        """The price factor beyond which the model has less than this share of the calls.

        Returns:
            0 where it has less even if it is nearly free, inf where it never has less.
        """
        return self._end_of(self.share >= share)

    @property
    def leaves(self) -> float:
        """The price factor beyond which the model is not called at all.

        Above 1 it is in the mix at its present price. Below 1 it is not, and would enter below
        this factor; at 0 no price would let it in. inf: it is called at any price.
        """
        return self._end_of(self.share > 0)

    def _end_of(self, held: NDArray[np.bool_]) -> float:
        """Where the last of some pieces ends."""
        if not held.any():
            return 0.0
        return float(np.append(self.factor, np.inf)[np.flatnonzero(held)[-1] + 1])


def price_mix(tree: RouteTree, model: str, alpha: float, allow_stop: bool = False) -> PriceMix:
    """The share of a model's calls in the tree oracle's mix, at every price of the model.

    The share is that of calls, over all queries. Ties in reward are broken by cost, as by
    `bounds.oracle`; so at alpha 0, too, prices matter: among equally good routes.

    Args:
        model: a name of the pool.
        alpha: reward lost per unit of cost.
        allow_stop: whether the oracle may end before L calls.

    Raises:
        InputError: no such model.
    """
    number = _number(tree, model)
    endings = Actions(tree.routes, allow_stop).endings
    own, rest, score = (part[:, endings] for part in (*_costs(tree, number), tree.score))
    # Of routes that are worth the same at any price the cheapest comes first.
    order = np.argsort(rest, axis=1, kind="stable")
    own, rest, score = (np.take_along_axis(part, order, axis=1) for part in (own, rest, score))
    hulls = Hulls.of(*_lines(own, rest, score, alpha))
    calls = _calls(tree.routes, number)[endings][order]
    return _pieces(model, hulls, calls)


def _number(tree: RouteTree, model: str) -> int:
    if model not in tree.models:
        raise InputError(f"no such model in the pool: {model}; known: {', '.join(tree.models)}")
    return tree.models.index(model)


def _costs(tree: RouteTree, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[queries, nodes] twice: what one model's calls and all others cost up to each node."""
    one = (np.arange(len(tree.models)) == number)[:, None]
    own, rest = (
        total_cost(tree.routes, tree.tokens_in, tree.tokens_out, np.where(kept, tree.rate, 0.0))
        for kept in (one, ~one)
    )
    return own, rest


def _lines(
    own: NDArray[np.float64], rest: NDArray[np.float64], score: NDArray[np.float64], alpha: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How each route's reward falls with x, and the reward it falls from.

    At alpha 0 the best routes are told apart by cost alone; all others are left out.
    """
    if alpha > 0:
        return alpha * own, score - alpha * rest
    best = score == score.max(axis=1, keepdims=True)
    return np.where(best, own, np.inf), np.where(best, -rest, -np.inf)


def _calls(routes: Routes, number: int) -> NDArray[np.int64]:
    """int64[nodes, 2]: the calls of one model up to each node, and all calls."""
    calls = np.zeros((routes.nodes, 2), dtype=np.int64)
    for node in range(1, routes.nodes):
        calls[node] = calls[routes.parent(node)] + (routes.action(node) == number, 1)
    return calls


def _pieces(model: str, hulls: Hulls, calls: NDArray[np.int64]) -> PriceMix:
    """Add up the changes from an infinite price down to 0.

    Args:
        calls: int64[queries, points, 2], the model's calls and all calls of each route.
    """
    dearest = calls[np.arange(len(calls)), hulls.start].sum(axis=0)
    changes = calls[hulls.query, hulls.after] - calls[hulls.query, hulls.before]
    counts = dearest + np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(changes, axis=0)])
    factor = np.append(hulls.slope, 0.0)[::-1]
    share = (counts[:, 0] / counts[:, 1])[::-1]
    # Of changes at the same factor only the sum is seen.
    last = np.append(np.diff(factor) > 0, True)
    return PriceMix(model, factor[last], share[last])

"""How many calls a policy makes before it stops.

In: where the episodes of a policy end and how probably (`exact.ending`). Out: what is answered at
each depth, and the curve of a sweep: what going beyond the first answer costs and brings. Not
covered: whether stopping was right, see `bounds.oracle` with `allow_stop`; models outside the pool,
see `deferral`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Depth:
    """What a policy answers after a given number of calls.

    Attributes:
        calls: 1 to L.
        share: expected share of the queries that are answered here.
        quality: mean Q of these, in [0, 1]; None where there are none.
        cost: mean C of these, in price * token; None where there are none.
    """

    calls: int
    share: float
    quality: float | None
    cost: float | None


@dataclass(frozen=True)
class DepthPoint:
    """One policy on the curve of a sweep.

    Attributes:
        alpha: reward lost per unit of cost, for which the policy is meant.
        beyond_first: expected share of the queries that get more than one call.
        calls: mean number of calls of a query.
        quality: mean Q over all queries, in [0, 1].
        cost: mean C over all queries, in price * token.
    """

    alpha: float
    beyond_first: float
    calls: float
    quality: float
    cost: float


def by_depth(tree: RouteTree, endings: NDArray[np.float64]) -> list[Depth]:
    """One entry for each number of calls from 1 to L; the shares sum to 1.

    Quality and cost of a depth are means over the queries that the policy stops there, so depths
    differ by the queries they are given as well as by their calls.

    Args:
        endings: float64[queries, nodes], rows sum to 1.
    """
    return [_at_depth(tree, endings, calls) for calls in range(1, tree.hops + 1)]


def depth_curve(tree: RouteTree, endings: Mapping[float, NDArray[np.float64]]) -> list[DepthPoint]:
    """One point for each policy of a sweep, by rising share of queries with more than one call.

    Args:
        endings: float64[queries, nodes] for each alpha, rows sum to 1.
    """
    points = [_point(tree, alpha, probability) for alpha, probability in endings.items()]
    return sorted(points, key=lambda point: (point.beyond_first, point.calls, point.alpha))


def _at_depth(tree: RouteTree, endings: NDArray[np.float64], calls: int) -> Depth:
    level = tree.routes.level(calls)
    here = endings[:, level]
    total = float(here.sum())
    if total == 0:
        return Depth(calls, 0.0, None, None)
    quality, cost = ((here * values[:, level]).sum() / total for values in (tree.score, tree.cost))
    return Depth(calls, total / len(tree), float(quality), float(cost))


def _point(tree: RouteTree, alpha: float, endings: NDArray[np.float64]) -> DepthPoint:
    depth = tree.routes.depth()
    return DepthPoint(
        alpha=alpha,
        beyond_first=float(endings[:, depth > 1].sum(axis=1).mean()),
        calls=float((endings @ depth).mean()),
        quality=float((endings * tree.score).sum(axis=1).mean()),
        cost=float((endings * tree.cost).sum(axis=1).mean()),
    )

"""Which routes are taken on which dataset, as plain values.

In: where the episodes of the router and of the tree oracle end. Out: `RouteMap`, the expected share
of each dataset's queries that take each route. Not covered: the picture (`route_map_figure`), how
often a model is called (`analysis.CallRow`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import STOP
from hierrouter_cache.tree import RouteTree

MOST_ROUTES = 10  # with a column of their own; the rest shares the last one
OTHER = "other"


@dataclass(frozen=True)
class RouteShares:
    """How the queries of one dataset are spread over the routes.

    Attributes:
        dataset: a dataset's name, or "all".
        router: expected share of its queries for each of the map's routes, 0 to 1, sum 1; None
            without a router.
        oracle: the same of the tree oracle.
    """

    dataset: str
    router: tuple[float, ...] | None
    oracle: tuple[float, ...]


@dataclass(frozen=True)
class RouteMap:
    """Routes by dataset.

    Attributes:
        routes: those that router or oracle take, the most frequent ones first; "other" last, where
            there are more than `MOST_ROUTES`.
        rows: one for each dataset, "all" last.
    """

    routes: tuple[str, ...]
    rows: tuple[RouteShares, ...]


def route_map(
    fold: RouteTree,
    router: NDArray[np.float64] | None,
    oracle: NDArray[np.int64],
    columns: Mapping[str, NDArray[np.int64]],
) -> RouteMap:
    """The shares of each route; ties in frequency go to the lower node number.

    Args:
        fold: the queries that are shown.
        router: float64[queries, nodes], where the router ends, rows sum to 1; see
            `TrainedRouter.endings`.
        oracle: int64[queries], the node at which the oracle ends; see `bounds.best_nodes`.
        columns: positions of the queries of each dataset, all of them last; see
            `build.columns_of`.
    """
    known = np.zeros((len(fold), fold.routes.nodes))
    known[np.arange(len(fold)), oracle] = 1
    taken = known.mean(axis=0) + (router.mean(axis=0) if router is not None else 0)
    nodes = [int(node) for node in np.argsort(-taken, kind="stable") if taken[node] > 0]
    shown = nodes[:MOST_ROUTES]

    def shares(endings: NDArray[np.float64], rows: NDArray[np.int64]) -> tuple[float, ...]:
        mean = endings[rows].mean(axis=0)
        rest = (float(mean[nodes[MOST_ROUTES:]].sum()),) if len(nodes) > MOST_ROUTES else ()
        return (*mean[shown].tolist(), *rest)

    names = [_name(fold, node) for node in shown]
    return RouteMap(
        routes=(*names, *([OTHER] if len(nodes) > MOST_ROUTES else [])),
        rows=tuple(
            RouteShares(
                dataset=dataset,
                router=None if router is None else shares(router, rows),
                oracle=shares(known, rows),
            )
            for dataset, rows in columns.items()
        ),
    )


def _name(fold: RouteTree, node: int) -> str:
    """As fixed routes are called in the tables."""
    name = fold.routes.name(node, fold.models)
    return name + STOP if node < fold.routes.states else name

"""What a policy does on each query, in expectation.

In: a `RouteTree`. Out: `Outcome`, three numbers a query, from which tables, frontiers and
intervals follow. Not covered: where the probabilities of a policy come from; see `exact`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import STOP, Actions
from hierrouter_cache.tree import RouteTree

Kind = Literal["single", "reference", "route", "router", "oracle", "baseline"]
ROUTER = "hierrouter"  # how tables call a trained router


@dataclass(frozen=True)
class Outcome:
    """Expected result of one policy on each query of a tree.

    Attributes:
        name: how tables call the policy; a fixed route is `first>second`, one that stops early
            `first>stop`.
        kind: a direct call of a pool model ("single") or of a larger one ("reference"), a fixed
            route, a trained router, the tree oracle, or another baseline.
        quality: float64[queries], expected Q, in [0, 1].
        accuracy: float64[queries], probability of a right answer.
        cost: float64[queries], expected C, in price * token.
    """

    name: str
    kind: Kind
    quality: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    cost: NDArray[np.float64]

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries]: expected R = Q - alpha * C (paper section 3.1)."""
        return self.quality - alpha * self.cost


def from_endings(
    tree: RouteTree, probability: NDArray[np.float64], name: str, kind: Kind
) -> Outcome:
    """The outcome of ending at each node with a given probability.

    Args:
        probability: float64[queries, nodes], rows sum to 1.
    """

    def expected(values: NDArray[np.float64]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = (probability * values).sum(axis=1)
        return total

    return Outcome(name, kind, expected(tree.score), expected(tree.accuracy), expected(tree.cost))


def at_nodes(tree: RouteTree, node: NDArray[np.int64], name: str, kind: Kind) -> Outcome:
    """The outcome of ending at one given node on each query.

    Args:
        node: int64[queries], node numbers.
    """
    rows = np.arange(len(tree))
    return Outcome(
        name, kind, tree.score[rows, node], tree.accuracy[rows, node], tree.cost[rows, node]
    )


def single_calls(tree: RouteTree) -> list[Outcome]:
    """Direct calls: the pool's models ("single"), then larger ones ("reference"), table 1."""
    direct = tree.direct
    return [
        Outcome(
            name=model,
            kind="single" if model in tree.models else "reference",
            quality=direct.score[:, column],
            accuracy=direct.accuracy[:, column],
            cost=direct.cost[:, column],
        )
        for column, model in enumerate(direct.models)
    ]


def fixed_routes(tree: RouteTree, allow_stop: bool = False) -> list[Outcome]:
    """Each of the M^L routes taken on every query, in the order of their nodes.

    Args:
        allow_stop: the shorter routes too, `first>stop`.
    """
    endings = range(tree.routes.nodes)[Actions(tree.routes, allow_stop).endings]
    return [fixed_route(tree, node) for node in endings]


def fixed_route(tree: RouteTree, node: int) -> Outcome:
    """The route that ends at this node number, taken on every query."""
    nodes = np.full(len(tree), node, dtype=np.int64)
    name = tree.routes.name(node, tree.models)
    return at_nodes(tree, nodes, name + STOP if node < tree.routes.states else name, "route")


def mean_points(outcomes: Sequence[Outcome]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean cost and mean quality of each outcome: float64[outcomes] twice, see `frontier`."""
    cost = np.array([outcome.cost.mean() for outcome in outcomes])
    quality = np.array([outcome.quality.mean() for outcome in outcomes])
    return cost, quality


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """One policy drawn anew for each query, as with several seeds: means within each query."""
    first = outcomes[0]
    return Outcome(
        name=first.name,
        kind=first.kind,
        quality=np.mean([outcome.quality for outcome in outcomes], axis=0),
        accuracy=np.mean([outcome.accuracy for outcome in outcomes], axis=0),
        cost=np.mean([outcome.cost for outcome in outcomes], axis=0),
    )

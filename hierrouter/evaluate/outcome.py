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

from hierrouter_cache.tree import RouteTree

Kind = Literal["single", "reference", "route", "router", "oracle", "baseline"]


@dataclass(frozen=True)
class Outcome:
    """Expected result of one policy on each query of a tree.

    Attributes:
        name: how tables call the policy; a fixed route is `first>second`.
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


def from_leaves(
    tree: RouteTree, leaf_probability: NDArray[np.float64], name: str, kind: Kind
) -> Outcome:
    """The outcome of ending at each leaf with a given probability.

    Args:
        leaf_probability: float64[queries, leaves], rows sum to 1.
    """
    leaves = tree.routes.leaves

    def expected(values: NDArray[np.float64]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = (leaf_probability * values[:, leaves]).sum(axis=1)
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


def fixed_routes(tree: RouteTree) -> list[Outcome]:
    """Each of the M^L routes taken on every query, in the order of the leaves."""
    leaves = range(tree.routes.nodes)[tree.routes.leaves]
    return [fixed_route(tree, leaf) for leaf in leaves]


def fixed_route(tree: RouteTree, leaf: int) -> Outcome:
    """The route that ends at node number `leaf`, taken on every query."""
    node = np.full(len(tree), leaf, dtype=np.int64)
    return at_nodes(tree, node, tree.routes.name(leaf, tree.models), "route")


def mean_points(outcomes: Sequence[Outcome]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean cost and mean quality of each outcome: float64[outcomes] twice, see `frontier`."""
    cost = np.array([outcome.cost.mean() for outcome in outcomes])
    quality = np.array([outcome.quality.mean() for outcome in outcomes])
    return cost, quality

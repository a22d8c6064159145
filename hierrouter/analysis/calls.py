"""What is called, and when a further call helps.

In: a fold, where a router's episodes end. Out: `CallRow`s of the router and the tree oracle,
`RepairRow`s of every pair of models. Not covered: what a model is worth (`worths`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hierrouter.analysis.estimated import Values
from hierrouter.evaluate.bounds import best_nodes
from hierrouter.evaluate.metrics import call_mix
from hierrouter.evaluate.outcome import ROUTER
from hierrouter.evaluate.repair import Repair
from hierrouter.report.analysis import CallRow, RepairRow
from hierrouter.report.certainty import Estimate
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Mixes:
    """Expected calls of some policies.

    Attributes:
        policies: name and kind of each.
        values: float64[policies * hops * models, queries].
    """

    policies: tuple[tuple[str, str], ...]
    values: Values


def mixes(
    fold: RouteTree, alpha: float, endings: NDArray[np.float64] | None, allow_stop: bool
) -> Mixes:
    """Calls of the router and of the tree oracle at each hop.

    Args:
        endings: float64[queries, nodes], the router's; None without one.
    """
    policies = {("oracle", "oracle"): oracle_endings(fold, alpha, allow_stop)}
    if endings is not None:
        policies = {(ROUTER, "router"): endings, **policies}
    called = [call_mix(fold.routes, ends).reshape(len(fold), -1).T for ends in policies.values()]
    return Mixes(tuple(policies), np.concatenate(called))


def oracle_endings(fold: RouteTree, alpha: float, allow_stop: bool) -> NDArray[np.float64]:
    """float64[queries, nodes]: 1 where the tree oracle ends."""
    endings = np.zeros((len(fold), fold.routes.nodes))
    endings[np.arange(len(fold)), best_nodes(fold, alpha, allow_stop)] = 1
    return endings


def call_rows(called: Mixes, fold: RouteTree, found: Sequence[Estimate]) -> tuple[CallRow, ...]:
    """A row for each policy, hop and model.

    Args:
        found: estimates of `called.values`.
    """
    places = product(called.policies, range(1, fold.hops + 1), fold.models)
    return tuple(
        CallRow(*policy, hop, model, calls)
        for (policy, hop, model), calls in zip(places, found, strict=True)
    )


def repair_values(repairs: Sequence[Repair], queries: int) -> Values:
    """Repair, damage and change in Q of each hop: float64[3 * hops * pairs, queries]."""
    figures = [
        figure.reshape(len(figure), -1).T
        for repair in repairs
        for figure in (repair.repair, repair.damage, repair.quality)
    ]
    return np.concatenate([np.empty((0, queries)), *figures])


def repair_rows(
    repairs: Sequence[Repair], models: Sequence[str], found: Sequence[Estimate]
) -> tuple[RepairRow, ...]:
    """A row for each hop from the second on, and each pair of models.

    Args:
        found: estimates of `repair_values`.
    """
    rows, left = [], iter(found)
    for repair in repairs:
        repaired, damaged, better = (
            [next(left) for _ in range(len(models) ** 2)] for _ in range(3)
        )
        right, cost = repair.right.mean(axis=0), repair.cost.mean(axis=0)
        for at, (before, model) in enumerate(product(range(len(models)), repeat=2)):
            rows.append(
                RepairRow(
                    hop=repair.hop,
                    before=models[before],
                    model=models[model],
                    right=float(right[before]),
                    repair=repaired[at],
                    damage=damaged[at],
                    quality=better[at],
                    cost=float(cost[before, model]),
                )
            )
    return tuple(rows)

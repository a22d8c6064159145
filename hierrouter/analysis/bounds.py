"""The ladder of a report, and what the view shows.

In: rungs of `evaluate.ladder`, a fold. Out: `RungRow`s by dataset; the rewards of the best of all
policies that see no more than the tree's view shows. Not covered: what a rung means
(`evaluate.ladder.MEANINGS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.analysis.estimated import Columns, Found, Values
from hierrouter.evaluate.information import measurable_optimum, observations
from hierrouter.evaluate.ladder import Rung
from hierrouter.report.analysis import RungRow
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Seen:
    """What a view tells apart.

    Attributes:
        looks: how many queries look different before the first call.
        reward: float64[queries], R of the best policy that sees no more.
    """

    looks: int
    reward: NDArray[np.float64]


def seen(fold: RouteTree, alpha: float, allow_stop: bool) -> Seen:
    """The bound of all policies that read what the tree's view shows, stage and cost."""
    observed = observations(fold)
    best = measurable_optimum(fold, observed, alpha, allow_stop)
    return Seen(len(np.unique(observed[:, 0])), best.reward(alpha))


def ladder_values(rungs: Sequence[Rung], alpha: float) -> Values:
    """Q of each rung, then C, then R: float64[3 * rungs, queries]."""
    outcomes = [rung.outcome for rung in rungs]
    return np.array(
        [
            *(outcome.quality for outcome in outcomes),
            *(outcome.cost for outcome in outcomes),
            *(outcome.reward(alpha) for outcome in outcomes),
        ]
    )


def ladder_rows(rungs: Sequence[Rung], columns: Columns, found: Found) -> tuple[RungRow, ...]:
    """Rung after rung, each by dataset, "all" last.

    Args:
        found: estimates of `ladder_values` under "ladder".
    """
    return tuple(
        RungRow(
            rung.name,
            _chosen(rung),
            dataset,
            len(queries),
            *found[dataset]["ladder"][at :: len(rungs)],
        )
        for at, rung in enumerate(rungs)
        for dataset, queries in columns.items()
    )


def _chosen(rung: Rung) -> str:
    """The model or route that was chosen; oracles, chance and classifiers choose none."""
    return rung.outcome.name if rung.outcome.kind in ("single", "route") else rung.name

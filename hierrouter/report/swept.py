"""The frontier of a sweep, over one seed or several.

In: what the routers of each seed do at an alpha, or a bound. Out: `FrontierRow`, the mean of the
seeds and how far they lie apart. Not covered: which alphas there are; the figure (`plots`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hierrouter.evaluate.outcome import Outcome, mean_outcome
from hierrouter.report.results import FrontierRow, Spread


@dataclass(frozen=True)
class FrontierPoint:
    """A policy at one alpha of a sweep: a trained one, or a bound such as the oracle.

    Attributes:
        alpha: cost penalty of the reward R = Q - alpha * C.
        by_seed: what it does with each seed, at least one; a bound has one.
    """

    alpha: float
    by_seed: tuple[Outcome, ...]


def frontier_row(point: FrontierPoint) -> FrontierRow:
    """Means over all queries and seeds, and the spread of several seeds."""
    outcome = mean_outcome(point.by_seed)
    return FrontierRow(
        policy=outcome.name,
        kind=outcome.kind,
        alpha=float(point.alpha),
        quality=float(outcome.quality.mean()),
        cost=float(outcome.cost.mean()),
        reward=float(outcome.reward(point.alpha).mean()),
        spread=_spread(point) if len(point.by_seed) > 1 else None,
    )


def _spread(point: FrontierPoint) -> Spread:
    seeds = point.by_seed
    return Spread(
        seeds=len(seeds),
        quality=_ends(float(seed.quality.mean()) for seed in seeds),
        cost=_ends(float(seed.cost.mean()) for seed in seeds),
        reward=_ends(float(seed.reward(point.alpha).mean()) for seed in seeds),
    )


def _ends(values: Iterable[float]) -> tuple[float, float]:
    low, *_, high = sorted(values)
    return low, high

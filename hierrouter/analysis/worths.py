"""What each model of a pool is worth.

In: a fold, alpha. Out: `ModelRow`s: leave-one-out and Shapley contribution to the tree oracle's R
and to the area of its frontier, and the prices at which a model leaves the mix. Of a pool whose
sub-pools hold too many nodes there are prices only. Not covered: definitions and traps
(`evaluate.contribution`, `evaluate.price_mix`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hierrouter.analysis.calls import oracle_endings
from hierrouter.analysis.estimated import Values
from hierrouter.analysis.static_arms import StaticArms
from hierrouter.evaluate.contribution import (
    EXACT,
    Contribution,
    Value,
    contributions,
    frontier_area,
    oracle_reward,
)
from hierrouter.evaluate.metrics import call_mix
from hierrouter.evaluate.price_mix import PriceMix, price_mix
from hierrouter.report.analysis import AreaWorth, ModelRow, Worth
from hierrouter.report.certainty import Estimate
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree

ORDERS = 50  # of joining, drawn where there are more than `EXACT` models
SEED = 0  # of that draw
LARGEST = 30_000_000  # nodes of all sub-pools times queries: about three seconds
FEW = 0.05  # of the oracle's calls


def reward_worths(fold: RouteTree, alpha: float, allow_stop: bool) -> Contribution | None:
    """Contributions to the tree oracle's R on each query; None where the pool is too large."""
    return _contributions(fold, oracle_reward(alpha, allow_stop))


def worth_values(worths: Contribution | None, queries: int) -> Values:
    """Leave-one-out, then Shapley of each model: float64[2 * M, queries]; None has no rows."""
    if worths is None:
        return np.empty((0, queries))
    return np.concatenate([worths.leave_one_out, worths.shapley])


def model_rows(
    fold: RouteTree,
    alpha: float,
    allow_stop: bool,
    worths: Contribution | None,
    found: Sequence[Estimate],
    arms: StaticArms | None,
) -> tuple[ModelRow, ...]:
    """A row for each model, in the pool's order.

    Args:
        worths: of R, see `reward_worths`.
        found: estimates of `worth_values`.
        arms: give the range of costs of the frontier's area; None leaves it out.
    """
    count = len(fold.models)
    by_reward: list[Worth | None] = [None] * count
    if worths is not None:
        figures = zip(found[:count], found[count:], worths.error.tolist(), strict=True)
        by_reward = [Worth(*row) for row in figures]
    calls = call_mix(fold.routes, oracle_endings(fold, alpha, allow_stop)).sum(axis=(0, 1))
    shares: list[float] = (calls / calls.sum()).tolist()
    return tuple(
        _row(price_mix(fold, model, alpha, allow_stop), reward, area, share)
        for model, reward, area, share in zip(
            fold.models, by_reward, _areas(fold, arms), shares, strict=True
        )
    )


def _row(mix: PriceMix, reward: Worth | None, area: AreaWorth | None, share: float) -> ModelRow:
    return ModelRow(
        model=mix.model,
        reward=reward,
        area=area,
        share=share,
        below_5_percent=_finite(mix.last_at(FEW)),
        leaves=_finite(mix.leaves),
    )


def _areas(fold: RouteTree, arms: StaticArms | None) -> Sequence[AreaWorth | None]:
    """Of the mean quality under the oracle's frontier; None without a range of costs."""
    worths = None
    if arms and arms.width > 0:
        area, width = frontier_area(arms.low, arms.high, arms.allow_stop), arms.width
        worths = _contributions(fold, lambda tree: area(tree) / width)
    if worths is None:
        return [None] * len(fold.models)
    figures = (worths.leave_one_out, worths.shapley, worths.error)
    return [AreaWorth(*row) for row in np.stack(figures, axis=1).tolist()]


def _contributions(fold: RouteTree, value: Value) -> Contribution | None:
    if _nodes_valued(fold.routes) * len(fold) > LARGEST:
        return None
    rng = np.random.default_rng(SEED)
    return contributions(fold, value, rng=rng, permutations=ORDERS)


def _nodes_valued(routes: Routes) -> int:
    """Nodes of all the sub-pools that are valued, about."""
    sizes = range(1, routes.models + 1)
    nodes = [Routes(size, routes.hops).nodes for size in sizes]
    if routes.models > EXACT:
        return ORDERS * sum(nodes)
    return sum(math.comb(routes.models, size) * n for size, n in zip(sizes, nodes, strict=True))


def _finite(factor: float) -> float | None:
    """None for a price that is never reached."""
    return factor if math.isfinite(factor) else None

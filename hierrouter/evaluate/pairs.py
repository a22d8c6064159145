"""Metrics of a router between a weak and a strong model.

In: for each query how much a router wants the strong model, and what both reach. Out: the curve
over all thresholds, APGR and CPT as RouteLLM defines them (Ong et al. 2024). Not
covered: more than two models, for which neither is defined.

Traps: calls are counted, not their cost, and a call of the strong model need not be the dear one.
Nothing is defined where the strong model is hardly better than the weak one; the values are None
below `bounds.SMALLEST_GAP`. Both are taken over every threshold of the fold that is shown; a
threshold chosen on another fold misses its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid

from hierrouter.evaluate.bounds import SMALLEST_GAP


@dataclass(frozen=True)
class PairCurve:
    """What a router reaches at every threshold.

    Attributes:
        share: float64[points], share of the queries that the strong model answers, rising from 0
            to 1.
        quality: float64[points], mean Q; the first is the weak model's, the last the strong one's.
    """

    share: NDArray[np.float64]
    quality: NDArray[np.float64]

    def recovered(self) -> NDArray[np.float64] | None:
        """Performance gap recovered, PGR: (Q - Q(weak)) / (Q(strong) - Q(weak)).

        Returns:
            float64[points], 0 first and 1 last, above 1 where a mixture beats the strong model;
            None where the gap is below `SMALLEST_GAP` or the weak model is the better one.
        """
        gap = self.quality[-1] - self.quality[0]
        return (self.quality - self.quality[0]) / gap if gap >= SMALLEST_GAP else None


def pair_curve(
    preference: NDArray[np.float64], weak: NDArray[np.float64], strong: NDArray[np.float64]
) -> PairCurve:
    """The curve of a router that sends the queries with the highest preference to the strong model.

    Queries with equal preferences go together; shares in between draw among them at random.

    Args:
        preference: float64[queries], in any unit.
        weak, strong: float64[queries], Q of each model.
    """
    order = np.argsort(-preference, kind="stable")
    quality = weak.mean() + np.cumsum((strong - weak)[order]) / len(order)
    ties_end = np.append(np.diff(preference[order]) < 0, True)
    share = np.arange(1, len(order) + 1) / len(order)
    return PairCurve(
        share=np.concatenate([[0.0], share[ties_end]]),
        quality=np.concatenate([[weak.mean()], quality[ties_end]]),
    )


def apgr(curve: PairCurve) -> float | None:
    """Average performance gap recovered: the integral of PGR over the share of strong calls.

    RouteLLM takes the mean of ten thresholds, this is the limit of many: straight between points.
    Chance has 0.5. None where PGR is.
    """
    recovered = curve.recovered()
    return None if recovered is None else float(trapezoid(recovered, curve.share))


def call_performance_threshold(curve: PairCurve, recovered: float) -> float | None:
    """CPT(x): the least share of strong calls that recovers a share x of the gap.

    Straight between points. Chance has x. None where PGR is.

    Args:
        recovered: x, in [0, 1].
    """
    reached = curve.recovered()
    if reached is None:
        return None
    first = int(np.argmax(reached >= recovered))
    if first == 0:
        return 0.0
    around = slice(first - 1, first + 1)
    return float(np.interp(recovered, reached[around], curve.share[around]))

"""What handing over to a stronger model brings, as a table.

In: a `Report` with a model to hand over to. Out: a `Table`: some shares of the queries, and the
share that the threshold chosen beforehand gives. Not covered: how the threshold was chosen, see
`hierrouter.learn.deferral`; the figure, see `deferral_curve`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierrouter.evaluate.deferral import DeferralPoint
from hierrouter.evaluate.pairs import PairCurve, apgr, call_performance_threshold
from hierrouter.report.results import HandingOver, Report
from hierrouter.report.rows import PairFigures
from hierrouter.report.table import Column, Line, Table, digits_for

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def pair_figures(curve: Sequence[DeferralPoint]) -> PairFigures:
    """APGR and CPT of a router and the stronger model behind it (Ong et al. 2024).

    Args:
        curve: by rising share, from handing over nothing to handing over all.
    """
    pair = PairCurve(
        share=np.array([point.share for point in curve]),
        quality=np.array([point.quality for point in curve]),
    )
    return PairFigures(
        apgr=apgr(pair),
        cpt_50=call_performance_threshold(pair, 0.5),
        cpt_80=call_performance_threshold(pair, 0.8),
    )


def deferral_table(report: Report, handing: HandingOver) -> Table:
    """Share handed over, Q, C and R, and R of chance and of the oracle at the same share.

    Args:
        handing: of the report.
    """
    points = _nearest(handing)
    columns = (
        Column("HierRouter hands over"),
        Column("Share of queries"),
        Column("Q"),
        Column("C", digits_for(point.cost for point in (*points.values(), handing.chosen))),
        Column("R", 4),
        Column("R of chance", 4),
        Column("R of the oracle", 4),
    )
    curve = [_line("Share nearest to", label, point) for label, point in points.items()]
    chosen = _line("Threshold chosen beforehand", f"by {handing.chosen_on}", handing.chosen)
    return Table(
        title=f"Deferral to {handing.stronger}, R = Q - {report.alpha:g} C, "
        f"C in {report.cost_unit}",
        columns=columns,
        rows=(*curve, chosen),
        note=f"The threshold is the one with {_aim(handing)} on the {handing.chosen_on} fold. "
        f"{_pair_sentence(handing.pair)}",
    )


def _pair_sentence(pair: PairFigures) -> str:
    if pair.apgr is None or pair.cpt_50 is None or pair.cpt_80 is None:
        return "APGR and CPT are left out: the stronger model is hardly better in Q, or not at all."
    return (
        f"Of the gap in Q to the stronger model APGR is {pair.apgr:.3f} (chance 0.5); half of it "
        f"is recovered by handing over {pair.cpt_50:.1%} of the queries, 80 % of it by "
        f"{pair.cpt_80:.1%}. All thresholds of this fold are tried, and calls counted, not cost."
    )


def _aim(handing: HandingOver) -> str:
    if handing.share_allowed is None:
        return "the highest R at the router's alpha"
    return f"the greatest share up to {handing.share_allowed:.1%}"


def _nearest(handing: HandingOver) -> dict[str, DeferralPoint]:
    """The point of the curve nearest to each share, of several the best; each point once."""
    found: dict[float, tuple[str, DeferralPoint]] = {}
    for share in SHARES:
        point = min(handing.curve, key=lambda point: (abs(point.share - share), -point.reward))
        found.setdefault(point.share, (f"{share:.0%}", point))
    return dict(found.values())


def _line(group: str, label: str, point: DeferralPoint) -> Line:
    return Line(
        group,
        (
            label,
            point.share,
            point.quality,
            point.cost,
            point.reward,
            point.chance,
            point.oracle,
        ),
    )

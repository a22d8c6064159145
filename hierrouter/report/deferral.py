"""What handing over to a stronger model brings, as a table.

In: a `Report` with a model to hand over to. Out: a `Table`: some shares of the queries, and the
share that the threshold chosen beforehand gives. Not covered: how the threshold was chosen, see
`hierrouter.learn.deferral`; the figure, see `deferral_curve`.
"""

from __future__ import annotations

from hierrouter.evaluate.deferral import DeferralPoint
from hierrouter.report.results import HandingOver, Report
from hierrouter.report.table import Column, Line, Table, digits_for

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def deferral_table(report: Report, handing: HandingOver, number: int) -> Table:
    """Share handed over, Q, C and R, and R of chance and of the oracle at the same share.

    Args:
        handing: of the report.
        number: of the table in the report.
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
        title=f"Table {number}. Deferral to {handing.stronger}, R = Q - {report.alpha:g} C, "
        f"C in {report.cost_unit}",
        columns=columns,
        rows=(*curve, chosen),
        note=f"The threshold is the one with {_aim(handing)} on the {handing.chosen_on} fold.",
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

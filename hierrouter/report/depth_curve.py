"""What further calls bring, over a sweep, as a figure.

In: a `Report` of a sweep whose routers may stop early. Out: a `Drawing`. Not covered: the router of
the tables, see `depths`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from hierrouter.evaluate.depth import DepthPoint
from hierrouter.report.figure import (
    LONGEST_LABEL,
    ROUTER_COLOUR,
    WIDTH,
    Drawing,
    canvas,
    label,
    legend,
    settings,
)
from hierrouter.report.results import Report
from hierrouter.report.text import one_line

APART = 0.05  # points that are told apart by their alpha, in shares of queries


def depth_curve_figure(report: Report) -> Drawing:
    """Mean quality over the share of queries that get more than one call."""
    with settings():
        figure, axes = canvas(WIDTH, 4.0)
        axes.plot(
            [point.beyond_first for point in report.depth_curve],
            [point.quality for point in report.depth_curve],
            color=ROUTER_COLOUR,
            linewidth=1.6,
            marker="o",
            markersize=4,
            label=label("hierrouter over alpha"),
        )
        _name_points(axes, report.depth_curve)
        axes.set_xlim(-0.03, 1.06)
        axes.margins(y=0.12)  # room for the alphas
        axes.set_xlabel("share of queries with more than one call")
        axes.set_ylabel(f"mean quality Q ({one_line(report.scorer, LONGEST_LABEL)})")
        legend(figure)
    return Drawing(
        name="depth-curve",
        title="Depth curve",
        caption="Depth: what answering more queries with more than one call brings, by alpha",
        description="A line of mean quality over the share of queries that get more than one call, "
        "a point for each alpha of the sweep, mean of its seeds. The numbers are in the JSON.",
        figure=figure,
    )


def _name_points(axes: Axes, points: Sequence[DepthPoint]) -> None:
    for point in _apart(points):
        axes.annotate(
            f"{point.alpha:g}",
            (point.beyond_first, point.quality),
            xytext=(4, -11),
            textcoords="offset points",
            fontsize=8,
        )


def _apart(points: Sequence[DepthPoint]) -> Iterator[DepthPoint]:
    """Those whose names do not cover each other; points come by rising share."""
    last = -APART
    for point in points:
        if point.beyond_first - last >= APART:
            last = point.beyond_first
            yield point

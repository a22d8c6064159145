"""All figures of a report, in the order of the page.

In: a `Report`. Out: `Drawing`s, those for which the report has the numbers. The page and the files
show the same ones. Not covered: how they are written (`svg`, `export`).
"""

from __future__ import annotations

from hierrouter.report.deferral_curve import deferral_figure
from hierrouter.report.depth_curve import depth_curve_figure
from hierrouter.report.figure import Drawing
from hierrouter.report.frontier_figure import frontier_figure
from hierrouter.report.ladder_figure import ladder_figure
from hierrouter.report.learning_figure import learning_figure
from hierrouter.report.results import Report
from hierrouter.report.reward_figure import reward_figure
from hierrouter.report.route_map_figure import route_map_figure


def figures(report: Report) -> list[Drawing]:
    """Every figure, each drawn once."""
    drawn = [reward_figure(report), frontier_figure(report)]
    if report.analysis:
        drawn.append(ladder_figure(report, report.analysis))
    if report.route_map:
        drawn.append(route_map_figure(report.route_map))
    if len(report.depth_curve) > 1:  # one point is no curve
        drawn.append(depth_curve_figure(report))
    if report.deferral:
        drawn.append(deferral_figure(report, report.deferral))
    if report.learning:
        drawn.append(learning_figure(report.learning))
    return drawn

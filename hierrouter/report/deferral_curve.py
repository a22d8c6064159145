"""What handing over to a stronger model brings, as a figure.

In: a `Report` with a model to hand over to. Out: a `Drawing`. Not covered: the table, see
`deferral`.
"""

from __future__ import annotations

from hierrouter.report.figure import (
    GREYS,
    INK,
    LONGEST_LABEL,
    ROUTER_COLOUR,
    WIDTH,
    Drawing,
    canvas,
    label,
    legend,
    settings,
)
from hierrouter.report.results import HandingOver, Report
from hierrouter.report.text import one_line


def deferral_figure(report: Report, handing: HandingOver) -> Drawing:
    """Mean R over the share of queries handed over, between chance and the oracle.

    Args:
        handing: of the report.
    """
    curve = handing.curve
    share = [point.share for point in curve]
    lines = (
        ("oracle", [point.oracle for point in curve], INK, "--"),
        ("hierrouter in doubt", [point.reward for point in curve], ROUTER_COLOUR, "-"),
        ("chance", [point.chance for point in curve], GREYS[0], ":"),
    )
    with settings():
        figure, axes = canvas(WIDTH, 4.0)
        for name, reward, colour, style in lines:
            axes.plot(share, reward, color=colour, linewidth=1.4, linestyle=style, label=name)
        axes.scatter(
            handing.chosen.share,
            handing.chosen.reward,
            170,
            color=ROUTER_COLOUR,
            marker="*",
            label=label(f"chosen by {handing.chosen_on}"),
            zorder=4,
        )
        axes.set_xlim(-0.03, 1.03)
        stronger = one_line(handing.stronger, LONGEST_LABEL)
        axes.set_xlabel(f"share of queries handed over to {stronger}")
        axes.set_ylabel(f"net reward R = Q − {report.alpha:g} C")
        legend(figure)
    return Drawing(
        name="deferral",
        title="Deferral curve",
        caption="Deferral: what handing more queries over to a stronger model brings",
        description="Mean net reward over the share of queries handed over, with chance and the "
        "oracle at the same share. The numbers are in the table of deferral.",
        figure=figure,
    )

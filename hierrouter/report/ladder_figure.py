"""The bound ladder with the router in it, as a figure.

In: a `Report` with an `Analysis`. Out: a `Drawing`: a dot with its interval for each rung, chance
at the bottom. Not covered: the ladder by dataset, which is a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hierrouter.report.analysis import Analysis
from hierrouter.report.figure import (
    INK,
    ROUTER_COLOUR,
    WIDTH,
    Drawing,
    canvas,
    label,
    settings,
)
from hierrouter.report.results import Report

RUNG_INCHES = 0.34


class Dot(NamedTuple):
    """One line of the figure."""

    name: str
    reward: float
    low: float
    high: float
    colour: str


def ladder_figure(report: Report, analysis: Analysis) -> Drawing:
    """Mean R of each rung and of the router over all queries, from chance upwards."""
    level = f"{report.bootstrap.level:.0%}"
    dots = _dots(report, analysis)
    with settings():
        figure, axes = canvas(WIDTH, 1.0 + RUNG_INCHES * len(dots))
        for at, dot in enumerate(dots):
            axes.plot([dot.low, dot.high], [at, at], color=dot.colour, linewidth=1.6)
            axes.plot(dot.reward, at, color=dot.colour, marker="o", markersize=7)
        axes.set_yticks(range(len(dots)), [label(dot.name) for dot in dots])
        axes.set_ylim(-0.6, len(dots) - 0.4)
        axes.set_xlabel(f"net reward R = Q − {report.alpha:g} C")
        axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)
    return Drawing(
        name="ladder",
        title="Bound ladder",
        caption=f"Bound ladder: what each kind of knowledge is worth, with {level} intervals",
        description="Dots of mean net reward, a line for each bound from chance at the bottom to "
        "the oracles, and for the router. The numbers are in the table of the ladder.",
        figure=figure,
    )


def _dots(report: Report, analysis: Analysis) -> Sequence[Dot]:
    """The rungs in their order; the router above the highest rung that it is not worse than."""
    width = len(report.datasets)
    dots = [
        Dot(row.rung, row.reward.mean, row.reward.low, row.reward.high, INK)
        for row in analysis.ladder[width - 1 :: width]
    ]
    row = report.router
    if row is None:
        return dots
    passed = [at for at, dot in enumerate(dots, start=1) if dot.reward <= row.reward]
    own = Dot(row.policy, row.reward, row.reward_low, row.reward_high, ROUTER_COLOUR)
    place = max(passed, default=0)
    return [*dots[:place], own, *dots[place:]]

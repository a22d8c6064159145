"""Quality against cost, as a figure.

In: a `Report`. Out: a `Drawing` of every policy's mean quality over its mean cost, and of those
swept over alpha. Not covered: figures of a frontier, see the analysis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hierrouter.evaluate.frontier import frontier
from hierrouter.report.figure import (
    COLOURS,
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
from hierrouter.report.fills import Fill, fills_of, identity
from hierrouter.report.results import ALL, FrontierRow, Report, Row
from hierrouter.report.tables import COST_SCALE
from hierrouter.report.text import one_line

LOG_FROM_RATIO = 10.0
BAND_OF = {False: "for other queries", True: "for other queries and other seeds"}  # has_spread


def frontier_figure(report: Report) -> Drawing:
    """Mean quality over mean cost of every policy, and of those swept over alpha."""
    level = f"{report.bootstrap.level:.0%}"
    band = f"; band: {level} intervals of Q, {BAND_OF[report.has_spread]}"
    bars = "; thin bars: from the lowest to the highest seed"
    marks = (band if report.frontier else "") + (bars if report.has_spread else "")
    with settings():
        figure, axes = canvas(WIDTH, 4.6)
        _draw_routes(axes, [row for row in report.overall if row.kind == "route"])
        _draw_sweeps(axes, report.frontier)
        _draw_points(axes, report)
        _cost_axis(axes, report.cost_unit, logarithmic=_cost_ratio(report) > LOG_FROM_RATIO)
        axes.set_ylabel(f"mean quality Q ({one_line(report.scorer, LONGEST_LABEL)})")
        legend(figure)
    return Drawing(
        name="frontier",
        title="Quality against cost",
        caption=f"Quality against cost; up and to the left is better{marks}",
        description=f"Scatter of mean quality over mean cost over {ALL} queries; up and to the "
        f"left is better{marks}. The numbers are in the tables of quality and cost.",
        figure=figure,
    )


def _draw_routes(axes: Axes, routes: Sequence[Row]) -> None:
    """All fixed routes, those on their hull joined by a line."""
    if not routes:
        return
    cost = np.array([row.cost for row in routes]) / COST_SCALE
    quality = np.array([row.quality for row in routes])
    hull = frontier(cost, quality)
    axes.plot(cost[hull], quality[hull], color=GREYS[0], linewidth=1, linestyle=":", zorder=1.5)
    axes.scatter(
        cost, quality, 22, facecolors="none", edgecolors=GREYS[0], label="fixed routes", zorder=2
    )


def _draw_sweeps(axes: Axes, points: Sequence[FrontierRow]) -> None:
    """One line a policy, its points in the order of alpha."""
    for policy, kind in dict.fromkeys((row.policy, row.kind) for row in points):
        rows = [row for row in points if (row.policy, row.kind) == (policy, kind)]
        rows.sort(key=lambda row: row.alpha)
        learned = kind == "router"
        axes.plot(
            [row.cost / COST_SCALE for row in rows],
            [row.quality for row in rows],
            color=ROUTER_COLOUR if learned else INK,
            linewidth=1.6 if learned else 1.2,
            linestyle="-" if learned else "--",
            marker="o" if learned else "",
            markersize=4,
            label=f"{label(policy)} over alpha",
            zorder=3 if learned else 2.5,
        )
        if learned:
            _draw_band(axes, rows)
        _draw_seeds(axes, rows)


def _draw_band(axes: Axes, rows: Sequence[FrontierRow]) -> None:
    """Intervals of quality at every point, for other seeds too where there are several."""
    ends = [
        row.crossed.quality if row.crossed else (row.quality_low, row.quality_high) for row in rows
    ]
    low, high = zip(*ends, strict=True)
    cost = [row.cost / COST_SCALE for row in rows]
    axes.fill_between(cost, low, high, color=ROUTER_COLOUR, alpha=0.15, linewidth=0, zorder=2.2)


def _draw_seeds(axes: Axes, rows: Sequence[FrontierRow]) -> None:
    """Thin bars from the lowest to the highest seed, of quality and of cost."""
    several = [(row, row.spread) for row in rows if row.spread]
    if not several:
        return
    cost, quality = np.array([(row.cost / COST_SCALE, row.quality) for row, _ in several]).T
    costs = np.array([spread.cost for _, spread in several]).T / COST_SCALE
    qualities = np.array([spread.quality for _, spread in several]).T
    axes.errorbar(
        cost,
        quality,
        yerr=np.abs(qualities - quality),
        xerr=np.abs(costs - cost),
        fmt="none",
        ecolor=ROUTER_COLOUR,
        elinewidth=0.9,
        alpha=0.6,
        zorder=2.8,
    )


def _draw_points(axes: Axes, report: Report) -> None:
    """Direct calls, baselines, and router and oracle at the report's alpha."""
    fills = fills_of(report)
    markers = {"single": "s", "reference": "D", "router": "*", "baseline": "X", "oracle": "P"}
    baselines = 0
    for row in report.overall:
        if row.kind not in markers:
            continue
        fill = fills.get(identity(row), Fill(INK))
        if row.kind == "baseline":
            fill = Fill(COLOURS[-1 - baselines % len(COLOURS)])
            baselines += 1
        axes.scatter(
            row.cost / COST_SCALE,
            row.quality,
            170 if row.kind == "router" else 50,
            color=fill.colour,
            marker=markers[row.kind],
            hatch=fill.hatch or None,
            edgecolor=INK if fill.hatch else "none",
            label=label(row.policy),
            zorder=4,
        )


def _cost_axis(axes: Axes, unit: str, *, logarithmic: bool) -> None:
    """Plain numbers: powers of ten would need mathematical markup, which labels may not have."""
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda cost, _: _plain(cost)))
    axes.set_xlabel(f"mean cost C per query ({unit} / {COST_SCALE:,})")
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)


def _plain(number: float) -> str:
    """0.00002, not 2e-05."""
    return f"{number:.12f}".rstrip("0").rstrip(".")


def _cost_ratio(report: Report) -> float:
    """Highest cost over lowest; 0 where a cost is nil, which no logarithm shows."""
    costs = [row.cost for row in report.overall]
    for row in report.frontier:
        costs += row.spread.cost if row.spread else [row.cost]
    return max(costs) / min(costs) if min(costs) > 0 else 0.0

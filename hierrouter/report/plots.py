"""The main figures: net reward by dataset, cost against quality.

In: a `Report`. Out: SVG text. Bars and points carry the same colour for the same model in both;
direct calls of the pool are coloured, reference models grey, HierRouter vermilion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hierrouter.evaluate.frontier import frontier
from hierrouter.report.figure import (
    CHARACTER_INCHES,
    COLOURS,
    GREYS,
    HATCHES,
    INK,
    LONGEST_LABEL,
    ROUTER_COLOUR,
    as_svg,
    canvas,
    drawing,
    label,
    legend,
)
from hierrouter.report.results import ALL, FrontierRow, Report, Row
from hierrouter.report.tables import COST_SCALE
from hierrouter.report.text import one_line

WIDTH = 8.5  # inches
BAR_INCHES = 0.12
FEWEST_GROUPS = 3  # room is left as if there were so many: bars stay bars
LOG_FROM_RATIO = 10.0
BAND_OF = {False: "for other queries", True: "for other queries and other seeds"}  # has_spread


@dataclass(frozen=True)
class Look:
    """Fill of a bar or a point."""

    colour: str
    hatch: str = ""


def reward_figure(report: Report) -> str:
    """Net reward R = Q - alpha * C by dataset, with intervals (the paper's reward figure)."""
    looks = _looks(report)
    policies = _compared(report)
    groups = len(report.datasets) if len(report.datasets) > 2 else 1
    with drawing("net-reward"):
        wanted = 1.2 + groups * (len(policies) + 1) * BAR_INCHES
        width = min(max(WIDTH, wanted), 1.5 * WIDTH)
        figure, axes = canvas(width, 4.2)
        for at, rows in enumerate(policies):
            _bars(axes, rows[:groups], at, len(policies), looks[_identity(rows[0])])
        labels = [label(name) for name in report.datasets[:groups]]
        slanted = max(map(len, labels)) * groups * CHARACTER_INCHES > width - 1
        axes.set_xticks(
            range(groups),
            labels,
            rotation=30 if slanted else 0,
            ha="right" if slanted else "center",
        )
        middle, half = (groups - 1) / 2, max(groups, FEWEST_GROUPS) / 2
        axes.set_xlim(middle - half, middle + half)
        axes.tick_params(axis="x", length=0)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_ylabel(f"net reward R = Q − {report.alpha:g} C")
        legend(figure)
        return as_svg(
            figure,
            "Net reward by dataset",
            f"Grouped bars with {report.bootstrap.level:.0%} intervals; the numbers are in the "
            "table of net rewards.",
        )


def frontier_figure(report: Report) -> str:
    """Mean quality over mean cost of every policy, and of those swept over alpha."""
    bars = "Thin bars: from the lowest to the highest seed. " if report.has_spread else ""
    band = f"Band: intervals of quality, {BAND_OF[report.has_spread]}. " if report.frontier else ""
    with drawing("frontier"):
        figure, axes = canvas(WIDTH, 4.6)
        _draw_routes(axes, [row for row in report.overall if row.kind == "route"])
        _draw_sweeps(axes, report.frontier)
        _draw_points(axes, report)
        _cost_axis(axes, report.cost_unit, logarithmic=_cost_ratio(report) > LOG_FROM_RATIO)
        axes.set_ylabel(f"mean quality Q ({one_line(report.scorer, LONGEST_LABEL)})")
        legend(figure)
        return as_svg(
            figure,
            "Quality against cost",
            f"Scatter of mean quality over mean cost over {ALL} queries; up and to the left is "
            f"better. {band}{bars}The numbers are in the tables of quality and cost.",
        )


def _compared(report: Report) -> list[tuple[Row, ...]]:
    """The policies of the paper's figure, in its order."""
    return [
        rows
        for kind in ("reference", "single", "router")
        for rows in report.by_policy
        if rows[0].kind == kind
    ]


def _looks(report: Report) -> Mapping[tuple[str, str], Look]:
    """One look for each direct call and the router; a hatch where the colours are used up."""
    looks = {}
    for kind, colours in (("reference", GREYS), ("single", COLOURS), ("router", (ROUTER_COLOUR,))):
        members = [row for row in report.overall if row.kind == kind]
        for at, row in enumerate(members):
            turn, number = divmod(at, len(colours))
            looks[_identity(row)] = Look(colours[number], HATCHES[turn % len(HATCHES)])
    return looks


def _bars(axes: Axes, rows: Sequence[Row], at: int, policies: int, look: Look) -> None:
    place = np.arange(len(rows)) + (at - (policies - 1) / 2) * 0.84 / policies
    reward = np.array([row.reward for row in rows])
    low = reward - [row.reward_low for row in rows]
    high = [row.reward_high for row in rows] - reward
    axes.bar(
        place,
        reward,
        0.84 / policies,
        color=look.colour,
        hatch=look.hatch,
        edgecolor=INK if look.hatch else "none",
        linewidth=0,
        label=label(rows[0].policy),
    )
    # Percentiles of few queries may miss the mean by rounding; a bar cannot have negative length.
    lengths = np.maximum([low, high], 0)
    axes.errorbar(place, reward, lengths, fmt="none", ecolor=INK, elinewidth=0.9, alpha=0.7)


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
    looks = _looks(report)
    markers = {"single": "s", "reference": "D", "router": "*", "baseline": "X", "oracle": "P"}
    baselines = 0
    for row in report.overall:
        if row.kind not in markers:
            continue
        look = looks.get(_identity(row), Look(INK))
        if row.kind == "baseline":
            look = Look(COLOURS[-1 - baselines % len(COLOURS)])
            baselines += 1
        axes.scatter(
            row.cost / COST_SCALE,
            row.quality,
            170 if row.kind == "router" else 50,
            color=look.colour,
            marker=markers[row.kind],
            hatch=look.hatch or None,
            edgecolor=INK if look.hatch else "none",
            label=label(row.policy),
            zorder=4,
        )


def _cost_axis(axes: Axes, unit: str, *, logarithmic: bool) -> None:
    """Plain numbers: powers of ten would need mathematical markup, which labels may not have."""
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:g}"))
    axes.set_xlabel(f"mean cost C per query ({unit} / {COST_SCALE:,})")
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)


def _cost_ratio(report: Report) -> float:
    """Highest cost over lowest; 0 where a cost is nil, which no logarithm shows."""
    costs = [row.cost for row in report.overall]
    for row in report.frontier:
        costs += row.spread.cost if row.spread else [row.cost]
    return max(costs) / min(costs) if min(costs) > 0 else 0.0


def _identity(row: Row) -> tuple[str, str]:
    return row.kind, row.policy

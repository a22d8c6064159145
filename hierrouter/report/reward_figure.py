"""Net reward by dataset, as a figure.

In: a `Report`. Out: a `Drawing` of grouped bars with intervals (the paper's reward figure). Not
covered: fixed routes, baselines and the oracle, which are in the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from hierrouter.report.figure import (
    CHARACTER_INCHES,
    INK,
    WIDTH,
    Drawing,
    canvas,
    label,
    legend,
    settings,
)
from hierrouter.report.fills import Fill, fills_of, identity
from hierrouter.report.results import Report, Row

BAR_INCHES = 0.12
FEWEST_GROUPS = 3  # room is left as if there were so many: bars stay bars


def reward_figure(report: Report) -> Drawing:
    """Net reward R = Q - alpha * C by dataset, with intervals."""
    fills, policies = fills_of(report), _compared(report)
    groups = len(report.shown_datasets)
    level = f"{report.bootstrap.level:.0%}"
    with settings():
        wanted = 1.2 + groups * (len(policies) + 1) * BAR_INCHES
        width = min(max(WIDTH, wanted), 1.5 * WIDTH)
        figure, axes = canvas(width, 4.2)
        for at, rows in enumerate(policies):
            _bars(axes, rows[:groups], at, len(policies), fills[identity(rows[0])])
        _name_groups(axes, report.shown_datasets, width)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_ylabel(f"net reward R = Q − {report.alpha:g} C")
        legend(figure)
    return Drawing(
        name="net-reward",
        title="Net reward by dataset",
        caption=f"Net reward by dataset, with {level} intervals",
        description=f"Grouped bars with {level} intervals; the numbers are in the table of net "
        "rewards.",
        figure=figure,
    )


def _name_groups(axes: Axes, datasets: Sequence[str], width: float) -> None:
    """Names below the bars, slanted where they would run into each other."""
    groups, labels = len(datasets), [label(name) for name in datasets]
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


def _compared(report: Report) -> list[tuple[Row, ...]]:
    """The policies of the paper's figure, in its order."""
    return [
        rows
        for kind in ("reference", "single", "router")
        for rows in report.by_policy
        if rows[0].kind == kind
    ]


def _bars(axes: Axes, rows: Sequence[Row], at: int, policies: int, fill: Fill) -> None:
    place = np.arange(len(rows)) + (at - (policies - 1) / 2) * 0.84 / policies
    reward = np.array([row.reward for row in rows])
    low = reward - [row.reward_low for row in rows]
    high = [row.reward_high for row in rows] - reward
    axes.bar(
        place,
        reward,
        0.84 / policies,
        color=fill.colour,
        hatch=fill.hatch,
        edgecolor=INK if fill.hatch else "none",
        linewidth=0,
        label=label(rows[0].policy),
    )
    # Percentiles of few queries may miss the mean by rounding; a bar cannot have negative length.
    lengths = np.maximum([low, high], 0)
    axes.errorbar(place, reward, lengths, fmt="none", ecolor=INK, elinewidth=0.9, alpha=0.7)

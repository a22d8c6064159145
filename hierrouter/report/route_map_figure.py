"""Which routes are taken on which dataset, as a figure.

In: a `RouteMap`. Out: a `Drawing`: a heat map of the router and one of the tree oracle, side by
side, with the share of the queries in each cell. Not covered: the shares (`route_map`).
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from rich.cells import cell_len

from hierrouter.report.figure import (
    CHARACTER_INCHES,
    INK,
    LONGEST_LABEL,
    ROUTER_COLOUR,
    WIDTH,
    Drawing,
    label,
    panels,
    settings,
)
from hierrouter.report.route_map import RouteMap
from hierrouter_cache.routes import SEPARATOR

DEEPEST = 0.35  # opacity of a cell with all queries: what is written on it stays readable
SMALLEST = 0.005  # a smaller share is written as "<1"
ROW_INCHES = 0.26
WIDE_CELL_INCHES = 0.14  # of the widest letters, at 10 points


def route_map_figure(routes: RouteMap) -> Drawing:
    """Datasets by routes; the number in a cell is the share of the dataset's queries in percent."""
    rows = routes.rows if len(routes.rows) > 2 else routes.rows[:1]  # one dataset has no total
    oracle = [row.oracle for row in rows]
    router = [row.router for row in rows if row.router is not None]
    shown = [("hierrouter", router, ROUTER_COLOUR)] if router else []
    names = [_in_lines(name) for name in routes.routes]
    wide = any("\n" in name for name in names)
    cell, width, size = (
        (WIDE_CELL_INCHES, 1.5 * WIDTH, 10) if wide else (CHARACTER_INCHES, WIDTH, 8)
    )
    below = cell * max(cell_len(line) for name in names for line in name.split("\n"))
    with settings(letters=size):
        figure, grids = panels(width, 0.9 + below + ROW_INCHES * len(rows), len(shown) + 1)
        for axes, panel in zip(grids, [*shown, ("oracle", oracle, INK)], strict=True):
            _heat_map(axes, *panel)
            axes.set_xticks(range(len(names)), names, rotation=90, linespacing=1)
        grids[0].set_yticks(range(len(rows)), [label(row.dataset) for row in rows])
    whose = "HierRouter and the oracle" if shown else "the oracle"
    return Drawing(
        name="route-map",
        title="Routes by dataset",
        caption=f"Routes that {whose} take: per cent of each dataset's queries",
        description=f"Heat maps of {whose}, datasets by routes, the most frequent first; a cell "
        "holds the expected share of the dataset's queries that take the route. The numbers are in "
        "the JSON.",
        figure=figure,
    )


def _in_lines(route: str) -> str:
    """A route that is too long for a label: a line for each of its calls."""
    if len(route) <= LONGEST_LABEL:
        return label(route)
    return f"{SEPARATOR}\n".join(label(call) for call in route.split(SEPARATOR))


def _heat_map(axes: Axes, name: str, shares: Sequence[Sequence[float]], colour: str) -> None:
    """One panel: a row for each dataset, a line above the last one where that is the total."""
    for at, row in enumerate(shares):
        for column, share in enumerate(row):
            if share > 0:
                _cell(axes, column, at, share, colour)
    axes.set_xlim(-0.5, len(shares[0]) - 0.5)
    axes.set_ylim(len(shares) - 0.5, -0.5)
    if len(shares) > 1:
        axes.axhline(len(shares) - 1.5, color=INK, linewidth=0.8)
    axes.tick_params(length=0)
    axes.set_title(name)


def _cell(axes: Axes, column: int, row: int, share: float, colour: str) -> None:
    corner = column - 0.48, row - 0.46
    axes.add_patch(
        Rectangle(corner, 0.96, 0.92, facecolor=colour, alpha=DEEPEST * share, linewidth=0)
    )
    text = f"{share:.0%}".removesuffix("%") if share >= SMALLEST else "<1"
    axes.text(column, row, text, ha="center", va="center")

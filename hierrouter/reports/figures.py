"""The figures of a report: drawn, and written to files."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hierrouter.evaluation.budget import Hulls
from hierrouter.reports.drawing import (
    INK,
    LONGEST_LABEL,
    WIDTH,
    Drawing,
    Points,
    as_svg,
    canvas,
    label_marks,
    legend,
    settings,
)
from hierrouter.reports.results import Report
from hierrouter.reports.values import ALL, Row, shown_name
from hierrouter.tables import latex_text, one_line
from hierrouter_cache.errors import InputError
from hierrouter_cache.writer import write_atomically

# Of Okabe and Ito's colours, distinct for colour-blind readers, three that show on any background.
ROUTER_COLOUR, ROUTES_COLOUR = "#d55e00", "#8c8c8c"
MARKS = {  # of each kind: what the legend calls it, marker, colour
    "router": ("", "*", ROUTER_COLOUR),
    "oracle": ("", "P", INK),
    "single": ("pool models", "s", "#0072b2"),
    "reference": ("reference models", "D", "#6e6e6e"),
    "baseline": ("baselines", "X", "#009e73"),
}

LOG_FROM_RATIO = 10.0  # of the highest cost to the lowest

FORMATS = ("svg", "pdf", "png")
DOTS_PER_INCH = 300
# What matplotlib would write of itself and of the time; without it bytes stay the same.
NO_METADATA = {"pdf": {"CreationDate": None}, "png": {"Software": None}}


def frontier_figure(report: Report) -> Drawing:
    """Mean quality over mean cost of every policy, and of those swept over alpha."""
    level = f"{report.bootstrap.level:.0%}"
    lines = (
        f"; lines: over a sweep of alpha; band: {level} intervals of Q" if report.frontier else ""
    )
    shown = {kind: [row for row in report.overall if row.kind == kind] for kind in MARKS}
    with settings():
        figure, axes = canvas(WIDTH, 3.6)
        routes = [row for row in report.overall if row.kind == "route"]
        hull = _draw_routes(axes, routes) if routes else np.empty((0, 2))
        swept = {kind: _draw_sweep(axes, report, kind) for kind in ("router", "oracle")}
        named = []
        for kind, rows in ((kind, rows) for kind, rows in shown.items() if rows):
            name, marker, colour = MARKS[kind]
            cost, quality = _points(rows).T
            size, face = 150 if kind == "router" else 40, {"color": colour, "linewidth": 0}
            axes.scatter(cost, quality, size, marker=marker, label=name, zorder=4).set(**face)
            line = swept.get(kind, hull[:0])
            named += [(np.vstack([_points([row]), line]), shown_name(row.policy)) for row in rows]
        axes.margins(0.08, 0.12)
        _cost_axis(axes, report.cost_unit, logarithmic=_cost_ratio(report) > LOG_FROM_RATIO)
        axes.set_ylabel(f"mean quality Q ({one_line(report.scorer, LONGEST_LABEL)})")
        legend(figure)
        label_marks(figure, named, [_points(routes), hull, *swept.values()])
    return Drawing(
        name="frontier",
        title="Quality against cost",
        caption=f"Quality against cost; up and to the left is better{lines}",
        description=f"Scatter of mean quality over mean cost over {ALL} queries; up and to the "
        f"left is better{lines}. The numbers are in the tables of quality and cost.",
        figure=figure,
    )


def _points(rows: Sequence[Row]) -> Points:
    """Their places on the axes, float64[rows, 2]."""
    return np.array([[row.cost, row.quality] for row in rows]).reshape(-1, 2)


def _draw_routes(axes: Axes, routes: Sequence[Row]) -> Points:
    """All fixed routes, those on their hull joined by a line, which is returned."""
    cost, quality = points = _points(routes).T
    steps = Hulls.of(cost[None], quality[None])
    hull = points[:, np.append(steps.start, steps.after)]
    axes.plot(*hull, color=ROUTES_COLOUR, linewidth=1, linestyle=":", zorder=1.5)
    marks = axes.scatter(cost, quality, 18, facecolors="none", label="fixed routes", zorder=2)
    marks.set_edgecolor(ROUTES_COLOUR)
    return hull.T


def _draw_sweep(axes: Axes, report: Report, kind: str) -> Points:
    """A line through the points of a kind in the order of alpha, which is returned."""
    rows = sorted((row for row in report.frontier if row.kind == kind), key=lambda row: row.alpha)
    points, learned = _points(rows), kind == "router"
    colour, order = MARKS[kind][2], 3 if learned else 2.5
    [line] = axes.plot(*points.T, color=colour, linewidth=1.3, zorder=order)
    line.set(**{"marker": "o", "markersize": 3} if learned else {"linestyle": "--"})
    if rows and learned:  # intervals of quality at every point
        low, high = zip(*[(row.quality_low, row.quality_high) for row in rows], strict=True)
        axes.fill_between(points[:, 0], low, high, color=ROUTER_COLOUR, alpha=0.15, lw=0)
    return points


def _cost_axis(axes: Axes, unit: str, *, logarithmic: bool) -> None:
    """0.00002, not 2e-05: powers of ten would need mathematical markup, which labels lack."""
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    plain = FuncFormatter(lambda cost, _: f"{cost:.12f}".rstrip("0").rstrip("."))
    axes.xaxis.set_major_formatter(plain)
    axes.set_xlabel(f"mean cost C ({unit})")
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)


def _cost_ratio(report: Report) -> float:
    """Highest cost over lowest; 0 where a cost is nil, which no logarithm shows."""
    costs = [row.cost for row in (*report.overall, *report.frontier)]
    return max(costs) / min(costs) if min(costs) > 0 else 0.0


def latex_figure(drawing: Drawing, file: str) -> str:
    """A `figure` environment with the drawing at its column's width; needs the package graphicx.

    `file`: the drawing's, without the ending.
    """
    caption = latex_text(drawing.caption)
    lines = (
        r"\begin{figure}[h]",
        r"\centering",
        rf"\includegraphics[width=\columnwidth]{{{file}}}",
        rf"\caption[{{{caption}}}]{{\raggedright {caption}}}",
        rf"\label{{fig:{drawing.name}}}",
        r"\end{figure}",
    )
    return "\n".join(lines) + "\n"


def export_figures(report: Report, folder: Path, formats: Sequence[str]) -> list[Path]:
    """The report's figure in each format, `folder/<name>.<format>`.

    Raises InputError: a format is unknown, see `check_formats`; CacheError, WorldError: the folder
    cannot be written to.
    """
    drawing = frontier_figure(report)
    return [save(drawing, folder / f"{drawing.name}.{format}") for format in dict.fromkeys(formats)]


def check_formats(formats: Sequence[str]) -> None:
    """Refuse formats that figures are not written in, before there are figures.

    Raises InputError: one is unknown.
    """
    for format in formats:
        if format not in FORMATS:
            raise InputError(
                f"unknown format of figures: {format!r}; choose of {', '.join(FORMATS)}"
            )


def save(drawing: Drawing, path: Path) -> Path:
    """Write one figure in the format of the path's ending; returns the path.

    Raises InputError: the ending is unknown.
    """
    format = path.suffix.removeprefix(".")
    check_formats([format])
    # The page's figures are transparent; in a file of its own a figure has paper.
    paper = drawing.figure.patch
    paper.set(facecolor="white", visible=True)
    try:
        if format == "svg":
            data = as_svg(drawing, ink=INK).encode()
        else:
            sink, metadata = io.BytesIO(), NO_METADATA[format]
            with settings(drawing.name):
                drawing.figure.savefig(sink, format=format, dpi=DOTS_PER_INCH, metadata=metadata)
            data = sink.getvalue()
    finally:
        paper.set_visible(False)
    write_atomically(path, data)
    return path

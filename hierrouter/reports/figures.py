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
    as_svg,
    canvas,
    label,
    legend,
    settings,
)
from hierrouter.reports.results import Report
from hierrouter.reports.values import ALL, Row
from hierrouter.tables import latex_text, one_line
from hierrouter_cache.errors import InputError
from hierrouter_cache.writer import write_atomically

# Okabe and Ito's colours, distinct for colour-blind readers, without black and yellow: both
# would vanish on one of the two backgrounds.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
ROUTER_COLOUR = "#d55e00"
GREYS = ("#8c8c8c", "#b3b3b3", "#6e6e6e")
HATCHES = ("", "///", "...", "xxx")

LOG_FROM_RATIO = 10.0  # of the highest cost to the lowest
RUNG_INCHES = 0.34

FORMATS = ("svg", "pdf", "png")
DOTS_PER_INCH = 300
# What matplotlib would write of itself and of the time; without it bytes stay the same.
NO_METADATA = {"pdf": {"CreationDate": None}, "png": {"Software": None}}

Fill = tuple[str, str]  # colour and hatch of a bar or a point


def figures(report: Report) -> list[Drawing]:
    """Every figure of the page, each drawn once."""
    drawn = [frontier_figure(report)]
    if report.ladder:
        drawn.append(ladder_figure(report))
    return drawn


def frontier_figure(report: Report) -> Drawing:
    """Mean quality over mean cost of every policy, and of those swept over alpha."""
    level = f"{report.bootstrap.level:.0%}"
    marks = f"; band: {level} intervals of Q, for other queries" if report.frontier else ""
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
    cost = np.array([row.cost for row in routes])
    quality = np.array([row.quality for row in routes])
    steps = Hulls.of(cost[None], quality[None])
    hull = np.append(steps.start, steps.after)
    axes.plot(cost[hull], quality[hull], color=GREYS[0], linewidth=1, linestyle=":", zorder=1.5)
    axes.scatter(
        cost, quality, 22, facecolors="none", edgecolors=GREYS[0], label="fixed routes", zorder=2
    )


def _draw_sweeps(axes: Axes, points: Sequence[Row]) -> None:
    """One line a policy, its points in the order of alpha."""
    for policy, kind in dict.fromkeys((row.policy, row.kind) for row in points):
        rows = [row for row in points if (row.policy, row.kind) == (policy, kind)]
        rows.sort(key=lambda row: row.alpha)
        learned = kind == "router"
        axes.plot(
            [row.cost for row in rows],
            [row.quality for row in rows],
            color=ROUTER_COLOUR if learned else INK,
            linewidth=1.6 if learned else 1.2,
            linestyle="-" if learned else "--",
            marker="o" if learned else "",
            markersize=4,
            label=f"{label(policy)} over alpha",
            zorder=3 if learned else 2.5,
        )
        if learned:  # intervals of quality at every point
            low, high = zip(*[(row.quality_low, row.quality_high) for row in rows], strict=True)
            cost = [row.cost for row in rows]
            axes.fill_between(cost, low, high, color=ROUTER_COLOUR, alpha=0.15, lw=0, zorder=2.2)


def _draw_points(axes: Axes, report: Report) -> None:
    """Direct calls, baselines, and router and oracle at the report's alpha."""
    fills = _fills(report)
    markers = {"single": "s", "reference": "D", "router": "*", "baseline": "X", "oracle": "P"}
    baselines = 0
    for row in report.overall:
        if row.kind not in markers:
            continue
        colour, hatch = fills.get((row.kind, row.policy), (INK, ""))
        if row.kind == "baseline":
            colour = COLOURS[-1 - baselines % len(COLOURS)]
            baselines += 1
        axes.scatter(
            row.cost,
            row.quality,
            170 if row.kind == "router" else 50,
            color=colour,
            marker=markers[row.kind],
            hatch=hatch or None,
            edgecolor=INK if hatch else "none",
            label=label(row.policy),
            zorder=4,
        )


def _fills(report: Report) -> dict[tuple[str, str], Fill]:
    """Of each direct call and the router, by kind and name; hatched where colours are used up."""
    fills = {}
    for kind, colours in (("reference", GREYS), ("single", COLOURS), ("router", (ROUTER_COLOUR,))):
        members = [row for row in report.overall if row.kind == kind]
        for at, row in enumerate(members):
            turn, number = divmod(at, len(colours))
            fills[kind, row.policy] = colours[number], HATCHES[turn % len(HATCHES)]
    return fills


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


def ladder_figure(report: Report) -> Drawing:
    """Mean R of each rung and of the router over all queries, from chance upwards."""
    level = f"{report.bootstrap.level:.0%}"
    dots = _dots(report)
    with settings():
        figure, axes = canvas(WIDTH, 1.0 + RUNG_INCHES * len(dots))
        for at, (_, reward, ends, colour) in enumerate(dots):
            axes.plot(ends, [at, at], color=colour, linewidth=1.6)
            axes.plot(reward, at, color=colour, marker="o", markersize=7)
        axes.set_yticks(range(len(dots)), [label(name) for name, *_ in dots])
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


def _dots(report: Report) -> list[tuple[str, float, tuple[float, float], str]]:
    """Name, mean R, ends of its interval and colour of each rung, from chance upwards.

    The router stands above the highest rung that it is not worse than.
    """
    over_all = report.ladder[len(report.datasets) - 1 :: len(report.datasets)]
    dots = [(row.rung, row.reward, (row.reward_low, row.reward_high), INK) for row in over_all]
    router = report.router
    if router:
        passed = [at for at, dot in enumerate(dots, start=1) if dot[1] <= router.reward]
        ends = (router.reward_low, router.reward_high)
        own = (router.policy, router.reward, ends, ROUTER_COLOUR)
        dots.insert(max(passed, default=0), own)
    return dots


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
    """Every figure of the report in each format, `folder/<name>.<format>`.

    Raises InputError: a format is unknown, see `check_formats`; CacheError, WorldError: the folder
    cannot be written to.
    """
    return [
        save(drawing, folder / f"{drawing.name}.{format}")
        for drawing in figures(report)
        for format in dict.fromkeys(formats)
    ]


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

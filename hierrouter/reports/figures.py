"""The figures of a report: drawn, and written to files."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from rich.cells import cell_len

from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.outcome import ROUTER
from hierrouter.reports.drawing import (
    CHARACTER_INCHES,
    FIGURE_WIDTH,
    INK,
    MAX_LABEL_LENGTH,
    ROUTER_COLOUR,
    ROUTES_COLOUR,
    Drawing,
    Points,
    as_svg,
    canvas,
    label,
    label_marks,
    legend,
    legend_columns,
    settings,
)
from hierrouter.reports.estimates import ALL_DATASETS, Row, display_name
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import router_sentence, router_title
from hierrouter.reports.tables import paper_datasets, paper_rows
from hierrouter.tables import latex_text, one_line
from hierrouter_cache.errors import InputError
from hierrouter_cache.writer import write_atomically


class MarkStyle(NamedTuple):
    """How the marks of one kind of policy are drawn.

    Attributes:
        legend: its name in the legend; "" leaves it out.
        marker: matplotlib's marker.
        colour: hexadecimal.
    """

    legend: str
    marker: str
    colour: str


MARK_STYLES = {
    "router": MarkStyle("", "*", ROUTER_COLOUR),
    "oracle": MarkStyle("", "P", INK),
    "single": MarkStyle("pool models", "s", "#0072b2"),
    "reference": MarkStyle("reference models", "D", "#6e6e6e"),
    "baseline": MarkStyle("baselines", "X", "#009e73"),
}
# Colour and marker of the sweeps of other algorithms; there are three algorithms in all.
BESIDE_STYLES = (("#cc79a7", "v"), ("#56b4e9", "^"))
SEED_MARK = ", seed "  # in the name of a further seed of the same sweep
ROUTER_MARK_SIZE = 150  # square points
MARK_SIZE = 40

# The cost axis is logarithmic from this ratio of the highest to the lowest cost on.
MIN_LOGARITHMIC_RATIO = 10.0

FIGURE_FORMATS = ("svg", "pdf", "png")
DOTS_PER_INCH = 300
# Without metadata of the program and the time, the bytes of a figure are always the same.
NO_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {"Software": None}}


def frontier_figure(report: ReportData) -> Drawing:
    """Draw mean quality over mean cost of every policy, and the frontiers of a sweep of alpha."""
    sweep_caption = ""
    if report.frontier:
        level = f"{report.bootstrap.level:.0%}"
        sweep_caption = f"; lines: over a sweep of alpha; band: {level} intervals of Q"
    with settings():
        figure, axes = canvas(FIGURE_WIDTH, 3.6)
        routes = [row for row in report.overall if row.kind == "route"]
        hull = _draw_routes(axes, routes) if routes else np.empty((0, 2))
        frontiers = {kind: _draw_sweep(axes, report, kind) for kind in ("router", "oracle")}
        beside = _draw_sweeps_beside(axes, report)
        no_line = hull[:0]
        marks: list[tuple[Points, str]] = []
        for kind, style in MARK_STYLES.items():
            rows = [row for row in report.overall if row.kind == kind]
            if not rows:
                continue
            cost, quality = _points(rows).T
            size = ROUTER_MARK_SIZE if kind == "router" else MARK_SIZE
            scatter = axes.scatter(
                cost, quality, size, marker=style.marker, label=style.legend, zorder=4
            )
            scatter.set(color=style.colour, linewidth=0)
            for row in rows:
                # A policy with a frontier may have its name anywhere along the line.
                positions = np.vstack([_points([row]), frontiers.get(kind, no_line)])
                marks.append((positions, display_name(row.policy)))
        axes.margins(0.08, 0.12)
        is_logarithmic = _cost_ratio(report) > MIN_LOGARITHMIC_RATIO
        _style_cost_axis(axes, report.cost_unit, logarithmic=is_logarithmic)
        axes.set_ylabel(f"mean quality Q ({one_line(report.scorer, MAX_LABEL_LENGTH)})")
        legend(figure)
        label_marks(figure, marks, [_points(routes), hull, *frontiers.values(), *beside])
    return Drawing(
        name="frontier",
        title="Quality against cost",
        caption=f"Quality against cost; up and to the left is better{sweep_caption}",
        description=f"Scatter of mean quality over mean cost over {ALL_DATASETS} queries; up and "
        f"to the left is better{sweep_caption}. The numbers are in the tables of quality and cost.",
        figure=figure,
    )


# Bars of a kind take these colours in turn, and after the last one a hatch.
BAR_COLOURS = {
    "reference": ("#6e6e6e", "#a8a8a8"),
    "single": ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7"),
    "router": (ROUTER_COLOUR,),
}
HATCHES = ("", "///", "...", "xxx")
GROUP_SHARE = 0.84  # of the distance from one dataset to the next, which its bars fill
BAR_AXES_INCHES = 2.4  # height of the bars' axes, without the legend
LEGEND_ROW_INCHES = 0.21
AXIS_INCHES = 0.7  # left of the bars
MAX_GROUP_LENGTH = 22  # characters of a dataset's name
SLANT = 30  # degrees
FEWEST_GROUPS = 3  # of fewer datasets the bars are as wide as of so many


def net_reward_figure(report: ReportData) -> Drawing:
    """Draw the paper's figure: mean net reward R = Q - alpha C by dataset, with intervals.

    Its bars are the rows of the paper's tables: reference models, pool models and the router.
    """
    datasets = paper_datasets(report)
    policies = paper_rows(report)
    names = [_bar_name(report, rows[0]) for rows in policies]
    group_names = _group_names(list(datasets.values()))
    legend_rows = -(-len(names) // legend_columns(names or [""], FIGURE_WIDTH))
    with settings():
        height = BAR_AXES_INCHES + legend_rows * LEGEND_ROW_INCHES + group_names.inches
        figure, axes = canvas(FIGURE_WIDTH, height)
        number_by_kind: Counter[str] = Counter()
        for position, (rows, name) in enumerate(zip(policies, names, strict=True)):
            kind = rows[0].kind
            by_dataset = {row.dataset: row for row in rows}
            bars = [by_dataset[dataset] for dataset in datasets]
            _draw_bars(axes, bars, name, number_by_kind[kind], position, len(policies))
            number_by_kind[kind] += 1
        _name_groups(axes, group_names)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.spines["bottom"].set_visible(False)  # the line at 0 takes its place
        axes.set_ylabel(f"net reward R ({one_line(report.scorer, MAX_LABEL_LENGTH)})")
        legend(figure)
    level = f"{report.bootstrap.level:.0%}"
    caption = (
        f"Net reward R = Q - {report.alpha:g} C by dataset, on {report.overall[0].n:,} "
        f"{report.split} questions, with {level} intervals"
    )
    remark = router_sentence(report)
    return Drawing(
        name="net-reward",
        title="Net reward by dataset",
        caption=f"{caption}. {remark}".removesuffix(".") if remark else caption,
        description=f"Bars of mean net reward by dataset and policy, with {level} intervals. The "
        "numbers are in the table of net reward.",
        figure=figure,
    )


def _bar_name(report: ReportData, row: Row) -> str:
    """Name of a policy in the legend; the router's says what it is, and is never cut."""
    return router_title(report) if row.kind == "router" else label(row.policy)


def _draw_bars(
    axes: Axes, rows: Sequence[Row], name: str, number: int, position: int, policies: int
) -> None:
    """Draw a policy's bar at each dataset.

    Args:
        axes: to draw on.
        rows: its rows, one a dataset.
        name: its name in the legend.
        number: its number among the policies of its kind, for its colour.
        position: its number among all policies.
        policies: how many there are.
    """
    colours = BAR_COLOURS[rows[0].kind]
    hatch = HATCHES[number // len(colours) % len(HATCHES)]
    width = GROUP_SHARE / policies
    middles = np.arange(len(rows)) + (position - (policies - 1) / 2) * width
    reward = np.array([row.reward for row in rows])
    lows, highs = zip(*(row.ends("reward") for row in rows), strict=True)
    low = reward - lows
    high = highs - reward
    axes.bar(
        middles,
        reward,
        width,
        color=colours[number % len(colours)],
        hatch=hatch,
        edgecolor=INK if hatch else "none",
        linewidth=0,
        label=name,
    )
    # The ends of few queries may miss the mean by rounding; a bar of errors has no negative length.
    lengths = np.maximum([low, high], 0)
    axes.errorbar(middles, reward, lengths, fmt="none", ecolor=INK, elinewidth=0.8, alpha=0.7)


class GroupNames(NamedTuple):
    """Names below groups of bars.

    Attributes:
        texts: a name for each group, perhaps on two lines.
        are_slanted: whether they are too long to be upright.
    """

    texts: list[str]
    are_slanted: bool

    @property
    def inches(self) -> float:
        """Height that slanted names need, 0 of upright ones."""
        longest = max(map(cell_len, self.texts), default=0)
        return longest * CHARACTER_INCHES * np.sin(np.radians(SLANT)) if self.are_slanted else 0.0


def _group_names(titles: Sequence[str]) -> GroupNames:
    """Fit the names of datasets below their bars: on one line, on two, or slanted."""
    names = [one_line(label(title), MAX_GROUP_LENGTH) for title in titles]
    group_inches = (FIGURE_WIDTH - AXIS_INCHES) / max(len(names), FEWEST_GROUPS)
    room = int(group_inches / CHARACTER_INCHES)  # characters
    broken = [_on_two_lines(name) if cell_len(name) > room else name for name in names]
    lines = [line for name in broken for line in name.split("\n")]
    if max(map(cell_len, lines), default=0) > room:
        return GroupNames(names, are_slanted=True)
    return GroupNames(broken, are_slanted=False)


def _name_groups(axes: Axes, names: GroupNames) -> None:
    """Write the names of the datasets below their bars."""
    groups = len(names.texts)
    ticks = axes.set_xticks(range(groups), names.texts)
    if names.are_slanted:
        for tick in ticks:
            tick.label1.set(rotation=SLANT, ha="right", rotation_mode="anchor")
    middle = (groups - 1) / 2
    half = max(groups, FEWEST_GROUPS) / 2
    axes.set_xlim(middle - half, middle + half)
    axes.tick_params(axis="x", length=0)


def _on_two_lines(name: str) -> str:
    """Break a name after the hyphen, underscore or slash that is nearest its middle, if any."""
    breaks = [match.end() for match in re.finditer(r"[-_/](?=.)", name)]
    if not breaks:
        return name
    position = min(breaks, key=lambda end: abs(2 * end - len(name)))
    return f"{name[:position]}\n{name[position:]}"


def report_figures(report: ReportData) -> tuple[Drawing, ...]:
    """Return the figures of a report in the order in which they are written."""
    curve = curve_figure(report)
    return *paper_figures(report), *([curve] if curve else [])


def paper_figures(report: ReportData) -> tuple[Drawing, ...]:
    """Return the figures for a paper: the net reward by dataset, and the frontier."""
    return net_reward_figure(report), frontier_figure(report)


def _points(rows: Sequence[Row]) -> Points:
    """Cost and quality of each row: float64[rows, 2]."""
    return np.array([[row.cost, row.quality] for row in rows]).reshape(-1, 2)


def _draw_routes(axes: Axes, routes: Sequence[Row]) -> Points:
    """Draw all fixed routes, and a line through those on their upper hull.

    Returns:
        The line: float64[points, 2].
    """
    points = _points(routes).T
    cost, quality = points
    steps = Hulls.of(cost[None], quality[None])
    hull = points[:, np.append(steps.start, steps.after)]
    axes.plot(*hull, color=ROUTES_COLOUR, linewidth=1, linestyle=":", zorder=1.5)
    marks = axes.scatter(cost, quality, 18, facecolors="none", label="fixed routes", zorder=2)
    marks.set_edgecolor(ROUTES_COLOUR)
    return hull.T


def _draw_sweep(axes: Axes, report: ReportData, kind: str) -> Points:
    """Draw a line through the frontier's points of a kind, in the order of alpha.

    The router's line has points and a band of intervals; the oracle's is dashed.

    Returns:
        The line: float64[points, 2]; empty without a sweep.
    """
    policy = ROUTER if kind == "router" else None
    rows = [row for row in report.frontier if row.kind == kind and policy in (None, row.policy)]
    rows.sort(key=lambda row: row.alpha)
    points = _points(rows)
    is_router = kind == "router"
    colour = MARK_STYLES[kind].colour
    [line] = axes.plot(*points.T, color=colour, linewidth=1.3, zorder=3 if is_router else 2.5)
    if is_router:
        line.set(marker="o", markersize=3)
        if any(_is_other_algorithm(row) for row in report.frontier):
            line.set_label(display_name(f"{ROUTER}, {report.provenance['sweep_algo']}"))
    else:
        line.set(linestyle="--")
    if is_router and rows:
        low, high = zip(*(row.ends("quality") for row in rows), strict=True)
        axes.fill_between(points[:, 0], low, high, color=ROUTER_COLOUR, alpha=0.15, lw=0)
    return points


def _is_other_algorithm(row: Row) -> bool:
    """Whether a point of the frontier belongs to the sweep of another algorithm."""
    return row.kind == "router" and row.policy != ROUTER and SEED_MARK not in row.policy


def _draw_sweeps_beside(axes: Axes, report: ReportData) -> list[Points]:
    """Draw a line for each further sweep, in the order of alpha; thin ones for further seeds.

    Returns:
        The lines: float64[points, 2] each.
    """
    rows_by_policy: dict[str, list[Row]] = {}
    for row in report.frontier:
        if row.kind == "router" and row.policy != ROUTER:
            rows_by_policy.setdefault(row.policy, []).append(row)
    styles = iter(BESIDE_STYLES)
    lines = []
    for policy, rows in rows_by_policy.items():
        points = _points(sorted(rows, key=lambda row: row.alpha))
        lines.append(points)
        if SEED_MARK in policy:
            axes.plot(*points.T, color=ROUTER_COLOUR, linewidth=0.5, zorder=2.6)
            continue
        colour, marker = next(styles)
        name = display_name(policy)
        axes.plot(
            *points.T, color=colour, marker=marker, markersize=3, lw=1, label=name, zorder=2.7
        )
    return lines


def _style_cost_axis(axes: Axes, unit: str, *, logarithmic: bool) -> None:
    """Print costs as 0.00002, not as 2e-05.

    Powers of ten would need mathematical markup, which is switched off because names may contain
    a dollar sign.
    """
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    plain = FuncFormatter(lambda cost, _: f"{cost:.12f}".rstrip("0").rstrip("."))
    axes.xaxis.set_major_formatter(plain)
    axes.set_xlabel(f"mean cost C ({unit})")
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)


def _cost_ratio(report: ReportData) -> float:
    """Highest cost over lowest; 0 if a cost is 0, which a logarithmic axis cannot show."""
    costs = [row.cost for row in (*report.overall, *report.frontier)]
    return max(costs) / min(costs) if min(costs) > 0 else 0.0


def latex_figure(drawing: Drawing, file: str) -> str:
    """Return a `figure` environment with the drawing at its column's width.

    It needs the package graphicx.

    Args:
        drawing: the figure.
        file: path of its file, without the suffix.
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


def export_figures(drawings: Sequence[Drawing], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures in each format.

    Args:
        drawings: the figures, see `report_figures`.
        folder: where the files go.
        formats: see `FIGURE_FORMATS`; repeated ones count once.

    Returns:
        The files, `folder/<name>.<format>`.

    Raises:
        InputError: a format is unknown.
        CacheError: the folder cannot be written to.
        WorldError: the disk is full or failed.
    """
    return [
        save(drawing, folder / f"{drawing.name}.{format}")
        for drawing in drawings
        for format in dict.fromkeys(formats)
    ]


def check_formats(formats: Sequence[str]) -> None:
    """Reject unknown formats, before there are figures.

    Raises:
        InputError: a format is unknown.
    """
    for format in formats:
        if format not in FIGURE_FORMATS:
            raise InputError(
                f"unknown format of figures: {format!r}; choose of {', '.join(FIGURE_FORMATS)}"
            )


def save(drawing: Drawing, path: Path) -> Path:
    """Write one figure in the format of the path's suffix.

    Returns:
        The path.

    Raises:
        InputError: the suffix is unknown.
        CacheError: the folder cannot be written to.
        WorldError: the disk is full or failed.
    """
    format = path.suffix.removeprefix(".")
    check_formats([format])
    # Figures are transparent on the page; a file needs a white background.
    background = drawing.figure.patch
    background.set(facecolor="white", visible=True)
    try:
        if format == "svg":
            data = as_svg(drawing, ink=INK).encode()
        else:
            sink = io.BytesIO()
            metadata = NO_METADATA[format]
            with settings(drawing.name):
                drawing.figure.savefig(sink, format=format, dpi=DOTS_PER_INCH, metadata=metadata)
            data = sink.getvalue()
    finally:
        background.set_visible(False)
    write_atomically(path, data)
    return path


# The learning curve.

CURVE_HEIGHT = 2.6  # inches
# From this number of evaluations on, single ones are not marked.
MAX_MARKED_EVALUATIONS = 60


def curve_figure(report: ReportData) -> Drawing | None:
    """Draw R on the train and the validation fold over the epochs; None without a history."""
    history = report.history
    if not history:
        return None
    epochs = np.array(history["epoch"])
    validation = np.array(history["validation"], np.float64)
    train = np.array(history["train"], np.float64)  # None becomes NaN
    # Without a validation fold the train fold chooses: one line shows both.
    is_one_fold = bool(np.array_equal(train, validation))
    best = _best(train, validation)
    chooser = "train" if is_one_fold else "validation"
    marker = "o" if len(epochs) <= MAX_MARKED_EVALUATIONS else ""
    with settings():
        figure, axes = canvas(FIGURE_WIDTH, CURVE_HEIGHT)
        lines = [(validation, chooser, ROUTER_COLOUR)]
        if not is_one_fold and np.isfinite(train).any():
            lines.append((train, "train", ROUTES_COLOUR))
        for values, label, colour in lines:
            [line] = axes.plot(epochs, values, color=colour, linewidth=1.3, label=label)
            line.set(marker=marker, markersize=3)
        ring = axes.scatter(epochs[best], validation[best], 70, zorder=4, label="kept")
        ring.set(facecolors="none", edgecolors=ROUTER_COLOUR)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch")
        axes.set_ylabel("mean R of the greedy policy")
        axes.margins(0.03, 0.12)
        legend(figure)
    caption = (
        f"The training of the router: exact R on the {chooser} fold"
        f"{'' if is_one_fold else ' and on the train fold'}; the weights of epoch "
        f"{epochs[best]} were kept"
    )
    return Drawing(
        name="learning-curve",
        title="Learning curve",
        caption=caption,
        description=f"Line of mean reward over epochs. {caption}. The numbers are in the JSON, "
        "under history.",
        figure=figure,
    )


def _best(train: np.ndarray, validation: np.ndarray) -> int:
    """The position of the evaluation whose weights were kept, see `network.BestIterate.offer`."""
    pairs = zip(validation.tolist(), np.nan_to_num(train).tolist(), strict=True)
    ranked = list(pairs)
    return ranked.index(max(ranked))

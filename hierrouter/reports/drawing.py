"""Drawings: matplotlib figures with our colours, labels, and SVG for any page."""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise, product
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.cells import cell_len

from hierrouter.tables import one_line

# Replaced by the page's text colour, so no other element may have it. In a file it is near-black.
INK = "#0a0b0c"

# Of the colours of Okabe and Ito, which colour-blind readers can tell apart, those that are visible
# on any background.
ROUTER_COLOUR = "#d55e00"
ROUTES_COLOUR = "#8c8c8c"

FIGURE_WIDTH = 5.5  # inches: the text width of a paper
MAX_LABEL_LENGTH = 30  # characters
CHARACTER_INCHES = 0.07
LINE_INCHES = 0.14
MARK_INCHES = 0.06
POINTS_PER_INCH = 72
# Directions in which the name of a mark may be written: right, left, above, below, diagonally.
LABEL_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
LEGEND_KEY_INCHES = 0.6

FONT_SIZE = 9  # points
LABEL_FONT_SIZE = 8.5
Points = NDArray[np.float64]  # float64[points, 2]
_TAG = re.compile(r"<[^<>]*>")
_FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_STYLE: Mapping[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": FONT_SIZE,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the layout is the same everywhere
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: text that can be found and copied
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name is a $
    "text.usetex": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Drawing:
    """A figure that is ready to be put on a page or saved.

    Attributes:
        name: name for files and ids: lower case, hyphens.
        title: short title, which a screen reader reads out.
        caption: text for below the figure.
        description: what the figure shows and where its numbers are, for a screen reader.
        figure: drawn inside `settings`; it must be written inside `settings`, too.
    """

    name: str
    title: str
    caption: str
    description: str
    figure: Figure


@contextmanager
def settings(salt: str = "") -> Iterator[None]:
    """Use the same matplotlib settings whatever the user's matplotlibrc is.

    Figures must be drawn and written inside this context.

    Args:
        salt: text that the ids of an SVG are derived from.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        # The font of the layout lacks some glyphs; the reader's font will supply them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Make a transparent figure with one pair of axes and horizontal grid lines.

    Args:
        width: inches.
        height: inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def legend(figure: Figure) -> None:
    """Put a legend above the axes, with as many entries a row as fit."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    if labels:
        columns = legend_columns(labels, figure.get_figwidth())
        figure.legend(loc="outside upper center", ncols=columns)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit into a width in inches, at least 1.

    A legend is filled column by column, and each column is as wide as its longest entry.
    """
    entries = [LEGEND_KEY_INCHES + cell_len(label) * CHARACTER_INCHES for label in labels]
    for columns in range(len(entries), 1, -1):
        parts = np.array_split(entries, columns)
        if sum(part.max() for part in parts) <= width:
            return columns
    return 1


class Box(NamedTuple):
    """A rectangle on the figure, in inches.

    Attributes:
        low: float64[2], lower left corner.
        high: float64[2], upper right corner.
    """

    low: Points
    high: Points


def label_marks(
    figure: Figure, marks: Sequence[tuple[Points, str]], lines: Sequence[Points]
) -> None:
    """Write the name of each mark beside it, if it covers nothing at some position.

    Marks are labelled in their order, so earlier ones have the better choice of positions.

    Args:
        figure: with one pair of axes.
        marks: positions and name of each: float64[positions, 2] in data coordinates, first that of
            the mark itself, then others beside which its name may be written as well.
        lines: lines that no name may cover, float64[points, 2] in data coordinates.
    """
    # The layout is computed now and then frozen: data coordinates have their final position.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    axes = figure.axes[0]

    def inches(points: Points) -> Points:
        return np.asarray(axes.transData.transform(points)) / figure.dpi

    frame = Box(*(axes.get_window_extent().get_points() / figure.dpi))
    centres = np.array([inches(positions)[0] for positions, _ in marks])
    occupied = [Box(centre - MARK_INCHES, centre + MARK_INCHES) for centre in centres]
    occupied += [Box(point, point) for line in lines for point in _interpolated(inches(line))]
    for positions, name in marks:
        text = label(name)
        half_size = np.array([cell_len(text) * CHARACTER_INCHES, LINE_INCHES]) / 2
        for position, direction in product(positions, LABEL_DIRECTIONS):
            offset = np.array(direction) * (half_size + MARK_INCHES)
            middle = inches(position) + offset
            box = Box(middle - half_size, middle + half_size)
            if (
                _is_inside(box, frame)
                and _is_nearest(box, offset, centres)
                and not _overlaps_any(box, occupied)
            ):
                annotation = axes.annotate(
                    text, position, tuple(offset * POINTS_PER_INCH), textcoords="offset points"
                )
                annotation.set(ha="center", va="center", fontsize=LABEL_FONT_SIZE)
                occupied.append(box)
                break


def _is_inside(box: Box, frame: Box) -> bool:
    return bool((box.low >= frame.low).all() and (box.high <= frame.high).all())


def _is_nearest(box: Box, offset: Points, centres: Points) -> bool:
    """Whether no mark is nearer to a name than the position it is written beside.

    Args:
        box: the name's rectangle.
        offset: float64[2], from that position to the middle of the name.
        centres: float64[marks, 2], the centres of all marks.
    """
    distances = np.linalg.norm(np.maximum(box.low - centres, centres - box.high).clip(0), axis=1)
    half_size = (box.high - box.low) / 2
    own_distance = np.linalg.norm(np.maximum(np.abs(offset) - half_size, 0))
    return bool((distances >= own_distance - 1e-9).all())


def _overlaps_any(box: Box, occupied: Sequence[Box]) -> bool:
    lows = np.array([other.low for other in occupied])
    highs = np.array([other.high for other in occupied])
    return bool(((lows < box.high) & (highs > box.low)).all(axis=1).any())


def _interpolated(line: Points) -> Points:
    """Add points to a line, so close together that no name fits between two of them."""
    segments = [line]
    for start, end in pairwise(line):
        count = 2 + int(np.hypot(*(end - start)) / MARK_INCHES)
        segments.append(np.linspace(start, end, count))
    return np.concatenate(segments)


def label(name: str) -> str:
    """Return a name for an axis or a legend.

    A space is put before an underscore: matplotlib leaves names that begin with one out.
    """
    short = one_line(name, MAX_LABEL_LENGTH)
    return f" {short}" if short.startswith("_") else short


def as_svg(drawing: Drawing, ink: str = "currentColor") -> str:
    """Return the drawing as one `<svg>` element; a screen reader reads title and description.

    Args:
        drawing: the figure.
        ink: colour of text and axes.
    """
    sink = io.StringIO()
    with settings(drawing.name):
        drawing.figure.savefig(sink, format="svg")
    size = drawing.figure.get_size_inches() * POINTS_PER_INCH
    width, height = size.round(1).tolist()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{_FONT_FAMILY}" stroke-linejoin="round" stroke-linecap="butt">\n'
        f"<title>{escape(drawing.title)}</title>\n<desc>{escape(drawing.description)}</desc>\n"
        f"{_inside(sink.getvalue(), ink)}\n"
    )


def _inside(svg: str, ink: str) -> str:
    """Return the content of the outermost tag and its end tag, without styles and metadata."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style\b.*?</style>|<metadata\b.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    # Only tags are changed: a label that looks like markup is text and must stay as it is.
    body = _TAG.sub(lambda tag: _portable(tag[0], ink), body)
    # Ids that are not referred to are removed: two figures on a page would both have them.
    referenced = frozenset(re.findall(r"[\"(]#([\w.-]+)", body))
    body = _TAG.sub(lambda tag: _with_ids(tag[0], referenced), body)
    return re.sub(r"\n\s*\n+", "\n", body).strip()


def _with_ids(tag: str, ids: Set[str]) -> str:
    """Return a tag without its id, unless it is one of these."""
    return re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in ids else "", tag)


def _portable(tag: str, ink: str) -> str:
    """Return a tag without style attribute and XLink, in the colour `ink`."""
    plain = re.sub(r' style="([^"]*)"', _as_attributes, tag)
    return plain.replace("xlink:href=", "href=").replace(INK, ink)


def _as_attributes(match: re.Match[str]) -> str:
    """Turn `style="fill: none; font-size: 10px"` into ` fill="none" font-size="10px"`.

    Font families are left out.
    """
    attributes = []
    for declaration in match[1].split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # the shorthand of older matplotlib
            name = "font-size"
            value = next(iter(re.findall(r"[\d.]+px", value)), "")
        if value and name != "font-family":
            attributes.append(f' {name}="{value}"')
    return "".join(attributes)

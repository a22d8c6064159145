"""A drawing: a matplotlib figure, its colours, and an SVG that fits any page."""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise, product
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.cells import cell_len

from hierrouter.tables import one_line

# Stands for the page's text colour; nothing else may use it. In a file it is this near-black.
INK = "#0a0b0c"

WIDTH = 5.5  # inches: the text width of a paper
LONGEST_LABEL = 30  # characters
CHARACTER_INCHES = 0.07
LINE_INCHES, MARK_INCHES = 0.14, 0.06
POINTS_AN_INCH = 72
# Where the name of a mark may stand: right of it, left, above, below, and between these.
AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
LEGEND_KEY_INCHES = 0.6

FONT, SMALL = 9, 8.5  # points
Points = NDArray[np.float64]
_TAG = re.compile(r"<[^<>]*>")
_FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_STYLE: Mapping[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": FONT,
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
    """A figure that is ready to be shown or saved.

    Attributes:
        name: for files and ids: lower case, hyphens.
        title: what a screen reader calls it.
        description: what is to be seen, and where the numbers are.
        figure: drawn inside `settings`, in which it has to be written, too.
    """

    name: str
    title: str
    caption: str
    description: str
    figure: Figure


@contextmanager
def settings(salt: str = "") -> Iterator[None]:
    """Draw and write inside this: default settings whatever the user's matplotlibrc says."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        # Layout asks for glyphs that the reader's own font will supply.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A transparent figure of width x height inches with one pair of axes, lines behind them."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def legend(figure: Figure) -> None:
    """A legend above the axes, as many entries a row as fit."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    if labels:
        entry = LEGEND_KEY_INCHES + max(map(len, labels)) * CHARACTER_INCHES
        columns = max(1, int(figure.get_figwidth() / entry))
        figure.legend(loc="outside upper center", ncols=columns)


def label_marks(
    figure: Figure, marks: Sequence[tuple[Points, str]], lines: Sequence[Points]
) -> None:
    """The name of each mark beside it, where it covers nothing; the first ones have the choice.

    Args:
        figure: with one pair of axes.
        marks: places, float64[places, 2] in data coordinates, and name: the mark itself, then
            others where its name may stand as well.
        lines: what no name may cover, float64[points, 2] in data coordinates.
    """
    figure.draw_without_rendering()  # now it is known where the axes are, and there they stay
    figure.set_layout_engine("none")
    axes = figure.axes[0]

    def inches(points: Points) -> Points:
        return np.asarray(axes.transData.transform(points)) / figure.dpi

    frame = axes.get_window_extent().get_points() / figure.dpi
    at = np.array([inches(places)[0] for places, _ in marks])
    taken = [(one - MARK_INCHES, one + MARK_INCHES) for one in at]
    taken += [(point, point) for line in lines for point in _dense(inches(line))]
    for places, name in marks:
        shown = label(name)
        half = np.array([cell_len(shown) * CHARACTER_INCHES, LINE_INCHES]) / 2
        for place, side in product(places, AROUND):
            offset = np.array(side) * (half + MARK_INCHES)
            middle = inches(place) + offset
            low, high = middle - half, middle + half
            away = np.linalg.norm(np.maximum(low - at, at - high).clip(0), axis=1)
            own = np.maximum(np.abs(offset) - half, 0)
            inside = (low >= frame[0]).all() and (high <= frame[1]).all()
            inside &= bool((away >= np.linalg.norm(own) - 1e-9).all())  # nobody else's
            lows, highs = map(np.array, zip(*taken, strict=True))
            if inside and not ((lows < high) & (highs > low)).all(axis=1).any():
                shift = tuple(offset * POINTS_AN_INCH)
                text = axes.annotate(shown, place, shift, textcoords="offset points")
                text.set(ha="center", va="center", fontsize=SMALL)
                taken.append((low, high))
                break


def _dense(line: Points) -> Points:
    """Points on a line, so close together that no name fits between two of them."""
    steps = [line]
    for start, end in pairwise(line):
        count = 2 + int(np.hypot(*(end - start)) / MARK_INCHES)
        steps.append(np.linspace(start, end, count))
    return np.concatenate(steps)


def label(name: str) -> str:
    """A name for an axis or a legend, which leaves out names that begin with an underscore."""
    short = one_line(name, LONGEST_LABEL)
    return f" {short}" if short.startswith("_") else short


def as_svg(drawing: Drawing, ink: str = "currentColor") -> str:
    """The drawing as one `<svg>` element; title and description are read out to the blind.

    `ink`: colour of text and axes.
    """
    figure, sink = drawing.figure, io.StringIO()
    with settings(drawing.name):
        figure.savefig(sink, format="svg")
    width, height = (figure.get_size_inches() * POINTS_AN_INCH).round(1).tolist()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{_FONT_FAMILY}" stroke-linejoin="round" stroke-linecap="butt">\n'
        f"<title>{escape(drawing.title)}</title>\n<desc>{escape(drawing.description)}</desc>\n"
        f"{_inside(sink.getvalue(), ink)}\n"
    )


def _inside(svg: str, ink: str) -> str:
    """All that is inside of the outermost tag, and that tag's end."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style\b.*?</style>|<metadata\b.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    # In tags only: what looks like markup inside a label is text and stays as it is.
    body = _TAG.sub(lambda tag: _portable(tag[0], ink), body)
    # Ids that nothing refers to go: two figures on a page would both have them.
    wanted = frozenset(re.findall(r"[\"(]#([\w.-]+)", body))
    body = _TAG.sub(
        lambda tag: re.sub(r' id="([^"]*)"', lambda id: id[0] if id[1] in wanted else "", tag[0]),
        body,
    )
    return re.sub(r"\n\s*\n+", "\n", body).strip()


def _portable(tag: str, ink: str) -> str:
    """The tag without style attribute and XLink, in the colour `ink`."""
    plain = re.sub(r' style="([^"]*)"', _as_attributes, tag)
    return plain.replace("xlink:href=", "href=").replace(INK, ink)


def _as_attributes(match: re.Match[str]) -> str:
    """`style="fill: none; font-size: 10px"` as ` fill="none" font-size="10px"`, without fonts."""
    attributes = []
    for declaration in match[1].split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # the shorthand of older matplotlib
            name, value = "font-size", next(iter(re.findall(r"[\d.]+px", value)), "")
        if value and name != "font-family":
            attributes.append(f' {name}="{value}"')
    return "".join(attributes)

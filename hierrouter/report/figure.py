"""A matplotlib figure as an SVG that fits any page.

In: a `Figure` drawn inside `drawing()`. Out: SVG text that is the same each time, takes the page's
text colour (so it works on light and dark), holds real text, and has no style attribute, metadata
or reference to the outside, so that a strict Content-Security-Policy lets it through. Not covered:
what is drawn (`plots`).
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from hierrouter.report.text import one_line

# Stands for the page's text colour until the SVG is written; nothing else may use it.
INK = "#0a0b0c"
# Okabe and Ito's colours, distinct for colour-blind readers, without black and yellow: both
# would vanish on one of the two backgrounds.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
ROUTER_COLOUR = "#d55e00"
GREYS = ("#8c8c8c", "#b3b3b3", "#6e6e6e")
HATCHES = ("", "///", "...", "xxx")

LONGEST_LABEL = 26  # characters
CHARACTER_INCHES = 0.085
LEGEND_KEY_INCHES = 0.6

_STYLE: Mapping[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the layout is the same everywhere
    "font.size": 10,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name is a $
    "text.usetex": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
TAG = re.compile(r"<[^<>]*>")

_FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """Draw inside this: default settings whatever the user's matplotlibrc says.

    Args:
        name: of the figure; keeps the ids of two figures on one page apart.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": name})
        # Layout asks for glyphs that the reader's own font will supply.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A transparent figure of width x height inches with one pair of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def legend(figure: Figure) -> None:
    """A legend above the axes, as many entries a row as fit."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    if not labels:
        return
    longest = max(len(label) for label in labels)
    entry = LEGEND_KEY_INCHES + longest * CHARACTER_INCHES
    columns = max(1, int(figure.get_figwidth() / entry))
    figure.legend(loc="outside upper center", ncols=columns)


def label(name: str) -> str:
    """A name for an axis or a legend, which leaves out names that begin with an underscore."""
    short = one_line(name, LONGEST_LABEL)
    return f" {short}" if short.startswith("_") else short


def as_svg(figure: Figure, title: str, description: str) -> str:
    """The figure as one `<svg>` element; title and description are read out to the blind."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg")
    svg = sink.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style\b.*?</style>|<metadata\b.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    # In tags only: what looks like markup inside a label is text and stays as it is.
    body = TAG.sub(lambda tag: _portable(tag[0]), body)
    wanted = frozenset(re.findall(r"[\"(]#([\w.-]+)", body))
    body = TAG.sub(lambda tag: _without_idle_id(tag[0], wanted), body)
    body = re.sub(r"\n\s*\n+", "\n", body).strip()
    width, height = (figure.get_size_inches() * 72).round(1).tolist()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{_FONT_FAMILY}" stroke-linejoin="round" stroke-linecap="butt">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n{body}\n"
    )


def _portable(tag: str) -> str:
    """The tag without style attribute and XLink, in the page's text colour."""
    plain = re.sub(r' style="([^"]*)"', _as_attributes, tag)
    return plain.replace("xlink:href=", "href=").replace(INK, "currentColor")


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


def _without_idle_id(tag: str, wanted: frozenset[str]) -> str:
    """The tag without an id that nothing refers to: two figures on a page would both have it."""
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", tag)

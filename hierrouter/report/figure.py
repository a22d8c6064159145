"""A drawing: a matplotlib figure and what it says.

In: nothing; this is what all figures are made with. Out: `Drawing`, a plain value that the page
shows and that is saved as a file, and the settings, colours, axes and legend that figures share.
Not covered: what is drawn (`figures`), how it is written (`svg`, `export`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from hierrouter.report.text import one_line

# Stands for the page's text colour; nothing else may use it. In a file it is this near-black.
INK = "#0a0b0c"
# Okabe and Ito's colours, distinct for colour-blind readers, without black and yellow: both
# would vanish on one of the two backgrounds.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
ROUTER_COLOUR = "#d55e00"
GREYS = ("#8c8c8c", "#b3b3b3", "#6e6e6e")
HATCHES = ("", "///", "...", "xxx")

WIDTH = 8.5  # inches
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
        caption: a line to stand above it.
        description: what is to be seen, and where the numbers are.
        figure: drawn inside `settings`, in which it has to be written, too.
    """

    name: str
    title: str
    caption: str
    description: str
    figure: Figure


@contextmanager
def settings(salt: str = "", letters: float = 10) -> Iterator[None]:
    """Draw and write inside this: default settings whatever the user's matplotlibrc says.

    Args:
        salt: keeps the ids of two figures on one page apart.
        letters: their size, in points.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "font.size": letters, "svg.hashsalt": salt})
        # Layout asks for glyphs that the reader's own font will supply.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A transparent figure of width x height inches with one pair of axes, lines behind them."""
    figure, [axes] = panels(width, height, 1)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def panels(width: float, height: float, count: int) -> tuple[Figure, list[Axes]]:
    """A transparent figure with pairs of axes side by side, which share their rows."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    found: list[Axes] = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    for axes in found:
        axes.patch.set_visible(False)
    return figure, found


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

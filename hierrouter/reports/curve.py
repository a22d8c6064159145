"""The learning curve of the router of a report, drawn."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from hierrouter.reports.drawing import (
    FIGURE_WIDTH,
    ROUTER_COLOUR,
    ROUTES_COLOUR,
    Drawing,
    canvas,
    legend,
    settings,
)
from hierrouter.reports.results import ReportData

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

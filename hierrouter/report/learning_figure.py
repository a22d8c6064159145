"""How the router learned, as a figure.

In: a `LearningCurve`. Out: a `Drawing`. Not covered: the values (`learning`).
"""

from __future__ import annotations

from matplotlib.ticker import MaxNLocator

from hierrouter.report.figure import (
    GREYS,
    INK,
    ROUTER_COLOUR,
    WIDTH,
    Drawing,
    canvas,
    legend,
    settings,
)
from hierrouter.report.learning import LearningCurve


def learning_figure(curve: LearningCurve) -> Drawing:
    """Mean R over the epochs, with the epoch that was kept, between two bounds."""
    bounds = (("oracle", curve.oracle, INK, "--"), ("best fixed route", curve.fixed, GREYS[0], ":"))
    with settings():
        figure, axes = canvas(WIDTH, 3.6)
        for name, reward, colour, style in bounds:
            if reward is not None:
                axes.axhline(reward, color=colour, linestyle=style, linewidth=1.2, label=name)
        axes.plot(
            curve.epochs,
            curve.reward,
            color=ROUTER_COLOUR,
            linewidth=1.6,
            marker="o",
            markersize=3,
            label="hierrouter",
        )
        if curve.chosen is not None:
            kept = curve.reward[curve.epochs.index(curve.chosen)]
            axes.scatter(
                curve.chosen, kept, 170, color=ROUTER_COLOUR, marker="*", label="kept", zorder=4
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epochs")
        axes.set_ylabel(f"R = Q − {curve.alpha:g} C")
        legend(figure)
    which = "" if curve.chosen is None else f" ({curve.chosen})"
    return Drawing(
        name="learning-curve",
        title="Learning curve",
        caption=f"Learning curve: R of the greedy router on the {curve.fold} fold, which chose the "
        f"epoch that was kept{which}",
        description="A line of mean net reward over the epochs of the training, between the best "
        "fixed route and the oracle on the same queries. The numbers are in the JSON.",
        figure=figure,
    )

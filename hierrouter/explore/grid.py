"""The alphas that a reader can choose from.

In: a tree, a sweep, a router. Out: the positions of the page's slider. Not covered: what a router
does there (`learned`).
"""

from __future__ import annotations

import numpy as np

from hierrouter.evaluate.hulls import oracle_break_points
from hierrouter.learn.config import PAPER_ALPHA
from hierrouter.learn.objective import MAX_ALPHA
from hierrouter.learn.sweep import Sweep
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.tree import RouteTree

BETWEEN = 100  # positions beside those that somebody has asked for
TAILS = 0.01  # share of the oracle's changes that lies below the range, and above it
ROOM = 2.0  # the range reaches so many times further
DIGITS = 3  # significant digits of a position


def positions(
    tree: RouteTree, split: str, sweep: Sweep | None, trained: TrainedRouter | None
) -> tuple[float, ...]:
    """0, the paper's alpha, those of sweep and router, and the range in which best routes change.

    Args:
        tree: all folds; the range is that of the train fold, of the fold shown where it is empty.
        split: the fold that is shown.
        sweep: where it has a router for each alpha of its grid only, these are all positions.
        trained: the router of a single run.

    Returns:
        ascending.
    """
    asked = {0.0, PAPER_ALPHA} | ({trained.alpha} if trained else set())
    if sweep is None:
        return tuple(sorted(asked | _between(tree, split, trained)))
    wanted = asked | set(sweep.alphas) | _between(tree, split, trained)
    return tuple(alpha for alpha in sorted(wanted) if sweep.has(alpha))


def _between(tree: RouteTree, split: str, trained: TrainedRouter | None) -> set[float]:
    """Spread evenly over the logarithm of the range; none where no route ever changes."""
    stop = trained is not None and trained.objective.allow_stop
    train = tree.split("train")
    changes = oracle_break_points(train if len(train) else tree.split(split), stop)
    if not len(changes):
        return set()
    low, high = np.quantile(changes, (TAILS, 1 - TAILS))
    spread = np.geomspace(low / ROOM, min(high * ROOM, MAX_ALPHA), BETWEEN)
    return {float(f"{alpha:.{DIGITS}g}") for alpha in spread}

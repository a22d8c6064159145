"""Pages of planted trees, without texts; sweeps of networks."""

from pathlib import Path

from hierrouter.learning.selection import SelectedRun
from hierrouter.learning.sweep import Sweep
from hierrouter.learning.training import TrainedRouter
from hierrouter.reports.explore import Explored, explored
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE, GRID, glimpse

RUN, SWEEP = Path("runs/router"), Path("runs/sweep")


def shown(trained: TrainedRouter | None = None, sweep: Sweep | None = None) -> SelectedRun:
    """As `select_run` finds them: without a run the sweep's router stands for it."""
    if trained or not sweep:
        return SelectedRun(RUN if trained else None, trained, ALPHA, sweep and SWEEP, sweep)
    return SelectedRun(SWEEP, sweep.like(None, ALPHA), ALPHA, SWEEP, sweep)


def networks(tree: RouteTree) -> Sweep:
    """A sweep of a network for each alpha of a grid."""
    return Sweep(GRID, tuple(glimpse(tree, alpha=alpha, config=EXACT_GLIMPSE) for alpha in GRID))


def explored_of(
    tree: RouteTree,
    trained: TrainedRouter | None = None,
    sweep: Sweep | None = None,
    split: str = "test",
) -> Explored:
    """What the page of a tree holds that is in no cache."""
    return explored(Path(), tree, split, shown(trained, sweep), texts=0)

"""Everything a report says beside its policies.

In: a tree with its folds, alpha, a router, the points of a sweep. Out: `Analysis`, on one fold;
what is chosen from data is chosen on the train fold. Intervals over all queries, or over those of
a dataset, come from the same resamples as the rest of the report. Not covered: the policies
themselves (`hierrouter.comparison`), tables (`report.analysis_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.analysis.bounds import ladder_rows, ladder_values, seen
from hierrouter.analysis.calls import call_rows, mixes, repair_rows, repair_values
from hierrouter.analysis.estimated import Values, estimated
from hierrouter.analysis.hull_figures import frontier_figures
from hierrouter.analysis.losses import regret_rows, regret_values
from hierrouter.analysis.static_arms import static_arms
from hierrouter.analysis.worths import model_rows, reward_worths, worth_values
from hierrouter.evaluate.ladder import ladder
from hierrouter.evaluate.outcome import ROUTER, from_endings, mean_outcome
from hierrouter.evaluate.regret import split_regret
from hierrouter.evaluate.repair import repair_matrices
from hierrouter.learn.trained import TrainedRouter
from hierrouter.report.analysis import Analysis, Measurable
from hierrouter.report.build import columns_of
from hierrouter.report.intervals import stream_of_all
from hierrouter.report.results import ALL, Bootstrap
from hierrouter.report.swept import FrontierPoint
from hierrouter_cache.tree import RouteTree


def analyse(
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: NDArray[np.float64] | None,
    swept: Sequence[FrontierPoint] = (),
    swept_stop: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Analysis:
    """The ladder, the router's regret and calls, repairs, and what each model is worth.

    Args:
        tree: all folds.
        split: the fold to analyse, not empty.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
        trained: the router; where it may stop early, chance, fixed routes and bounds may, too.
        endings: float64[queries, nodes], where that router's episodes end on the fold; None without
            one.
        swept: the routers of a sweep on this fold, where there is one.
        swept_stop: whether these may stop early.
        bootstrap: how intervals are made.

    Raises:
        InputError: a router made for another tree.
    """
    bootstrap, fold, train = bootstrap or Bootstrap(), tree.split(split), tree.split("train")
    stop = trained is not None and trained.objective.allow_stop
    rungs, view = ladder(train, alpha, fold, stop), seen(fold, alpha, stop)
    called, repairs = mixes(fold, alpha, endings, stop), repair_matrices(fold)
    arms = static_arms(train, fold, swept_stop if swept else stop)
    worths = reward_worths(fold, alpha, stop)
    by_dataset = {"ladder": ladder_values(rungs, alpha)}
    if endings is not None:
        by_dataset["regret"] = regret_values(split_regret(fold, alpha, endings, stop))
    overall = {
        "measurable": view.reward[None],
        "calls": called.values,
        "repair": repair_values(repairs, len(fold)),
        "models": worth_values(worths, len(fold)),
    }
    columns = columns_of(fold.datasets)
    found = estimated(columns, by_dataset, overall, bootstrap)
    routers = [mean_outcome(point.by_seed) for point in swept]
    if not routers and endings is not None:
        routers = [from_endings(fold, endings, ROUTER, "router")]
    every = found[ALL]
    return Analysis(
        ladder=ladder_rows(rungs, columns, found),
        measurable=Measurable(fold.view, view.looks, len(fold), every["measurable"][0]),
        regret=regret_rows(
            columns,
            by_dataset.get("regret"),
            found,
            None if split == "train" else _trained_regret(train, alpha, trained),
            bootstrap,
        ),
        calls=call_rows(called, fold, every["calls"]),
        frontier=frontier_figures(fold, arms, routers, bootstrap, stream_of_all(fold.datasets)),
        repair=repair_rows(repairs, fold.models, every["repair"]),
        models=model_rows(fold, alpha, stop, worths, every["models"], arms),
    )


def _trained_regret(
    train: RouteTree, alpha: float, trained: TrainedRouter | None
) -> tuple[Sequence[str], Values] | None:
    """Datasets of the train fold and the router's regret there; None where either is missing."""
    if trained is None or not len(train):
        return None
    lost = split_regret(train, alpha, trained.endings(train), trained.objective.allow_stop)
    return train.datasets, regret_values(lost)

"""Where a router loses, and how much more than on train.

In: regrets on the fold that is shown and on the train fold, split by choice. Out: `RegretRow`s by
dataset. The folds are resampled each on its own, so a difference of theirs is not paired. Not
covered: the split itself (`evaluate.regret`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.analysis.estimated import Columns, Found, Values, estimated
from hierrouter.evaluate.bootstrap import percentile_interval, resampled_means
from hierrouter.evaluate.regret import Regret, split_regret
from hierrouter.report.analysis import RegretParts, RegretRow
from hierrouter.report.build import columns_of
from hierrouter.report.certainty import Estimate
from hierrouter.report.intervals import draws
from hierrouter.report.results import Bootstrap
from hierrouter_cache.tree import RouteTree

Fold = tuple[Sequence[str], Values]  # dataset of each query, `regret_values`


def regret_values(regret: Regret) -> Values:
    """Whole, plan and adaptivity: float64[3, queries]."""
    return np.stack([regret.total, regret.plan, regret.adaptivity])


def regret_rows(
    columns: Columns, shown: Values | None, found: Found, train: Fold | None, bootstrap: Bootstrap
) -> tuple[RegretRow, ...]:
    """The regret by dataset, "all" last; none without a router.

    Args:
        columns: positions of the queries of each dataset of the fold shown.
        shown: `regret_values` of that fold; None without a router.
        found: estimates of these under "regret".
        train: the train fold; None where it is the one shown, or empty.
        bootstrap: how intervals are made.
    """
    if shown is None:
        return ()
    trained = columns_of(train[0]) if train else {}
    rows = []
    for at, (dataset, queries) in enumerate(columns.items()):
        more = None
        if train and dataset in trained:
            folds = shown[:, queries], train[1][:, trained[dataset]]
            # Streams of their own: the draws of both folds are independent.
            more = RegretParts(*_difference(*folds, bootstrap, (at, len(columns) + at)))
        rows.append(RegretRow(dataset, len(queries), RegretParts(*found[dataset]["regret"]), more))
    return tuple(rows)


def policy_regret(
    fold: RouteTree,
    alpha: float,
    endings: NDArray[np.float64],
    allow_stop: bool,
    bootstrap: Bootstrap,
) -> tuple[RegretRow, ...]:
    """The regret of any policy by dataset, "all" last.

    Args:
        fold: the queries that are shown.
        endings: float64[queries, nodes], see `evaluate.regret.split_regret`.
        allow_stop: whether the oracle, too, may end before L calls.
    """
    columns = columns_of(fold.datasets)
    values = regret_values(split_regret(fold, alpha, endings, allow_stop))
    found = estimated(columns, {"regret": values}, {}, bootstrap)
    return regret_rows(columns, values, found, None, bootstrap)


def _difference(
    shown: Values, train: Values, bootstrap: Bootstrap, streams: tuple[int, int]
) -> list[Estimate]:
    """Mean of each row on the fold shown less that on train; the smaller fold widens the ends."""
    means = [
        resampled_means(values, bootstrap.n, draws(bootstrap, stream))
        for values, stream in zip((shown, train), streams, strict=True)
    ]
    queries = min(shown.shape[1], train.shape[1])
    low, high = percentile_interval(means[0] - means[1], queries, bootstrap.level)
    mean = shown.mean(axis=1) - train.mean(axis=1)
    return [
        Estimate(*ends) for ends in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
    ]

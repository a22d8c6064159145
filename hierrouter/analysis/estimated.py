"""Intervals of many figures from few draws.

In: values of named groups of figures on each query. Out: an `Estimate` of each figure by dataset
and over all queries; the resamples of a dataset are drawn once for all of its groups. Not covered:
figures that are no means over queries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hierrouter.report.certainty import Estimate
from hierrouter.report.intervals import estimates
from hierrouter.report.results import ALL, Bootstrap

Values = NDArray[np.float64]  # [figures, queries]
Columns = Mapping[str, NDArray[np.int64]]  # see `report.build.columns_of`
Found = Mapping[str, Mapping[str, list[Estimate]]]


def estimated(
    columns: Columns,
    by_dataset: Mapping[str, Values],
    overall: Mapping[str, Values],
    bootstrap: Bootstrap,
) -> Found:
    """The mean and interval of each figure, by dataset and name of its group.

    Args:
        columns: positions of the queries of each dataset, in the order of their streams.
        by_dataset: float64[figures, queries], wanted for every dataset.
        overall: the same, wanted over all queries only.
        bootstrap: how intervals are made.
    """
    return {
        name: _groups({**by_dataset, **(overall if name == ALL else {})}, queries, bootstrap, at)
        for at, (name, queries) in enumerate(columns.items())
    }


def _groups(
    groups: Mapping[str, Values], queries: NDArray[np.int64], bootstrap: Bootstrap, stream: int
) -> dict[str, list[Estimate]]:
    values = np.concatenate([group[:, queries] for group in groups.values()])
    found = iter(estimates(values, bootstrap, stream))
    return {name: [next(found) for _ in group] for name, group in groups.items()}

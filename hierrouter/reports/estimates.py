"""The long table of a report's figures, and the rows that tables and JSON read from it.

Every mean with its interval is one line of the long table: what it is a mean of (section, policy,
dataset, price list, ...), the metric, its value, and the ends of the interval. Tables, figures, CSV
and JSON read their rows from it, see `pivot`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from hierrouter.evaluation.intervals import AMOUNTS, DIFFERENCES, SHARES, ValueRange, mean_intervals
from hierrouter.evaluation.outcome import ROUTER, Floats, Integers
from hierrouter.tables import Cell, interval

ALL_DATASETS = "all"  # name of the column over the queries of all datasets
# The heading of the policies of each kind, in the order of a table.
POLICY_GROUPS = {
    "reference": "Reference models",
    "single": "Pool models (direct calls)",
    "router": "Learned",
    "route": "Fixed routes",
    "baseline": "Baselines",
    "oracle": "Best in hindsight",
}
# One line: the columns of `ESTIMATE_SCHEMA` by name; a column that does not apply may be missing.
# Not an Arrow table, because making one imports pandas, which takes a tenth of a report's time.
EstimateLines = Sequence[dict[str, Any]]
ESTIMATE_SCHEMA = pa.schema(
    [
        ("section", pa.string()),  # part of the report that the line belongs to
        ("policy", pa.string()),
        ("kind", pa.string()),  # single, reference, route, router, oracle or baseline
        ("arms", pa.string()),  # what a baseline chooses from: "A" or "B"
        ("rung", pa.string()),  # name of a bound in the ladder of bounds
        ("dataset", pa.string()),  # or "all"
        ("prices", pa.string()),  # name of the price list
        ("alpha", pa.float64()),
        ("hop", pa.int64()),
        ("model", pa.string()),
        ("n", pa.int64()),  # number of queries or decisions
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)


def display_name(policy: str) -> str:
    """Name of a policy in tables and figures: the router has one name, with or without deferral."""
    is_router = policy == ROUTER or policy.startswith(f"{ROUTER}, ")
    if not is_router:
        return policy
    return f"HierRouter{policy.removeprefix(ROUTER)}"


# Of fewer queries no interval is shown: it would hold nearly all that is possible.
MIN_INTERVAL_QUERIES = 3
# Values that a query may have, of the metrics whose range is the same in every section.
METRIC_RANGES = {"quality": SHARES, "accuracy": SHARES, "cost": AMOUNTS}
# Rows that are resampled together. It bounds the memory at 32 bytes * ROWS_AT_ONCE * resamples.
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Bootstrap:
    """Settings of the intervals, see `hierrouter.evaluation.intervals`.

    Attributes:
        n: number of resamples.
        level: coverage, in (0, 1).
        seed: seed of the resampling.
    """

    n: int = 10_000
    level: float = 0.95
    seed: int = 0

    @property
    def interval_title(self) -> str:
        """Title of a column of intervals: `95% interval`."""
        return f"{self.level:.0%} interval"

    def draws(self, stream: int) -> np.random.Generator:
        """Return the generator that draws the resamples of a dataset.

        All figures of a dataset are drawn with the same generator, so they share their resamples
        and their differences are paired.

        Args:
            stream: number of the dataset, which keeps the resamples of datasets independent.
        """
        return np.random.default_rng([self.seed, stream])


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval.

    Attributes:
        value: the figure; None if it is not known.
        low: lower end of the interval; None if resamples do not bound it.
        high: upper end, likewise.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


def as_estimates(values: Floats, low: Floats, high: Floats) -> list[Estimate]:
    """Make an estimate of each value.

    Args:
        values: float64[rows].
        low: float64[rows], lower ends of the intervals.
        high: float64[rows], upper ends.
    """
    rows = zip(values.tolist(), low.tolist(), high.tolist(), strict=True)
    return [Estimate(*row) for row in rows]


def estimate_means(
    values: Floats,
    bootstrap: Bootstrap,
    stream: int,
    within: ValueRange | Sequence[ValueRange] = DIFFERENCES,
    strata: Sequence[str] | None = None,
) -> list[Estimate]:
    """Estimate the mean of each row, with its interval; below `MIN_INTERVAL_QUERIES` without.

    Args:
        values: float64[rows, queries].
        bootstrap: settings of the intervals.
        stream: number of the dataset, see `Bootstrap.draws`.
        within: the values that a query may have, for all rows or for each.
        strata: the dataset of each query; None if all are of one.
    """
    if len(values) and values.shape[1] < MIN_INTERVAL_QUERIES:
        return [Estimate(mean) for mean in values.mean(axis=1).tolist()]
    means_with_intervals: list[Estimate] = []
    for start in range(0, len(values), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        block = values[rows]
        low, high = mean_intervals(
            block,
            bootstrap.n,
            bootstrap.level,
            bootstrap.draws(stream),
            within if isinstance(within, ValueRange) else within[rows],
            strata,
        )
        means_with_intervals += as_estimates(block.mean(axis=1), low, high)
    return means_with_intervals


def positions_by_dataset(datasets: Sequence[str]) -> dict[str, Integers]:
    """Return the positions of the queries of each dataset, and at last of all queries.

    The place of a dataset in this dictionary is the number of its stream, see `Bootstrap.draws`.

    Args:
        datasets: name of the dataset of each query.

    Returns:
        int64[n] by dataset, in order of appearance; the last key is `ALL_DATASETS`.
    """
    names = np.array(datasets, dtype=object)
    positions = {name: np.flatnonzero(names == name) for name in dict.fromkeys(datasets)}
    positions[ALL_DATASETS] = np.arange(len(datasets))
    return positions


class EstimateTable:
    """The long table while it is written.

    Means are requested with `add_means` and computed together, dataset by dataset: all figures of
    a dataset share their resamples.

    Attributes:
        bootstrap: settings of the intervals.
        datasets: name of the dataset of each query.
        positions: positions of the queries of each dataset, see `positions_by_dataset`.
        overall_stream: number of the stream of all queries.
    """

    def __init__(self, datasets: Sequence[str], bootstrap: Bootstrap | None = None) -> None:
        """Start an empty table.

        Args:
            datasets: name of the dataset of each query.
            bootstrap: settings of the intervals; default: 10,000 resamples at 95 %.
        """
        self.bootstrap = bootstrap or Bootstrap()
        self.datasets = datasets
        self.positions = positions_by_dataset(datasets)
        self.overall_stream = len(self.positions) - 1
        self._lines: list[dict[str, Any]] = []
        # By dataset: lines that wait for their estimate, the values of all queries, their range.
        self._pending: dict[str, list[tuple[dict[str, Any], Floats, ValueRange]]] = {}

    def strata(self, dataset: str) -> Sequence[str] | None:
        """Return the strata that the queries of a dataset were drawn from; None is one stratum."""
        return self.datasets if dataset == ALL_DATASETS else None

    def add_means(
        self,
        section: str,
        metrics: Mapping[str, Floats | None],
        datasets: Iterable[str] = (ALL_DATASETS,),
        within: Mapping[str, ValueRange] | None = None,
        **columns: Any,
    ) -> None:
        """Add a line for the mean of each metric over each dataset, with its interval.

        Args:
            section: part of the report that the lines belong to.
            metrics: float64[queries] by metric; None makes a line without a value, and so do
                queries that are all NaN. Where some are, the mean is that of the others.
            datasets: the datasets whose queries the means are taken over.
            within: the values that a query may have, by metric; of others see `METRIC_RANGES`.
            columns: what the metrics describe, as columns of `ESTIMATE_SCHEMA`.
        """
        ranges = {**METRIC_RANGES, **(within or {})}
        for dataset in datasets:
            n = len(self.positions[dataset])
            for metric, values in metrics.items():
                line = {"section": section, "dataset": dataset, "n": n, **columns, "metric": metric}
                line |= vars(Estimate(None))
                self._lines.append(line)
                if values is not None:
                    self._pending.setdefault(dataset, []).append((line, values, ranges[metric]))

    def add_values(
        self, section: str, metrics: Mapping[str, Estimate | float | None], **columns: Any
    ) -> None:
        """Add a line for each value that is already computed.

        Args:
            section: part of the report that the lines belong to.
            metrics: an estimate, or a number without an interval, by metric.
            columns: what the metrics describe, as columns of `ESTIMATE_SCHEMA`.
        """
        for metric, value in metrics.items():
            estimate = value if isinstance(value, Estimate) else Estimate(value)
            self._lines.append({"section": section, **columns, "metric": metric, **vars(estimate)})

    def lines(self) -> EstimateLines:
        """Compute the pending means, and return all lines in the order in which they were added."""
        for stream, (dataset, positions) in enumerate(self.positions.items()):
            pending = self._pending.pop(dataset, [])
            if not pending:
                continue
            values = np.array([of_queries[positions] for _, of_queries, _ in pending])
            ranges = [of_values for _, _, of_values in pending]
            is_partial = np.count_nonzero(np.isnan(values), axis=1) > 0
            strata = self.strata(dataset)
            complete = [row for row, lacks in zip(ranges, is_partial, strict=True) if not lacks]
            means = iter(
                estimate_means(values[~is_partial], self.bootstrap, stream, complete, strata)
            )
            # A metric that some queries do not have is a mean over the others.
            partial = values[is_partial]
            known = np.count_nonzero(np.isnan(partial), axis=0) == 0
            partial_means: Iterator[Estimate] = repeat(Estimate(None))
            if known.any():
                partial_means = iter(
                    estimate_means(
                        partial[:, known],
                        self.bootstrap,
                        stream,
                        [row for row, lacks in zip(ranges, is_partial, strict=True) if lacks],
                        None if strata is None else np.array(strata)[known].tolist(),
                    )
                )
            for (line, _, _), row_is_partial in zip(pending, is_partial.tolist(), strict=True):
                line.update(vars(next(partial_means if row_is_partial else means)))
        return self._lines


class Row(SimpleNamespace):
    """One row of a table or of the JSON: what it describes (policy, dataset, ...), and metrics.

    The metric `reward` is the attribute `reward`; the ends of its interval are `reward_low` and
    `reward_high`. Each is None if it is not known.
    """

    def estimate(self, metric: str) -> Estimate:
        """Return a metric with its interval."""
        return Estimate(
            value=getattr(self, metric),
            low=getattr(self, f"{metric}_low"),
            high=getattr(self, f"{metric}_high"),
        )

    def ends(self, metric: str) -> tuple[float, float]:
        """Return the ends of a metric's interval, for a drawing: its value if it has none."""
        value = getattr(self, metric)
        low = getattr(self, f"{metric}_low")
        high = getattr(self, f"{metric}_high")
        return value if low is None else low, value if high is None else high

    def cells(self, names: str) -> tuple[Cell, ...]:
        """Return cells of a table.

        Args:
            names: attributes, separated by spaces; in brackets the interval of a metric:
                `"quality reward [reward]"` is two values and an interval.
        """
        cells: list[Cell] = []
        for name in names.split():
            if name.startswith("["):
                estimate = self.estimate(name.strip("[]"))
                cells.append(interval(estimate.low, estimate.high))
            else:
                cells.append(getattr(self, name))
        return tuple(cells)


def pivot(lines: EstimateLines, section: str, *names: str) -> tuple[Row, ...]:
    """Collect the lines of a section into rows: all metrics of the same thing in one row.

    A metric that its row already has begins another row, because two policies may share a name.

    Args:
        lines: the long table.
        section: the section to read.
        names: columns that say what a row describes.
    """
    rows: list[Row] = []
    latest_rows: dict[tuple[Any, ...], Row] = {}
    for line in lines:
        if line["section"] != section:
            continue
        key = tuple(line.get(name) for name in names)
        metric = line["metric"]
        row = latest_rows.get(key)
        if row is None or hasattr(row, metric):
            row = Row(**dict(zip(names, key, strict=True)))
            latest_rows[key] = row
            rows.append(row)
        setattr(row, metric, line["value"])
        setattr(row, f"{metric}_low", line["low"])
        setattr(row, f"{metric}_high", line["high"])
    return tuple(rows)

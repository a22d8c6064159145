"""What a report is made of: one long table of figures, and the rows read off it.

Every mean with its interval is a line of the table: what it is of (section, policy, dataset, price
list, ...), the metric, its value, and the ends of the interval. Tables, figures, CSV and JSON read
rows off it: see `pivot`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.evaluation.intervals import percentile_interval, resampled_means
from hierrouter.evaluation.outcome import ROUTER
from hierrouter.tables import Cell, interval

ALL = "all"
GROUPS = {  # heading of the policies of each kind, in the order of a table
    "reference": "Reference models",
    "single": "Pool models (direct calls)",
    "router": "Learned",
    "route": "Fixed routes",
    "baseline": "Baselines",
    "oracle": "Best in hindsight",
}
# A mean with its interval and what it is of, by names in `SCHEMA`; those that say nothing may lack.
# Not an Arrow table, for making one imports pandas, which is a tenth of a report's time.
Lines = Sequence[dict[str, Any]]
SCHEMA = pa.schema(
    [
        ("section", pa.string()),  # which part of the report the line belongs to
        ("policy", pa.string()),
        ("kind", pa.string()),  # single, reference, route, router, oracle or baseline
        ("arms", pa.string()),  # of a baseline: "A" or "B", what it chooses from
        ("rung", pa.string()),  # of the ladder of bounds
        ("dataset", pa.string()),  # or "all"
        ("prices", pa.string()),  # name of the price list
        ("alpha", pa.float64()),
        ("hop", pa.int64()),
        ("model", pa.string()),
        ("n", pa.int64()),  # how many queries or decisions
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)


def shown_name(policy: str) -> str:
    """How tables and figures call a policy: the router has one name, alone or handing over."""
    own = policy == ROUTER or policy.startswith(f"{ROUTER}, ")
    return f"HierRouter{policy.removeprefix(ROUTER)}" if own else policy


# Rows resampled together: bounds the memory at 16 bytes * ROWS_AT_ONCE * resamples.
ROWS_AT_ONCE = 256
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Bootstrap:
    """How the intervals were made: expanded percentiles over queries drawn with replacement.

    Attributes:
        n: resamples.
        level: coverage, in (0, 1).
        seed: of the resampling.
    """

    n: int = 10_000
    level: float = 0.95
    seed: int = 0

    @property
    def interval_title(self) -> str:
        """Of a column of intervals: `95% interval`."""
        return f"{self.level:.0%} interval"

    def draws(self, stream: int) -> np.random.Generator:
        """What resamples of a dataset are drawn from: the same for all its figures.

        `stream`: number of the dataset, which keeps the resamples of datasets apart.
        """
        return np.random.default_rng([self.seed, stream])


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval; ends are None where resamples do not bound it."""

    value: float | None
    low: float | None = None
    high: float | None = None


def each(values: Values, low: Values, high: Values) -> list[Estimate]:
    """An estimate of each value; all float64[rows]."""
    numbers = zip(values.tolist(), low.tolist(), high.tolist(), strict=True)
    return [Estimate(*one) for one in numbers]


def estimates(values: Values, bootstrap: Bootstrap, stream: int) -> list[Estimate]:
    """Mean and interval of each row."""
    found: list[Estimate] = []
    for start in range(0, len(values), ROWS_AT_ONCE):
        part = values[start : start + ROWS_AT_ONCE]
        means = resampled_means(part, bootstrap.n, bootstrap.draws(stream))
        low, high = percentile_interval(means, values.shape[1], bootstrap.level)
        found += each(part.mean(axis=1), low, high)
    return found


def columns_of(datasets: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Positions of the queries of each dataset, in order of appearance, then of all.

    A dataset's place is the number of its stream, see `Bootstrap.draws`.
    """
    names = np.array(datasets, dtype=object)
    columns = {name: np.flatnonzero(names == name) for name in dict.fromkeys(datasets)}
    columns[ALL] = np.arange(len(datasets))
    return columns


class Estimates:
    """The long table while it is written.

    Means are asked for with `add` and worked out together, by dataset: all figures of a dataset
    share their resamples.

    Attributes:
        columns: see `columns_of`.
        every: the stream of all queries.
    """

    def __init__(self, datasets: Sequence[str], bootstrap: Bootstrap | None = None) -> None:
        """Start an empty table.

        Args:
            datasets: name of the dataset of each query.
            bootstrap: defaults to 10,000 resamples at 95 %.
        """
        self.bootstrap = bootstrap or Bootstrap()
        self.datasets = datasets
        self.columns = columns_of(datasets)
        self.every = len(self.columns) - 1
        self._lines: list[dict[str, Any]] = []
        self._wanted: dict[str, list[tuple[dict[str, Any], Values]]] = {}

    def add(
        self,
        section: str,
        metrics: Mapping[str, Values | None],
        datasets: Iterable[str] = (ALL,),
        **of: Any,
    ) -> None:
        """The mean of each metric with its interval.

        Args:
            section: of the report.
            metrics: float64[queries] each; None is a line without a value.
            datasets: a mean over the queries of each of these.
            of: what the metrics are of, columns of `SCHEMA`.
        """
        for dataset in datasets:
            n = len(self.columns[dataset])
            for metric, values in metrics.items():
                line = {"section": section, "dataset": dataset, "n": n, **of, "metric": metric}
                self._lines.append(line | vars(Estimate(None)))
                if values is not None:
                    self._wanted.setdefault(dataset, []).append((self._lines[-1], values))

    def state(
        self, section: str, metrics: Mapping[str, Estimate | float | None], **of: Any
    ) -> None:
        """Values that are known already; see `add` for the arguments."""
        for metric, known in metrics.items():
            found = known if isinstance(known, Estimate) else Estimate(known)
            self._lines.append({"section": section, **of, "metric": metric, **vars(found)})

    def lines(self) -> Lines:
        """Everything, in the order in which it was added."""
        for stream, (dataset, queries) in enumerate(self.columns.items()):
            wanted = self._wanted.pop(dataset, [])
            values = np.array([values[queries] for _, values in wanted])
            found = estimates(values, self.bootstrap, stream)
            for (line, _), estimate in zip(wanted, found, strict=True):
                line.update(vars(estimate))
        return self._lines


class Row(SimpleNamespace):
    """What a line of a table or of the JSON says: a policy, a dataset and the like, and metrics.

    The metric `reward` is at `reward`, the ends of its interval are at `reward_low` and
    `reward_high`; each is None where it is not known.
    """

    def estimate(self, metric: str) -> Estimate:
        """A metric with its interval."""
        value, low, high = (getattr(self, metric + end) for end in ("", "_low", "_high"))
        return Estimate(value, low, high)

    def cells(self, names: str) -> tuple[Cell, ...]:
        """Cells of a table: `"quality reward [reward]"` is two values and an interval."""
        found: list[Cell] = []
        for name in names.split():
            if name.startswith("["):
                ends = self.estimate(name.strip("[]"))
                found.append(interval(ends.low, ends.high))
            else:
                found.append(getattr(self, name))
        return tuple(found)


def pivot(lines: Lines, section: str, *names: str) -> tuple[Row, ...]:
    """The lines of a section with all metrics of the same thing in one row.

    Args:
        names: columns that say what a row is of. A second value of a metric begins another row: two
            policies may have one name.
    """
    rows: list[Row] = []
    latest: dict[tuple[Any, ...], Row] = {}
    for line in lines:
        if line["section"] != section:
            continue
        key, metric = tuple(line.get(name) for name in names), line["metric"]
        row = latest.get(key)
        if row is None or hasattr(row, metric):
            row = latest[key] = Row(**dict(zip(names, key, strict=True)))
            rows.append(row)
        vars(row).update(
            {metric: line["value"], f"{metric}_low": line["low"], f"{metric}_high": line["high"]}
        )
    return tuple(rows)

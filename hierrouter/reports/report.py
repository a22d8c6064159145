"""A finished report: its tables, its page and its JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.evaluation.outcome import ROUTER
from hierrouter.evaluation.policies import OwnPolicy, own_policies
from hierrouter.pools.pool import POOL
from hierrouter.replay.tree import Tree
from hierrouter.reports import evaluated
from hierrouter.reports.results import HandingOver, Report
from hierrouter.reports.sentences import message
from hierrouter.reports.tables import long_table, named_tables
from hierrouter.reports.values import SCHEMA, Row
from hierrouter.runs.checkpoint import is_sweep
from hierrouter.runs.folders import find_run
from hierrouter.runs.selection import SelectedRun, provenance, select_run
from hierrouter.tables import Table, finite_or_none, json_text
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.writer import write_atomically


@dataclass(frozen=True)
class ReportRequest:
    """What a report is to be made of; what does not fit is refused before anything is evaluated.

    Attributes:
        lists: the tree under each price list, by the list's name; the first is the main one.

    Raises:
        InputError: a model to hand over to that is not there, or no router that could.
    """

    lists: Mapping[str, Tree]
    shown: SelectedRun
    split: str = "test"
    defer: evaluated.DeferTo | None = None
    policies: tuple[OwnPolicy, ...] = ()
    p95_below: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be handed over."""
        if self.defer:
            evaluated.require_deferrable(self.tree, self.shown.trained, self.defer)

    @property
    def tree(self) -> Tree:
        """The tree under the first price list."""
        return next(iter(self.lists.values()))

    @property
    def runs(self) -> Sequence[Path | None]:
        """Every run whose routers are evaluated, that of the router shown first."""
        return self.shown.run, self.shown.sweep_run

    def evaluate(self) -> FinishedReport:
        """Everything under the first price list.

        Raises InputError: something does not fit together, or there is nothing to report on.
        """
        tree, shown = self.tree, self.shown
        several = self.lists if len(self.lists) > 1 else {}
        source = provenance(tree, tree.root, shown.run, shown.trained, shown.sweep_run, several)
        result = evaluated.report_on(
            tree,
            shown.alpha,
            shown.trained,
            shown.sweep,
            source,
            self.split,
            price_lists=self.lists,
            defer=self.defer,
            policies=self.policies,
            p95_below=self.p95_below,
        )
        return FinishedReport(self, result)


PAGE, JSON = "report.html", "report.json"
ROWS = "rows"  # name of the table with every row


@dataclass(frozen=True, repr=False)
class FinishedReport:
    """What a report found."""

    request: ReportRequest
    result: Report

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader must not miss, those on the choice of the router first."""
        return (*self.request.shown.remarks, *self.result.notes)

    @property
    def message(self) -> str:
        """What it says, in one sentence."""
        return message(self.result)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Every table by name; "rows" is the long one, a line for each policy and dataset."""
        return {**named_tables(self.result), ROWS: long_table(self.result)}

    def table(self, name: str) -> Table:
        """One of `tables`; raises InputError: there is none of this name."""
        return table_named(name, self.tables)

    def to_arrow(self) -> pa.Table:
        """Every figure with its interval, one line each; see `hierrouter.reports.values.SCHEMA`."""
        return pa.Table.from_pylist(self.result.estimates, SCHEMA)

    def to_json(self) -> str:
        """The report as one JSON object; its keys are a contract, see docs/reference/json.md."""
        return as_json(self.result)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page with all figures and tables; it is one file and loads nothing.

        Raises WorldError: the disk is full or failed.
        """
        # Figures need matplotlib, which tables do not.
        from hierrouter.reports.page import as_html

        page = Path(path)
        write_atomically(page, as_html(self.result).encode())
        return page

    def write(self, folder: Path) -> Path:
        """The page and the JSON in `folder`; returns the page."""
        write_atomically(folder / JSON, self.to_json().encode())
        return self.to_html(folder / PAGE)

    def __repr__(self) -> str:
        return f"{self.message}\n\n{self.table('summary')}"


def report(
    tree: Tree,
    run: str | os.PathLike[str] | None = None,
    *,
    alpha: float | None = None,
    split: str = "test",
    sweep: str | os.PathLike[str] | None = None,
    defer_to: str | None = None,
    defer_share: float | None = None,
    policies: Sequence[Any] = (),
    price_lists: Mapping[str, Tree] | None = None,
    p95_below: float | None = None,
) -> FinishedReport:
    """Evaluate everything on one fold, exactly, with intervals by bootstrap over the queries.

    Looks at the test fold are logged by the command line only.

    Args:
        tree: all folds.
        run: of `train` or `sweep`, or its folder; default: the newest that learned from the tree.
        alpha: price of cost; default: the one that the router was trained for.
        split: the fold to evaluate on; "all" is all of them, which is no test.
        sweep: of `sweep`, or its folder, for the frontier; default: the newest.
        defer_to: a model whose direct call takes what the router doubts.
        defer_share: at most this share of the queries; default: what gives the highest R.
        policies: of your own, to be valued beside it; see `hierrouter.evaluation.policies`.
        price_lists: the same tree under other prices, by name, to be shown side by side.
        p95_below: name the best fixed route whose 95th percentile has at most so many seconds.

    Raises:
        InputError: something does not fit together, or there is nothing to report on.
        CacheError: the cache that the tree was opened from is gone or damaged.
    """
    folder, swept = run_or_sweep(run, sweep)
    own = own_policies(policies)
    shown = select_run(tree, alpha, folder, swept, with_sweep=True)
    defer = evaluated.DeferTo(defer_to, defer_share) if defer_to is not None else None
    lists = {POOL: tree, **(price_lists or {})}
    return ReportRequest(lists, shown, split, defer, own, p95_below).evaluate()


def run_or_sweep(
    run: str | os.PathLike[str] | None, sweep: str | os.PathLike[str] | None = None
) -> tuple[Path | None, Path | None]:
    """The folders of a run of `train` and of a sweep; a sweep may be given as the run."""
    folder = None if run is None else find_run(run)
    swept = None if sweep is None else find_run(sweep)
    if folder is not None and is_sweep(folder):
        return None, folder
    return folder, swept


def table_named(name: str, tables: Mapping[str, Table]) -> Table:
    """One of these tables; raises InputError: there is none of this name."""
    if name not in tables:
        raise InputError(f"unknown table: {name}; {suggestion(name, tables)}".rstrip("; "))
    return tables[name]


FORMAT = 5  # of the object; goes up where a key leaves or changes its meaning


def as_json(report: Report) -> str:
    """The contract's object as text; see `tables.json_text` for the errors."""
    return json_text(as_object(report), "report")


def as_object(report: Report) -> dict[str, Any]:
    """The report as dictionaries and lists, floats as they are."""
    own: dict[str, list[dict[str, Any]]] = {}  # there only where somebody brought a policy
    for row in report.regret:
        if row.policy != ROUTER:
            own.setdefault(row.policy, []).append(_regret(row))
    return {
        "format": FORMAT,
        "message": message(report),
        "alpha": report.alpha,
        "cost_unit": report.cost_unit,
        "deciding_alphas": report.deciding_alphas,
        "savings": [asdict(saving) for saving in report.savings],
        "scorer": report.scorer,
        "split": report.split,
        "bootstrap": {**asdict(report.bootstrap), "cluster": "query"},
        "rows": [vars(row) for row in report.rows],
        "gap_closed": dict(report.gap_closed),
        "gap_closed_intervals": dict(report.gap_closed_intervals),
        "comparisons": [
            {key.removeprefix("difference_"): value for key, value in vars(row).items()}
            for row in report.comparisons
        ],
        "frontier": [vars(row) for row in report.frontier],
        "price_lists": [
            {**vars(prices), "rows": [_but(row, "prices") for row in prices.rows]}
            for prices in report.price_lists
        ],
        "depths": [{"calls": row.hop, **_but(row, "hop")} for row in report.depths],
        "deferral": _deferral(report.deferral) if report.deferral else None,
        "analysis": _analysis(report) if report.ladder else None,
        "notes": list(report.notes),
        "provenance": dict(report.provenance),
        **({"policy_regret": own} if own else {}),
        **({"latency": _latency(report)} if report.latency else {}),
    }


def _latency(report: Report) -> dict[str, Any]:
    names, best = ("policy", "kind", "p50", "p95"), report.best_in_time
    return {
        "rows": [{name: getattr(row, name) for name in names} for row in report.latency],
        "p95_below": report.p95_below,
        "best_in_time": best and best.policy,
    }


def _but(row: Row, name: str) -> dict[str, Any]:
    return {key: value for key, value in vars(row).items() if key != name}


def _analysis(report: Report) -> dict[str, Any]:
    nested = {
        "ladder": ("rung policy dataset n", "quality cost reward"),
        "looks": ("policy dataset n", "quality cost reward"),
        "reliability": ("least below n said", "best"),
    }
    return {
        **{
            section: [_nested(row, *fields) for row in getattr(report, section)]
            for section, fields in nested.items()
        },
        "regret": [_regret(row) for row in report.regret if row.policy == ROUTER],
    }


def _nested(row: Row, plain: str, metrics: str) -> dict[str, Any]:
    """Some fields as they are, and metrics with their intervals."""
    found = {name: getattr(row, name) for name in plain.split()}
    for name in metrics.split():
        value, low, high = vars(row.estimate(name)).values()
        found[name] = {"mean": value, "low": low, "high": high}
    return found


def _regret(row: Row) -> dict[str, Any]:
    shown = _nested(row, "", "whole plan adaptivity")
    return {**_nested(row, "dataset n", ""), "shown": shown}


def _deferral(handing: HandingOver) -> dict[str, Any]:
    """A threshold is null where no query is handed over, or each one: see its share."""
    found = asdict(handing)
    for point in (found["chosen"], *found["curve"]):
        point["threshold"] = finite_or_none(point["threshold"])
    return found

"""The report on a router: how it is requested, and its tables, its page and its JSON."""

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
from hierrouter.pools.pool import POOL_PRICES
from hierrouter.replay.tree import Tree
from hierrouter.reports.estimates import ESTIMATE_SCHEMA, Row
from hierrouter.reports.fold_report import DeferralTarget, report_on_fold, require_deferrable
from hierrouter.reports.results import DeferralSummary, Report
from hierrouter.reports.sentences import message
from hierrouter.reports.tables import long_table, named_tables
from hierrouter.runs.checkpoint import is_sweep
from hierrouter.runs.folders import find_run
from hierrouter.runs.selection import SelectedRun, provenance, select_run
from hierrouter.tables import Table, finite_or_none, json_text
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.writer import write_atomically


@dataclass(frozen=True)
class ReportRequest:
    """The subject of a report. An impossible deferral is rejected before anything is evaluated.

    Attributes:
        price_lists: the tree under each price list, by the list's name; the first is the main one.
        selected: the router and the sweep to report on.
        split: the fold to evaluate on.
        defer: the model that takes what the router doubts; None without deferral.
        policies: the user's policies, to be evaluated beside the router.
        p95_below: name the best fixed route whose 95th percentile has at most this many seconds.

    Raises:
        InputError: there is no direct call of the model to defer to, or no router.
    """

    price_lists: Mapping[str, Tree]
    selected: SelectedRun
    split: str = "test"
    defer: DeferralTarget | None = None
    policies: tuple[OwnPolicy, ...] = ()
    p95_below: float | None = None

    def __post_init__(self) -> None:
        """Reject an impossible deferral."""
        if self.defer:
            require_deferrable(self.tree, self.selected.trained, self.defer)

    @property
    def tree(self) -> Tree:
        """The tree under the first price list."""
        return next(iter(self.price_lists.values()))

    @property
    def runs(self) -> Sequence[Path | None]:
        """The runs whose routers are evaluated: that of the router, then that of the sweep."""
        return self.selected.run, self.selected.sweep_run

    def evaluate(self) -> FinishedReport:
        """Evaluate everything under the first price list.

        Raises:
            InputError: something does not fit together, or there is nothing to report on.
        """
        tree = self.tree
        selected = self.selected
        # A single price list needs no entry: provenance has it with the tree.
        several_lists = self.price_lists if len(self.price_lists) > 1 else {}
        source = provenance(
            tree, tree.root, selected.run, selected.trained, selected.sweep_run, several_lists
        )
        result = report_on_fold(
            tree,
            selected.alpha,
            selected.trained,
            selected.sweep,
            source,
            self.split,
            price_lists=self.price_lists,
            defer=self.defer,
            policies=self.policies,
            p95_below=self.p95_below,
        )
        return FinishedReport(self, result)


PAGE_FILE = "report.html"
JSON_FILE = "report.json"
LONG_TABLE = "rows"  # name of the table with every row


@dataclass(frozen=True, repr=False)
class FinishedReport:
    """A report that is evaluated: its sentences, its tables, and the files it can write.

    Attributes:
        request: what the report was made of.
        result: every figure.
    """

    request: ReportRequest
    result: Report

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader must not miss, those on the choice of the router first."""
        return (*self.request.selected.remarks, *self.result.notes)

    @property
    def message(self) -> str:
        """The report in one sentence."""
        return message(self.result)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Every table by name; "rows" is the long one, a line for each policy and dataset."""
        return {**named_tables(self.result), LONG_TABLE: long_table(self.result)}

    def table(self, name: str) -> Table:
        """Return one of `tables`.

        Raises:
            InputError: there is no table of this name.
        """
        return find_table(name, self.tables)

    def to_arrow(self) -> pa.Table:
        """Return every figure with its interval, one line each; see `estimates.ESTIMATE_SCHEMA`."""
        return pa.Table.from_pylist(self.result.estimates, ESTIMATE_SCHEMA)

    def to_json(self) -> str:
        """Return the report as one JSON object; docs/reference/json.md has its keys."""
        return as_json(self.result)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page with all figures and tables, one file that loads nothing.

        Args:
            path: the page's file.

        Returns:
            The page's file.

        Raises:
            WorldError: the disk is full or failed.
        """
        # Figures need matplotlib, which tables do not.
        from hierrouter.reports.page import as_html

        page = Path(path)
        write_atomically(page, as_html(self.result).encode())
        return page

    def write(self, folder: Path) -> Path:
        """Write the page and the JSON to a folder; return the page's file.

        Raises:
            WorldError: the disk is full or failed.
        """
        write_atomically(folder / JSON_FILE, self.to_json().encode())
        return self.to_html(folder / PAGE_FILE)

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
        defer_share: at most this share of the queries; default: the share that gives the highest R.
        policies: your own policies, to be evaluated beside the router; see
            `hierrouter.evaluation.policies`.
        price_lists: the same tree under other prices, by name, for a table side by side.
        p95_below: name the best fixed route whose 95th percentile has at most this many seconds.

    Returns:
        The report, with its tables, its page and its JSON.

    Raises:
        InputError: something does not fit together, or there is nothing to report on.
        CacheError: the cache that the tree was opened from is gone or damaged.
    """
    run_folder, sweep_folder = run_or_sweep(run, sweep)
    own = own_policies(policies)
    selected = select_run(tree, alpha, run_folder, sweep_folder, with_sweep=True)
    defer = DeferralTarget(defer_to, defer_share) if defer_to is not None else None
    lists = {POOL_PRICES: tree, **(price_lists or {})}
    return ReportRequest(lists, selected, split, defer, own, p95_below).evaluate()


def run_or_sweep(
    run: str | os.PathLike[str] | None, sweep: str | os.PathLike[str] | None = None
) -> tuple[Path | None, Path | None]:
    """Return the folders of a run of `train` and of a sweep; a sweep may be given as the run."""
    run_folder = None if run is None else find_run(run)
    sweep_folder = None if sweep is None else find_run(sweep)
    if run_folder is not None and is_sweep(run_folder):
        return None, run_folder
    return run_folder, sweep_folder


def find_table(name: str, tables: Mapping[str, Table]) -> Table:
    """Return the table of this name.

    Raises:
        InputError: there is no table of this name.
    """
    if name not in tables:
        raise InputError(f"unknown table: {name}; {suggestion(name, tables)}".rstrip("; "))
    return tables[name]


REPORT_FORMAT = 5  # of the JSON object; goes up if a key is removed or changes its meaning


def as_json(report: Report) -> str:
    """Return the object of `as_object` as text; see `tables.json_text` for the errors."""
    return json_text(as_object(report), "report")


def as_object(report: Report) -> dict[str, Any]:
    """Return the report as dictionaries and lists, floats as they are.

    Its keys are those of schema.json.
    """
    optional: dict[str, Any] = {}
    policy_regret = _regret_by_policy(report)
    if policy_regret:
        optional["policy_regret"] = policy_regret
    if report.latency:
        optional["latency"] = _latency(report)
    return {
        "format": REPORT_FORMAT,
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
            {**vars(prices), "rows": [_without(row, "prices") for row in prices.rows]}
            for prices in report.price_lists
        ],
        "depths": [{"calls": row.hop, **_without(row, "hop")} for row in report.depths],
        "deferral": _deferral(report.deferral) if report.deferral else None,
        "analysis": _analysis(report) if report.ladder else None,
        "notes": list(report.notes),
        "provenance": dict(report.provenance),
        **optional,
    }


def _regret_by_policy(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Regret of the user's policies, by name; empty without any."""
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for row in report.regret:
        if row.policy != ROUTER:
            by_policy.setdefault(row.policy, []).append(_regret(row))
    return by_policy


def _latency(report: Report) -> dict[str, Any]:
    names = ("policy", "kind", "p50", "p95")
    best = report.best_in_time
    return {
        "rows": [{name: getattr(row, name) for name in names} for row in report.latency],
        "p95_below": report.p95_below,
        "best_in_time": best.policy if best else None,
    }


def _without(row: Row, name: str) -> dict[str, Any]:
    """The attributes of a row, except one."""
    return {key: value for key, value in vars(row).items() if key != name}


def _analysis(report: Report) -> dict[str, Any]:
    # By section: attributes that are written as they are, and metrics with intervals.
    sections = {
        "ladder": ("rung policy dataset n", "quality cost reward"),
        "looks": ("policy dataset n", "quality cost reward"),
        "reliability": ("least below n said", "best"),
    }
    analysis: dict[str, Any] = {
        section: [_nested(row, *names) for row in getattr(report, section)]
        for section, names in sections.items()
    }
    analysis["regret"] = [_regret(row) for row in report.regret if row.policy == ROUTER]
    return analysis


def _nested(row: Row, plain: str, metrics: str) -> dict[str, Any]:
    """Some attributes of a row as they are, and metrics as objects with their intervals.

    Args:
        row: the row.
        plain: names of attributes, separated by spaces.
        metrics: names of metrics, separated by spaces.
    """
    nested = {name: getattr(row, name) for name in plain.split()}
    for name in metrics.split():
        estimate = row.estimate(name)
        nested[name] = {"mean": estimate.value, "low": estimate.low, "high": estimate.high}
    return nested


def _regret(row: Row) -> dict[str, Any]:
    parts = _nested(row, "", "whole plan adaptivity")
    return {**_nested(row, "dataset n", ""), "shown": parts}


def _deferral(deferral: DeferralSummary) -> dict[str, Any]:
    """A threshold is null if no query is deferred, or every one: its share says which."""
    summary = asdict(deferral)
    for point in (summary["chosen"], *summary["curve"]):
        point["threshold"] = finite_or_none(point["threshold"])
    return summary

"""The report on a router: how it is evaluated, and its tables, its page and its JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hierrouter.evaluation.outcome import ROUTER
from hierrouter.pools.files import COST_IN_TOKENS, stored_import
from hierrouter.pools.pool import KEEP_THOUGHTS
from hierrouter.questions.audit import KINDS, Audit, Response, audit_responses, draw_audited
from hierrouter.questions.query import full_names, stored_choices
from hierrouter.questions.scoring import ACCURACY, GIVEN_SCORER, SCORERS_BY_NAME
from hierrouter.replay.opening import few_queries_note
from hierrouter.replay.stored_pool import measure_forest
from hierrouter.replay.tree import Tree, calls_of
from hierrouter.reports.estimates import ESTIMATE_SCHEMA, Row
from hierrouter.reports.fold_report import report_on_fold, require_deferrable
from hierrouter.reports.results import DeferralSummary, ReportData
from hierrouter.reports.sentences import (
    FEW_QUERIES_ROLE,
    describe_policies,
    log_looks,
    message,
    router_sentence,
    selection_notes,
)
from hierrouter.reports.tables import lacking_for_paper, long_table, named_tables, paper_tables
from hierrouter.runs.folders import draft_of, make_folder_of, new_run
from hierrouter.runs.selection import SelectedRun, provenance, select_run
from hierrouter.runs.training import RunCallbacks, retrain
from hierrouter.tables import Table, finite_or_none, json_text
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.walk import stored_scores
from hierrouter_cache.writer import write_atomically

if TYPE_CHECKING:
    from hierrouter.reports.jobs import Report as ReportJob


def evaluate_report(
    job: ReportJob,
    trees: Mapping[str, Tree],
    on_note: Callable[[str], None],
    show_progress: Callable[[], AbstractContextManager[object]],
) -> FinishedReport:
    """Do the job of `Report.evaluate`, which has the arguments and the errors."""
    tree = next(iter(trees.values()))
    checkpoint = job.checkpoint
    sweep = job.sweep
    if job.retrain:
        callbacks = RunCallbacks(on_note=on_note)
        checkpoint = retrain("train", checkpoint, tree, callbacks)
        sweep = retrain("sweep-alpha", sweep, tree, callbacks)
    selected = select_run(tree, job.alpha, checkpoint, sweep, with_sweep=True)
    if job.deferral:
        require_deferrable(tree, selected.trained, job.deferral)
    for note in _notes_before(job, trees, selected):
        on_note(note)
    # A single price list needs no entry: provenance has it with the tree.
    several_lists = trees if len(trees) > 1 else {}
    with show_progress():
        source = provenance(
            tree,
            tree.root,
            selected.run,
            selected.trained,
            selected.sweep_run,
            several_lists,
            selected.sweep,
        )
        result = report_on_fold(
            tree,
            selected.alpha,
            selected.trained,
            selected.sweep,
            source,
            job.split,
            price_lists=trees,
            defer=job.deferral,
            policies=job.own_policies,
            p95_below=job.p95_below,
            beside=selected.beside,
        )
        if selected.run is None:
            result = replace(result, unfit=selected.why)
        audit = audit_tree(tree)
        result = replace(result, audit=audit, notes=(*result.notes, *_audit_notes(audit)))
    return FinishedReport(selected, result, checkpoint)


def _audit_notes(audit: Audit) -> Iterator[str]:
    """Yield what a reader of figures should know of the responses and scores that they rest on."""
    for statement in filter(None, (*audit.warnings, audit.agreement_line)):
        yield f"{statement[0].upper()}{statement[1:]}."


def _notes_before(
    job: ReportJob, trees: Mapping[str, Tree], selected: SelectedRun
) -> Iterator[str]:
    """Log a look at the test fold, and yield what to know before a report is evaluated."""
    tree = next(iter(trees.values()))
    few_queries = few_queries_note(tree, job.split, FEW_QUERIES_ROLE)
    if few_queries:
        yield few_queries
    yield from selection_notes("report", selected, job.split, with_alpha=True, with_sweep=True)
    look = {
        "alpha": selected.alpha,
        "defer": asdict(job.deferral) if job.deferral else None,
        "price_lists": [priced.fingerprint for priced in trees.values()],
        **describe_policies(job.own_policies),
    }
    yield from log_looks("report", tree, job.split, selected.runs, look)


PAGE_FILE = "report.html"
JSON_FILE = "report.json"
LONG_TABLE = "rows"  # name of the table with every row


@dataclass(frozen=True, repr=False)
class FinishedReport:
    """A report that is evaluated: its sentences, its tables, and the files it can write.

    Attributes:
        selected: the router and the sweep that it is about.
        result: every figure.
        checkpoint: folder of the router's run if it was named, or trained again.
    """

    selected: SelectedRun
    result: ReportData
    checkpoint: Path | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader must not miss, those on the choice of the router first."""
        return (*self.selected.remarks, *self.result.notes)

    @property
    def message(self) -> str:
        """The report in a few sentences: its verdict, what is ahead, and what is possible."""
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

    @property
    def paper_tables(self) -> dict[str, Table]:
        """The paper's results by name: "quality" (table 1), "cost" (table 2) and "reward".

        The paper draws the net reward; `save` writes that figure, too.
        """
        return {table.name: table for table in paper_tables(self.result)}

    @property
    def paper_notes(self) -> tuple[str, ...]:
        """What the paper's results lack here, and what the router is if not the paper's.

        A router that is one fixed route is in `notes` already, with the reason.
        """
        lacking = lacking_for_paper(self.result)
        router = router_sentence(self.result)
        return lacking if self.result.fixed_route or not router else (*lacking, router)

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
        make_folder_of(page)
        write_atomically(page, as_html(self.result).encode())
        return page

    def write(self, folder: Path) -> Path:
        """Write the page and the JSON to a folder; return the page's file.

        Raises:
            WorldError: the disk is full or failed.
        """
        write_atomically(folder / JSON_FILE, self.to_json().encode())
        return self.to_html(folder / PAGE_FILE)

    def save(self, out: Path | None = None, figures: Sequence[str] = ()) -> Path:
        """Write the page, the JSON and figures to a new folder, all at once.

        Args:
            out: the folder; None makes a new one below `runs`.
            figures: formats of figures, see `figures.FIGURE_FORMATS`.

        Returns:
            The folder.

        Raises:
            InputError: the folder is in use, or a format is unknown.
            WorldError: the disk is full or failed.
        """
        folder = new_run("report", out)
        with draft_of(folder) as draft:
            self.write(draft)
            if figures:
                # Figures need matplotlib, which tables do not.
                from hierrouter.reports.figures import export_figures, report_figures

                export_figures(report_figures(self.result), draft, figures)
        return folder

    @staticmethod
    def figure_files(folder: Path, figures: Sequence[str]) -> list[Path]:
        """The files of figures in the folder of a report, by the formats of figures."""
        return [file for file in sorted(folder.iterdir()) if file.suffix[1:] in figures]

    def save_paper_figures(self, out: Path | None, figures: Sequence[str]) -> list[Path]:
        """Write the figures for a paper alone to a new folder; see `save` for errors.

        Args:
            out: the folder; None makes a new one below `runs`.
            figures: their formats.

        Returns:
            The files.
        """
        from hierrouter.reports.figures import export_figures, paper_figures

        folder = new_run("report", out)
        with draft_of(folder) as draft:
            files = export_figures(paper_figures(self.result), draft, figures)
        return [folder / file.name for file in files]

    def __repr__(self) -> str:
        return f"{self.message}\n\n{self.table('summary')}"


def find_table(name: str, tables: Mapping[str, Table]) -> Table:
    """Return the table of this name.

    Raises:
        InputError: there is no table of this name.
    """
    if name not in tables:
        raise InputError(f"unknown table: {name}; {suggestion(name, tables)}".rstrip("; "))
    return tables[name]


REPORT_FORMAT = 5  # of the JSON object; goes up if a key is removed or changes its meaning


def as_json(report: ReportData) -> str:
    """Return the object of `as_object` as text; see `tables.json_text` for the errors."""
    return json_text(as_object(report), "report")


def as_object(report: ReportData) -> dict[str, Any]:
    """Return the report as dictionaries and lists, floats as they are.

    Its keys are those of schema.json.
    """
    optional: dict[str, Any] = {}
    policy_regret = _regret_by_policy(report)
    if policy_regret:
        optional["policy_regret"] = policy_regret
    if report.latency:
        optional["latency"] = _latency(report)
    if report.split_gap:
        optional["luck"] = {
            "split_gap": asdict(report.split_gap),
            "regret": [_nested(row, "dataset n", LUCK_TERMS) for row in report.luck],
        }
    if report.variance:
        optional["variance"] = [vars(row) for row in report.variance]
    if report.audit:
        optional["audit"] = _audit(report.audit)
    if report.history:
        optional["history"] = {name: list(column) for name, column in report.history.items()}
    return {
        "format": REPORT_FORMAT,
        "message": message(report),
        "training": report.training or None,
        "fixed_route": report.fixed_route or None,
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


LUCK_TERMS = "whole luck adaptivity plan generalisation"


def _audit(audit: Audit) -> dict[str, Any]:
    return {
        "n": audit.n,
        "total": audit.total,
        "models": [
            {
                "model": model.model,
                "n": model.n,
                **{kind.replace(" ", "_"): model.counts.get(kind, 0) for kind in KINDS},
            }
            for model in audit.models
        ],
        "agreements": [
            {**vars(agreement), "share": agreement.share} for agreement in audit.agreements
        ],
        "disagreements": [vars(disagreement) for disagreement in audit.disagreements],
    }


def _regret_by_policy(report: ReportData) -> dict[str, list[dict[str, Any]]]:
    """Regret of the user's policies, by name; empty without any."""
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for row in report.regret:
        if row.policy != ROUTER:
            by_policy.setdefault(row.policy, []).append(_regret(row))
    return by_policy


def _latency(report: ReportData) -> dict[str, Any]:
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


def _analysis(report: ReportData) -> dict[str, Any]:
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


# The audit of the answers that a report rests on.


def audit_tree(tree: Tree) -> Audit:
    """Audit the direct calls of a tree: how often verdicts agree, and what cannot be judged.

    Values of `accuracy` that are not stored yet are computed and stored, of the calls that are
    drawn.

    Args:
        tree: all folds, opened from a cache.

    Raises:
        CacheError: the cache that the tree was opened from is gone or damaged.
        WorldError: math-verify does not start.
    """
    reader, spec, forest = calls_of(tree.root, tree, tree.pool, first_hop=True)
    names = full_names(tree)
    models = [name for name, _ in spec.direct]
    present = np.argwhere(forest.direct.present)
    drawn = present[draw_audited([(names[row], models[column]) for row, column in present])]
    audited, rows = np.unique(drawn[:, 0], return_inverse=True)
    columns = drawn[:, 1]
    forest = forest.select(audited)
    calls = forest.direct.key[rows, columns]
    verdicts = stored_scores(reader, forest, GIVEN_SCORER.key).direct[rows, columns]
    texts = reader.texts(calls, with_prompt=True)
    queries = reader.queries(forest.keys, ("question", "answers", "choices")).to_pylist()
    cut = reader.signals(calls).cut
    responses = []
    for number, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        query = queries[row]
        call = texts[int(calls[number])]
        response = Response(
            query=names[audited[row]],
            dataset=tree.datasets[audited[row]],
            model=models[column],
            question=query["question"],
            references=tuple(query["answers"]),
            choices=stored_choices(query["choices"]),
            prompt=call.prompt,
            text=call.response,
            verdict=None if np.isnan(verdicts[number]) else float(verdicts[number]),
            is_cut=bool(cut[number]),
            tokens_in=int(forest.direct.tokens_in[row, column]),
            tokens_out=int(forest.direct.tokens_out[row, column]),
        )
        responses.append(response)
    judged = np.zeros_like(forest.direct.present)
    judged[rows, columns] = [bool(response.references) for response in responses]
    # Only these calls, and none of the tree.
    sample = replace(
        forest,
        tree=replace(forest.tree, present=np.zeros_like(forest.tree.present)),
        direct=replace(forest.direct, present=judged),
    )
    scorer = SCORERS_BY_NAME[ACCURACY]
    if tree.thoughts == KEEP_THOUGHTS:
        scorer = scorer.for_models(tree.thought_tags)
    # Programs have the verdicts of their tests, if these were run.
    accuracy = measure_forest(reader, sample, scorer, run_code=False).direct[rows, columns]
    decided = stored_import(reader.latest_plan().pool)
    return audit_responses(
        responses,
        len(present),
        [finite_or_none(value) for value in accuracy.tolist()],
        decided.get("tokens") != COST_IN_TOKENS,
    )

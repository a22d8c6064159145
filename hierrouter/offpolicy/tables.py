"""Off-policy estimates as tables and as JSON.

In: a `Result`. Out: `Table`s for a terminal or a paper, one long table, and plain values. Not
covered: how a table looks (`hierrouter.report.render`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hierrouter.offpolicy.clustered import LEVEL
from hierrouter.offpolicy.estimators import Estimate
from hierrouter.offpolicy.result import Result
from hierrouter.offpolicy.study import Score
from hierrouter.plain_json import json_text
from hierrouter.report.table import Cell, Column, Interval, Line, Table

DIGITS = 4
NAME = "estimator"
INTERVAL = f"{LEVEL:.0%} interval"
ABOUT_INTERVALS = (
    "Intervals count a question that was asked several times once. That of FQE does not hold that "
    "the regression may be of the wrong kind."
)


def result_tables(result: Result) -> list[Table]:
    """The estimates, how they did on fresh logs, and how much of the log they rest on."""
    studied = [_study_table(result)] if result.scores else []
    return [_estimate_table(result), *studied, _overlap_table(result)]


def long_table(result: Result) -> Table:
    """One row an estimator, with all that is known of it."""
    titles = (NAME, "value", "error", "low", "high", "truth")
    scored = ("bias", "bias_error", "deviation", "rmse", "coverage", "logs")
    rows = []
    for at, found in enumerate(result.evaluation.estimates):
        cells = (found.value, found.error, found.low, found.high, result.truth)
        more = [getattr(result.scores[at], name) for name in scored] if result.scores else []
        rows.append(Line("", (found.estimator, *map(_cell, cells), *map(_cell, more))))
    columns = (*titles, *(scored if result.scores else ()))
    return Table("off-policy", tuple(Column(title) for title in columns), tuple(rows))


def as_json(result: Result) -> str:
    """The result as one object, keys sorted, what is not known null."""
    return json_text(as_object(result), "estimates")


def as_object(result: Result) -> dict[str, Any]:
    """The result as JSON values; docs/off_policy.md describes the keys."""
    found = result.evaluation
    return {
        "alpha": result.alpha,
        "logged_by": dict(result.logged_by),
        "episodes": found.episodes,
        "queries": found.queries,
        "truth": result.truth,
        "truth_on": result.truth_on if result.truth is not None else None,
        "level": LEVEL,
        "estimates": [_known(asdict(estimate)) for estimate in found.estimates],
        "scores": [_known(asdict(score)) for score in result.scores],
        "overlap": _known(asdict(found.overlap)),
        "notes": list(result.notes),
        "provenance": dict(result.provenance),
    }


def _estimate_table(result: Result) -> Table:
    found = result.evaluation
    told = ""
    if result.truth is not None:
        told = f"; exactly {result.truth:.{DIGITS}f} on {result.truth_on}"
    columns = [Column(NAME), Column("R", DIGITS), Column("error", DIGITS)]
    columns.append(Column(INTERVAL, DIGITS))
    if result.truth is not None:
        columns.append(Column("R - truth", DIGITS, signed=True))
    return Table(
        title=f"Mean R of HierRouter at alpha {result.alpha:g} from {found.episodes:,} episodes of "
        f"{found.queries:,} questions{told}",
        columns=tuple(columns),
        rows=tuple(_estimate_line(estimate, result) for estimate in found.estimates),
        note=" ".join([*map(_sentence, result.notes), ABOUT_INTERVALS]),
    )


def _estimate_line(found: Estimate, result: Result) -> Line:
    cells: tuple[Cell, ...] = (found.estimator, _cell(found.value), _cell(found.error))
    interval = None if math.isnan(found.value) else Interval(found.low, found.high)
    off = () if result.truth is None else (_cell(found.value - result.truth),)
    return Line(_logged_by(result), (*cells, interval, *off))


def _study_table(result: Result) -> Table:
    logs = max(score.logs for score in result.scores)
    return Table(
        title=f"The same on {logs:,} fresh logs",
        columns=(
            Column(NAME),
            Column("bias", DIGITS, signed=True),
            Column("its error", DIGITS),
            Column("deviation", DIGITS),
            Column("RMSE", DIGITS, "lowest"),
            Column("coverage", 3),
            Column("logs"),
        ),
        rows=tuple(_score_line(score, _logged_by(result)) for score in result.scores),
        note=f"Coverage is the share of the logs whose {INTERVAL} holds the truth.",
    )


def _score_line(score: Score, group: str) -> Line:
    numbers = (score.bias, score.bias_error, score.deviation, score.rmse, score.coverage)
    return Line(group, (score.estimator, *map(_cell, numbers), score.logs))


def _overlap_table(result: Result) -> Table:
    found, overlap = result.evaluation, result.evaluation.overlap
    rows: tuple[tuple[str, Cell], ...] = (
        ("effective episodes", overlap.effective),
        ("of the log", overlap.effective / found.episodes),
        ("largest weight", overlap.largest),
        ("mean weight", overlap.mean),
        ("share never taken", overlap.share_never_taken),
    )
    return Table(
        title="How much of the log is about HierRouter",
        columns=(Column(""), Column("value", 3)),
        rows=tuple(Line(_logged_by(result), row) for row in rows),
        note="A weight is how much likelier HierRouter was to play an episode than the policy that "
        "did; they should average 1.",
    )


def _logged_by(result: Result) -> str:
    names = [f"{name} ({count:,})" for name, count in result.logged_by.items()]
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"logged by {', '.join(names[:3])}{more}"


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _cell(value: float | int | None) -> Cell:
    """A number that is not known is an empty cell."""
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same, null for a number that is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }

"""What `hierrouter off-policy` has to say: the result, its tables, its JSON, and its warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hierrouter.learning.trained import TrainedRouter
from hierrouter.serving.off_policy import LEVEL, Evaluation, NeverTaken, Score
from hierrouter.tables import Column, Line, Table, interval, json_text

NAMED = 3  # of what was never taken, and of logging policies
FEW_EFFECTIVE = 30
DIGITS = 4
INTERVAL = f"{LEVEL:.0%} interval"
ABOUT_INTERVALS = (
    "Intervals count a question that was asked several times once. That of FQE does not hold that "
    "the regression may be of the wrong kind."
)


@dataclass(frozen=True)
class Result:
    """The value of a router, as logs tell it.

    Attributes:
        alpha: of the reward R = Q - alpha * C.
        logged_by: the policies that made the log, each with its number of episodes.
        evaluation: what the log says; of several logs the first one.
        truth: the exact value; None where the questions are not cached.
        truth_on: the questions of which it is the mean, in words.
        scores: of each estimator over fresh logs; empty where there is one log.
        notes: sentences that a reader must not miss.
        provenance: where all this came from; JSON values.
    """

    alpha: float
    logged_by: Mapping[str, int]
    evaluation: Evaluation
    truth: float | None
    truth_on: str
    scores: tuple[Score, ...]
    notes: tuple[str, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)


def notes(found: Evaluation, trained: TrainedRouter) -> tuple[str, ...]:
    """What a reader of the estimates must not miss."""
    overlap = found.overlap
    warnings = [
        f"support: the router {_doing(missing, trained)} in {missing.share:.1%} of its episodes, "
        "and the log never does: no estimator can know what that earns"
        for missing in overlap.never_taken[:NAMED]
    ]
    if len(overlap.never_taken) > NAMED:
        warnings.append(
            f"support: {len(overlap.never_taken) - NAMED} more, {overlap.share_never_taken:.1%} of "
            "the episodes in all"
        )
    if overlap.misses:
        warnings.append(
            f"the weights average {overlap.mean:.3f} and not 1: the log lacks what the router does "
            "at some states, or its propensities are not those it was made with"
        )
    if overlap.effective < FEW_EFFECTIVE:
        warnings.append(
            f"{overlap.effective:.1f} effective episodes are few: weighted estimates and their "
            "intervals rest on a handful of episodes"
        )
    return tuple(warnings)


def _doing(missing: NeverTaken, trained: TrainedRouter) -> str:
    models, routes = trained.origin.models, trained.origin.routes
    name = models[missing.action % routes.models]
    stopping = " and stops" if missing.action >= routes.models else ""
    after = f"after {routes.name(missing.node, models)}" if missing.node else "first"
    return f"calls {name} {after}{stopping}"


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
        "estimates": [_without_nan(asdict(estimate)) for estimate in found.estimates],
        "scores": [_without_nan(asdict(score)) for score in result.scores],
        "overlap": _without_nan(asdict(found.overlap)),
        "notes": list(result.notes),
        "provenance": dict(result.provenance),
    }


def _without_nan(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same, null for a number that is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }


def long_table(result: Result) -> Table:
    """One row an estimator, with all that is known of it."""
    found = as_object(result)
    titles = ["estimator", "value", "error", "low", "high", "truth"]
    if result.scores:
        titles += ["bias", "bias_error", "deviation", "rmse", "coverage", "logs"]
    rows = []
    for at, estimate in enumerate(found["estimates"]):
        row = {
            **estimate,
            "truth": found["truth"],
            **(found["scores"][at] if result.scores else {}),
        }
        rows.append(Line("", tuple(row[title] for title in titles)))
    return Table("off-policy", tuple(Column(title) for title in titles), tuple(rows))


def result_tables(result: Result) -> list[Table]:
    """The estimates, how they did on fresh logs, and how much of the log they rest on."""
    found = as_object(result)
    logged_by = [f"{name} ({count:,})" for name, count in result.logged_by.items()]
    more = f" and {len(logged_by) - NAMED:,} more" if len(logged_by) > NAMED else ""
    group = f"logged by {', '.join(logged_by[:NAMED])}{more}"
    studied = [_study_table(found["scores"], group)] if result.scores else []
    return [_estimate_table(result, found, group), *studied, _overlap_table(found, group)]


def _estimate_table(result: Result, found: Mapping[str, Any], group: str) -> Table:
    truth = result.truth
    columns = [Column("estimator"), Column("R", DIGITS), Column("error", DIGITS)]
    columns.append(Column(INTERVAL, DIGITS))
    if truth is not None:
        columns.append(Column("R - truth", DIGITS, signed=True))
    rows = []
    for row in found["estimates"]:
        cells = [row["estimator"], row["value"], row["error"], interval(row["low"], row["high"])]
        if truth is not None:
            cells.append(None if row["value"] is None else row["value"] - truth)
        rows.append(Line(group, tuple(cells)))
    exactly = "" if truth is None else f"; exactly {truth:.{DIGITS}f} on {result.truth_on}"
    notes = [f"{note[0].upper()}{note[1:]}." for note in result.notes]
    return Table(
        title=f"Mean R of HierRouter at alpha {result.alpha:g} from {found['episodes']:,} episodes "
        f"of {found['queries']:,} questions{exactly}",
        columns=tuple(columns),
        rows=tuple(rows),
        note=" ".join([*notes, ABOUT_INTERVALS]),
    )


def _study_table(scores: Sequence[Mapping[str, Any]], group: str) -> Table:
    columns = {
        "estimator": Column("estimator"),
        "bias": Column("bias", DIGITS, signed=True),
        "bias_error": Column("its error", DIGITS),
        "deviation": Column("deviation", DIGITS),
        "rmse": Column("RMSE", DIGITS, "lowest"),
        "coverage": Column("coverage", 3),
        "logs": Column("logs"),
    }
    return Table(
        title=f"The same on {max(score['logs'] for score in scores):,} fresh logs",
        columns=tuple(columns.values()),
        rows=tuple(Line(group, tuple(score[name] for name in columns)) for score in scores),
        note=f"Coverage is the share of the logs whose {INTERVAL} holds the truth.",
    )


def _overlap_table(found: Mapping[str, Any], group: str) -> Table:
    overlap = found["overlap"]
    figures = {
        "effective episodes": overlap["effective"],
        "of the log": overlap["effective"] / found["episodes"],
        "largest weight": overlap["largest"],
        "mean weight": overlap["mean"],
        "share never taken": overlap["share_never_taken"],
    }
    return Table(
        title="How much of the log is about HierRouter",
        columns=(Column(""), Column("value", 3)),
        rows=tuple(Line(group, row) for row in figures.items()),
        note="A weight is how much likelier HierRouter was to play an episode than the policy that "
        "did; they should average 1.",
    )

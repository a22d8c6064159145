"""The value of a router from a log of another policy: estimates, warnings, tables and JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hierrouter.engines.encoders import Encoder, load_encoder
from hierrouter.learning.router import TrainedRouter
from hierrouter.serving import estimators
from hierrouter.serving.logs import Episode, Spending, log_and_states
from hierrouter.tables import Column, Line, Table, finite_or_none, interval, json_text

MAX_NAMED_LOGGERS = 3  # logging policies that the heading of a table names
FEW_EFFECTIVE_EPISODES = 30
ESTIMATE_DIGITS = 4
INTERVAL_HEADING = f"{estimators.INTERVAL_LEVEL:.0%} interval"
INTERVAL_NOTE = "Intervals count a question that was asked several times once."


@dataclass(frozen=True)
class Result:
    """The value of a router, estimated from a log.

    Attributes:
        alpha: of the reward R = Q - alpha * C.
        logged_by: the policies that made the log, each with its number of episodes.
        evaluation: the estimates, and how much of the log they rest on.
        notes: sentences that a reader must not miss.
        provenance: of router and log; JSON values.
    """

    alpha: float
    logged_by: Mapping[str, int]
    evaluation: estimators.Evaluation
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]


def value_from_log(
    trained: TrainedRouter,
    episodes: Sequence[Episode],
    alpha: float,
    provenance: Mapping[str, Any],
    encoder: Encoder | None = None,
) -> Result:
    """Estimate the value of a router from a log of any other policy.

    Args:
        trained: the router; its greedy policy is evaluated.
        episodes: of the log.
        alpha: of the reward R = Q - alpha * C.
        provenance: of router and log; JSON values.
        encoder: that the router reads; None loads it.

    Raises:
        InputError: the log has only one question, or lacks what the router reads.
    """
    encoder = encoder or load_encoder(trained.origin.encoder)
    log, states = log_and_states(episodes, trained, encoder)
    evaluation = estimators.evaluate(log, states, alpha)
    logged_by = Counter(episode.policy or "unnamed" for episode in episodes)
    return Result(alpha, logged_by, evaluation, warnings_of(evaluation.overlap), provenance)


def warnings_of(overlap: estimators.Overlap) -> tuple[str, ...]:
    """Return the warnings that a reader of the estimates must not miss."""
    warnings = []
    if overlap.share_never_taken >= estimators.MIN_WARNED_SHARE:
        warnings.append(
            f"support: in {overlap.share_never_taken:.1%} of its episodes the router does what the "
            "log never does there: no estimator can know what that earns"
        )
    if overlap.misses:
        warnings.append(
            f"the weights average {overlap.mean:.3f} and not 1: the log lacks what the router does "
            "at some states, or its propensities are not those it was made with"
        )
    if overlap.effective < FEW_EFFECTIVE_EPISODES:
        warnings.append(
            f"{overlap.effective:.1f} effective episodes are few: weighted estimates and their "
            "intervals rest on a handful of episodes"
        )
    return tuple(warnings)


def as_json(result: Result) -> str:
    """Return the result as one JSON object, keys sorted; unknown figures are null."""
    return json_text(as_object(result), "estimates")


def as_object(result: Result) -> dict[str, Any]:
    """Return the result as JSON values; docs/off_policy.md describes the keys."""
    evaluation = result.evaluation
    return {
        "alpha": result.alpha,
        "logged_by": dict(result.logged_by),
        "episodes": evaluation.episodes,
        "queries": evaluation.queries,
        "level": estimators.INTERVAL_LEVEL,
        "estimates": [
            _estimate_object(name, estimate) for name, estimate in evaluation.estimates.items()
        ],
        "overlap": asdict(evaluation.overlap),
        "notes": list(result.notes),
        "provenance": dict(result.provenance),
    }


def _estimate_object(name: str, estimate: estimators.Estimate) -> dict[str, Any]:
    low, high = estimate.interval()
    return {
        "estimator": name,
        "value": finite_or_none(estimate.value),
        "error": finite_or_none(estimate.error),
        "low": finite_or_none(low),
        "high": finite_or_none(high),
    }


def long_table(result: Result) -> Table:
    """Return one row for each estimator, with all its figures."""
    rows = as_object(result)["estimates"]
    lines = tuple(Line("", tuple(row.values())) for row in rows)
    return Table("off-policy", tuple(map(Column, rows[0])), lines)


def result_tables(result: Result) -> list[Table]:
    """Return the tables of the estimates, and of how much of the log they rest on."""
    loggers = [f"{name} ({count:,})" for name, count in result.logged_by.items()]
    group = f"logged by {', '.join(loggers[:MAX_NAMED_LOGGERS])}"
    unnamed = len(loggers) - MAX_NAMED_LOGGERS
    if unnamed > 0:
        group += f" and {unnamed:,} more"
    return [_estimate_table(result, group), _overlap_table(result, group)]


def _estimate_table(result: Result, group: str) -> Table:
    body = as_object(result)
    columns = ("estimator", "R", "error", INTERVAL_HEADING)
    lines = []
    for row in body["estimates"]:
        bounds = interval(row["low"], row["high"])
        lines.append(Line(group, (row["estimator"], row["value"], row["error"], bounds)))
    notes = [f"{note[0].upper()}{note[1:]}." for note in result.notes]
    return Table(
        title=f"Mean R of HierRouter at alpha {result.alpha:g} from {body['episodes']:,} episodes "
        f"of {body['queries']:,} questions",
        columns=tuple(Column(name, ESTIMATE_DIGITS) for name in columns),
        rows=tuple(lines),
        note=" ".join([*notes, INTERVAL_NOTE]),
    )


def _overlap_table(result: Result, group: str) -> Table:
    overlap = result.evaluation.overlap
    figures = {
        "effective episodes": overlap.effective,
        "of the log": overlap.effective / result.evaluation.episodes,
        "largest weight": overlap.largest,
        "mean weight": overlap.mean,
        "share never taken": overlap.share_never_taken,
    }
    return Table(
        title="How much of the log is about HierRouter",
        columns=(Column(""), Column("value", 3)),
        rows=tuple(Line(group, row) for row in figures.items()),
        note="A weight is how much likelier HierRouter was to play an episode than the policy that "
        "did; they should average 1.",
    )


# Measures of `Spending`, in the order of its columns, with the factor they are shown with.
COST_MEASURE = "C of 1,000"
QUALITY_MEASURE = "Q"
SPENDING_MEASURES = {COST_MEASURE: 1000.0, "seconds": 1.0, QUALITY_MEASURE: 1.0}


def savings(spending: Spending, models: Mapping[int, str]) -> list[dict[str, Any]]:
    """Compare what the router spent with what each model alone would have spent.

    Measures are money, seconds and, of the answers that have a quality, Q. A model alone is
    estimated from the routes that called it first, each weighted by how improbable that was
    (`weighted_mean_and_difference`).

    Args:
        spending: of the router's answers.
        models: names of the models that may be called first, by number.

    Returns:
        JSON values, one row for each model and measure. `never` is the share of questions on which
        the router was certain not to call the model. If it is not negligible, the log cannot tell,
        and `single`, `difference`, `low` and `high` are null.
    """
    rows = []
    for number, model in models.items():
        for column, measure in enumerate(SPENDING_MEASURES):
            row = _savings_row(spending, number, column, measure)
            if row is not None:
                rows.append({"model": model, **row})
    return rows


def _savings_row(
    spending: Spending, model: int, column: int, measure: str
) -> dict[str, Any] | None:
    """Compare the router with one model in one measure; None if the log lacks the measure.

    Args:
        spending: of the router's answers.
        model: its number.
        column: of the measure in `Spending`.
        measure: its name.
    """
    has_value = ~np.isnan(spending.route[:, column])
    query = spending.query[has_value]
    if len(np.unique(query)) < 2:
        return None
    scale = SPENDING_MEASURES[measure]
    own = scale * spending.route[has_value, column]
    value = scale * spending.first[has_value, column]
    # Q of a first call is known only if the route ended there.
    probability = spending.ended if measure == QUALITY_MEASURE else spending.called
    chance = probability[has_value, model]
    is_first = (spending.model[has_value] == model) & (chance > 0) & ~np.isnan(value)
    weight = np.divide(1, chance, where=is_first, out=np.zeros(len(chance)))
    single, difference = estimators.weighted_mean_and_difference(own, weight, value, query)
    never = float((chance <= 0).mean())
    low, high = difference.interval()
    figures = {"single": single, "difference": difference.value, "low": low, "high": high}
    can_tell = never < estimators.MIN_WARNED_SHARE
    return {
        "measure": measure,
        "router": float(own.mean()),
        **{name: finite_or_none(figure) if can_tell else None for name, figure in figures.items()},
        "effective": estimators.effective_count(weight),
        "never": never,
        "answers": int(has_value.sum()),
    }


def savings_table(rows: Sequence[Mapping[str, Any]], alpha: float) -> Table:
    """Return the savings as a table, whose note says what the log cannot tell.

    Args:
        rows: from `savings`.
        alpha: of the reward by which the note names the best single model.
    """
    lines = []
    for row in rows:
        cells = [row[name] for name in ("measure", "router", "single", "difference")]
        cells.append(interval(row["low"], row["high"]))
        lines.append(Line(f"instead of {row['model']} alone", tuple(cells)))
    notes = []
    reward: dict[str, float] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        model_rows = [row for row in rows if row["model"] == model]
        notes += _savings_notes(model, model_rows)
        single = {row["measure"]: row["single"] for row in model_rows if row["single"] is not None}
        if QUALITY_MEASURE in single and COST_MEASURE in single:
            cost = single[COST_MEASURE] / SPENDING_MEASURES[COST_MEASURE]
            reward[model] = single[QUALITY_MEASURE] - alpha * cost
    if reward:
        best = max(reward, key=reward.__getitem__)
        notes.insert(0, f"The best alone at alpha {alpha:g} is {best}, R {reward[best]:.4f}.")
    notes.append("A model alone is its first call: with the first stage's instruction.")
    return Table(
        title="What the router spent, less what one model would have",
        columns=(
            Column(""),
            Column("router", ESTIMATE_DIGITS),
            Column("alone", ESTIMATE_DIGITS),
            Column("difference", ESTIMATE_DIGITS, signed=True),
            Column(INTERVAL_HEADING, ESTIMATE_DIGITS),
        ),
        rows=tuple(lines),
        note=" ".join([*notes, INTERVAL_NOTE]),
    )


def _savings_notes(model: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warning about a model's figures, if there is one."""
    unknown = [row for row in rows if row["difference"] is None]
    if unknown:
        measures = ", ".join(row["measure"] for row in unknown)
        return [
            f"The log cannot tell {measures} of {model}: on {unknown[0]['never']:.1%} of the "
            "questions the router was certain not to do this; serve with --sample."
        ]
    if min(row["effective"] for row in rows) < FEW_EFFECTIVE_EPISODES:
        return [f"Of {model} few calls are logged, so its figures are rough."]
    return []

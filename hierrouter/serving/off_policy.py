"""What a log from elsewhere says of a router: the estimates, warnings, tables and JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hierrouter.engines.encoders import Encoder, load_encoder
from hierrouter.learning.training import TrainedRouter
from hierrouter.serving import estimators
from hierrouter.serving.logs import Episode, Spending, from_texts
from hierrouter.tables import Column, Line, Table, finite_or_none, interval, json_text

NAMED = 3  # of logging policies
FEW_EFFECTIVE = 30
DIGITS = 4
INTERVAL = f"{estimators.LEVEL:.0%} interval"
ABOUT_INTERVALS = "Intervals count a question that was asked several times once."


@dataclass(frozen=True)
class Result:
    """The value of a router, as logs tell it.

    Attributes:
        alpha: of the reward R = Q - alpha * C.
        logged_by: the policies that made the log, each with its number of episodes.
        evaluation: what the log says.
        notes: sentences that a reader must not miss.
        provenance: where all this came from; JSON values.
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
    """The value of a router, from a log of any other policy.

    Raises InputError: only one question, or what the router reads is missing.

    Args:
        trained: its greedy policy is valued.
        episodes: of the log.
        alpha: of the reward R = Q - alpha * C.
        provenance: where all this comes from; JSON values.
        encoder: that the router reads; None loads it.
    """
    encoder = encoder or load_encoder(trained.origin.encoder)
    evaluation = estimators.evaluate(*from_texts(episodes, trained, encoder), alpha)
    logged_by = Counter(episode.policy or "unnamed" for episode in episodes)
    return Result(alpha, logged_by, evaluation, warnings_of(evaluation.overlap), provenance)


def warnings_of(overlap: estimators.Overlap) -> tuple[str, ...]:
    """What a reader of the estimates must not miss."""
    warnings = []
    if overlap.share_never_taken >= estimators.SMALLEST_SHARE:
        warnings.append(
            f"support: in {overlap.share_never_taken:.1%} of its episodes the router does what the "
            "log never does there: no estimator can know what that earns"
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
        "level": estimators.LEVEL,
        "estimates": [_estimate(name, mean) for name, mean in found.estimates.items()],
        "overlap": asdict(found.overlap),
        "notes": list(result.notes),
        "provenance": dict(result.provenance),
    }


def _estimate(name: str, mean: estimators.Clustered) -> dict[str, Any]:
    low, high = mean.interval()
    found = {"value": mean.value, "error": mean.error, "low": low, "high": high}
    return {"estimator": name, **{key: finite_or_none(figure) for key, figure in found.items()}}


def long_table(result: Result) -> Table:
    """One row an estimator, with all that is known of it."""
    rows = as_object(result)["estimates"]
    lines = tuple(Line("", tuple(row.values())) for row in rows)
    return Table("off-policy", tuple(map(Column, rows[0])), lines)


def result_tables(result: Result) -> list[Table]:
    """The estimates, and how much of the log they rest on."""
    found = as_object(result)
    logged_by = [f"{name} ({count:,})" for name, count in result.logged_by.items()]
    more = f" and {len(logged_by) - NAMED:,} more" if len(logged_by) > NAMED else ""
    group = f"logged by {', '.join(logged_by[:NAMED])}{more}"
    return [_estimate_table(result, found, group), _overlap_table(found, group)]


def _estimate_table(result: Result, found: Mapping[str, Any], group: str) -> Table:
    columns = ("estimator", "R", "error", INTERVAL)
    rows = [
        (each["estimator"], each["value"], each["error"], interval(each["low"], each["high"]))
        for each in found["estimates"]
    ]
    notes = [f"{note[0].upper()}{note[1:]}." for note in result.notes]
    return Table(
        title=f"Mean R of HierRouter at alpha {result.alpha:g} from {found['episodes']:,} episodes "
        f"of {found['queries']:,} questions",
        columns=tuple(Column(name, DIGITS) for name in columns),
        rows=tuple(Line(group, row) for row in rows),
        note=" ".join([*notes, ABOUT_INTERVALS]),
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


MEASURES = (("C of 1,000", 1000.0), ("seconds", 1.0), ("Q", 1.0))


def savings(found: Spending, models: Sequence[str]) -> list[dict[str, Any]]:
    """What the router spent, and what each model alone would have, by measure; JSON values.

    Money, seconds and, of the answers that are judged, Q. A model alone is estimated from first
    calls of it, each weighted by how improbable it was (`less_weighted`); `single`, `difference`,
    `low` and `high` are null where `never`, the share of questions on which it was not to be
    called, says that the log cannot tell.
    """
    rows = []
    for number, model in enumerate(models):
        for at, (measure, scale) in enumerate(MEASURES):
            use = ~np.isnan(found.own[:, at])
            if len(np.unique(found.query[use])) < 2:
                continue  # nothing is judged
            own, value = scale * found.own[use, at], scale * found.first[use, at]
            chance = (found.alone if measure == "Q" else found.called)[use, number]
            taken = (found.model[use] == number) & (chance > 0) & ~np.isnan(value)
            weight = np.divide(1, chance, where=taken, out=np.zeros(len(chance)))
            single, off = estimators.less_weighted(own, weight, value, found.query[use])
            never = float((chance <= 0).mean())
            can_tell, (low, high) = never < estimators.SMALLEST_SHARE, off.interval()
            figures = {"single": single, "difference": off.value, "low": low, "high": high}
            row = {"model": model, "measure": measure, "router": float(own.mean())}
            row |= {
                name: finite_or_none(figure) if can_tell else None
                for name, figure in figures.items()
            }
            effective, answers = estimators.effective(weight), int(use.sum())
            rows.append({**row, "effective": effective, "never": never, "answers": answers})
    return rows


def savings_table(rows: Sequence[Mapping[str, Any]], alpha: float) -> Table:
    """The same to be read, with what the log cannot tell in words; `alpha`: says who is best."""
    lines, notes, reward = [], [], dict[str, float]()
    for row in rows:
        cells = [row[name] for name in ("measure", "router", "single", "difference")]
        cells.append(interval(row["low"], row["high"]))
        lines.append(Line(f"instead of {row['model']} alone", tuple(cells)))
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        if blind := [row for row in mine if row["difference"] is None]:
            what = ", ".join(row["measure"] for row in blind)
            notes.append(
                f"The log cannot tell {what} of {model}: on {blind[0]['never']:.1%} of the "
                "questions the router was certain not to do this; serve with --sample."
            )
        elif min(row["effective"] for row in mine) < FEW_EFFECTIVE:
            notes.append(f"Of {model} few calls are logged, so its figures are rough.")
        told = {row["measure"]: row["single"] for row in mine if row["single"] is not None}
        if "Q" in told and MEASURES[0][0] in told:
            reward[model] = told["Q"] - alpha * told[MEASURES[0][0]] / MEASURES[0][1]
    if reward:
        best = max(reward, key=reward.__getitem__)
        notes.insert(0, f"The best alone at alpha {alpha:g} is {best}, R {reward[best]:.4f}.")
    notes.append("A model alone is its first call: with the first stage's instruction.")
    return Table(
        title="What the router spent, less what one model would have",
        columns=(
            Column(""),
            Column("router", DIGITS),
            Column("alone", DIGITS),
            Column("difference", DIGITS, signed=True),
            Column(INTERVAL, DIGITS),
        ),
        rows=tuple(lines),
        note=" ".join([*notes, ABOUT_INTERVALS]),
    )

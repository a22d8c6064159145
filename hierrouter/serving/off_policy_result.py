"""What `hierrouter off-policy` has to say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.encoders import load_encoder
from hierrouter.evaluation.outcome import greedy, policy_outcome
from hierrouter.learning.trained import TrainedRouter
from hierrouter.serving.logs import (
    Episode,
    LoggingPolicy,
    Step,
    from_texts,
    in_cache,
    states_in_tree,
)
from hierrouter.serving.off_policy import LEVEL, Estimate, Log, NeverTaken
from hierrouter.serving.off_policy_study import (
    Evaluation,
    OnLog,
    Score,
    Setting,
    evaluate,
    repeated,
    scores,
)
from hierrouter.tables import Cell, Column, Interval, Line, Table, json_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

NAMED = 3  # of what was never taken, and of logging policies
FEW_EFFECTIVE = 30


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


@dataclass(frozen=True)
class Plan:
    """Logs to play.

    Attributes:
        logging: the policy that logs.
        episodes: of each log; each draws its question anew.
        repeats: how many logs.
        seed: of questions and calls.
    """

    logging: LoggingPolicy
    episodes: int
    repeats: int
    seed: int


def value_by_simulation(
    trained: TrainedRouter,
    fold: RouteTree,
    alpha: float,
    plan: Plan,
    provenance: Mapping[str, Any],
    on_log: OnLog = lambda done, total: None,
) -> tuple[Result, list[Episode]]:
    """Logs of a policy on a fold, and how well they tell the value of another one there.

    Args:
        trained: its greedy policy is valued; its probabilities make the logging policy.
        fold: the questions.
        on_log: told (done, total) after each log.

    Returns:
        The result, and the episodes of the first log.

    Raises:
        InputError: fewer than 2 questions, or a router for another tree.
    """
    if len(fold) < 2:
        raise InputError(f"too few questions to estimate from: {len(fold)}; collect more")
    probabilities = trained.probabilities(fold)
    target = greedy(probabilities, fold.base_rate)
    table = plan.logging.table(trained.actions, probabilities, fold.base_rate)
    setting = Setting(fold, trained.actions, table, target, alpha)
    truth = _exact(trained, fold, target, alpha).mean()
    first, found = repeated(setting, plan.episodes, plan.repeats, plan.seed, on_log)
    result = Result(
        alpha=alpha,
        logged_by={str(plan.logging): plan.episodes},
        evaluation=found[0],
        truth=float(truth),
        truth_on=f"all {len(fold):,} questions of the fold",
        scores=scores(found, float(truth)) if plan.repeats > 1 else (),
        notes=notes(found[0], trained),
        provenance=provenance,
    )
    return result, episodes_of(first, fold, str(plan.logging))


def value_from_log(
    trained: TrainedRouter,
    episodes: Sequence[Episode],
    tree: RouteTree | None,
    alpha: float,
    provenance: Mapping[str, Any],
) -> Result:
    """What a log from elsewhere says of a router.

    Args:
        trained: its greedy policy is valued.
        episodes: of the log.
        tree: that holds the questions; None where the episodes carry their texts.

    Raises:
        InputError: a question that is not in the tree, only one question, or a router for another
            tree.
    """
    truth = None
    if tree is None:
        encoder = load_encoder(trained.origin.encoder)
        log, states = from_texts(episodes, trained, encoder)
    else:
        target = greedy(trained.probabilities(tree), tree.base_rate)
        log = in_cache(episodes, trained, tree)
        states = states_in_tree(log, tree, target)
        truth = float(_exact(trained, tree, target, alpha)[log.query].mean())
    evaluation = evaluate(log, states, alpha)
    return Result(
        alpha=alpha,
        logged_by=Counter(episode.policy or "unnamed" for episode in episodes),
        evaluation=evaluation,
        truth=truth,
        truth_on="the questions of the log",
        scores=(),
        notes=notes(evaluation, trained),
        provenance=provenance,
    )


def episodes_of(log: Log, tree: RouteTree, policy: str) -> list[Episode]:
    """The episodes of a log of a tree, as a file says them."""
    models = len(tree.models)
    return [
        Episode(
            query=tree.query_ids[position],
            dataset=tree.datasets[position],
            steps=tuple(
                Step(
                    model=int(log.action[row, hop]) % models,
                    propensity=float(log.propensity[row, hop]),
                    stop=bool(log.actions.stops(log.action[row, hop])),
                    cost=float(log.cost[row, hop]),
                )
                for hop in range(log.length[row])
            ),
            quality=float(log.quality[row]),
            policy=policy,
        )
        for row, position in enumerate(log.query.tolist())
    ]


def notes(found: Evaluation, trained: TrainedRouter) -> tuple[str, ...]:
    """What a reader of the estimates must not miss."""
    overlap = found.overlap
    told = [
        f"support: the router {_doing(missing, trained)} in {missing.share:.1%} of its episodes, "
        "and the log never does: no estimator can know what that earns"
        for missing in overlap.never_taken[:NAMED]
    ]
    if len(overlap.never_taken) > NAMED:
        told.append(
            f"support: {len(overlap.never_taken) - NAMED} more, {overlap.share_never_taken:.1%} of "
            "the episodes in all"
        )
    if overlap.misses:
        told.append(
            f"the weights average {overlap.mean:.3f} and not 1: the log lacks what the router does "
            "at some states, or its propensities are not those it was made with"
        )
    if overlap.effective < FEW_EFFECTIVE:
        told.append(
            f"{overlap.effective:.1f} effective episodes are few: weighted estimates and their "
            "intervals rest on a handful of episodes"
        )
    return tuple(told)


def _doing(missing: NeverTaken, trained: TrainedRouter) -> str:
    models, routes = trained.origin.models, trained.origin.routes
    name = models[missing.action % routes.models]
    stopping = " and stops" if missing.action >= routes.models else ""
    after = f"after {routes.name(missing.node, models)}" if missing.node else "first"
    return f"calls {name} {after}{stopping}"


def _exact(
    trained: TrainedRouter, tree: RouteTree, target: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]:
    """float64[queries]: R of the greedy policy, by enumeration."""
    return policy_outcome(tree, trained.actions, target, "hierrouter", "router").reward(alpha)


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

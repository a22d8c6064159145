"""What `hierrouter off-policy` has to say.

In: a router to be valued, and a log or a way to make logs. Out: `Result`: estimates, the truth
where it is known, scores over fresh logs, and what must not be missed. Not covered: how it is
shown (`tables`), and files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.collect.encoders import load_encoder
from hierrouter.evaluate.exact import greedy, policy_outcome
from hierrouter.learn.trained import TrainedRouter
from hierrouter.offpolicy.cached import states_in_tree
from hierrouter.offpolicy.given import from_texts, in_cache
from hierrouter.offpolicy.log import Log
from hierrouter.offpolicy.log_line import Episode, Step
from hierrouter.offpolicy.logging_policy import LoggingPolicy
from hierrouter.offpolicy.study import (
    Evaluation,
    OnLog,
    Score,
    Setting,
    evaluate,
    repeated,
    scores,
)
from hierrouter.offpolicy.weights import NeverTaken
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

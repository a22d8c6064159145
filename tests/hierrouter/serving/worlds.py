"""Small trees with two policies, on which every expectation can be worked out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Actions, policy_outcome
from hierrouter.serving.logs import states_in_tree
from hierrouter.serving.off_policy import Clustered, Log, LoggedStates, Weights
from hierrouter.serving.off_policy_study import Setting
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_outcome import random_table
from tests.hierrouter.trees import one_part, random_tree

ALPHA = 0.05
Estimator = Callable[[Log, LoggedStates, Weights, NDArray[np.float64]], Clustered]


def world(
    *, queries: int = 6, models: int = 2, hops: int = 2, allow_stop: bool = False, seed: int = 0
) -> Setting:
    """A tree without structure; both policies choose differently at every state."""
    tree = random_tree(Routes(models, hops), queries, seed)
    return Setting(
        tree=tree,
        actions=Actions(tree.routes, allow_stop),
        logging=softened(random_table(tree, seed + 1, allow_stop=allow_stop)),
        target=random_table(tree, seed + 2, allow_stop=allow_stop),
        alpha=ALPHA,
    )


def softened(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same with a third of its probability shared by all that it may do."""
    legal = table > 0
    return (2 * table + legal / legal.sum(axis=2, keepdims=True)) / 3


def bandit(score: NDArray[np.float64], logging: list[float], target: list[float]) -> Setting:
    """One hop, no cost: a call of model a answers question q with Q = score[q, a]."""
    queries, models = score.shape
    tree = random_tree(Routes(models, 1), queries, 0)
    nodes = np.concatenate([np.zeros((queries, 1)), score], axis=1)
    tree = replace(tree, score=nodes)
    tables = [np.broadcast_to(np.array(row), (queries, 1, models)) for row in (logging, target)]
    return Setting(tree, Actions(tree.routes), *tables, alpha=0.0)


def truth(setting: Setting) -> float:
    """Mean R of the policy to be valued, over all questions."""
    outcome = policy_outcome(setting.tree, setting.actions, setting.target, "target", "baseline")
    return float(outcome.reward(setting.alpha).mean())


def seen(setting: Setting, log: Log) -> tuple[LoggedStates, Weights]:
    """What estimators get beside the log."""
    states = states_in_tree(log, setting.tree, setting.target)
    return states, Weights.of(log, states)


def on_logs(
    setting: Setting, episodes: int, logs: int, estimator: Estimator, seed: int = 0
) -> list[Clustered]:
    """What an estimator says of fresh logs."""
    found = []
    for source in np.random.SeedSequence(seed).spawn(logs):
        log = setting.play(episodes, np.random.default_rng(source))
        states, weights = seen(setting, log)
        reward = log.reward(setting.alpha)
        found.append(estimator(log, states, weights, reward))
    return found


def off(found: list[Clustered], truth: float) -> tuple[float, float]:
    """Mean of value - truth, and its standard error."""
    values = np.array([estimate.value for estimate in found]) - truth
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def spread(found: list[Clustered]) -> float:
    """Standard deviation over logs."""
    return float(np.std([estimate.value for estimate in found], ddof=1))


def coverage(found: list[Clustered], truth: float) -> float:
    """Share of the intervals that hold the truth."""
    held = [low <= truth <= high for low, high in (estimate.interval() for estimate in found)]
    return float(np.mean(held))


def expected_returns(setting: Setting) -> NDArray[np.float64]:
    """float64[queries, states, A]: what the policy to be valued earns from each action on.

    By definition, action by action: what the call costs, and Q or what comes after it.
    """
    tree, actions = setting.tree, setting.actions
    values = np.zeros_like(setting.target)
    for node in reversed(range(tree.routes.states)):
        for action in range(actions.count):
            child = tree.routes.child(node, actions.model(action))
            cost = tree.cost[:, child] - tree.cost[:, node]
            if actions.ends(child, action):
                after = tree.score[:, child]
            else:
                after = (setting.target[:, child] * values[:, child]).sum(axis=1)
            values[:, node, action] = after - setting.alpha * cost
    return values


def narrowed(tree: RouteTree, embedding: NDArray[np.float64]) -> RouteTree:
    """The tree whose states look as given, float64[queries, states, dim]."""
    return replace(tree, parts=one_part(embedding))

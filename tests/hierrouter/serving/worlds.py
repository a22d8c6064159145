"""Small trees with two policies, on which every expectation can be worked out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.off_policy import Setting, states_in_tree
from hierrouter.evaluation.outcome import Actions
from hierrouter.serving.estimators import Clustered, Log, LoggedStates, Weights
from hierrouter_cache.tree import Routes
from tests.hierrouter.evaluation.test_outcome import random_table
from tests.hierrouter.trees import random_tree

ALPHA = 0.05


@dataclass(frozen=True)
class Seen:
    """What estimators get."""

    log: Log
    states: LoggedStates
    weights: Weights
    reward: NDArray[np.float64]


Estimator = Callable[[Seen], Clustered]


def world(
    *, queries: int = 6, models: int = 2, hops: int = 2, allow_stop: bool = False, seed: int = 0
) -> Setting:
    """A tree without structure; both policies choose differently at every state."""
    tree = random_tree(Routes(models, hops), queries, seed)
    logging, target = (random_table(tree, seed + n, allow_stop=allow_stop) for n in (1, 2))
    # A third of its probability is shared by all that it may do.
    legal = logging > 0
    logging = (2 * logging + legal / legal.sum(axis=2, keepdims=True)) / 3
    return Setting(tree, Actions(tree.routes, allow_stop), logging, target, ALPHA)


def bandit(score: NDArray[np.float64], logging: list[float], target: list[float]) -> Setting:
    """One hop, no cost: a call of model a answers question q with Q = score[q, a]."""
    queries, models = score.shape
    tree = random_tree(Routes(models, 1), queries, 0)
    nodes = np.concatenate([np.zeros((queries, 1)), score], axis=1)
    tables = [np.broadcast_to(np.array(row), (queries, 1, models)) for row in (logging, target)]
    return Setting(replace(tree, score=nodes), Actions(tree.routes), *tables, alpha=0.0)


def seen(setting: Setting, log: Log) -> Seen:
    states = states_in_tree(log, setting.tree, setting.target)
    return Seen(log, states, Weights.of(log, states), log.reward(setting.alpha))


def played(setting: Setting, episodes: int, seed: Any = 0) -> Seen:
    """A fresh log."""
    return seen(setting, setting.play(episodes, np.random.default_rng(seed)))


@dataclass(frozen=True)
class Found:
    """What an estimator says of many logs, and what is so."""

    estimates: list[Clustered]
    truth: float

    @property
    def values(self) -> NDArray[np.float64]:
        return np.array([estimate.value for estimate in self.estimates])

    @property
    def bias(self) -> float:
        return float(self.values.mean() - self.truth)

    @property
    def error(self) -> float:
        """Of the bias."""
        return float(self.values.std(ddof=1) / np.sqrt(len(self.values)))

    @property
    def coverage(self) -> float:
        """Share of the intervals that hold the truth."""
        intervals = [estimate.interval() for estimate in self.estimates]
        return float(np.mean([low <= self.truth <= high for low, high in intervals]))


def on_logs(setting: Setting, episodes: int, logs: int, estimator: Estimator) -> Found:
    """What an estimator says of fresh logs."""
    sources = np.random.SeedSequence(0).spawn(logs)
    found = [estimator(played(setting, episodes, source)) for source in sources]
    return Found(found, setting.truth)


def expected_returns(setting: Setting) -> NDArray[np.float64]:
    """float64[queries, states, A]: what the policy to be valued earns from each action on.

    By definition, action by action: what the call costs, and Q or what comes after it.
    """
    tree, actions = setting.tree, setting.actions
    values = np.zeros_like(setting.target)
    for node in reversed(range(tree.routes.states)):
        for action in range(actions.count):
            child, _, over = actions.after(node, action)
            cost = tree.cost[:, child] - tree.cost[:, node]
            if over:
                after = tree.score[:, child]
            else:
                after = (setting.target[:, child] * values[:, child]).sum(axis=1)
            values[:, node, action] = after - setting.alpha * cost
    return values

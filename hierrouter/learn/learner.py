"""What the training loop asks of an algorithm.

Out: the `Learner` protocol, and the train fold as every learner sees it. Not covered: the loop
(`training`), the algorithms (`ppo`, `exact`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.actions import Actions
from hierrouter.learn.config import ExactConfig
from hierrouter.learn.states import StateTable
from hierrouter_cache.tree import RouteTree


class Learner(Protocol):
    """Improves a router, one epoch after the other; can be put away and taken up again."""

    @property
    def router(self) -> nn.Module:
        """What is trained, in place."""
        ...

    def epoch(self) -> None:
        """Train for one epoch."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that the next epoch depends on, but for the router's weights."""
        ...

    def counters(self) -> dict[str, Any]:
        """The rest of it, as JSON values: the states of random generators."""
        ...

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Put back what `tensors` and `counters` gave; the next epoch is then the same one."""
        ...


@dataclass(frozen=True)
class TrainFold:
    """The queries that a router learns from.

    Attributes:
        tree: the train fold.
        actions: what may be done.
        table: its states as tensors.
    """

    tree: RouteTree
    actions: Actions
    table: StateTable


def passes(queries: int, config: ExactConfig) -> int:
    """How often an epoch goes over a train fold of so many queries."""
    return -(-config.steps * config.queries // queries)


def steps_of(queries: int, config: ExactConfig) -> int:
    """Gradient steps of a whole training on a train fold of so many queries."""
    return config.epochs * -(-passes(queries, config) * queries // config.queries)


def batches(queries: int, config: ExactConfig, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The queries of each gradient step of an epoch, by position: whole passes in random order."""
    order = np.concatenate([rng.permutation(queries) for _ in range(passes(queries, config))])
    return np.split(order, np.arange(config.queries, len(order), config.queries))


def paid(fold: TrainFold, alpha: float, standardise: bool) -> NDArray[np.float64]:
    """float64[queries, nodes]: what an episode pays that ends at a node.

    Args:
        standardise: take from each reward the mean of its query over all nodes at which an
            episode can end, and divide by the standard deviation over all of them.
    """
    reward = fold.tree.node_reward(alpha)
    if not standardise:
        return reward
    ends = fold.actions.endings
    centred = reward - reward[:, ends].mean(axis=1, keepdims=True)
    standard: NDArray[np.float64] = centred / (centred[:, ends].std() or 1.0)
    return standard

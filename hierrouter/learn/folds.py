"""The folds of a tree, as a training sees them.

In: a tree, an `Objective`. Out: `TrainingFold`: its states as tensors, what its episodes pay, and
the exact value of a router on it. The test fold is never looked at. Not covered: learning from a
fold (`ppo`, `enumeration`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.ceilings import Ceilings
from hierrouter.evaluate.exact import greedy
from hierrouter.learn.objective import Objective
from hierrouter.learn.router import Router, action_probabilities
from hierrouter.learn.states import StateTable, state_table
from hierrouter.replay.rollouts import walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


def training_folds(tree: RouteTree) -> tuple[RouteTree, RouteTree]:
    """The fold to learn from and the one that chooses the iterate; one tree where it does both.

    Raises:
        InputError: there is nothing to train on.
    """
    learn_from = tree.split("train")
    if not len(learn_from):
        raise InputError("no query to train on: the train fold is empty; collect more queries")
    chooser = choosing_fold(tree)
    return learn_from, learn_from if chooser == "train" else tree.split(chooser)


def choosing_fold(tree: RouteTree) -> str:
    """Name of the fold that chooses: "validation", or "train" where there is none."""
    return "validation" if "validation" in tree.splits else "train"


@dataclass(frozen=True)
class TrainingFold:
    """One fold of a tree.

    Attributes:
        tree: its queries.
        actions: what may be done.
        table: its states as tensors.
    """

    tree: RouteTree
    actions: Actions
    table: StateTable

    @classmethod
    def of(
        cls, tree: RouteTree, objective: Objective, ceilings: Ceilings | None = None
    ) -> TrainingFold:
        """The fold `tree`; for the ceilings see `state_table`."""
        actions = Actions(tree.routes, objective.allow_stop)
        return cls(tree, actions, state_table(tree, objective, ceilings))

    def episode_reward(self, alpha: float, standardise: bool) -> NDArray[np.float64]:
        """float64[queries, nodes]: what an episode pays that ends at a node.

        Args:
            standardise: take from each reward the mean of its query over all nodes at which an
                episode can end, and divide by the standard deviation over all of them.
        """
        reward = self.tree.node_reward(alpha)
        if not standardise:
            return reward
        ends = self.actions.endings
        centred = reward - reward[:, ends].mean(axis=1, keepdims=True)
        standard: NDArray[np.float64] = centred / (centred[:, ends].std() or 1.0)
        return standard

    def value(self, router: Router, alpha: float) -> float:
        """Exact mean R of the greedy policy; only states that it comes to are looked at."""

        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            chances = action_probabilities(router, self.table, torch.from_numpy(state))
            choice: NDArray[np.int64] = greedy(chances, self.tree.base_rate).argmax(axis=1)
            return choice

        reward = self.tree.node_reward(alpha)
        walked = walk(self.actions, reward, np.arange(len(self.tree)), act)
        return float(walked.reward.sum(axis=1).mean())


def fold_pair(
    trees: tuple[RouteTree, RouteTree], objective: Objective, ceilings: Ceilings | None = None
) -> tuple[TrainingFold, TrainingFold]:
    """What `training_folds` gave, as tensors; the same fold twice where one does both."""
    learn_from, choose_on = trees
    fold = TrainingFold.of(learn_from, objective, ceilings)
    if choose_on is learn_from:
        return fold, fold
    return fold, TrainingFold.of(choose_on, objective, ceilings)

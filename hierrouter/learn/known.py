"""What is known of every model: what it answered before.

In: the train fold of a tree, of any pool. Out: `Known`: the states of its queries, and what came of
each action there. For a model that joins later this needs its answers to the train questions, and
no training. Not covered: who reads it, see `featured`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hierrouter.learn.folds import TrainingFold
from hierrouter.learn.objective import Objective
from hierrouter.learn.values import best_and_random_values
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Known:
    """The train fold of a pool, as a policy looks things up in it.

    Attributes:
        fold: the queries and their states.
        reward: float32[queries, nodes], what an episode pays, centred by query and scaled.
    """

    fold: TrainingFold
    reward: Tensor

    @classmethod
    def of(cls, tree: RouteTree, objective: Objective) -> Known:
        """What the fold `tree` tells about its models.

        Raises:
            InputError: the fold is empty.
        """
        if not len(tree):
            raise InputError(
                "nothing is known of the models: the train fold is empty; collect more queries"
            )
        fold = TrainingFold.of(tree, objective)
        reward = fold.episode_reward(objective.alpha, standardise=True)
        return cls(fold, torch.from_numpy(reward.astype(np.float32)))

    @cached_property
    def embedding(self) -> Tensor:
        """float32[states, queries, dim]: what is seen at each state."""
        table = self.fold.table
        by_query = table.embedding(slice(None)).reshape(len(self.reward), table.per_query, -1)
        return by_query.transpose(0, 1).contiguous()

    @cached_property
    def values(self) -> Tensor:
        """float32[states, queries, A, 2]: see `best_and_random_values`."""
        values = best_and_random_values(self.fold.actions, self.reward)
        return values.transpose(0, 1).contiguous()

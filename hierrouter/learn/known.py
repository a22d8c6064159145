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

from hierrouter.actions import Actions
from hierrouter.learn.learner import TrainFold, paid
from hierrouter.learn.objective import Objective
from hierrouter.learn.states import state_table
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Known:
    """The train fold of a pool, as a policy looks things up in it.

    Attributes:
        fold: the queries and their states.
        reward: float32[queries, nodes], what an episode pays, centred by query and scaled.
    """

    fold: TrainFold
    reward: Tensor

    @classmethod
    def of(cls, tree: RouteTree, objective: Objective) -> Known:
        """What the fold `tree` tells about its models.

        Raises:
            InputError: the fold is empty.
        """
        if not len(tree):
            raise InputError("nothing is known of the models: the train fold is empty")
        actions = Actions(tree.routes, objective.allow_stop)
        fold = TrainFold(tree, actions, state_table(tree, objective))
        reward = paid(fold, objective.alpha, standardise=True).astype(np.float32)
        return cls(fold, torch.from_numpy(reward))

    @cached_property
    def embedding(self) -> Tensor:
        """float32[states, queries, dim]: what is seen at each state."""
        count = self.fold.tree.routes.states
        by_query = self.fold.table.embedding(slice(None)).reshape(len(self.reward), count, -1)
        return by_query.transpose(0, 1).contiguous()

    @cached_property
    def came_of_it(self) -> Tensor:
        """float32[states, queries, A, 2]: reward after each action, see `after_actions`."""
        return after_actions(self.fold.actions, self.reward).transpose(0, 1).contiguous()


def after_actions(actions: Actions, reward: Tensor) -> Tensor:
    """What an action leads to: with the best choices afterwards, and with random ones.

    Args:
        actions: what may be done.
        reward: float32[queries, nodes], paid where an episode ends.

    Returns:
        float32[queries, states, A, 2]; before the last call the two are the same.
    """
    routes, queries = actions.routes, len(reward)
    levels: list[Tensor] = []
    value = reward[:, routes.leaves, None].expand(-1, -1, 2)
    for level in reversed(range(routes.hops)):
        after = value.reshape(queries, -1, routes.models, 2)
        if actions.allow_stop:
            stopping = reward[:, routes.level(level + 1), None].expand(-1, -1, 2)
            after = torch.cat([after, stopping.reshape(after.shape)], dim=2)
        levels.append(after)
        value = torch.stack([after[..., 0].amax(dim=2), after[..., 1].mean(dim=2)], dim=2)
    return torch.cat(levels[::-1], dim=1)

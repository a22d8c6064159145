"""Learning by enumeration: no sampling at all.

In: the train fold, an `Objective`, an `ExactConfig`. Out: `ExactLearner`. The tree is known, so
the value Q(s, a) of every action at every state under the present policy is a sum over the nodes
below. Each step moves the policy, at every state of some queries, towards softmax(Q / temperature)
(regularised policy improvement; the fixed point is the soft-optimal policy of what the router can
represent). Not covered: why not the gradient of the expected return itself, see
docs/experiments.md; the loop, see `training`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hierrouter.actions import Actions
from hierrouter.learn.config import ExactConfig
from hierrouter.learn.learner import TrainFold, paid
from hierrouter.learn.optimiser import adam_tensors, make_adam, restore_adam
from hierrouter.learn.router import NEVER, Router
from hierrouter.learn.states import States, noisy


def action_values(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """Q(s, a) of every action at every state: the expected reward after it, exactly.

    Args:
        actions: what may be done.
        probabilities: float32[queries, states, A], the policy that is followed afterwards.
        reward: float32[queries, nodes], paid where an episode ends.

    Returns:
        float32[queries, states, A].
    """
    routes, queries = actions.routes, len(reward)
    levels: list[Tensor] = []
    value = reward[:, routes.leaves]
    for level in reversed(range(routes.hops)):
        going = value.reshape(queries, -1, routes.models)
        if actions.allow_stop:
            stopping = reward[:, routes.level(level + 1)].reshape(going.shape)
            going = torch.cat([going, stopping], dim=2)
        levels.append(going)
        value = (probabilities[:, routes.level(level)] * going).sum(dim=2)
    return torch.cat(levels[::-1], dim=1)


def improvement_loss(
    actions: Actions, logits: Tensor, legal: Tensor, reward: Tensor, temperature: float
) -> Tensor:
    """Mean cross-entropy from softmax(Q / temperature) to the policy, over all states.

    Args:
        logits: float32[queries, states, A], `NEVER` where an action is not legal.
        legal: bool[queries, states, A].
        reward: float32[queries, nodes].
    """
    logged = torch.log_softmax(logits, dim=2)
    with torch.no_grad():
        values = action_values(actions, logged.exp(), reward)
        target = torch.softmax((values / temperature).masked_fill(~legal, NEVER), dim=2)
    return -(target * logged).sum(dim=2).mean()


class ExactLearner:
    """Policy improvement on whole trees; an epoch is one pass over the train fold.

    Args:
        router: trained in place.
        fold: what it learns from.
        alpha: cost penalty of the reward.
        config: the numbers.
        rng: source of the order of the queries and of the noise.
    """

    def __init__(
        self,
        router: Router,
        fold: TrainFold,
        alpha: float,
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        self.router = router
        self._fold = fold
        self._config = config
        self._rng = rng
        self._reward = torch.from_numpy(
            paid(fold, alpha, config.standardise_reward).astype(np.float32)
        )
        batches = -(-len(fold.tree) // config.queries)
        self._adam = make_adam(router.parameters(), config, config.epochs * batches)

    def epoch(self) -> None:
        """Every query of the train fold once, in random order."""
        order = torch.from_numpy(self._rng.permutation(len(self._fold.tree)))
        for query in torch.split(order, self._config.queries):
            self._step(query)

    def _step(self, query: Tensor) -> None:
        fold, config = self._fold, self._config
        states = visited(fold, query, config.embedding_noise, self._rng)
        shape = (len(query), -1, fold.actions.count)
        loss = improvement_loss(
            fold.actions,
            self.router(states)[0].reshape(shape),
            states.legal.reshape(shape),
            self._reward[query],
            config.temperature,
        )
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()

    def tensors(self) -> dict[str, Tensor]:
        """Adam's moments."""
        return adam_tensors(self._adam)

    def counters(self) -> dict[str, Any]:
        """The state of the generator."""
        return {"random": self._rng.bit_generator.state}

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Put both back."""
        restore_adam(self._adam, tensors)
        self._rng.bit_generator.state = counters["random"]


def visited(fold: TrainFold, query: Tensor, noise: float, rng: np.random.Generator) -> States:
    """All states of some queries, int64[n], query after query, with noise on the embeddings."""
    count = fold.actions.routes.states
    state = (query[:, None] * count + torch.arange(count)).ravel()
    states = fold.table.rows(state)
    return states._replace(embedding=noisy(states.embedding, noise, rng))

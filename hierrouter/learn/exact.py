"""Learning by enumeration: no sampling at all.

In: the train fold, alpha, an `ExactConfig`. Out: `ExactLearner`. The tree is known, so the expected
return of the present policy and its gradient are sums over its nodes, and so is the value Q(s, a)
of every action at every state. The training begins with steps towards softmax(Q / temperature) at
every state alike, which no flat region of the return can stop, and passes over, in a straight line,
to the gradient of the expected return itself: where queries look alike only that one weighs their
rewards, instead of counting for how many an action is best. Not covered: the loop, see `training`;
what either does alone, see docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.actions import Actions
from hierrouter.learn.config import ExactConfig
from hierrouter.learn.learner import TrainFold, batches, paid, steps_of
from hierrouter.learn.optimiser import adam_tensors, make_adam, restore_adam, steps_made
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


def exact_loss(
    actions: Actions,
    logits: Tensor,
    legal: Tensor,
    reward: Tensor,
    config: ExactConfig,
    progress: float,
) -> Tensor:
    """What a step of the training makes smaller.

    Args:
        logits: float32[queries, states, A], `NEVER` where an action is not legal.
        legal: bool[queries, states, A].
        reward: float32[queries, nodes].
        progress: share of the training that is over, in [0, 1].
    """
    logged = torch.log_softmax(logits, dim=2)
    improvement = improvement_loss(actions, logged, legal, reward, config.temperature)
    gained = expected_return(actions, logged.exp(), reward).mean()
    return (1 - progress) * improvement - progress * config.return_weight * gained


def expected_return(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """The value of a policy on each query, float32[queries]; a gradient goes through it.

    Args:
        probabilities: float32[queries, states, A].
        reward: float32[queries, nodes], paid where an episode ends.
    """
    routes, queries = actions.routes, len(reward)
    reached, total = torch.ones(queries, 1), torch.zeros(queries)
    for level in range(routes.hops):
        decided = reached[:, :, None] * probabilities[:, routes.level(level)]
        reached = decided[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            stopped = decided[:, :, routes.models :].reshape(queries, -1)
            total = total + (stopped * reward[:, routes.level(level + 1)]).sum(dim=1)
    return total + (reached * reward[:, routes.leaves]).sum(dim=1)


def improvement_loss(
    actions: Actions, logged: Tensor, legal: Tensor, reward: Tensor, temperature: float
) -> Tensor:
    """Mean cross-entropy from softmax(Q / temperature) to the policy, over all states.

    Args:
        logged: float32[queries, states, A], log-probabilities of the present policy.
        legal: bool[queries, states, A].
        reward: float32[queries, nodes].
    """
    with torch.no_grad():
        values = action_values(actions, logged.exp(), reward)
        target = torch.softmax((values / temperature).masked_fill(~legal, NEVER), dim=2)
    return -(target * logged).sum(dim=2).mean()


class Enumeration:
    """What all learning by enumeration shares: its gradient steps, and how it is put away.

    Args:
        parameters: trained in place.
        queries: size of the train fold.
        config: the numbers.
        rng: source of everything random.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        queries: int,
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        self._queries = queries
        self._config = config
        self._rng = rng
        self._steps = steps_of(queries, config)
        self._adam = make_adam(parameters, config, self._steps)

    def _batches(self) -> list[NDArray[np.int64]]:
        """The queries of each gradient step of one epoch, by position."""
        return batches(self._queries, self._config, self._rng)

    def _descend(self, actions: Actions, logits: Tensor, legal: Tensor, reward: Tensor) -> None:
        """One gradient step on `exact_loss`; see there."""
        progress = steps_made(self._adam) / self._steps
        loss = exact_loss(actions, logits, legal, reward, self._config, progress)
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


class ExactLearner(Enumeration):
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
        super().__init__(router.parameters(), len(fold.tree), config, rng)
        self.router = router
        self._fold = fold
        self._reward = torch.from_numpy(
            paid(fold, alpha, config.standardise_reward).astype(np.float32)
        )

    def epoch(self) -> None:
        """Every query of the train fold once, or as often as it takes."""
        for query in self._batches():
            self._step(torch.from_numpy(query))

    def _step(self, query: Tensor) -> None:
        fold = self._fold
        states = visited(fold, query, self._config.embedding_noise, self._rng)
        shape = (len(query), -1, fold.actions.count)
        self._descend(
            fold.actions,
            self.router(states)[0].reshape(shape),
            states.legal.reshape(shape),
            self._reward[query],
        )


def visited(fold: TrainFold, query: Tensor, noise: float, rng: np.random.Generator) -> States:
    """All states of some queries, int64[n], query after query, with noise on the embeddings."""
    count = fold.actions.routes.states
    state = (query[:, None] * count + torch.arange(count)).ravel()
    states = fold.table.rows(state)
    return states._replace(embedding=noisy(states.embedding, noise, rng))

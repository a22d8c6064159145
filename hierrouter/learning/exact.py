"""Learning by enumeration, without sampling: policy improvement on whole trees of the train fold.

The exact value of every action is read off the tree; the policy moves towards the better ones, and
at last climbs on the expected return itself. `ppo` is the other algorithm.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning import forward, loop, network
from hierrouter.learning.config import ExactConfig
from hierrouter.learning.loop import TrainingFold
from hierrouter.learning.network import Router, States


class Enumeration(ABC):
    """Policy improvement on whole trees: what all learning by enumeration shares.

    An epoch goes over the train fold once, or as often as its least number of steps takes.

    Args:
        queries: size of the train fold.
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
        self._passes = math.ceil(config.steps * config.queries / queries)
        self._steps = config.epochs * math.ceil(self._passes * queries / config.queries)
        self._adam = loop.make_adam(parameters, config, self._steps)

    def epoch(self) -> None:
        """One gradient step on each batch of queries."""
        for query in self._batches():
            self._step(torch.from_numpy(query))

    @abstractmethod
    def _step(self, query: Tensor) -> None:
        """One gradient step on some queries, int64[n]."""

    def _batches(self) -> list[NDArray[np.int64]]:
        """The queries of each gradient step of an epoch, by position; each pass in random order."""
        passes = [self._rng.permutation(self._queries) for _ in range(self._passes)]
        order, size = np.concatenate(passes), self._config.queries
        return np.split(order, np.arange(size, len(order), size))

    def _visit(self, fold: TrainingFold, query: Tensor) -> States:
        """All states of some queries, int64[n], with noise on the embeddings."""
        states = fold.table.trees(query)
        noise = self._config.embedding_noise
        return states._replace(
            embedding=network.noisy(states.embedding, noise, self._rng, fold.table.numbers)
        )

    def _descend(self, actions: Actions, logits: Tensor, legal: Tensor, reward: Tensor) -> None:
        """One gradient step on `exact_loss`, see there."""
        progress = loop.steps_made(self._adam) / self._steps
        loss = exact_loss(actions, logits, legal, reward, self._config, progress)
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()


class ExactLearner(Enumeration):
    """Learns the paper's router for one alpha.

    Args:
        rng: source of the order of the queries and of the noise.
    """

    def __init__(
        self,
        router: Router,
        fold: TrainingFold,
        alpha: float,
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(router.parameters(), len(fold.tree), config, rng)
        self.router = router
        self._fold = fold
        reward = fold.episode_reward(alpha, config.standardise_reward)
        self._reward = torch.from_numpy(reward.astype(np.float32))

    def _step(self, query: Tensor) -> None:
        actions, states = self._fold.actions, self._visit(self._fold, query)
        logits = self.router(states)[0].reshape(len(query), -1, actions.count)
        self._descend(actions, logits, states.legal.reshape(logits.shape), self._reward[query])


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
        logits: float32[queries, S, A], `NEVER` where an action is not legal.
        legal: bool[queries, S, A].
        reward: float32[queries, endings], paid where an episode ends.
        progress: share of the training that is over, in [0, 1].
    """
    log_policy = torch.log_softmax(logits, dim=2)
    improvement = improvement_loss(actions, log_policy, legal, reward, config.temperature)
    value = network.expected_return(actions, log_policy.exp(), reward).mean()
    return (1 - progress) * improvement - progress * config.return_weight * value


def improvement_loss(
    actions: Actions, log_policy: Tensor, legal: Tensor, reward: Tensor, temperature: float
) -> Tensor:
    """Mean cross-entropy from softmax(Q / temperature) to the policy, over all states.

    `log_policy`: float32[queries, S, A], log-probabilities of the present policy; `legal`:
    bool[queries, S, A]; `reward`: float32[queries, endings].
    """
    with torch.no_grad():
        values = network.action_values(actions, log_policy.exp(), reward)
        target = torch.softmax((values / temperature).masked_fill(~legal, forward.NEVER), dim=2)
    return -(target * log_policy).sum(dim=2).mean()

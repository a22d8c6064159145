"""Learning by enumeration, without sampling: policy improvement on whole trees of the train fold.

A tree holds every episode, so the exact value of every action can be read off it. A gradient step
takes some whole trees. At first it moves the policy towards the actions that are better than the
present policy's (`improvement_loss`); as the training goes on, more and more weight is on the
expected return itself (`expected_return`). `ppo` is the algorithm that samples episodes instead.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.evaluation.outcome import Actions, ending_table
from hierrouter.learning.config import ExactConfig
from hierrouter.learning.forward import ILLEGAL_LOGIT
from hierrouter.learning.network import (
    LearnerState,
    RouterNetwork,
    States,
    TrainingFold,
    add_noise,
    make_adam,
    mean_by_name,
    optimiser_state,
    restore_optimiser,
    steps_taken,
)


class ExactLearner:
    """Learns the paper's router for one alpha from whole trees.

    An epoch passes over the train fold once, or as often as its least number of steps takes.

    Args:
        router: trained in place.
        fold: the fold to learn from.
        alpha: reward lost per unit of cost.
        config: the settings.
        rng: source of the order of the queries and of the noise.
    """

    def __init__(
        self,
        router: RouterNetwork,
        fold: TrainingFold,
        alpha: float,
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        self.router = router
        self._fold = fold
        self._config = config
        self._rng = rng
        self._reward = fold.episode_reward(alpha, config.standardise_reward)
        self._total_steps = total_steps(fold.queries, config)
        self._adam = make_adam(router.parameters(), config, self._total_steps)

    def epoch(self) -> dict[str, float]:
        """Make one gradient step on each batch of queries; return the mean `loss`."""
        batches = query_batches(self._fold.queries, self._config, self._rng)
        return mean_by_name([{"loss": self._step(torch.from_numpy(query))} for query in batches])

    def state(self) -> LearnerState:
        """Return a copy of the state between two epochs: the optimiser and the generator."""
        return optimiser_state(self._adam, self._rng)

    def restore(self, state: LearnerState) -> None:
        """Put back what `state` returned, so that the next epoch is the same one.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of this learner.
        """
        restore_optimiser(self._adam, self._rng, state)

    def _step(self, query: Tensor) -> float:
        """Make one gradient step on the trees of some queries, int64[n]; return the loss."""
        actions = self._fold.actions
        states = noisy_trees(self._fold, query, self._config, self._rng)
        logits = self.router(states)[0].reshape(len(query), -1, actions.count)
        legal = states.legal.reshape(logits.shape)
        progress = steps_taken(self._adam) / self._total_steps
        reward = torch.from_numpy(self._reward[query.numpy()].astype(np.float32))
        loss = exact_loss(actions, logits, legal, reward, self._config, progress)
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return loss.item()


def passes_per_epoch(queries: int, config: ExactConfig) -> int:
    """How often an epoch passes over a train fold of this many queries."""
    return math.ceil(config.steps * config.queries / queries)


def total_steps(queries: int, config: ExactConfig) -> int:
    """Gradient steps of a whole training on a train fold of this many queries."""
    passes = passes_per_epoch(queries, config)
    return config.epochs * math.ceil(passes * queries / config.queries)


def query_batches(
    queries: int, config: ExactConfig, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """The queries of each gradient step of an epoch, by position; each pass in random order."""
    passes = [rng.permutation(queries) for _ in range(passes_per_epoch(queries, config))]
    order = np.concatenate(passes)
    return np.split(order, np.arange(config.queries, len(order), config.queries))


def noisy_trees(
    fold: TrainingFold, query: Tensor, config: ExactConfig, rng: np.random.Generator
) -> States:
    """All states of some queries, int64[n], with noise on their embeddings."""
    states = fold.table.trees(query)
    embedding = add_noise(states.embedding, config.embedding_noise, rng, fold.table.numbers)
    return states._replace(embedding=embedding)


def exact_loss(
    actions: Actions,
    logits: Tensor,
    legal: Tensor,
    reward: Tensor,
    config: ExactConfig,
    progress: float,
) -> Tensor:
    """The loss of a gradient step.

    Args:
        actions: what may be chosen.
        logits: float32[queries, S, A], `ILLEGAL_LOGIT` for an action that is not legal.
        legal: bool[queries, S, A].
        reward: float32[queries, endings], reward of an episode with this ending.
        config: temperature, and weight of the expected return.
        progress: completed share of the training, in [0, 1].
    """
    log_policy = torch.log_softmax(logits, dim=2)
    improvement = improvement_loss(actions, log_policy, legal, reward, config.temperature)
    value = expected_return(actions, log_policy.exp(), reward).mean()
    return (1 - progress) * improvement - progress * config.return_weight * value


def improvement_loss(
    actions: Actions, log_policy: Tensor, legal: Tensor, reward: Tensor, temperature: float
) -> Tensor:
    """Mean cross-entropy from softmax(Q / temperature) to the policy, over all states.

    Args:
        actions: what may be chosen.
        log_policy: float32[queries, S, A], log-probabilities of the present policy.
        legal: bool[queries, S, A].
        reward: float32[queries, endings], reward of an episode with this ending.
        temperature: of the improved policy, in units of the reward.
    """
    with torch.no_grad():
        values = action_values(actions, log_policy.exp(), reward)
        scores = (values / temperature).masked_fill(~legal, ILLEGAL_LOGIT)
        target = torch.softmax(scores, dim=2)
    return -(target * log_policy).sum(dim=2).mean()


def action_values(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """Q(s, a) of every action at every state: the expected reward after it, exactly.

    From the leaves to the root. An action that is not legal has the value of the action that it
    counts as, see `Actions.transition`.

    Args:
        actions: what may be chosen.
        probabilities: float32[queries, S, A], the policy that is followed afterwards.
        reward: float32[queries, endings], reward of an episode with this ending.

    Returns:
        float32[queries, S, A].
    """
    routes = actions.routes
    queries = len(reward)
    levels: list[Tensor] = []
    value = reward[:, routes.leaves]  # of each node of the level below
    for level in reversed(range(actions.steps)):
        if level == routes.hops:
            # After the last call a further call counts as giving the last answer.
            values = value[:, :, None].repeat_interleave(actions.calls, dim=2)
        else:
            values = value.reshape(queries, -1, routes.models)
            if actions.allow_stop:
                stopping = reward[:, routes.level(level + 1)].reshape(values.shape)
                values = torch.cat([values, stopping], dim=2)
        if actions.allow_return:
            returning = reward[:, ending_table(routes).number[routes.level(level)]]
            values = torch.cat([values, returning], dim=2)
        levels.append(values)
        value = (probabilities[:, routes.level(level)] * values).sum(dim=2)
    return torch.cat(levels[::-1], dim=1)


def expected_return(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """The exact value of a policy on each query.

    From the root to the leaves: the probability of each ending times its reward.

    Args:
        actions: what may be chosen.
        probabilities: float32[queries, S, A], the policy.
        reward: float32[queries, endings], reward of an episode with this ending.

    Returns:
        float32[queries].
    """
    routes = actions.routes
    queries = len(reward)
    reached = torch.ones(queries, 1)  # probability of each node of the level
    total = torch.zeros(queries)
    for level in range(actions.steps):
        # Probability of reaching a node and taking the action there: [queries, nodes, A].
        joint = reached[:, :, None] * probabilities[:, routes.level(level)]
        if actions.allow_return:
            returned = reward[:, ending_table(routes).number[routes.level(level)]]
            total = total + (joint[:, :, actions.calls :] * returned).sum(dim=(1, 2))
        if level == routes.hops:
            return total
        reached = joint[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            stopped = joint[:, :, routes.models : actions.calls].reshape(queries, -1)
            total = total + (stopped * reward[:, routes.level(level + 1)]).sum(dim=1)
    return total + (reached * reward[:, routes.leaves]).sum(dim=1)

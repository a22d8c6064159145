"""Learning by enumeration, without sampling: policy improvement on whole trees of the train fold.

A tree holds every episode, so the exact value of every action can be read off it. A gradient step
takes some whole trees. At first it moves the policy towards the actions that are better than the
present policy's (`improvement_loss`); as the training goes on, more and more weight is on the
expected return itself (`expected_return`). `ppo` is the algorithm that samples episodes instead.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.evaluation.outcome import Actions
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
from hierrouter_cache.layout import NOT_OFFERED, Layout, Level

MIN_SHARE = 1e-9  # a smaller sum of probabilities counts as this one


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
        self._weight = fold.tree.weight
        self._total_steps = total_steps(fold.queries, config)
        self._adam = make_adam(router.parameters(), config, self._total_steps)

    def epoch(self, most: int | None = None) -> dict[str, float]:
        """Make one gradient step on each batch of queries; return the mean `loss`.

        Args:
            most: the most gradient steps; None is no limit.
        """
        batches = query_batches(self._fold.queries, self._config, self._rng)[:most]
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
        loss = self._loss_of_forest(query) if self._fold.has_holes else self._loss(query)
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return loss.item()

    def _loss(self, query: Tensor) -> Tensor:
        """The loss on the trees of some queries, int64[n], at all states of the layout."""
        actions = self._fold.actions
        states = noisy_trees(self._fold, query, self._config, self._rng)
        logits = self.router(states)[0].reshape(len(query), -1, actions.count)
        legal = states.legal.reshape(logits.shape)
        progress = steps_taken(self._adam) / self._total_steps
        reward = torch.from_numpy(self._reward[query.numpy()].astype(np.float32))
        own = query.numpy() % len(self._fold.tree)
        return exact_loss(
            actions,
            logits,
            legal,
            reward,
            self._config,
            progress,
            rows_of(self._weight, own),
            None if self._weight is None else rows_of(self._fold.presence, own),
        )

    def _loss_of_forest(self, query: Tensor) -> Tensor:
        """The loss on the trees of some queries, int64[n], at the states that they have.

        Only states with a choice are read: there is nothing to learn at the others, and in a log
        these are most.
        """
        fold = self._fold
        forest = fold.forest(query.numpy())
        chosen = np.flatnonzero(forest.legal.sum(axis=1) > 1)
        states = fold.table.rows(torch.from_numpy(forest.state[chosen]))
        noise = self._config.embedding_noise
        embedding = add_noise(states.embedding, noise, self._rng, fold.table.numbers)
        legal = torch.from_numpy(forest.legal)[None]
        # Where one action is legal, it is certain.
        logits = torch.zeros(legal.shape).masked_fill(~legal, ILLEGAL_LOGIT)
        row = torch.from_numpy(chosen)
        logits = logits.index_copy(
            1, row, self.router(states._replace(embedding=embedding))[0][None]
        )
        presence = np.zeros(forest.weight.shape)
        presence[chosen] = forest.presence[chosen]
        return exact_loss(
            forest.actions,
            logits,
            legal,
            one_row(forest.rewards(self._reward)),
            self._config,
            steps_taken(self._adam) / self._total_steps,
            one_row(forest.weight),
            one_row(presence),
        )


def one_row(values: NDArray[np.float64]) -> Tensor:
    """float32[1, n]: the values of the only row of a forest."""
    return torch.from_numpy(values.astype(np.float32))[None]


def rows_of(values: NDArray[np.float64] | None, query: NDArray[np.int64]) -> Tensor | None:
    """float32[n, nodes]: the values of some queries, if there are any values."""
    return None if values is None else torch.from_numpy(values[query].astype(np.float32))


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
    weight: Tensor | None = None,
    presence: Tensor | None = None,
) -> Tensor:
    """The loss of a gradient step.

    Args:
        actions: what may be chosen.
        logits: float32[queries, S, A], `ILLEGAL_LOGIT` for an action that is not legal.
        legal: bool[queries, S, A].
        reward: float32[queries, endings], reward of an episode with this ending.
        config: temperature, and weight of the expected return.
        progress: completed share of the training, in [0, 1].
        weight: as for `action_values`.
        presence: as for `improvement_loss`.
    """
    log_policy = torch.log_softmax(logits, dim=2)
    improvement = improvement_loss(
        actions, log_policy, legal, reward, config.temperature, weight, presence
    )
    value = expected_return(actions, log_policy.exp(), reward, weight).mean()
    return (1 - progress) * improvement - progress * config.return_weight * value


def improvement_loss(
    actions: Actions,
    log_policy: Tensor,
    legal: Tensor,
    reward: Tensor,
    temperature: float,
    weight: Tensor | None = None,
    presence: Tensor | None = None,
) -> Tensor:
    """Mean cross-entropy from softmax(Q / temperature) to the policy, over all states.

    The draws of a call count as one state, and states without a choice not at all.

    Args:
        actions: what may be chosen.
        log_policy: float32[queries, S, A], log-probabilities of the present policy.
        legal: bool[queries, S, A].
        reward: float32[queries, endings], reward of an episode with this ending.
        temperature: of the improved policy, in units of the reward.
        weight: as for `action_values`.
        presence: float32[queries, nodes], the probability of each node if its calls are made; 0 at
            states that do not count. None if each call has one draw.
    """
    with torch.no_grad():
        values = action_values(actions, log_policy.exp(), reward, weight)
        scores = (values / temperature).masked_fill(~legal, ILLEGAL_LOGIT)
        target = torch.softmax(scores, dim=2)
    entropy = -(target * log_policy).sum(dim=2)
    if presence is None:
        return entropy.mean()
    share = presence[:, : actions.states] * legal.any(dim=2)
    # In some logs there is no choice on some questions.
    return (entropy * share).sum() / share.sum().clamp(min=MIN_SHARE)


def action_values(
    actions: Actions, probabilities: Tensor, reward: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Q(s, a) of every action at every state: the expected reward after it, exactly.

    From the leaves to the root. An action that is not legal has the value of the action that it
    counts as, see `Actions.transition`.

    Args:
        actions: what may be chosen.
        probabilities: float32[queries, S, A], the policy that is followed afterwards.
        reward: float32[queries, endings], reward of an episode with this ending.
        weight: float32[queries, nodes], probability of each draw of a call, see `RouteTree`; None
            if each call has one.

    Returns:
        float32[queries, S, A].
    """
    layout = actions.layout
    value = reward[:, : layout.nodes].clone()  # of having reached a node
    values = reward.new_zeros(len(reward), actions.states, actions.count)
    for level in reversed(layout.levels):
        if level.calls:
            values[:, level.inner, : layout.call_actions] = _gather(level, value, weight)
            if actions.allow_stop:
                stopping = _gather(level, reward, weight)
                values[:, level.inner, layout.call_actions : actions.calls] = stopping
        if actions.returns:
            values[:, level.states, actions.calls :] = reward[:, _returned(layout, level)]
            # After the last call a further call counts as giving the last answer.
            leaves = _leaves(layout, level)
            values[:, leaves, : actions.calls] = reward[:, leaves, None]
        chosen = (probabilities[:, level.states] * values[:, level.states]).sum(dim=2)
        value[:, level.states] = chosen
    return values


def expected_return(
    actions: Actions, probabilities: Tensor, reward: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The exact value of a policy on each query.

    From the root to the leaves: the probability of each ending times its reward.

    Args:
        actions: what may be chosen.
        probabilities: float32[queries, S, A], the policy.
        reward: float32[queries, endings], reward of an episode with this ending.
        weight: as for `action_values`.

    Returns:
        float32[queries].
    """
    layout = actions.layout
    queries = len(reward)
    reached = torch.ones(queries, 1)  # probability of each state of the level
    total = torch.zeros(queries)
    for level in layout.levels:
        # Probability of reaching a state and taking the action there: [queries, states, A].
        joint = reached[:, :, None] * probabilities[:, level.states]
        if actions.returns:
            returned = reward[:, _returned(layout, level)]
            total = total + (joint[:, :, actions.calls :] * returned).sum(dim=(1, 2))
        next_reached = []
        for calls in level.calls:
            chance = 1 if weight is None else weight[:, calls.nodes]
            called = calls.spread(joint[:, :, : layout.call_actions]) * chance
            if actions.allow_stop:
                stopped = calls.spread(joint[:, :, layout.call_actions : actions.calls]) * chance
                total = total + (stopped * reward[:, calls.nodes]).sum(dim=1)
            if calls.is_inner or layout.decides_at_leaves:
                next_reached.append(called)
            else:
                total = total + (called * reward[:, calls.nodes]).sum(dim=1)
        if next_reached:
            reached = torch.cat(next_reached, dim=1) if len(next_reached) > 1 else next_reached[0]
    return total


def _gather(level: Level, values: Tensor, weight: Tensor | None) -> Tensor:
    """The value of what each call at a level leads to, see `Level.gather`."""
    shape = (len(values), level.inner.stop - level.inner.start, level.call_actions)
    if weight is None and len(level.calls) == 1 and level.calls[0].is_complete:
        return values[:, level.calls[0].nodes].reshape(shape)
    result = values.new_zeros(len(values), shape[1] * shape[2])
    for calls in level.calls:
        reached = values[:, calls.nodes]
        reached = reached if weight is None else reached * weight[:, calls.nodes]
        result.index_add_(1, torch.from_numpy(calls.source), reached)
    return result.reshape(shape)


def _returned(layout: Layout, level: Level) -> NDArray[np.int64]:
    """int64[states, returns]: the ending of each return; of an illegal one the last answer."""
    ending = layout.give_back[level.states]
    return np.where(ending == NOT_OFFERED, level.numbers[:, None], ending)


def _leaves(layout: Layout, level: Level) -> NDArray[np.int64]:
    """The states of a level at which no call is offered."""
    return level.numbers[level.numbers >= layout.inner]

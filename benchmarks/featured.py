"""A policy over features of models, for pools that change: `dynamic_pool.py` tries it.

A model that joins later is routed to without training: what is read of it are its answers to the
train questions. docs/beyond.md says how, and what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.evaluation.outcome import ROUTER, Actions, Outcome, greedy, policy_outcome
from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.exact import (
    action_values,
    exact_loss,
    noisy_trees,
    query_batches,
    total_steps,
)
from hierrouter.learning.forward import ILLEGAL_LOGIT
from hierrouter.learning.network import (
    LearnerState,
    States,
    TrainingFold,
    best_iterate,
    make_adam,
    optimiser_state,
    reproducible,
    restore_optimiser,
    state_table,
    steps_taken,
)
from hierrouter.learning.router import Origin, training_folds
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import sub_pool


@dataclass(frozen=True)
class Examples:
    """The train fold of a pool, as a policy looks things up in it.

    Attributes:
        fold: the queries and their states.
        reward: float32[queries, nodes], what an episode pays, centred by query and scaled.
    """

    fold: TrainingFold
    reward: Tensor

    @classmethod
    def of(cls, tree: RouteTree, objective: Objective) -> Examples:
        """What the fold `tree` tells about its models; raises InputError: the fold is empty."""
        if not len(tree):
            raise InputError("nothing is known of the models: the train fold is empty; add queries")
        fold = TrainingFold.of(tree, objective)
        reward = fold.episode_reward(objective.alpha, standardise=True)[np.arange(fold.queries)]
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


def best_and_random_values(actions: Actions, reward: Tensor) -> Tensor:
    """Q(s, a) where the best action is always taken afterwards, and where random ones are.

    `actions`: what may be done; `reward`: float32[queries, nodes], paid where an episode ends.
    Returns float32[queries, states, A, 2]; before the last call the two are the same.
    """
    routes, count = actions.layout, actions.count
    evenly = torch.full((len(reward), routes.inner, count), 1 / count, dtype=reward.dtype)
    best = random = action_values(actions, evenly, reward)
    for _ in range(routes.hops - 1):  # policy improvement: a level is right after each
        choice = nn.functional.one_hot(best.argmax(dim=2), count).to(reward)
        best = action_values(actions, choice, reward)
    return torch.stack([best, random], dim=3)


SHARPNESS = 10.0  # at the start: how much more the most similar questions count
FEATURES = 4  # of an action: with the best and with random choices afterwards; less the pool's best
RANK = 64  # length of the vectors that are compared
HIDDEN = 32  # width of the scorer


class FeaturedRouter(nn.Module):
    """Attention over the train questions, then a shared scorer of each action.

    Two states are alike by the cosine of their embeddings, after a learned linear map. At each
    state only the train questions at the same node are looked at: those that have been asked of
    the same models in the same order. The size of the pool is not part of its shape.

    Args:
        hops: L.
        dim: length of an embedding.
    """

    def __init__(self, hops: int, dim: int) -> None:
        super().__init__()
        self.hops, self.dim = hops, dim
        self.projection = nn.Parameter(torch.empty(RANK, dim))
        nn.init.orthogonal_(self.projection)
        self.sharpness = nn.Parameter(torch.full((hops,), math.log(SHARPNESS)))
        self.scorer = nn.Sequential(
            nn.Linear(FEATURES + hops, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)
        )

    def forward(self, states: States, examples: Examples, itself: Tensor | None = None) -> Tensor:
        """Logits float32[queries, S, A] of whole trees.

        Args:
            states: the S states of one query after those of another.
            examples: what the train fold tells of the models.
            itself: int64[queries], positions of the queries where they are those of `examples`;
                they are not looked up themselves.
        """
        routes = examples.fold.actions.layout
        by_query = (len(states.node) // routes.inner, routes.inner, -1)
        embedding, legal = states.embedding.reshape(by_query), states.legal.reshape(by_query)
        logits = [
            self.at_state(embedding[:, state], state, stage, examples, itself)
            for state, stage in enumerate(routes.depth()[: routes.inner].tolist())
        ]
        return torch.stack(logits, dim=1).masked_fill(~legal, ILLEGAL_LOGIT)

    def at_state(
        self,
        embedding: Tensor,
        state: int,
        stage: int,
        examples: Examples,
        itself: Tensor | None = None,
    ) -> Tensor:
        """Logits float32[n, A] of queries at the same state, float32[n, dim]; none is masked."""
        here, there = (
            nn.functional.normalize(vectors @ self.projection.T, dim=1)
            for vectors in (embedding, examples.embedding[state])
        )
        similarity = self.sharpness[stage].exp() * (here @ there.T)
        if itself is not None:
            similarity = similarity.scatter(1, itself[:, None], ILLEGAL_LOGIT)
        attention = torch.softmax(similarity, dim=1)  # float32[n, train queries]
        expected = torch.einsum("nq,qaf->naf", attention, examples.values[state])
        to_best = expected - expected.amax(dim=1, keepdim=True)
        stage_bits = torch.eye(self.hops)[stage].expand(*expected.shape[:2], -1)
        logits: Tensor = self.scorer(torch.cat([expected, to_best, stage_bits], dim=2))[..., 0]
        return logits


FEATURED = ExactConfig(epochs=8)
CHUNK = 512  # queries looked up at once


@dataclass(frozen=True)
class TrainedFeatured:
    """A policy for pools that change, and where it comes from.

    Attributes:
        network: the network, frozen.
        objective: what it was trained for.
        origin: where it comes from; its models are those of the training.
    """

    network: FeaturedRouter
    objective: Objective
    origin: Origin

    def probabilities(self, tree: RouteTree, examples: RouteTree) -> NDArray[np.float64]:
        """float64[queries, states, A]: the stochastic policy at every state.

        Raises InputError: another view, encoder or number of hops than it was trained on,
        `examples` are of another pool, or nothing is known of the models.

        `tree`: of any pool; `examples`: the train fold of the same pool.
        """
        if examples.models != tree.models:
            raise InputError(
                f"what is known is of other models: {', '.join(examples.models)}; the tree has "
                f"{', '.join(tree.models)}; give the train fold of the same pool"
            )
        for fold in (tree, examples):
            replace(self.origin, models=tree.models).check_matches(fold, self.network.dim)
        return _probabilities(
            self.network, tree, Examples.of(examples, self.objective), self.objective
        )

    def outcome(self, tree: RouteTree, examples: RouteTree) -> Outcome:
        """The exact outcome of the greedy policy on every query; see `probabilities`."""
        table = greedy(self.probabilities(tree, examples), tree.base_rate)
        actions = Actions(tree.layout, self.objective.allow_stop)
        return policy_outcome(tree, actions, table, ROUTER, "router")


def train_featured(
    tree: RouteTree, objective: Objective, config: ExactConfig = FEATURED, seed: int = 0
) -> TrainedFeatured:
    """Train on the fold "train", keep the iterate that is best on the fold "validation".

    Raises InputError: there is nothing to train on, earlier answers may be given, or the training
    diverged.

    Args:
        tree: all folds, of the pool as it is now.
        objective: what to train for; without `allow_return`.
        config: settings of the training; the width of its router is not looked at.
        seed: of everything random.
    """
    if objective.allow_return:
        raise InputError("allow_return is not for pools that change; train for one pool")
    folds = training_folds(tree)
    pools = [Examples.of(pool, objective) for pool in pools_of(folds[0])]

    def value(network: FeaturedRouter, fold: RouteTree) -> float:
        table = _probabilities(network, fold, pools[0], objective, itself=fold is folds[0])
        choice = greedy(table, fold.base_rate)
        outcome = policy_outcome(fold, pools[0].fold.actions, choice, "", "router")
        return float(outcome.reward(objective.alpha).mean())

    with reproducible(seed):
        network = FeaturedRouter(tree.hops, tree.dim)
        learner = FeaturedLearner(network, pools, config, np.random.default_rng(seed))
        best_iterate(learner, value, folds, config)
    return TrainedFeatured(
        network=network, objective=objective, origin=Origin.of(tree, config, seed)
    )


def pools_of(tree: RouteTree) -> list[RouteTree]:
    """The tree, then those without one of its models; a pool has at least two."""
    if len(tree.models) < 3:
        return [tree]
    smaller = ([kept for kept in tree.models if kept != name] for name in tree.models)
    return [tree, *(sub_pool(tree, kept) for kept in smaller)]


class FeaturedLearner:
    """Policy improvement on whole trees, as `ExactLearner`; each step in a pool drawn at random.

    Args:
        router: trained in place.
        pools: the train fold of each pool; all have the same queries.
        config: the settings.
        rng: source of the order of the queries, the pools and the noise.
    """

    def __init__(
        self,
        router: FeaturedRouter,
        pools: Sequence[Examples],
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        self.router = router
        self._pools = pools
        self._config = config
        self._rng = rng
        self._queries = len(pools[0].reward)
        self._total_steps = total_steps(self._queries, config)
        self._adam = make_adam(router.parameters(), config, self._total_steps)

    def epoch(self) -> dict[str, float]:
        """Make one gradient step on each batch of queries; there are no statistics."""
        for query in query_batches(self._queries, self._config, self._rng):
            self._step(torch.from_numpy(query))
        return {}

    def state(self) -> LearnerState:
        """Return a copy of the state between two epochs."""
        return optimiser_state(self._adam, self._rng)

    def restore(self, state: LearnerState) -> None:
        """Put back what `state` returned."""
        restore_optimiser(self._adam, self._rng, state)

    def _step(self, query: Tensor) -> None:
        """Make one gradient step on some queries, int64[n], in one of the pools."""
        examples = self._pools[int(self._rng.integers(len(self._pools)))]
        states = noisy_trees(examples.fold, query, self._config, self._rng)
        logits = self.router(states, examples, query)
        legal = states.legal.reshape(logits.shape)
        reward = examples.reward[query]
        progress = steps_taken(self._adam) / self._total_steps
        actions = examples.fold.actions
        loss = exact_loss(actions, logits, legal, reward, self._config, progress)
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()


@torch.no_grad()
def _probabilities(
    network: FeaturedRouter,
    tree: RouteTree,
    examples: Examples,
    objective: Objective,
    itself: bool = False,
) -> NDArray[np.float64]:
    """float64[queries, states, A].

    `itself`: the tree's queries are those of `examples`.
    """
    table = state_table(tree, objective)
    logits = [
        network(table.trees(query), examples, query if itself else None)
        for query in torch.split(torch.arange(len(tree)), CHUNK)
    ]
    probabilities: NDArray[np.float64] = torch.softmax(torch.cat(logits).double(), dim=2).numpy()
    return probabilities

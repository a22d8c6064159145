"""Train a policy over features of models.

In: a tree, an `Objective`, an `ExactConfig`. Out: `TrainedFeatured`, which routes in any pool whose
models have answered the train questions. It is trained by enumeration on the whole pool and on all
pools of one model less, so that it meets pools that differ. Not covered: files; a limit on the cost
of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.actions import Actions
from hierrouter.evaluate.exact import greedy, policy_outcome
from hierrouter.evaluate.outcome import ROUTER, Outcome
from hierrouter.learn.config import ExactConfig
from hierrouter.learn.enumeration import Enumeration
from hierrouter.learn.featured import FeaturedRouter, FeaturedShape
from hierrouter.learn.folds import training_folds
from hierrouter.learn.known import Known
from hierrouter.learn.loop import Snapshot, Watch, best_iterate
from hierrouter.learn.objective import Objective
from hierrouter.learn.origin import Origin
from hierrouter.learn.states import state_table
from hierrouter_cache.errors import InputError
from hierrouter_cache.sub_pool import sub_pool
from hierrouter_cache.tree import RouteTree

FEATURED = ExactConfig(epochs=8)
CHUNK = 512  # queries looked up at once


@dataclass(frozen=True)
class TrainedFeatured:
    """A policy for pools that change, and where it comes from.

    Attributes:
        network: the network, frozen.
        objective: what it was trained for.
        origin: where it comes from; its models are those of the training.
        history: exact greedy R on the validation fold at each evaluation.
    """

    network: FeaturedRouter
    objective: Objective
    origin: Origin
    history: tuple[float, ...]

    def probabilities(self, tree: RouteTree, known: RouteTree) -> NDArray[np.float64]:
        """float64[queries, states, A]: the stochastic policy at every state.

        Args:
            tree: of any pool.
            known: the train fold of the same pool.

        Raises:
            InputError: another view, encoder or number of hops than it was trained on, `known` is
                of another pool, or nothing is known of the models.
        """
        if known.models != tree.models:
            raise InputError(
                f"what is known is of other models: {', '.join(known.models)}; the tree has "
                f"{', '.join(tree.models)}; give the train fold of the same pool"
            )
        for fold in (tree, known):
            replace(self.origin, models=tree.models).check_matches(fold, self.network.shape.dim)
        return _probabilities(self.network, tree, Known.of(known, self.objective), self.objective)

    def outcome(self, tree: RouteTree, known: RouteTree) -> Outcome:
        """The exact outcome of the greedy policy on every query; see `probabilities`."""
        table = greedy(self.probabilities(tree, known), tree.base_rate)
        actions = Actions(tree.routes, self.objective.allow_stop)
        return policy_outcome(tree, actions, table, ROUTER, "router")

    @torch.no_grad()
    def decide(
        self, embedding: NDArray[np.float32], path: tuple[int, ...], known: Known
    ) -> NDArray[np.float64]:
        """float64[A]: the stochastic policy at one live state.

        Args:
            embedding: float32[dim], the encoder's vectors of the view.
            path: the models called so far, by number in the pool of `known`; fewer than L.
            known: what is known of the models.
        """
        state = known.fold.tree.routes.node(path)
        seen = torch.from_numpy(np.asarray(embedding, dtype=np.float32))[None]
        logits = self.network.at_state(seen, state, len(path), known)[0].double()
        legal = torch.from_numpy(known.fold.actions.legal()[state])
        chances: NDArray[np.float64] = torch.softmax(logits.masked_fill(~legal, -np.inf), 0).numpy()
        return chances


def train_featured(
    tree: RouteTree,
    objective: Objective,
    config: ExactConfig = FEATURED,
    seed: int = 0,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> TrainedFeatured:
    """Train on the fold "train", keep the iterate that is best on the fold "validation".

    Args:
        tree: all folds, of the pool as it is now.
        objective: what to train for; the cost of a query must not be limited.
        config: settings of the training; the width of its router is not looked at.
        seed: of everything random.
        watch: who is told.
        resumed: where to go on; everything else must be as it was.

    Raises:
        InputError: there is nothing to train on, the cost of a query is limited, or the training
            diverged.
    """
    if objective.max_cost is not None:
        raise InputError("max_cost cannot be kept in pools that change; train for one pool")
    folds = training_folds(tree)
    pools = [Known.of(pool, objective) for pool in pools_of(folds[0])]

    def value(network: FeaturedRouter, fold: RouteTree) -> float:
        table = _probabilities(network, fold, pools[0], objective, itself=fold is folds[0])
        choice = greedy(table, fold.base_rate)
        outcome = policy_outcome(fold, pools[0].fold.actions, choice, "", "router")
        return float(outcome.reward(objective.alpha).mean())

    def start() -> FeaturedLearner:
        network = FeaturedRouter(FeaturedShape(tree.hops, tree.dim))
        return FeaturedLearner(network, pools, config, np.random.default_rng(seed))

    network, best = best_iterate(start, value, folds, config, seed, watch, resumed)
    return TrainedFeatured(
        network=network,
        objective=objective,
        origin=Origin.of(tree, config, seed),
        history=tuple(best.history),
    )


def pools_of(tree: RouteTree) -> list[RouteTree]:
    """The tree, then those without one of its models; a pool has at least two."""
    if len(tree.models) < 3:
        return [tree]
    smaller = ([kept for kept in tree.models if kept != name] for name in tree.models)
    return [tree, *(sub_pool(tree, kept) for kept in smaller)]


class FeaturedLearner(Enumeration):
    """Policy improvement on whole trees; each step in a pool drawn at random.

    Args:
        router: trained in place.
        pools: what is known of the models of each; all have the same queries.
        config: the numbers.
        rng: source of the order of the queries, the pools and the noise.
    """

    def __init__(
        self,
        router: FeaturedRouter,
        pools: Sequence[Known],
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(router.parameters(), len(pools[0].reward), config, rng)
        self.router = router
        self._pools = pools

    def epoch(self) -> None:
        """One gradient step on each batch of queries, in one of the pools."""
        for query in self._batches():
            pool = self._pools[int(self._rng.integers(len(self._pools)))]
            self._step(torch.from_numpy(query), pool)

    def _step(self, query: Tensor, known: Known) -> None:
        states = self._visit(known.fold, query)
        logits = self.router(states, known, query)
        legal = states.legal.reshape(logits.shape)
        self._descend(known.fold.actions, logits, legal, known.reward[query])


@torch.no_grad()
def _probabilities(
    network: FeaturedRouter,
    tree: RouteTree,
    known: Known,
    objective: Objective,
    itself: bool = False,
) -> NDArray[np.float64]:
    """float64[queries, states, A]; `itself` says that the tree's queries are those of `known`."""
    table = state_table(tree, objective)
    logits = [
        network(table.trees(query), known, query if itself else None)
        for query in torch.split(torch.arange(len(tree)), CHUNK)
    ]
    probabilities: NDArray[np.float64] = torch.softmax(torch.cat(logits).double(), dim=2).numpy()
    return probabilities

"""Train one router for every alpha.

In: a tree, a grid of alphas, an `ExactConfig`. Out: a `TrainedSweep`, learned by enumeration at new
alphas for every tree of every gradient step; the grid chooses the iterate. Not covered: the network
(`alpha_router`), the loop over epochs (`loop`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hierrouter.evaluate.hulls import oracle_break_points
from hierrouter.learn.alpha_router import AlphaRouter, TrainedSweep, scales_of
from hierrouter.learn.config import ExactConfig
from hierrouter.learn.enumeration import Enumeration
from hierrouter.learn.folds import TrainingFold, fold_pair, training_folds
from hierrouter.learn.loop import Snapshot, Watch, best_iterate
from hierrouter.learn.objective import Objective
from hierrouter.learn.origin import Origin
from hierrouter.learn.router import shape_for
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

ALPHAS = 8  # that a tree is seen at in one gradient step
EVENLY = 8  # one alpha in so many is not drawn where the oracle changes, but evenly


class AlphaLearner(Enumeration):
    """Policy improvement on whole trees, each at a few alphas of its own.

    Alphas are drawn between those at which the tree oracle changes its mind somewhere on the train
    fold, so that the training is where the decisions are; some also evenly, up to twice the last.

    Args:
        router: trained in place.
        fold: what it learns from.
        break_points: float64[n], ascending, see `oracle_break_points`.
        config: the numbers.
        rng: source of the order of the queries, the alphas and the noise.
    """

    def __init__(
        self,
        router: AlphaRouter,
        fold: TrainingFold,
        break_points: NDArray[np.float64],
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(router.parameters(), len(fold.tree), config, rng)
        self.router = router
        self._fold = fold
        even = np.linspace(0.0, 2 * break_points.max(initial=0.0), 2 + len(break_points) // EVENLY)
        self._knots = np.sort(np.concatenate([break_points, even]))
        self._reward = StandardReward(fold)

    def epoch(self) -> None:
        """One gradient step on each batch of queries, at random alphas."""
        for query in self._batches():
            self._step(query)

    def _step(self, query: NDArray[np.int64]) -> None:
        fold = self._fold
        alpha = self._draw((len(query), ALPHAS))
        states = self._visit(fold, torch.from_numpy(query))
        logits = self.router(states, torch.from_numpy(alpha.astype(np.float32)))
        legal = states.legal.reshape(len(query), 1, -1, fold.actions.count)
        reward = self._reward(np.repeat(query, ALPHAS), alpha.ravel())
        self._descend(
            fold.actions,
            logits.flatten(0, 1),
            legal.expand(logits.shape).flatten(0, 1),
            torch.from_numpy(reward.astype(np.float32)),
        )

    def _draw(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Alphas, each between two neighbouring knots, all neighbours equally likely."""
        last = len(self._knots) - 1
        rank = self._rng.random(shape) * last
        alpha: NDArray[np.float64] = np.interp(rank, np.arange(last + 1), self._knots)
        return alpha


class StandardReward:
    """R = Q - alpha * C at any alpha, centred by query and scaled by its deviation at that alpha.

    What `TrainingFold.episode_reward` does for one alpha; the deviation at any other follows from
    the second moments of centred Q and C.
    """

    def __init__(self, fold: TrainingFold) -> None:
        ends = fold.actions.endings
        self._quality = _centred(fold.tree.score, ends)
        self._cost = _centred(fold.tree.cost, ends)
        quality, cost = self._quality[:, ends], self._cost[:, ends]
        self._moments = np.mean(quality**2), np.mean(quality * cost), np.mean(cost**2)

    def __call__(self, query: NDArray[np.int64], alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[n, nodes] of these queries, int64[n], at these alphas, float64[n]."""
        reward = self._quality[query] - alpha[:, None] * self._cost[query]
        return reward / self.deviation(alpha)[:, None]

    def deviation(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[n]: standard deviation over all endings of the fold; 1 where there is none."""
        quality, both, cost = self._moments
        variance = np.maximum(quality - 2 * alpha * both + alpha**2 * cost, 0.0)
        return np.where(variance > 0, np.sqrt(variance), 1.0)


def _centred(values: NDArray[np.float64], ends: slice) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = values - values[:, ends].mean(axis=1, keepdims=True)
    return centred


def train_sweep(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: ExactConfig,
    seed: int,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> TrainedSweep:
    """Train one network for all alphas; the grid chooses the iterate on the validation fold.

    Args:
        tree: all folds.
        alphas: the grid, ascending.
        objective: what to train for; its alpha is not looked at, and its cost of a query must
            not be limited.
        config: settings of the training.
        seed: of everything random.
        watch: who is told; the values are means over the grid of exact R / deviation.
        resumed: where to go on; everything else must be as it was.

    Raises:
        InputError: there is nothing to train on, the cost of a query is limited, or the training
            diverged.
    """
    if objective.max_cost is not None:
        raise InputError("max_cost cannot be kept at every alpha; train a router for one alpha")
    folds = fold_pair(training_folds(tree), objective)
    fold = folds[0]
    break_points = oracle_break_points(fold.tree, objective.allow_stop)
    deviation = StandardReward(fold).deviation(np.array(alphas))

    def value(network: AlphaRouter, valued: TrainingFold) -> float:
        reached = [valued.value(network.at(alpha), alpha) for alpha in alphas]
        return float(np.mean(np.array(reached) / deviation))

    def start() -> AlphaLearner:
        shape = shape_for(fold.tree, fold.actions, config)
        network = AlphaRouter(shape, scales_of(break_points))
        return AlphaLearner(network, fold, break_points, config, np.random.default_rng(seed))

    network, best = best_iterate(start, value, folds, config, seed, watch, resumed)
    return TrainedSweep(
        network=network,
        alphas=tuple(alphas),
        objective=objective,
        origin=Origin.of(tree, config, seed),
        history=tuple(best.history),
        kept=best.kept,
    )

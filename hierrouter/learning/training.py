"""Train a router for one alpha on the cached tree."""

from __future__ import annotations

import numpy as np

from hierrouter.evaluation.budget import Ceilings
from hierrouter.learning.config import ExactConfig, Objective, PPOConfig, TrainConfig
from hierrouter.learning.enumeration import ExactLearner
from hierrouter.learning.loop import (
    Learner,
    Snapshot,
    TrainingFold,
    Watch,
    best_iterate,
    fold_pair,
    training_folds,
)
from hierrouter.learning.network import Router, shape_for
from hierrouter.learning.trained import Origin, TrainedRouter
from hierrouter_cache.tree import RouteTree


def train(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> TrainedRouter:
    """Train on the fold "train", keep the iterate that is best on the fold "validation".

    Where two iterates are equally good on validation, the better one on train is kept, then the
    earlier one. Without a validation fold the train fold chooses.

    Args:
        tree: all folds.
        objective: what to train for.
        config: see `config.PRESETS`.
        seed: of everything random.
        watch: who is told.
        resumed: where to go on; everything else must be as it was.

    Raises:
        InputError: there is nothing to train on, or the training diverged.
    """
    trees = training_folds(tree)
    ceilings = None if objective.max_cost is None else Ceilings.of(trees[0])
    folds = fold_pair(trees, objective, ceilings)

    def value(router: Router, fold: TrainingFold) -> float:
        return fold.value(router, objective.alpha)

    def start() -> Learner[Router]:
        return _learner(folds[0], objective.alpha, config, seed)

    router, best = best_iterate(start, value, folds, config, seed, watch, resumed)
    return TrainedRouter(
        router=router,
        objective=objective,
        origin=Origin.of(tree, config, seed),
        history=tuple(best.history),
        ceilings=ceilings,
        kept=best.kept,
    )


def _learner(fold: TrainingFold, alpha: float, config: TrainConfig, seed: int) -> Learner[Router]:
    router = Router(shape_for(fold.tree, fold.actions, config))
    rng = np.random.default_rng(seed)
    if isinstance(config, PPOConfig):
        # Tianshou takes longer to import than a training by enumeration takes.
        from hierrouter.learning.ppo import PPOLearner

        return PPOLearner(router, fold, alpha, config, rng, np.random.RandomState(seed))
    assert isinstance(config, ExactConfig)
    return ExactLearner(router, fold, alpha, config, rng)

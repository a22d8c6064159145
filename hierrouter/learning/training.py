"""Train a router for one alpha, with the algorithm that its settings belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hierrouter.learning.config import (
    ExactConfig,
    MeanConfig,
    NetworkConfig,
    Objective,
    OnEpoch,
    OnEvaluation,
    PPOConfig,
    TableConfig,
    TianshouConfig,
    TrainConfig,
    ValueConfig,
    ignore_epoch,
    ignore_evaluation,
)
from hierrouter.learning.forward import NetworkRouter, TrainedNetwork
from hierrouter.learning.own_algorithm import OwnAlgorithm, require_given
from hierrouter.learning.policy_classes import TableGrid, fit_mean, fit_tables
from hierrouter.learning.resumption import Resumption, TrainingState, select
from hierrouter.learning.router import Origin, PolicyFamily, TrainedRouter, training_folds
from hierrouter.learning.value import fit
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:  # training a network needs torch, deciding with a trained one does not
    from hierrouter.learning.network import Learner, RouterNetwork, TrainingFold


def train(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
    resumption: Resumption | None = None,
    on_evaluation: OnEvaluation = ignore_evaluation,
    own: OwnAlgorithm | None = None,
) -> TrainedRouter:
    """Train a router for one alpha, with the algorithm that the settings belong to.

    PPO and learning by enumeration train a network on the fold "train", and keep the iterate that
    is best on the fold "validation": of equals there the better one on train, then the earlier one.
    Without a validation fold the train fold chooses. The value model and tables of routes learn
    from both folds. The best of several policy classes is found by `cross_fit.train_best`.

    Args:
        tree: all folds.
        objective: alpha, and how an episode may end.
        config: the settings; their class is the choice of the algorithm.
        seed: of everything random.
        on_epoch: called after each evaluation.
        resumption: how an interrupted training of a network goes on; the value model is one fit,
            and always begins anew.
        on_evaluation: called with each row of the learning curve of a network.
        own: the algorithm of the user that the settings name; None if they name none.

    Raises:
        InputError: there is nothing to train on, the training diverged, or the state to go on from
            is not one of this training.
    """
    origin = Origin.of(tree, config, seed)
    alpha = objective.alpha
    actions = objective.actions(tree.layout)
    if not isinstance(config, NetworkConfig):
        family = fit_family(tree, (alpha,), objective, config, seed, on_epoch)
        return TrainedRouter(family.at(alpha, (alpha,), actions), objective, origin, history=())
    require_given(config, own)
    from hierrouter.learning import network  # torch: see above

    folds = network.fold_pair(training_folds(tree), objective)
    learn_from, _ = folds

    def value(router: RouterNetwork, fold: TrainingFold) -> float:
        return fold.value(router, alpha)

    with network.reproducible(seed):
        router = network.RouterNetwork(
            network.shape_for(learn_from.tree, learn_from.actions, config)
        )
        router.standardise(learn_from.table)
        rng = np.random.default_rng(seed)
        learner = learner_class(config, own)(router, learn_from, alpha, config, rng)
        best = network.best_iterate(
            learner,
            value,
            folds,
            config,
            on_epoch or ignore_epoch,
            _with_routers(resumption or Resumption(), router, objective, origin),
            on_evaluation,
        )
    return TrainedRouter(
        NetworkRouter(router.export(), actions),
        objective,
        origin,
        tuple(best.history),
        statistics={name: tuple(column) for name, column in best.statistics.items()},
    )


def _with_routers(
    resumption: Resumption, router: RouterNetwork, objective: Objective, origin: Origin
) -> Resumption:
    """The same resumption, whose checkpoints have the router of their epoch."""

    def on_checkpoint(state: TrainingState) -> None:
        network = TrainedNetwork(router.shape, select(state.arrays, "present"))
        trained = TrainedRouter(
            NetworkRouter(network, objective.actions(origin.layout)),
            objective,
            origin,
            tuple(state.values["best"]["history"]),
            statistics={
                name: tuple(column.tolist())
                for name, column in select(state.arrays, "statistics").items()
            },
        )
        resumption.on_checkpoint(replace(state, policy=trained))

    return replace(resumption, on_checkpoint=on_checkpoint)


def learner_class(
    config: NetworkConfig, own: OwnAlgorithm | None
) -> Callable[..., Learner[RouterNetwork]]:
    """The class of the learner that the settings belong to."""
    if own and isinstance(config, TianshouConfig):
        from hierrouter.learning.own_learner import OwnAlgorithmLearner

        return partial(OwnAlgorithmLearner, own=own)
    if isinstance(config, PPOConfig):
        # Imported here because Tianshou takes longer to import than a training by enumeration.
        from hierrouter.learning.ppo import PPOLearner

        return PPOLearner
    assert isinstance(config, ExactConfig)
    from hierrouter.learning.exact import ExactLearner

    return ExactLearner


def fit_family(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: TrainConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
    fitted: Mapping[str, PolicyFamily] | None = None,
) -> PolicyFamily:
    """Learn policies that no epochs are needed for; see `sweep.train_sweep` for the arguments.

    To `on_epoch` each state of a value model is an epoch, and no value is known (NaN).
    """
    if isinstance(config, TableConfig):
        return TableGrid(fit_tables(tree, alphas, objective, config, seed))
    if isinstance(config, MeanConfig):
        return fit_mean(tree, alphas, objective, seed, fitted)

    def on_state(done: int, total: int) -> None:
        if on_epoch:
            on_epoch(done, total, math.nan, math.nan)

    assert isinstance(config, ValueConfig)
    return fit(tree, alphas, objective, config, on_state)

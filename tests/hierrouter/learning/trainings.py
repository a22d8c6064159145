"""Trainings short enough for tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierrouter.learning.config import (
    ExactConfig,
    Objective,
    PPOConfig,
    TrainConfig,
    ValueConfig,
    ignore_epoch,
)
from hierrouter.learning.cross_fit import Repetition
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import TrainedSweep, train_sweep
from hierrouter.learning.training import train
from hierrouter.runs.checkpoint import member_folder, policy_record, save_checkpoint
from hierrouter.runs.folders import WEIGHTS, Record, file_digest, finish_run
from hierrouter.runs.training import Training
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
OBJECTIVE = Objective(ALPHA)
GRID = (0.0, ALPHA, 0.05)
# Long enough to change every weight, far too short to learn anything.
GLIMPSE = PPOConfig(epochs=3, rollouts=64, minibatches=4, hidden=16)
EXACT_GLIMPSE = ExactConfig(epochs=3, queries=8, steps=2, hidden=16)
VALUE = ValueConfig()


def small_tree(seed: int = 0) -> RouteTree:
    """15 queries a fold, 8-dimensional embeddings of an encoder called "planted"."""
    return replace(planted_tree(per_family=(3, 3, 3), dim=8, seed=seed), encoder="planted")


def glimpse(
    tree: RouteTree, seed: int = 0, alpha: float = ALPHA, config: TrainConfig = GLIMPSE
) -> TrainedRouter:
    """A training of a fraction of a second."""
    return train(tree, Objective(alpha), config, seed)


def sweep_glimpse(tree: RouteTree, seed: int = 0) -> TrainedSweep:
    """One value model for every alpha."""
    return train_sweep(tree, GRID, OBJECTIVE, VALUE, seed)


def decided(
    trained: TrainedRouter, embedding: NDArray[np.float32], path: tuple[int, ...], cost: float
) -> NDArray[np.float64]:
    """float64[A]: the stochastic policy at one live state; see `TrainedRouter.decide_each`."""
    return trained.decide_each(trained.live_states(embedding[None], [path], [cost]))[0]


def finished(trained: TrainedRouter, folder: Path) -> Record:
    """A finished run of `train` in `folder`; the newest."""
    save_checkpoint(trained, folder)
    Record(folder, "train", {}).write()
    return finish_run(folder, policy_record(trained))


def finished_sweep(folder: Path, sweep: TrainedSweep | TrainedRouter) -> None:
    """A finished run of `sweep-alpha`; of a single router one that is damaged."""
    seed = sweep.origin.seed
    save_checkpoint(sweep, member_folder(folder, seed))
    Record(folder, "sweep-alpha", {}).write()
    finish_run(folder, {**policy_record(sweep), "seeds": [seed]})


def digest(trained: TrainedRouter | TrainedSweep, folder: Path) -> str:
    """Of a checkpoint's bytes."""
    save_checkpoint(trained, folder)
    return file_digest(folder / WEIGHTS)


def digest_of_shipped(training: Training, folder: Path) -> str:
    """Of the bytes of what a training on the small tree ships, as do no harm decides."""
    tree = small_tree()
    policy = training.fit(tree, ignore_epoch)
    return digest(training.shipped(policy, tree, Repetition().context), folder)

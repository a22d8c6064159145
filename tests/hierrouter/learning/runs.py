"""Trainings short enough for tests."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from hierrouter.learning.checkpoint import save_checkpoint
from hierrouter.learning.config import ExactConfig, Objective, PPOConfig, TrainConfig
from hierrouter.learning.loop import Snapshot, Watch
from hierrouter.learning.sweep import TrainedSweep, train_sweep
from hierrouter.learning.training import TrainedRouter, train
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
OBJECTIVE = Objective(ALPHA)
GRID = (0.0, ALPHA, 0.05)
# Long enough to change every weight, far too short to learn anything.
GLIMPSE = PPOConfig(epochs=3, rollouts=64, minibatches=4, hidden=16)
EXACT_GLIMPSE = ExactConfig(epochs=3, queries=8, steps=2, hidden=16)


def small_tree(seed: int = 0) -> RouteTree:
    """15 queries a fold, 8-dimensional embeddings of an encoder called "planted"."""
    return replace(planted_tree(per_family=(3, 3, 3), dim=8, seed=seed), encoder="planted")


def glimpse(
    tree: RouteTree, seed: int = 0, alpha: float = ALPHA, config: TrainConfig = GLIMPSE
) -> TrainedRouter:
    """A training of a fraction of a second."""
    return train(tree, Objective(alpha), config, seed)


def sweep_glimpse(
    tree: RouteTree,
    seed: int = 0,
    config: ExactConfig = EXACT_GLIMPSE,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> TrainedSweep:
    """The same for one network at every alpha."""
    return train_sweep(tree, GRID, OBJECTIVE, config, seed, watch, resumed)


def digest(trained: TrainedRouter | TrainedSweep, folder: Path) -> str:
    """Of both files of a checkpoint."""
    save_checkpoint(trained, folder)
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()

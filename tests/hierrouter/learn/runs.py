"""Trainings short enough for tests."""

from __future__ import annotations

from dataclasses import replace

from hierrouter.learn.config import PRESETS
from hierrouter.learn.ppo import train
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
# Long enough to change every weight, far too short to learn anything.
GLIMPSE = replace(PRESETS["default"], epochs=3, rollouts=64, minibatches=4, hidden=16)


def small_tree(seed: int = 0) -> RouteTree:
    """15 queries a fold and 8-dimensional embeddings."""
    return planted_tree(per_family=(3, 3, 3), dim=8, seed=seed)


def glimpse(tree: RouteTree, seed: int = 0, alpha: float = ALPHA) -> TrainedRouter:
    """A training of a fraction of a second."""
    return train(tree, alpha, GLIMPSE, seed, encoder="planted")

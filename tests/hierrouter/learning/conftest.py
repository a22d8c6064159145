"""Trainings that several files look at."""

import pytest

from hierrouter.learning.config import ValueConfig
from hierrouter.learning.sweep import TrainedSweep, alpha_grid, train_sweep
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import OBJECTIVE
from tests.hierrouter.trees import planted_tree


@pytest.fixture(scope="session")
def planted() -> RouteTree:
    return planted_tree()


@pytest.fixture(scope="session")
def every_alpha(planted: RouteTree) -> TrainedSweep:
    """One value model for every alpha of the planted tree."""
    return train_sweep(planted, alpha_grid(planted, 6), OBJECTIVE, ValueConfig(), seed=0)

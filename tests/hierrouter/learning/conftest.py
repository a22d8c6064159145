"""Trainings that several files look at."""

from pathlib import Path

import pytest

from hierrouter.learning.config import ValueConfig
from hierrouter.learning.sweep import TrainedSweep, alpha_grid, train_sweep
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import OBJECTIVE
from tests.hierrouter.trees import planted_tree


@pytest.fixture(scope="session")
def planted() -> RouteTree:
    return planted_tree()


@pytest.fixture(scope="session")
def every_alpha(planted: RouteTree) -> TrainedSweep:
    """One value model for every alpha of the planted tree."""
    return train_sweep(planted, alpha_grid(planted, 6), OBJECTIVE, ValueConfig(), seed=0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

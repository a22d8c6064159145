"""Fixtures that several folders share: the installed command, and a collected testbed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.warm import Warm

# Nothing here may reach a hub; set before any test imports transformers.
os.environ["HF_HUB_OFFLINE"] = "1"
# As many tests run as there are cores: threads of one would wait for those of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "hierrouter_cli"]
SOURCES = Path(__file__).parents[1]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: half as many again as there are cores; the tests wait for processes often."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


def environment() -> dict[str, str]:
    """The environment in which a test starts the command."""
    roots = [str(SOURCES / folder) for folder in (".", "cache", "cli")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "NO_COLOR": "1"}


def run_cold(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a new Python; `cwd` says where."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """See `tests.warm`."""
    started = Warm(environment(), SOURCES)
    yield started
    started.close()


@pytest.fixture(scope="session")
def hierrouter(warm: Warm) -> Run:
    """Run the command as a process of its own; `cwd` says where."""

    def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        if _settings(environment()) != _settings(warm.environment):
            return run_cold(*arguments, cwd=cwd)
        return warm.run([str(argument) for argument in arguments], cwd)

    return run


@pytest.fixture(scope="session")
def cold() -> Run:
    """The same in a new Python, for what must not depend on its hash seed."""
    return run_cold


def _settings(of: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in of.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="session")
def testbed_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with 20 queries of each family, collected once with the shipped models."""
    from hierrouter.collect.datasets import load_queries
    from hierrouter.collect.scheduler import collect
    from hierrouter.pool_file import load_pool

    root = tmp_path_factory.mktemp("testbed") / "cache"
    collect(load_pool("testbed"), load_queries(["testbed"], 20, 42, Path()), root)
    return root


@pytest.fixture(scope="session")
def live_run(testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a router for alpha 0.1 that answers with the testbed's models."""
    from hierrouter.learn.checkpoint import save_checkpoint
    from hierrouter.learn.config import preset, shortened
    from hierrouter.learn.objective import Objective
    from hierrouter.learn.training import train
    from hierrouter.live.bundle import bundle_of, save_bundle
    from hierrouter.trees import open_tree

    folder = tmp_path_factory.mktemp("live") / "run"
    tree = open_tree(testbed_cache)
    config = shortened(preset("default", "exact"), 8)
    save_checkpoint(train(tree, Objective(0.1), config, seed=1), folder)
    save_bundle(bundle_of(testbed_cache, tree), folder)
    return folder

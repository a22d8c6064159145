"""Fixtures that several folders share: the installed command, and a collected testbed."""

import fcntl
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from hierrouter_cache.keys import digest
from tests.warm import Running, Warm, WarmProcess

# Set before any test imports the libraries that read them. Nothing here may reach a hub; threads
# of several workers and of what they start would wait for each other on a few cores.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so do its children; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # a busy machine is not a fault
settings.load_profile("untimed")

# Begun first and longest first: begun last, one would keep a worker busy after all others are done.
LONG = (
    "cli/test_readme.py",
    "security/test_doors.py",
    "hierrouter/collection/test_served_and_local.py",
    "hierrouter/serving/test_operations.py",
    "cli/test_hub.py",
    "cli/test_interrupted.py",
    "cli/test_integrity.py",
    "hierrouter/questions/test_programs.py",
    "hierrouter/collection/test_adaptive.py",
    "hierrouter/engines/test_llamacpp.py",
    "acceptance/test_bad_inputs.py",
)

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Running]
WARM = pytest.StashKey[WarmProcess]()
COMMAND = [sys.executable, "-m", "hierrouter_cli"]
SOURCES = Path(__file__).parents[1]


# Tests compare folders before and after a command, in which no bytecode is to appear.
os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: half as many again as there are cores; the tests wait for processes often."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


def environment() -> dict[str, str]:
    """The environment in which a test starts the command."""
    roots = [str(SOURCES / folder) for folder in (".", "cache", "cli")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "NO_COLOR": "1"}


def spawned(
    *command: str | Path, cwd: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """What any program did; `settings` are more of its environment."""
    env = {**environment(), **settings}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)


def run_cold(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a new Python, for what must not depend on its hash seed."""
    return spawned(*COMMAND, *map(str, arguments), cwd=cwd)


def python_with(*packages: str) -> Path:
    """The interpreter of an environment with these and nothing of ours, made once a machine."""

    def build(folder: Path) -> None:
        works(spawned(sys.executable, "-m", "venv", folder))
        done = spawned(folder / "bin/pip", "install", "--quiet", *packages, PYTHONPATH="")
        if done.returncode:
            pytest.skip(f"{packages[0]} cannot be had here: {done.stderr.splitlines()[-1]}")

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hierrouter"
    cache.mkdir(parents=True, exist_ok=True)
    name = digest([sys.base_prefix, sys.version, *packages])[:16]
    return made_once(cache / f"python-{name}", build) / "bin/python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `LONG`."""
    place = {str(SOURCES / "tests" / name): number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(str(item.path), len(LONG)))


def pytest_collection_finish() -> None:
    """Engines collect garbage when a model goes: what has been imported is none."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Start what `tests.warm` describes, one for all workers."""
    config.option.loadscopereorder = False  # xdist: in the order of `LONG`, not by number of tests
    if not hasattr(config, "workerinput"):
        config.stash[WARM] = WarmProcess(environment(), SOURCES)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where it listens."""
    node.workerinput["warm"] = node.config.stash[WARM].warm.address


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()
    if WARM in config.stash:
        config.stash[WARM].close()


@pytest.fixture(autouse=True)
def new_health() -> None:
    """What a process remembers of servers is not for another test, which may have their ports."""
    health = sys.modules.get("hierrouter.engines.health")
    if health:
        health.forget_health()


@pytest.fixture(scope="session")
def warm(pytestconfig: pytest.Config) -> Warm:
    """See `tests.warm`."""
    if WARM in pytestconfig.stash:
        return pytestconfig.stash[WARM].warm
    return Warm(pytestconfig.workerinput["warm"])  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def start(warm: Warm) -> Start:
    """Start the command as a process of its own; `cwd` says where."""

    def started(*arguments: str | Path, cwd: Path, **more: Any) -> Running:
        command = ("-m", "hierrouter_cli", *map(str, arguments))
        return warm.start(*command, cwd=cwd, **{"env": environment(), **more})

    return started


@pytest.fixture(scope="session")
def hierrouter(start: Start) -> Run:
    """Run the command as a process of its own; `cwd` says where."""
    before = at_import(environment())

    def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        if at_import(environment()) != before:
            return run_cold(*arguments, cwd=cwd)
        done = start(*arguments, cwd=cwd).result()
        done.args = [str(argument) for argument in arguments]
        return done

    return run


def works(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """What a command did that must not fail."""
    assert done.returncode == 0, done.stderr
    return done


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(works(done).stdout)


def refused(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one error, in the last line, of a command that cannot do it; it prints no result."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    return lines[-1]


def calls_made(said: str) -> tuple[int, int]:
    """(made now, already there), as a collection says at its end."""
    found = re.search(r"([\d,]+) calls made, ([\d,]+) already there", said)
    assert found, said
    made, there = (int(number.replace(",", "")) for number in found.groups())
    return made, there


def at_import(env: dict[str, str]) -> dict[str, str]:
    """Of an environment, what Python and libraries read when they start."""
    read = ("HF_", "OMP_", "PYTHON")
    # A cluster that runs in this process sets the one, for debuggers; `warm` knows the other.
    not_read = ("PYTHONBREAKPOINT", "PYTHONIOENCODING")
    return {
        name: value for name, value in env.items() if name.startswith(read) and name not in not_read
    }


def once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The worker's own copy of a folder that one worker builds for all."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = made_once(shared / f"{name}-of-all", build)
    return shutil.copytree(folder, factory.mktemp(name) / name)


def made_once(folder: Path, build: Callable[[Path], object]) -> Path:
    """The folder, which the first process that asks for it builds."""
    done = folder.with_name(f"{folder.name}.done")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def testbed_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with 20 queries of each family, collected once with the shipped models."""
    from hierrouter.collection.scheduler import fill_cache
    from hierrouter.pools.files import load_pool
    from hierrouter.questions.datasets import load_queries

    def build(folder: Path) -> None:
        queries = load_queries(["testbed"], 20, 42, Path())
        fill_cache(load_pool("testbed"), queries, folder / "cache")

    return once(tmp_path_factory, "testbed", build) / "cache"


@pytest.fixture(scope="session")
def live_run(testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a router for alpha 0.1 that answers with the testbed's models."""
    from hierrouter.learning.config import Objective, training_config
    from hierrouter.learning.training import train
    from hierrouter.replay.open_tree import OpenTree
    from hierrouter.runs.bundle import bundle_of, save_bundle
    from hierrouter.runs.checkpoint import save_checkpoint

    def build(folder: Path) -> None:
        tree = OpenTree(cache=testbed_cache).run()
        config = training_config("default", "exact", 8)
        save_checkpoint(train(tree, Objective(0.1), config, seed=1), folder / "run")
        save_bundle(bundle_of(testbed_cache, tree), folder / "run")

    return once(tmp_path_factory, "live", build) / "run"

"""Shared by all benchmarks: the project's folder, versions, CPU seconds, a server's address.

Importing this module makes this copy of the project importable, including its `tests`, which are
not installed.
"""

import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "cache")]

Result = TypeVar("Result")
# `hierrouter serve` prints its address on stderr.
SERVER_ADDRESS_PATTERN = re.compile(r"serve: (http://\S+/v1) as")


def versions(*modules: ModuleType) -> str:
    """Return the versions of modules and of Python, and the kind of processor."""
    texts = [f"{module.__name__} {module.__version__}" for module in modules]
    return ", ".join([*texts, f"python {platform.python_version()}", platform.machine()])


def measure_cpu(work: Callable[[], Result]) -> tuple[Result, float]:
    """Call a function, and return its result and the CPU seconds it took."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def measure_interleaved(
    variants: Mapping[str, Callable[[], Result]], rounds: int
) -> dict[str, list[tuple[Result, float]]]:
    """Measure variants in turn, so that a change of the machine's load affects all of them.

    Args:
        variants: functions by name.
        rounds: calls of each; one more comes first and is not counted.

    Returns:
        Result and CPU seconds of each call, by name.
    """
    runs: dict[str, list[tuple[Result, float]]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, work in variants.items():
            run = measure_cpu(work)
            if turn > 0:
                runs[name].append(run)
    return runs

"""What the benchmarks share: the project's folder, versions, CPU seconds, a server's address.

Importing it makes this copy of the project importable, its `tests` too, which are not installed.
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
LISTENS = re.compile(r"serve: (http://\S+/v1) as")  # which `hierrouter serve` says on stderr


def versions(*modules: ModuleType) -> str:
    """Of these modules and of Python, and the kind of processor."""
    found = [f"{module.__name__} {module.__version__}" for module in modules]
    return ", ".join([*found, f"python {platform.python_version()}", platform.machine()])


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work returns, and the CPU seconds it took."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def interleaved(
    ways: Mapping[str, Callable[[], Result]], rounds: int
) -> dict[str, list[tuple[Result, float]]]:
    """What each way returned and took, see `timed`, round by round; the first is not counted."""
    found: dict[str, list[tuple[Result, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, work in ways.items():
            run = timed(work)
            if turn:
                found[name].append(run)
    return found

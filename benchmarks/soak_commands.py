"""Commands for `soak.py`: run or interrupt `hierrouter`, and check its documented promises.

A command's output is returned once its exit code and its error line are as documented. `stored`
returns all rows of a cache by their identity. Commands are forked from a process that has imported
their modules already (`tests/warm.py`).
"""

import os
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from measuring import ROOT

from hierrouter_cache.errors import NoCache
from hierrouter_cache.parts import IDENTITY_COLUMNS, ROW_SCHEMAS
from hierrouter_cache.reader import CacheReader
from tests.warm import Running, Warm

# Exit codes.
KILLED = -signal.SIGKILL
LOCKED = 3
CTRL_C = 130
TOO_LATE = -signal.SIGINT  # Ctrl-C after the command has finished its work; 130 in a shell

Rows = dict[tuple[object, ...], str]


class BrokenPromise(Exception):
    """Something happened that contradicts the documentation."""


def promise(is_true: bool, message: str) -> None:
    """Raise BrokenPromise unless a documented statement is true."""
    if not is_true:
        raise BrokenPromise(message)


def stored(root: Path) -> Rows:
    """Return all rows of a cache by kind and identity; a reader checks their bytes first."""
    try:
        reader = CacheReader(root)
    except NoCache:
        return {}
    rows: Rows = {}
    for kind in ROW_SCHEMAS:
        for row in reader.sql(f"SELECT * FROM {kind}").to_pylist():
            identity = (kind, *(row[name] for name in IDENTITY_COLUMNS[kind]))
            promise(identity not in rows, f"served twice: {identity}")
            rows[identity] = repr(row)
    return rows


def calls(rows: Rows) -> int:
    """Count the calls among rows."""
    return sum(identity[0] == "calls" for identity in rows)


def without_latency(rows: Rows) -> Rows:
    """Remove the latencies of calls, because imported calls have none."""
    pattern = re.compile(r"'latency_s': [^,}]+")
    return {identity: pattern.sub("", row) for identity, row in rows.items()}


@dataclass
class Commands:
    """Runs `hierrouter` in forked processes.

    Attributes:
        warm: forks the processes.
        folder: the working folder.
        ended: how often each command ended with each exit code.
    """

    warm: Warm
    folder: Path
    ended: Counter[str] = field(default_factory=Counter)

    def start(self, *arguments: str | Path) -> Running:
        roots = [str(ROOT / folder) for folder in (".", "cache", "cli")]
        settings = {"PYTHONPATH": os.pathsep.join(roots), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        words = ("-m", "hierrouter_cli", *map(str, arguments))
        return self.warm.start(*words, cwd=self.folder, env={**os.environ, **settings})

    def run(self, *arguments: str | Path, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        """Run a command to its end, and return stdout and stderr."""
        _, out, err = self.end(self.start(*arguments), codes, *arguments)
        return out, err

    def end(
        self, process: Running, codes: tuple[int, ...], *arguments: str | Path
    ) -> tuple[int, str, str]:
        """Wait for a command, check its end, and return exit code, stdout and stderr."""
        completed = process.result()
        words = " ".join(map(str, arguments))
        self.ended[f"{arguments[0]} {completed.returncode}"] += 1
        summary = f"`{words}` ended with {completed.returncode}: {completed.stderr[-2000:]}"
        promise(completed.returncode in codes, f"{summary}; documented {codes}")
        promise("Traceback" not in completed.stderr, summary)
        errors = [line for line in completed.stderr.splitlines() if line.startswith("error: ")]
        # An error is one line, the last one; a command that succeeds prints none.
        if completed.returncode > 0:
            is_right = len(errors) == 1 and completed.stderr.endswith(f"{errors[0]}\n")
        else:
            is_right = not errors
        promise(is_right, f"not one line of error: {summary}")
        return completed.returncode, completed.stdout, completed.stderr

    def strike(self, number: signal.Signals, after_s: float, *arguments: str | Path) -> int:
        """Start a command, send it a signal after some seconds, and return its exit code."""
        process = self.start(*arguments)
        time.sleep(after_s)
        process.send_signal(number)
        codes = (KILLED,) if number is signal.SIGKILL else (CTRL_C, TOO_LATE)
        return self.end(process, (0, *codes), *arguments)[0]

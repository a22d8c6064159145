"""The commands of `soak.py`: run, ended at a moment, held to what is documented.

In: arguments of `hierrouter`. Out: what it printed, after its exit code and its one line of error
were found as documented; and all rows that a cache serves, by what names them. Commands are forked
from a process that has imported what they need (`tests/warm.py`).
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

KILLED, LOCKED, CTRL_C = -signal.SIGKILL, 3, 130
TOO_LATE = -signal.SIGINT  # Ctrl-C when all is done and said; 130 in a shell

Rows = dict[tuple[object, ...], str]


class BrokenPromise(Exception):
    """What the documentation says and what happened instead."""


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise BrokenPromise(what)


def stored(root: Path) -> Rows:
    """Each row that is served, by kind and identity, after proof that all bytes are sound."""
    try:
        reader = CacheReader(root)
    except NoCache:
        return {}
    found: Rows = {}
    for kind in ROW_SCHEMAS:
        for row in reader.sql(f"SELECT * FROM {kind}").to_pylist():
            identity = (kind, *(row[name] for name in IDENTITY_COLUMNS[kind]))
            promise(identity not in found, f"served twice: {identity}")
            found[identity] = repr(row)
    return found


def calls(rows: Rows) -> int:
    """How many of them are calls."""
    return sum(name[0] == "calls" for name in rows)


def without_latency(rows: Rows) -> Rows:
    """An imported call has none."""
    return {name: re.sub(r"'latency_s': [^,}]+", "", row) for name, row in rows.items()}


@dataclass
class Commands:
    """The command, forked; how often it ended how."""

    warm: Warm
    place: Path
    ended: Counter[str] = field(default_factory=Counter)

    def start(self, *arguments: str | Path) -> Running:
        roots = [str(ROOT / folder) for folder in (".", "cache", "cli")]
        told = {"PYTHONPATH": os.pathsep.join(roots), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        words = ("-m", "hierrouter_cli", *map(str, arguments))
        return self.warm.start(*words, cwd=self.place, env={**os.environ, **told})

    def run(self, *arguments: str | Path, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        """Run it to its end; stdout and stderr."""
        _, out, err = self.end(self.start(*arguments), codes, *arguments)
        return out, err

    def end(
        self, process: Running, codes: tuple[int, ...], *arguments: str | Path
    ) -> tuple[int, str, str]:
        """Wait for it; exit code, stdout and stderr, which must be as documented."""
        done = process.result()
        words = " ".join(map(str, arguments))
        self.ended[f"{arguments[0]} {done.returncode}"] += 1
        told = f"`{words}` ended with {done.returncode}: {done.stderr[-2000:]}"
        promise(done.returncode in codes, f"{told}; documented {codes}")
        promise("Traceback" not in done.stderr, told)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        one_line = len(errors) == 1 and done.stderr.endswith(f"{errors[0]}\n")
        promise(one_line if done.returncode > 0 else not errors, f"not one line of error: {told}")
        return done.returncode, done.stdout, done.stderr

    def strike(self, how: signal.Signals, after_s: float, *arguments: str | Path) -> int:
        """Start it and end it at some moment; its exit code."""
        process = self.start(*arguments)
        time.sleep(after_s)
        process.send_signal(how)
        codes = (KILLED,) if how is signal.SIGKILL else (CTRL_C, TOO_LATE)
        return self.end(process, (0, *codes), *arguments)[0]

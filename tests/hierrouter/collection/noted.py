"""Shards in processes of their own, one of which is killed in the middle.

    python -m tests.hierrouter.collection.noted ROOT I/N LOG [AFTER]

Collects one shard of `QUERIES` with scripted models. Every answer is noted in LOG, in a file of the
process that made it. After so many answers of a process one of them is killed.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierrouter.collection.plan import parse_shard
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Answer
from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.reader import CacheReader
from tests.engines import Scripted, scripted_answer
from tests.hierrouter.collection.examples import POOL, sums

QUERIES = tuple(sums(16))


@dataclass
class Noting:
    """What scripted models say, noted; after so many answers of a process it dies, once."""

    log: Path
    after: int = 0
    pause_s: float = 0.0
    made: int = 0

    def __call__(self, model: str, prompt: str) -> Answer:
        time.sleep(self.pause_s)
        with (self.log / str(os.getpid())).open("a") as file:
            file.write(json.dumps([model, prompt]) + "\n")
        self.made += 1
        if self.made == self.after and self._first():
            # What the kernel does to a process that takes too much memory, and people do to any.
            os.kill(os.getpid(), signal.SIGKILL)
        return scripted_answer(model, prompt)

    def _first(self) -> bool:
        try:
            (self.log / "happened").touch(exist_ok=False)
        except FileExistsError:
            return False
        (self.log / "happened").write_text(str(os.getpid()))
        return True


@dataclass
class Various(Scripted):
    """A machine of another kind in each process; with a `log` none answers before two are in it."""

    log: Path | None = None

    def __post_init__(self) -> None:
        self.script = self._together if self.log else scripted_answer

    def _together(self, model: str, prompt: str) -> Answer:
        assert self.log
        (self.log / str(os.getpid())).touch()
        while len(list(self.log.iterdir())) < 2:
            time.sleep(0.01)
        return scripted_answer(model, prompt)

    def identify(self, spec: ModelSpec) -> Identity:
        return {**super().identify(spec), "device": f"device {os.getpid()}"}


def answers(log: Path) -> dict[int, Counter[tuple[str, str]]]:
    """(model, prompt) of every answer, by the process that made it."""
    return {
        int(file.name): Counter(tuple(json.loads(line)) for line in file.read_text().splitlines())
        for file in log.iterdir()
        if file.name.isdecimal()
    }


def rows(root: Path) -> list[dict[str, Any]]:
    """All rows of calls, the ones that are not served too, without what time decides."""
    reader = CacheReader(root)
    return reader.sql(
        "SELECT key, model, prompt, response, tokens_in, tokens_out, finish_reason "
        "FROM calls_rows ORDER BY key"
    ).to_pylist()


def check_after_an_accident(root: Path, whole: Path, log: Path) -> None:
    """The tree is that of an undisturbed collection, and only what was lost was asked again.

    No row is there twice; so what the struck process had committed was not asked again, and what
    was asked again is what it had not committed.
    """
    assert rows(root) == rows(whole)
    assert OpenTree(cache=root).run().fingerprint == OpenTree(cache=whole).run().fingerprint
    made = answers(log)
    struck = made.pop(int((log / "happened").read_text()))
    others: Counter[tuple[str, str]] = sum(made.values(), Counter())
    assert set((struck + others).values()) <= {1, 2}
    assert max(others.values()) == 1
    assert set(struck | others) == {(row["model"], row["prompt"]) for row in rows(whole)}
    assert 0 < (struck & others).total() < struck.total()  # it was struck in the middle of a part


def main(root: Path, shard: str, log: Path, after: str = "0") -> None:
    engines = Scripted(Noting(log, int(after)))
    summary = fill_cache(POOL, QUERIES, root, engines=engines, shard=parse_shard(shard))
    sys.stdout.write(str(summary.calls))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])

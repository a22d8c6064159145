"""Kill a process that writes a cache, and check what is left.

This harness is shared by `crash.py`, `power.py` and `tests/cache/test_full_disk.py`. A worker
process appends batches of rows of all kinds, acknowledges each part over a pipe once `append` has
returned, and compacts the cache from time to time. It is killed by SIGKILL, by itself at a named
milestone or from outside at any time. `inspect` then compares the cache with the acknowledged rows.
"""

import contextlib
import functools
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache import stores, writer
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.errors import CacheError, NoCache
from hierrouter_cache.keys import draw_step
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import IDENTITY_COLUMNS, ROW_SCHEMAS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter, sweep_drafts
from tests.cache import rows

MILESTONES = (
    "before write",
    "before rename",
    "after rename",
    "after folder fsync",
    "after head",
    "compact: read",
    "compact: written",
    "compact: unlink",
)
ROWS = 6  # of a part; a part of plans has one
BATCHES_PER_COMPACTION = 2
# Small, so that some merged parts are complete and left alone by the next compaction.
TARGET_ROWS = 300
ENDLESS = 1_000_000

# A server that has imported what the workers need forks them; no thread of the tests is forked.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", __name__])

Ack = tuple[int, str]


@functools.cache
def batch(number: int) -> dict[str, pa.Table]:
    """Make one part of each kind; the content follows from the number, plans come last."""
    names = [f"{number:06d}-{row}" for row in range(ROWS)]
    texts = [f"{name} {random.Random(name).randbytes(60).hex()}" for name in names]
    contents: dict[str, list[tuple[object, ...]]] = {kind: [] for kind in ROW_SCHEMAS}
    for name, text in zip(names, texts, strict=True):
        keys = (name,) * 4
        contents["queries"].append((*keys, "d", "test", text, texts, None))
        contents["calls"].append(_call_row(name, text, number))
        contents["scores"].append((name, name, "token_f1", 1 / (number + 1)))
        contents["failures"].append((*keys, "empty", text, number))
        contents["decisions"].append((*keys, False, 0.0, [0.01 * number]))
    contents["plans"].append((names[0], str(number), names))
    order = ("queries", "calls", "scores", "failures", "decisions", "plans")
    return {kind: rows.table(kind, *contents[kind]) for kind in order}


def _call_row(name: str, text: str, number: int) -> tuple[object, ...]:
    """Make a row of `calls`: one in three is a further draw of a call, one in three is imported."""
    kind = int(name[-1]) % 3
    if kind == 1:
        return (name, draw_step(name, 1), name, name, name, text, text, number, number, "stop", 0.1)
    if kind == 2:  # the log's own id of a response is its step, and nothing was measured
        return (name, text, name, name, "a>b", "", text, 0, 0, "unknown", None)
    return (*(name,) * 4, name, text, text, number, number, "stop", 0.1)


def work(
    root: Path, first: int, count: int, kill_at: tuple[str, int] | None, news: Connection
) -> None:
    """Complete batches `first` to `first + count - 1`, as a collection that resumes does.

    Args:
        root: the cache's folder.
        first: number of the first batch.
        count: number of batches.
        kill_at: (milestone, n): die when the milestone is reached for the nth time.
        news: receives "ready", then each milestone, and (number, kind) of each part after its
            commit.
    """
    reached: Counter[str] = Counter()

    def on_step(name: str) -> None:
        reached[name] += 1
        if (name, reached[name]) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        news.send(name)

    writer = PartWriter(root, on_step)
    stored = stored_names(root)
    news.send("ready")
    for start in range(first, first + count, BATCHES_PER_COMPACTION):
        with collector_lock(root):
            sweep_drafts(root)
            for number in range(start, min(start + BATCHES_PER_COMPACTION, first + count)):
                for kind, table in batch(number).items():
                    if not _names_of(number, kind) <= stored[kind]:
                        writer.append(kind, table)
                    news.send((number, kind))
        compact(root, on_step, target_rows=TARGET_ROWS)


def stored_names(root: Path) -> dict[str, set[tuple[object, ...]]]:
    """Return the identities of all stored rows, by kind."""
    names: dict[str, set[tuple[object, ...]]] = {kind: set() for kind in ROW_SCHEMAS}
    with contextlib.suppress(NoCache):
        for part in sound_parts(root):
            with pq.ParquetFile(part.path) as file:
                identities = file.read(list(IDENTITY_COLUMNS[part.kind]))
                names[part.kind].update(_names(part.kind, identities))
    return names


@dataclass
class Harness:
    """A cache whose workers are killed.

    Attributes:
        root: the cache's folder.
        acked: the parts acknowledged so far.
    """

    root: Path
    acked: set[Ack] = field(default_factory=set)

    def run(self, batches: int, kill_at: tuple[str, int] | None = None) -> int | None:
        """Complete the first `batches` batches; return the worker's exit code (-9 if killed)."""
        process, news = self._start(0, batches, kill_at)
        self._finish(process, news)
        return process.exitcode

    def run_and_kill(
        self, rng: random.Random, strike: Callable[[], None] = lambda: None, milestones: int = 240
    ) -> None:
        """Continue after the acknowledged parts, and kill the worker at a random moment.

        The moment is a random number of milestones and then some milliseconds, so that it can be in
        any part of the work, and that a cache on a slow disk grows, too.

        Args:
            rng: draws the moment.
            strike: called before the worker is killed.
            milestones: the moment comes after fewer milestones than this.
        """
        first = max((number for number, _ in self.acked), default=0)
        process, news = self._start(first, ENDLESS, None)
        for _ in range(rng.randrange(milestones)):
            self._receive(news)
        process.join(rng.uniform(0, 0.005))
        assert process.is_alive(), "the worker failed by itself"
        strike()
        process.kill()
        self._finish(process, news)

    def run_and_look(self, batches: int) -> list[set[Ack]]:
        """Run a worker to its end, and read the cache all the time, without a lock.

        Args:
            batches: number of batches.

        Returns:
            For each reading, the acknowledged parts that it missed.
        """
        process, news = self._start(0, batches, None)
        missed = []
        while process.is_alive():
            with contextlib.suppress(EOFError):
                while news.poll():
                    self._receive(news)
            with contextlib.suppress(FileNotFoundError):  # merged after it was listed: read again
                stored = stored_names(self.root)
                missed.append({ack for ack in self.acked if not _names_of(*ack) <= stored[ack[1]]})
        self._finish(process, news)
        return missed

    def _start(
        self, first: int, count: int, kill_at: tuple[str, int] | None
    ) -> tuple[BaseProcess, Connection]:
        receiver, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=work, args=(self.root, first, count, kill_at, sender))
        process.start()
        sender.close()
        receiver.recv()  # "ready"
        return process, receiver

    def _receive(self, news: Connection) -> None:
        message = news.recv()
        if isinstance(message, tuple):  # not a milestone
            self.acked.add(message)

    def _finish(self, process: BaseProcess, news: Connection) -> None:
        with contextlib.suppress(EOFError):
            while True:
                self._receive(news)
        process.join()


def copy_and_die(
    copy: Callable[..., object], sides: tuple[object, ...], point: str, time: int
) -> None:
    """Copy a cache, and kill this process when `point` is reached for the `time`th time."""
    passes = 0
    remove = Path.unlink

    def step(name: str) -> None:
        nonlocal passes
        if name == point:
            passes += 1
        if passes == time:
            os.kill(os.getpid(), signal.SIGKILL)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        step(f"unlink {path.suffix}")
        remove(path, missing_ok)

    def put(store: stores.ObjectStore, path: str, data: bytes | memoryview) -> None:
        with store.files.open_output_stream(path) as stream:
            stream.write(bytes(data[: len(data) // 2]))
            stream.flush()
            step("half")
            stream.write(bytes(data[len(data) // 2 :]))

    for module in (writer, stores):
        module.__dict__["no_steps"] = step
    Path.unlink = unlink  # type: ignore[assignment,method-assign]
    stores.ObjectStore._put = put  # type: ignore[assignment,method-assign]
    copy(*sides)


def is_killed(copy: Callable[..., object], *sides: object, point: str, time: int) -> bool:
    """Copy a cache in another process, and tell whether it was killed at `point`."""
    process = PROCESSES.Process(target=copy_and_die, args=(copy, sides, point, time))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


@dataclass(frozen=True)
class Findings:
    """Numbers of wrong rows; all 0 if the cache kept its promises."""

    lost: int = 0  # acknowledged, but not returned
    torn: int = 0  # of parts that are incomplete
    wrong: int = 0  # with another content than was written, or never written
    double: int = 0  # returned twice
    unreadable: int = 0  # 1 if the cache cannot be opened
    older: int = 0  # 1 if the latest plan is older than an acknowledged one


def inspect(root: Path, acked: set[Ack]) -> Findings:
    """Compare the rows that a reader returns with those that were written and acknowledged."""
    try:
        reader = CacheReader(root)
        views = {kind: reader.sql(f"SELECT * FROM {kind}") for kind in ROW_SCHEMAS}
        latest = int(reader.latest_plan().pool) if reader.has("plans") else -1
    except NoCache:
        return Findings(lost=ROWS * len(acked))
    except CacheError:
        return Findings(unreadable=1)
    count: Counter[str] = Counter()
    for kind, table in views.items():
        count.update(
            _compare(kind, table, {number for number, acked_kind in acked if acked_kind == kind})
        )
    newest = max((number for number, kind in acked if kind == "plans"), default=-1)
    return Findings(**count, older=int(latest < newest))


def _compare(kind: str, table: pa.Table, acked: set[int]) -> dict[str, int]:
    names = _names(kind, table)
    present = Counter(int(str(name[0]).split("-")[0]) for name in set(names))
    part_rows = len(batch(0)[kind])
    parts = [batch(number)[kind] for number in sorted(present)]
    expected = pa.concat_tables([ROW_SCHEMAS[kind].empty_table(), *parts])
    served = table.select(expected.column_names).sort_by([(IDENTITY_COLUMNS[kind][0], "ascending")])
    wrong = 0
    if not served.equals(expected):
        rows = {repr(row) for row in expected.to_pylist()}
        wrong = sum(repr(row) not in rows for row in served.to_pylist())
    return {
        "lost": sum(part_rows - present[number] for number in acked),
        "torn": sum(rows for rows in present.values() if rows != part_rows),
        "wrong": wrong,
        "double": len(names) - len(set(names)),
    }


def _names(kind: str, table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in IDENTITY_COLUMNS[kind]), strict=True))


def _names_of(number: int, kind: str) -> set[tuple[object, ...]]:
    return set(_names(kind, batch(number)[kind]))


def all_parts(count: int) -> set[Ack]:
    """Return all parts of batches 0 to `count - 1`, as if they were acknowledged."""
    return {(number, kind) for number in range(count) for kind in ROW_SCHEMAS}


def leftovers(root: Path) -> list[str]:
    """Return the names of files in tmp/."""
    return sorted(path.name for path in (root / "tmp").iterdir())


def rows_stored(root: Path) -> int:
    """Count the rows in all parts; rows that are stored twice count twice."""
    with contextlib.suppress(NoCache):
        return sum(part.rows for part in sound_parts(root))
    return 0

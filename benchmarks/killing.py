"""Kill a process that writes a cache, then look what is left.

One harness for `crash.py`, `power.py` and `tests/cache/test_full_disk.py`. A worker process appends
batches of rows of every kind, acknowledges each part over a pipe after `append` has returned, and
compacts now and then; it is killed with SIGKILL, by itself at a named milestone or from outside at
any time. `inspect` then compares the cache with what was acknowledged, row by row.
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
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import IDENTITY_COLUMNS, ROW_SCHEMAS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter, sweep_drafts
from tests.cache import rows

POINTS = (
    "before write",
    "before rename",
    "after rename",
    "after folder fsync",
    "after head",
    "compact: read",
    "compact: written",
    "compact: unlink",
)
ROWS = 6
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
    """One part of each kind; the content follows from the number, plans come last."""
    names = [f"{number:06d}-{row}" for row in range(ROWS)]
    texts = [f"{name} {random.Random(name).randbytes(60).hex()}" for name in names]
    made: dict[str, list[tuple[object, ...]]] = {kind: [] for kind in ROW_SCHEMAS}
    for name, text in zip(names, texts, strict=True):
        same = (name,) * 4
        made["queries"].append((*same, "d", "test", text, texts, None))
        made["calls"].append((*same, name, text, text, number, number, "stop", 0.1))
        made["scores"].append((name, name, "token_f1", 1 / (number + 1)))
        made["failures"].append((*same, "empty", text, number))
        made["decisions"].append((*same, False, 0.0, [0.01 * number]))
    made["plans"].append((names[0], str(number), names))
    order = ("queries", "calls", "scores", "failures", "decisions", "plans")
    return {kind: rows.table(kind, *made[kind]) for kind in order}


def work(
    root: Path, first: int, count: int, kill_at: tuple[str, int] | None, news: Connection
) -> None:
    """Make batches `first` to `first + count - 1` whole, as a collection that resumes does.

    Args:
        root: the cache's folder.
        first: number of the first batch.
        count: number of batches.
        kill_at: die at this milestone when it is reached for this time.
        news: gets "ready", then every milestone and, after its commit, (number, kind) of each part.
    """
    reached: Counter[str] = Counter()

    def on_step(name: str) -> None:
        reached[name] += 1
        if (name, reached[name]) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        news.send(name)

    writer = PartWriter(root, on_step)
    there = stored_names(root)
    news.send("ready")
    for start in range(first, first + count, BATCHES_PER_COMPACTION):
        with collector_lock(root):
            sweep_drafts(root)
            for number in range(start, min(start + BATCHES_PER_COMPACTION, first + count)):
                for kind, table in batch(number).items():
                    if not _names_of(number, kind) <= there[kind]:
                        writer.append(kind, table)
                    news.send((number, kind))
        compact(root, on_step, target_rows=TARGET_ROWS)


def stored_names(root: Path) -> dict[str, set[tuple[object, ...]]]:
    """The identities of all stored rows, by kind."""
    found: dict[str, set[tuple[object, ...]]] = {kind: set() for kind in ROW_SCHEMAS}
    with contextlib.suppress(NoCache):
        for part in sound_parts(root):
            with pq.ParquetFile(part.path) as file:
                found[part.kind].update(
                    _names(part.kind, file.read(list(IDENTITY_COLUMNS[part.kind])))
                )
    return found


@dataclass
class Harness:
    """A cache under fire, and what was acknowledged so far."""

    root: Path
    acked: set[Ack] = field(default_factory=set)

    def run(self, batches: int, kill_at: tuple[str, int] | None = None) -> int | None:
        """Make the first `batches` batches whole; returns the worker's exit code (-9: killed)."""
        process, news = self._start(0, batches, kill_at)
        self._finish(process, news)
        return process.exitcode

    def run_and_kill(
        self,
        moments: random.Random,
        strike: Callable[[], None] = lambda: None,
        milestones: int = 240,
    ) -> None:
        """Go on behind what was acknowledged, and kill the worker at a random moment.

        The moment is fewer than so many milestones and then some milliseconds: no part of the work
        is spared, and a slow disk does not keep the cache from growing. `strike` comes before it.
        """
        first = max((number for number, _ in self.acked), default=0)
        process, news = self._start(first, ENDLESS, None)
        for _ in range(moments.randrange(milestones)):
            self._hear(news)
        process.join(moments.uniform(0, 0.005))
        assert process.is_alive(), "the worker failed by itself"
        strike()
        process.kill()
        self._finish(process, news)

    def run_and_look(self, batches: int) -> list[set[Ack]]:
        """Run a worker to its end and read the cache all the time, without a lock.

        Returns the acknowledged parts that each look missed.
        """
        process, news = self._start(0, batches, None)
        missed = []
        while process.is_alive():
            with contextlib.suppress(EOFError):
                while news.poll():
                    self._hear(news)
            with contextlib.suppress(FileNotFoundError):  # merged after it was listed: look again
                there = stored_names(self.root)
                missed.append({ack for ack in self.acked if not _names_of(*ack) <= there[ack[1]]})
        self._finish(process, news)
        return missed

    def _start(
        self, first: int, count: int, kill_at: tuple[str, int] | None
    ) -> tuple[BaseProcess, Connection]:
        ours, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=work, args=(self.root, first, count, kill_at, theirs))
        process.start()
        theirs.close()
        ours.recv()
        return process, ours

    def _hear(self, news: Connection) -> None:
        said = news.recv()
        if isinstance(said, tuple):
            self.acked.add(said)

    def _finish(self, process: BaseProcess, news: Connection) -> None:
        with contextlib.suppress(EOFError):
            while True:
                self._hear(news)
        process.join()


def copy_and_die(
    copy: Callable[..., object], sides: tuple[object, ...], point: str, time: int
) -> None:
    """Kill this process when `point` is reached for this time."""
    left, remove = [time], Path.unlink

    def step(name: str) -> None:
        left[0] -= name == point
        if left[0] == 0:
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
    Path.unlink, stores.ObjectStore._put = unlink, put  # type: ignore[assignment,method-assign]
    copy(*sides)


def killed(copy: Callable[..., object], *sides: object, point: str, time: int) -> bool:
    """Whether a copy by a process of its own was killed at this point."""
    process = PROCESSES.Process(target=copy_and_die, args=(copy, sides, point, time))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


@dataclass(frozen=True)
class Findings:
    """Rows that are not as they should be; all 0 where the cache kept its promises."""

    lost: int = 0  # acknowledged and not served
    torn: int = 0  # of parts that are there only in part
    wrong: int = 0  # with other content than was written, or written by nobody
    double: int = 0  # served twice
    unreadable: int = 0  # 1 where the cache cannot be opened
    older: int = 0  # 1 where the latest plan is older than an acknowledged one


def inspect(root: Path, acked: set[Ack]) -> Findings:
    """Compare what a reader is served with what was written and acknowledged."""
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
        count.update(_compare(kind, table, {number for number, of in acked if of == kind}))
    newest = max((number for number, kind in acked if kind == "plans"), default=-1)
    return Findings(**count, older=int(latest < newest))


def _compare(kind: str, table: pa.Table, acked: set[int]) -> dict[str, int]:
    names = _names(kind, table)
    present = Counter(int(str(name[0]).split("-")[0]) for name in set(names))
    whole = len(batch(0)[kind])
    wanted = [batch(number)[kind] for number in sorted(present)]
    expected = pa.concat_tables([ROW_SCHEMAS[kind].empty_table(), *wanted])
    served = table.select(expected.column_names).sort_by([(IDENTITY_COLUMNS[kind][0], "ascending")])
    wrong = 0
    if not served.equals(expected):
        rows = {repr(row) for row in expected.to_pylist()}
        wrong = sum(repr(row) not in rows for row in served.to_pylist())
    return {
        "lost": sum(whole - present[number] for number in acked),
        "torn": sum(rows for rows in present.values() if rows != whole),
        "wrong": wrong,
        "double": len(names) - len(set(names)),
    }


def _names(kind: str, table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in IDENTITY_COLUMNS[kind]), strict=True))


def _names_of(number: int, kind: str) -> set[tuple[object, ...]]:
    return set(_names(kind, batch(number)[kind]))


def whole(count: int) -> set[Ack]:
    """Every part of batches 0 to `count - 1`, as if acknowledged."""
    return {(number, kind) for number in range(count) for kind in ROW_SCHEMAS}


def leftovers(root: Path) -> list[str]:
    """Names in tmp/."""
    return sorted(path.name for path in (root / "tmp").iterdir())


def rows_stored(root: Path) -> int:
    """Rows in all parts, those that are stored twice counted twice."""
    with contextlib.suppress(NoCache):
        return sum(part.rows for part in sound_parts(root))
    return 0

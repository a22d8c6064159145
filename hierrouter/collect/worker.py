"""What one worker of a cluster does.

In: a `Job`, a shard of it, the board where workers report. Out: a summary, or what went wrong; the
answers are committed. Workers that do not share the cache's disk collect into a folder of their
own and copy each part to the mirror at once. Not covered: starting workers (`cluster`).
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from hierrouter.collect.generator import Engines
from hierrouter.collect.scheduler import collect
from hierrouter.collect.shards import Shard
from hierrouter.collect.summary import Progress, Summary
from hierrouter.pool import Pool
from hierrouter.query import Query
from hierrouter_cache.errors import HierRouterError, NoCache, WorldError
from hierrouter_cache.remote import copying_to, pull, push
from hierrouter_cache.stores import store_at

REPORT_S = 0.25  # between two reports of a worker


@dataclass(frozen=True)
class Job:
    """What every worker is told.

    Attributes:
        pool, queries, engines: as for `scheduler.collect`.
        root: the cache's folder, absolute; of no use to workers that have a mirror.
        landmark: a file in it that a worker sees if it shares the disk.
        mirror: where workers that do not share it leave their parts.
        leave: parts of the mirror that answer calls in other words than `root` does.
    """

    pool: Pool
    queries: tuple[Query, ...]
    engines: Engines
    root: Path
    landmark: Path
    mirror: str | None
    leave: tuple[str, ...] = ()


@dataclass(frozen=True)
class News:
    """What was done since the last report: calls answered, and calls given up."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    lost: int = 0

    def plus(self, more: News) -> News:
        """This and some more."""
        return News(
            self.calls + more.calls,
            self.tokens + more.tokens,
            self.cost + more.cost,
            self.lost + more.lost,
        )


class Board:
    """What workers report and are told; an actor, a process of its own."""

    def __init__(self) -> None:
        self._news = News()
        self._ended = False

    def report(self, news: News) -> bool:
        """Add what a worker has done; whether it is to end."""
        self._news = self._news.plus(news)
        return self._ended

    def take(self) -> News:
        """What was reported since this was asked last."""
        news, self._news = self._news, News()
        return news

    def end(self) -> None:
        """Let every worker finish what it has begun, and end."""
        self._ended = True


class _Line:
    """A worker's line to the board."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._news = News()
        self._ended = False
        self._last = monotonic()

    def on_calls(self, calls: int, tokens: int, cost: float) -> None:
        self._add(News(calls, tokens, cost))

    def on_lost(self, calls: int) -> None:
        self._add(News(lost=calls))

    def _add(self, news: News) -> None:
        self._news = self._news.plus(news)
        self._send_when_due()

    def stop(self) -> bool:
        self._send_when_due()
        return self._ended

    def _send_when_due(self) -> None:
        if monotonic() - self._last > REPORT_S:
            self.send()

    def send(self) -> None:
        import ray

        news, self._news = self._news, News()
        self._last = monotonic()
        self._ended = bool(ray.get(self._board.report.remote(news)))


def work(job: Job, shard: Shard, board: Any) -> Summary | HierRouterError:
    """Collect one shard; what went wrong is returned, so that Ray does not wrap it."""
    line = _Line(board)
    try:
        return _collect_shard(job, shard, line)
    except HierRouterError as error:
        return error
    finally:
        line.send()


def _collect_shard(job: Job, shard: Shard, line: _Line) -> Summary:
    progress = Progress(on_calls=line.on_calls, on_lost=line.on_lost)
    if job.mirror is None:
        if not job.landmark.exists():
            raise WorldError(
                f"a worker does not see the cache: {job.root}; name a folder that all machines "
                "share, or a mirror with --remote"
            )
        return collect(
            job.pool, job.queries, job.root, progress, line.stop, job.engines, shard=shard
        )
    store = store_at(job.mirror)
    with tempfile.TemporaryDirectory(prefix="hierrouter-") as folder:
        root = Path(folder)
        pull(store, root, leave=job.leave)
        try:
            return collect(
                job.pool,
                job.queries,
                root,
                progress,
                line.stop,
                job.engines,
                shard=shard,
                on_part=copying_to(store),
            )
        except WorldError:
            with suppress(NoCache):  # nothing was committed yet
                push(root, store)  # the copy of a part may be what failed; the folder goes
            raise

"""One collection on a Ray cluster, a shard a worker."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from hierrouter.collection.progress import Progress, Summary
from hierrouter.collection.scheduler import collect
from hierrouter.collection.shards import Shard, standing
from hierrouter.engines import backend
from hierrouter.engines.generator import Engines, Stop, never
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import Query
from hierrouter_cache.errors import (
    HierRouterError,
    InputError,
    Interrupted,
    NoCache,
    WorldError,
    reason_of,
)
from hierrouter_cache.mirror import Pulled, copying_to, exchange, pull, push
from hierrouter_cache.reader import reader_of
from hierrouter_cache.stores import store_at
from hierrouter_cache.writer import make_cache

OBJECT_STORE_BYTES = 100_000_000  # of a cluster of our own; only the queries pass through it
# Ray reads these when it is imported. The first keeps its servers on 127.0.0.1, on Linux too.
OWN_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def own_cluster(workers: int | None = None) -> Iterator[Any]:
    """A cluster on this machine, until the block ends; gives the `ray` module.

    Nobody reaches it from another machine, unless ray was imported before.

    Args:
        workers: how many run at a time; None is one for each core.

    Raises:
        InputError: ray is not installed.
        WorldError: it does not start.
    """
    for name, value in OWN_CLUSTER.items():
        os.environ.setdefault(name, value)
    ray = _installed_ray()
    try:
        ray.init(
            "local",  # not what RAY_ADDRESS says
            num_cpus=workers,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise WorldError(f"Ray does not start: {reason_of(error)}; use --shard instead") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _running_cluster(address: str) -> Iterator[Any]:
    """A connection to a running cluster."""
    ray = _installed_ray()
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray cluster: {address}: {reason_of(error)}; start one with `ray start`"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def cluster_at(address: str | None, workers: int | None) -> AbstractContextManager[Any]:
    """The cluster to use, as the `ray` module; closed with the block.

    One that this process is connected to already is used as it is and left open.

    Args:
        address: of a running cluster; None starts one on this machine.
        workers: how many run at a time on one that is started.

    Raises:
        InputError: ray is not installed, or no cluster is at `address`.
        WorldError: a cluster of our own does not start.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return nullcontext(ray)
    return own_cluster(workers) if address is None else _running_cluster(address)


def _installed_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "ray is not installed: --engine ray; pip install 'hierrouter[ray]', or use --shard"
        ) from error
    return ray


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


RESTARTS = 3  # of one shard whose worker died


def collect_on_ray(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    *,
    workers: int | None = None,
    address: str | None = None,
    remote: str | None = None,
    progress: Progress | None = None,
    stop: Stop = never,
    engines: Engines = backend,
    on_note: Callable[[str], None] = lambda note: None,
) -> Summary:
    """Run every missing call of the trees of `queries` on the workers of a cluster.

    Args:
        pool, queries, root, progress, stop, engines: as for `scheduler.collect`.
        workers: how many shards; None is one for each GPU of the cluster, or else for each core.
        address: of a running cluster, `auto` or `ray://...`; None starts one on this machine.
        remote: a mirror's URL, for workers that do not share the disk of `root`.
        on_note: told, at the end, of answers in the mirror that differ from those in `root`.

    Raises:
        InputError: ray is not installed, or no cluster is at `address`.
        Interrupted: `stop` said so; everything up to here is committed.
        HierRouterError: what `scheduler.collect` raises, of the first worker that failed; the
            others have done their shards.
    """
    with cluster_at(address, workers) as ray:
        make_cache(root)
        mirror = _absolute(remote) if remote else None
        store = store_at(mirror) if mirror else None
        known = exchange(root, store) if store else Pulled()
        before = _stored(root)
        count = workers or _default_workers(ray)
        with landmark(root.resolve()) as mark:
            job = Job(
                pool=pool,
                queries=tuple(queries),
                engines=engines,
                root=root.resolve(),
                landmark=mark,
                mirror=mirror,
                leave=known.rivals,
            )
            outcomes = _run(ray, job, count, progress or Progress(), stop)
        if store and (note := pull(store, root).note):
            on_note(note)
        return _whole(outcomes, before, root, count)


def _run(
    ray: Any, job: Job, count: int, progress: Progress, stop: Stop
) -> list[Summary | HierRouterError]:
    """What came of each shard."""
    board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Board).remote()
    gpus = 1 if _gpus(ray) else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RESTARTS)(work)
    shared = ray.put(job)
    pending = [task.remote(shared, Shard(index, count), board) for index in range(1, count + 1)]
    most = len(job.queries) * (job.pool.routes.calls + len(job.pool.everyone))
    progress.on_level(f"{count} workers", most)
    outcomes = []
    while pending:
        done, pending = ray.wait(pending, timeout=REPORT_S)
        outcomes += [_outcome(ray, ended) for ended in done]
        news = ray.get(board.take.remote())
        progress.on_calls(news.calls, news.tokens, news.cost)
        if news.lost:
            progress.on_lost(news.lost)
        if stop():
            ray.get(board.end.remote())
    return outcomes


def _outcome(ray: Any, task: Any) -> Summary | HierRouterError:
    try:
        outcome: Summary | HierRouterError = ray.get(task)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1][:120]
        return WorldError(
            f"a worker failed: {reason}; what was committed is safe, rerun the same command to "
            "resume"
        )
    return outcome


def _whole(
    outcomes: Sequence[Summary | HierRouterError],
    before: tuple[int, int, int],
    root: Path,
    count: int,
) -> Summary:
    """The summary of all shards, or what kept them from their end."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, HierRouterError)]
    for error in errors:
        if not isinstance(error, Interrupted):
            raise error
    if errors:
        made = _stored(root)[0] - before[0]
        raise Interrupted(f"interrupted: {made} calls committed; rerun the same command to resume")
    summary = added([outcome for outcome in outcomes if isinstance(outcome, Summary)])
    known = summary.calls + summary.earlier
    # Counted in the cache: a worker that was killed told nobody what it had done.
    summary.calls, summary.tokens_in, summary.tokens_out = (
        after - earlier for after, earlier in zip(_stored(root), before, strict=True)
    )
    summary.earlier = known - summary.calls
    found = standing(root, count)
    if not summary.failed and found.found < found.wanted:
        raise WorldError(
            f"the workers' models differ in versions or kind of device: {root}; the tree lacks "
            f"{found.wanted - found.found} of {found.wanted} nodes, use machines of one kind; "
            "no answer is lost"
        )
    return summary


def added(summaries: Sequence[Summary]) -> Summary:
    """The summary of several shards of one plan; they ran side by side."""
    return Summary(
        queries=sum(one.queries for one in summaries),
        wanted=sum(one.wanted for one in summaries),
        calls=sum(one.calls for one in summaries),
        earlier=sum(one.earlier for one in summaries),
        tokens_in=sum(one.tokens_in for one in summaries),
        tokens_out=sum(one.tokens_out for one in summaries),
        seconds=max(one.seconds for one in summaries),
        failed=sum((one.failed for one in summaries), Counter()),
        example=next((one.example for one in summaries if one.example), ""),
        missing=sum(one.missing for one in summaries),
        incomplete=sum(one.incomplete for one in summaries),
    )


def _stored(root: Path) -> tuple[int, int, int]:
    """(calls, tokens in, tokens out) of the cache."""
    reader = reader_of(root)
    if reader is None:
        return 0, 0, 0
    (row,) = reader.sql(
        "SELECT count(*) AS calls, coalesce(sum(tokens_in), 0)::BIGINT AS tokens_in, "
        "coalesce(sum(tokens_out), 0)::BIGINT AS tokens_out FROM calls"
    ).to_pylist()
    return row["calls"], row["tokens_in"], row["tokens_out"]


def _absolute(url: str) -> str:
    return url if "://" in url else str(Path(url).resolve())


@contextmanager
def landmark(root: Path) -> Iterator[Path]:
    """A file in a cache while a block lasts, by which other machines know that they see it.

    It does not lie in tmp/: other machines sweep there what is a day old. Its name is new each
    time, so one that a kill has left proves nothing later and does no harm.
    """
    path = root / f"cluster-{secrets.token_hex(8)}"
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _gpus(ray: Any) -> int:
    return int(ray.cluster_resources().get("GPU", 0))


def _default_workers(ray: Any) -> int:
    return _gpus(ray) or max(1, int(ray.cluster_resources().get("CPU", 1)))

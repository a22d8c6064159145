"""One collection on a Ray cluster, a shard a worker.

Workers tell a board, an actor, what they have done, and learn from it when to stop.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from hierrouter.collection.plan import Shard, standing
from hierrouter.collection.progress import Progress, Spent, Summary, spent_in
from hierrouter.collection.scheduler import fill_cache
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
from hierrouter_cache.mirror import PullResult, exchange, part_copier, pull, push
from hierrouter_cache.stores import store_at
from hierrouter_cache.writer import make_cache

OBJECT_STORE_BYTES = 100_000_000  # of a cluster of our own; only the queries pass through it
# Ray reads these when it is imported. The first keeps its servers on 127.0.0.1, on Linux too.
OWN_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
REPORT_S = 0.25  # between two reports of a worker
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

    Raises InputError: ray is not installed, or no cluster is at `address`; Interrupted: `stop` said
    so; everything up to here is committed; HierRouterError: what `scheduler.fill_cache` raises, of
    the first worker that failed; the others have done their shards.

    Args:
        pool, queries, root, progress, stop, engines: as for `scheduler.fill_cache`.
        workers: how many shards; None is one for each GPU of the cluster, or else for each core.
        address: of a running cluster, `auto` or `ray://...`; None starts one on this machine.
        remote: a mirror's URL, for workers that do not share the disk of `root`.
        on_note: told, at the end, of answers in the mirror that differ from those in `root`.
    """
    with cluster_at(address, workers) as ray:
        make_cache(root)
        mirror = remote if remote is None or "://" in remote else str(Path(remote).resolve())
        store = store_at(mirror) if mirror else None
        known = exchange(root, store) if store else PullResult()
        progress, before = progress or Progress(), spent_in(root, pool.rates())
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        count = workers or gpus or max(1, int(resources.get("CPU", 1)))
        with landmark(root.resolve()) as mark:
            job = Job(
                pool=pool,
                queries=tuple(queries),
                engines=engines,
                root=root.resolve(),
                landmark=mark,
                mirror=mirror,
                leave=known.conflicts,
            )
            outcomes = _run(ray, job, count, gpus > 0, progress, stop)
        if store and (note := pull(store, root).note):
            on_note(note)
        return _whole(outcomes, before, job, count, progress)


@contextmanager
def cluster_at(address: str | None, workers: int | None) -> Iterator[Any]:
    """The cluster to use, as the `ray` module; closed with the block.

    One that this process is connected to already is used as it is and left open. Raises InputError:
    ray is not installed, or no cluster is at `address`; WorldError: a cluster of our own does not
    start.

    `address`: of a running cluster; None starts one on this machine, which nobody reaches from
    another machine unless ray was imported before; `workers`: how many run at a time on one that is
    started; None is one for each core.
    """
    imported = sys.modules.get("ray")
    if imported and imported.is_initialized():
        yield imported
        return
    if address is None:
        for name, value in OWN_CLUSTER.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "ray is not installed: --engine ray; pip install 'hierrouter[ray]', or use --shard"
        ) from error
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    own = {
        "num_cpus": workers,
        "include_dashboard": False,
        "configure_logging": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
    }
    try:
        if address is None:
            ray.init("local", **quiet, **own)  # not what RAY_ADDRESS says
        else:
            ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            raise WorldError(
                f"Ray does not start: {reason_of(error)}; use --shard instead"
            ) from error
        raise InputError(
            f"no Ray cluster: {address}: {reason_of(error)}; start one with `ray start`"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


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


@dataclass(frozen=True)
class Job:
    """What every worker is told.

    Attributes:
        pool, queries, engines: as for `scheduler.fill_cache`.
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


class News(NamedTuple):
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

    def add(self, news: News) -> None:
        self._news = self._news.plus(news)
        self.stop()

    def stop(self) -> bool:
        """Whether to end; reports where it is time."""
        if monotonic() - self._last > REPORT_S:
            self.send()
        return self._ended

    def send(self) -> None:
        import ray

        news, self._news = self._news, News()
        self._last = monotonic()
        self._ended = bool(ray.get(self._board.report.remote(news)))


def work(job: Job, shard: Shard, board: Any) -> Summary | HierRouterError:
    """Collect one shard; what went wrong is returned, so that Ray does not wrap it."""
    line = _Line(board)
    progress = Progress(
        on_calls=lambda calls, tokens, cost: line.add(News(calls, tokens, cost)),
        on_lost=lambda calls: line.add(News(lost=calls)),
    )
    how = progress, line.stop, job.engines
    try:
        if job.mirror:
            return _work_beside(job, shard, *how)
        if not job.landmark.exists():
            raise WorldError(
                f"a worker does not see the cache: {job.root}; name a folder that all machines "
                "share, or a mirror with --remote"
            )
        return fill_cache(job.pool, job.queries, job.root, *how, shard=shard)
    except HierRouterError as error:
        return error
    finally:
        line.send()


def _work_beside(
    job: Job, shard: Shard, progress: Progress, stop: Stop, engines: Engines
) -> Summary:
    """Collect one shard into a folder of this machine, and copy its parts to the mirror."""
    store = store_at(str(job.mirror))
    with tempfile.TemporaryDirectory(prefix="hierrouter-") as folder:
        root = Path(folder)
        pull(store, root, leave=job.leave)
        copy = part_copier(store)
        try:
            return fill_cache(
                job.pool, job.queries, root, progress, stop, engines, shard=shard, on_part=copy
            )
        except WorldError:
            with suppress(NoCache):  # nothing was committed yet
                push(root, store)  # the copy of a part may be what failed; the folder goes
            raise


def _run(
    ray: Any, job: Job, count: int, on_gpus: bool, progress: Progress, stop: Stop
) -> list[Summary | HierRouterError]:
    """What came of each shard."""
    board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Board).remote()
    task = ray.remote(num_cpus=1, num_gpus=int(on_gpus), max_retries=RESTARTS)(work)
    shared = ray.put(job)
    pending = [task.remote(shared, Shard(index, count), board) for index in range(1, count + 1)]
    most = len(job.queries) * (job.pool.routes.calls + len(job.pool.all_models))
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
    before: Mapping[str, Spent],
    job: Job,
    count: int,
    progress: Progress,
) -> Summary:
    """The summary of all shards, or what kept them from their end."""
    summaries = (outcome for outcome in outcomes if isinstance(outcome, Summary))
    summary = progress.summary = sum(summaries, Summary(0, 0))
    known, root = summary.calls + summary.earlier, job.root
    # Counted in the cache: a worker that was killed told nobody what it had done.
    for model, stored in spent_in(root, job.pool.rates()).items():
        failed = summary.spent.get(model, Spent()).failed
        now = replace(stored - before.get(model, Spent()), failed=failed)
        if now != Spent():
            summary.spent[model] = now
    total = sum(summary.spent.values(), Spent())
    errors = [outcome for outcome in outcomes if isinstance(outcome, HierRouterError)]
    for error in errors:
        if not isinstance(error, Interrupted):
            raise error
    if errors:
        raise Interrupted(
            f"interrupted: {total.calls} calls committed; rerun the same command to resume"
        )
    summary.calls, summary.tokens_in = total.calls, total.tokens_in
    summary.tokens_out = total.tokens_out
    summary.earlier = known - summary.calls
    found = standing(root, count)
    if not summary.failed and found.found < found.wanted:
        raise WorldError(
            f"the workers' models differ in versions or kind of device: {root}; the tree lacks "
            f"{found.wanted - found.found} of {found.wanted} nodes, use machines of one kind; "
            "no answer is lost"
        )
    return summary

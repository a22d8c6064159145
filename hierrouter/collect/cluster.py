"""One collection on a Ray cluster, a shard a worker.

In: a pool, queries, a cache's folder. Out: the same committed parts as `scheduler.collect` makes.
Workers write into the folder themselves where they share its disk, else into a mirror
(`hierrouter_cache.remote`) that all of them reach. A worker that is killed is started again by
Ray and makes only the calls that are missing. hierrouter must be installed on every machine. Not
covered: shards started by hand (`shards`).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hierrouter.collect.backends import backend
from hierrouter.collect.connect import cluster_at
from hierrouter.collect.generator import Engines, Stop, never
from hierrouter.collect.shards import Shard, standing
from hierrouter.collect.summary import Progress, Summary
from hierrouter.collect.worker import REPORT_S, Board, Job, work
from hierrouter.pool import Pool
from hierrouter.query import Query
from hierrouter_cache.errors import HierRouterError, Interrupted, WorldError
from hierrouter_cache.reader import reader_of
from hierrouter_cache.remote import Pulled, exchange, pull
from hierrouter_cache.stores import store_at
from hierrouter_cache.writer import make_cache

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

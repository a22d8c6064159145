"""Collection on a Ray cluster: each worker collects one shard.

Workers report their progress to a board, which is an actor, and learn from it when to stop.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from hierrouter.collection.plan import Shard, shard_status, spending_of_pool
from hierrouter.collection.progress import Progress, Spending, Summary
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

# Of a cluster that is started here; only the queries pass through its object store.
OBJECT_STORE_BYTES = 100_000_000
# Ray reads these when it is imported. The first keeps its servers on 127.0.0.1, on Linux too.
OWN_CLUSTER_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
REPORT_SECONDS = 0.25  # between two reports of a worker
MAX_SHARD_RESTARTS = 3  # of one shard whose worker died


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
    datasets: Mapping[str, str] | None = None,
) -> Summary:
    """Run every missing call of the trees of `queries` on the workers of a cluster.

    Args:
        pool, queries, root, progress, stop, engines, datasets: as for `scheduler.fill_cache`.
        workers: number of shards; None is one for each GPU of the cluster, or else for each core.
        address: of a running cluster, see `parse_ray_address`; None starts one on this machine.
        remote: a mirror's URL, for workers that do not share the disk of `root`.
        on_note: called, at the end, with a note if responses in the mirror differ from those in
            `root`.

    Returns:
        Counts of what all workers did.

    Raises:
        InputError: ray is not installed, or `address` is none.
        WorldError: no cluster is at `address`, or a worker failed.
        Interrupted: `stop` returned true; everything up to here is committed.
        HierRouterError: any error of `scheduler.fill_cache`, of the first worker that failed; the
            others have finished their shards.
    """
    with cluster_at(address, workers) as ray:
        make_cache(root)
        mirror = remote if remote is None or "://" in remote else str(Path(remote).resolve())
        store = store_at(mirror) if mirror else None
        pulled = exchange(root, store) if store else PullResult()
        progress = progress or Progress()
        spent_before = spending_of_pool(root, pool)
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
                leave=pulled.conflicts,
                datasets=datasets,
            )
            outcomes = _run(ray, job, count, gpus > 0, progress, stop)
        if store:
            note = pull(store, root).note
            if note:
                on_note(note)
        return _total(outcomes, spent_before, job, count, progress)


@contextmanager
def cluster_at(address: str | None, workers: int | None) -> Iterator[Any]:
    """Connect to a cluster while a block lasts.

    A cluster that this process is connected to already is used as it is and left open.

    Args:
        address: of a running cluster; None starts one on this machine, which other machines cannot
            reach unless ray was imported before.
        workers: how many run at a time on a cluster that is started; None is one for each core.

    Yields:
        The `ray` module.

    Raises:
        InputError: ray is not installed, or `address` is none.
        WorldError: no cluster is at `address`, or the one on this machine does not start.
    """
    imported = sys.modules.get("ray")
    if imported and imported.is_initialized():
        yield imported
        return
    if address is not None:
        require_listener(address)
    else:
        for name, value in OWN_CLUSTER_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "ray is not installed: --engine ray; pip install 'hierrouter[ray]', or use --shard"
        ) from error
    log_options = {"log_to_driver": False, "logging_level": "ERROR"}
    own_options = {
        "num_cpus": workers,
        "include_dashboard": False,
        "configure_logging": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
    }
    try:
        if address is None:
            # "local" starts one even if the environment variable RAY_ADDRESS names another.
            ray.init("local", **log_options, **own_options)
        else:
            require_head(address)
            ray.init(address, **log_options)
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            raise WorldError(
                f"Ray does not start: {reason_of(error)}; use --shard instead"
            ) from error
        raise no_cluster(address, reason_of(error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def landmark(root: Path) -> Iterator[Path]:
    """Keep a file in a cache while a block lasts; machines that see it share the disk.

    It is not in tmp/, because other machines delete there what is a day old. Its name is new each
    time, so a file that a killed process left behind proves nothing later and does no harm.

    Args:
        root: the cache's folder.

    Yields:
        The file.
    """
    path = root / f"cluster-{secrets.token_hex(8)}"
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Job:
    """The job of all workers.

    Attributes:
        pool, queries, engines: as for `scheduler.fill_cache`.
        root: the cache's folder, absolute; not used by workers that have a mirror.
        landmark: a file in it that a worker sees if it shares the disk.
        mirror: where workers that do not share the disk copy their parts to.
        leave: parts of the mirror not to pull, because their responses differ from those in `root`.
        datasets: as for `scheduler.fill_cache`.
    """

    pool: Pool
    queries: tuple[Query, ...]
    engines: Engines
    root: Path
    landmark: Path
    mirror: str | None
    leave: tuple[str, ...] = ()
    datasets: Mapping[str, str] | None = None


class WorkerReport(NamedTuple):
    """Counts since a worker's last report.

    Attributes:
        calls: that were answered.
        tokens: of these calls, in and out.
        cost: of these calls.
        lost: calls that were given up.
    """

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    lost: int = 0

    def plus(self, other: WorkerReport) -> WorkerReport:
        """The sum of two reports."""
        return WorkerReport(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.lost + other.lost,
        )


class Board:
    """Collects the reports of workers and tells them when to stop; an actor in its own process."""

    def __init__(self) -> None:
        self._report = WorkerReport()
        self._must_stop = False

    def report(self, report: WorkerReport) -> bool:
        """Add a worker's report; returns whether the worker must stop."""
        self._report = self._report.plus(report)
        return self._must_stop

    def take(self) -> WorkerReport:
        """The sum of all reports since the last call of this method."""
        report = self._report
        self._report = WorkerReport()
        return report

    def end(self) -> None:
        """Let every worker finish what it has begun, and stop."""
        self._must_stop = True


class _BoardClient:
    """A worker's connection to the board."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._report = WorkerReport()
        self._must_stop = False
        self._last_sent = monotonic()

    def add(self, report: WorkerReport) -> None:
        self._report = self._report.plus(report)
        self.stop()

    def stop(self) -> bool:
        """Whether to stop; sends a report if one is due."""
        if monotonic() - self._last_sent > REPORT_SECONDS:
            self.send()
        return self._must_stop

    def send(self) -> None:
        import ray

        report = self._report
        self._report = WorkerReport()
        self._last_sent = monotonic()
        self._must_stop = bool(ray.get(self._board.report.remote(report)))


def work(job: Job, shard: Shard, board: Any) -> Summary | HierRouterError:
    """Collect one shard; runs in a worker.

    Args:
        job: of all workers.
        shard: of this worker.
        board: takes reports.

    Returns:
        Counts of what was done, or the error: Ray would wrap it if it was raised.
    """
    client = _BoardClient(board)
    progress = Progress(
        on_calls=lambda calls, tokens, cost: client.add(WorkerReport(calls, tokens, cost)),
        on_lost=lambda calls: client.add(WorkerReport(lost=calls)),
    )
    try:
        if job.mirror:
            return _work_with_mirror(job, shard, progress, client.stop)
        if not job.landmark.exists():
            raise WorldError(
                f"a worker does not see the cache: {job.root}; name a folder that all machines "
                "share, or a mirror with --remote"
            )
        return fill_cache(
            job.pool,
            job.queries,
            job.root,
            progress,
            client.stop,
            job.engines,
            shard=shard,
            datasets=job.datasets,
        )
    except HierRouterError as error:
        return error
    finally:
        client.send()


def _work_with_mirror(job: Job, shard: Shard, progress: Progress, stop: Stop) -> Summary:
    """Collect one shard into a temporary folder, and copy its parts to the mirror."""
    store = store_at(str(job.mirror))
    with tempfile.TemporaryDirectory(prefix="hierrouter-") as folder:
        root = Path(folder)
        pull(store, root, leave=job.leave)
        copy = part_copier(store)
        try:
            return fill_cache(
                job.pool,
                job.queries,
                root,
                progress,
                stop,
                job.engines,
                shard=shard,
                on_part=copy,
                datasets=job.datasets,
            )
        except WorldError:
            with suppress(NoCache):  # nothing was committed yet
                # Perhaps the copying of a part failed: try again, as the folder will be deleted.
                push(root, store)
            raise


def _run(
    ray: Any, job: Job, count: int, on_gpus: bool, progress: Progress, stop: Stop
) -> list[Summary | HierRouterError]:
    """Run all shards; returns the summary or the error of each."""
    board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Board).remote()
    remote_work = ray.remote(num_cpus=1, num_gpus=int(on_gpus), max_retries=MAX_SHARD_RESTARTS)(
        work
    )
    shared = ray.put(job)
    shards = [Shard(index, count) for index in range(1, count + 1)]
    pending = [remote_work.remote(shared, shard, board) for shard in shards]
    max_calls = len(job.queries) * job.pool.calls_per_query
    progress.on_level(f"{count} workers", max_calls)
    outcomes = []
    while pending:
        done, pending = ray.wait(pending, timeout=REPORT_SECONDS)
        outcomes += [_outcome(ray, task) for task in done]
        report = ray.get(board.take.remote())
        progress.on_calls(report.calls, report.tokens, report.cost)
        if report.lost:
            progress.on_lost(report.lost)
        if stop():
            ray.get(board.end.remote())
    return outcomes


def _outcome(ray: Any, task: Any) -> Summary | HierRouterError:
    """The result of a task that has ended; a WorldError if its worker died."""
    try:
        outcome: Summary | HierRouterError = ray.get(task)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1][:120]
        return WorldError(
            f"a worker failed: {reason}; what was committed is safe, rerun the same command to "
            "resume"
        )
    return outcome


def _total(
    outcomes: Sequence[Summary | HierRouterError],
    spent_before: Mapping[str, Spending],
    job: Job,
    count: int,
    progress: Progress,
) -> Summary:
    """Sum up the summaries of all shards.

    Args:
        outcomes: of each shard.
        spent_before: spending in the cache before the collection, by model.
        job: of all workers.
        count: number of shards.
        progress: gets the summary.

    Raises:
        Interrupted: the workers were stopped.
        WorldError: the workers' models differ.
        HierRouterError: the error of a shard.
    """
    summaries = (outcome for outcome in outcomes if isinstance(outcome, Summary))
    summary = sum(summaries, Summary(0, 0))
    progress.summary = summary
    calls_and_earlier = summary.calls + summary.earlier
    # Counted in the cache, because a worker that was killed has not reported all that it did.
    for model, stored in spending_of_pool(job.root, job.pool).items():
        failed = summary.spent.get(model, Spending()).failed
        spent_now = replace(stored - spent_before.get(model, Spending()), failed=failed)
        if spent_now != Spending():
            summary.spent[model] = spent_now
    total = sum(summary.spent.values(), Spending())
    errors = [outcome for outcome in outcomes if isinstance(outcome, HierRouterError)]
    for error in errors:
        if not isinstance(error, Interrupted):
            raise error
    if errors:
        raise Interrupted(
            f"interrupted: {total.calls} calls committed; rerun the same command to resume"
        )
    summary.calls = total.calls
    summary.tokens_in = total.tokens_in
    summary.tokens_out = total.tokens_out
    summary.earlier = calls_and_earlier - summary.calls
    status = shard_status(job.root, count)
    if not summary.failed and status.present < status.expected:
        raise WorldError(
            f"the workers' models differ in versions or kind of device: {job.root}; the tree lacks "
            f"{status.expected - status.present} of {status.expected} nodes, use machines of one "
            "kind; no answer is lost"
        )
    return summary


# The address of a Ray cluster.

AUTO = "auto"  # the cluster that this machine belongs to
CLIENT_SCHEME = "ray://"
CLIENT_PORT = 10001  # Ray's default for connections from outside of a cluster
ADDRESS_PATTERN = re.compile(
    r"(?P<scheme>ray://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(:(?P<port>\d{1,5}))?"
)
ERROR_PATTERN = re.compile(r"[\w.]*(Error|Exception): (?P<message>.+)")
MAX_PORT = 65_535
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 12.0  # from the import of Ray on, which may take long on a slow disk
# The program of the other process; it writes a byte when Ray is imported.
PROBE = """
import sys, ray
sys.stdout.buffer.write(b".")
sys.stdout.flush()
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
"""


class HeadAddress(NamedTuple):
    """Where the head of a cluster listens."""

    host: str
    port: int


def parse_ray_address(address: str) -> HeadAddress | None:
    """Read the address of a cluster.

    Args:
        address: "auto", "HOST:PORT", or "ray://HOST" with a port or without one.

    Returns:
        The head's address; None for "auto".

    Raises:
        InputError: it is no such address.
    """
    if address == AUTO:
        return None
    match = ADDRESS_PATTERN.fullmatch(address)
    port = None
    if match and match["port"]:
        port = int(match["port"])
    elif match and match["scheme"]:
        port = CLIENT_PORT
    if match is None or port is None or not 0 < port <= MAX_PORT:
        raise InputError(
            f"not a cluster: --ray-address {address}; use auto, HOST:PORT of its head, or "
            f"{CLIENT_SCHEME}HOST:{CLIENT_PORT}"
        )
    return HeadAddress(match["host"].strip("[]"), port)


def require_listener(address: str) -> None:
    """Refuse a cluster if nothing listens at the address of its head.

    Args:
        address: as for `parse_ray_address`.

    Raises:
        InputError: it is no such address.
        WorldError: nothing listens there.
    """
    head = parse_ray_address(address)
    if head is None:
        return
    try:
        socket.create_connection(head, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise no_cluster(address, error.strerror or "it does not answer") from error


def require_head(address: str) -> None:
    """Refuse a cluster whose head does not answer within seconds; ray must be installed.

    Another process connects, which may hang or be ended by Ray.

    Args:
        address: as for `parse_ray_address`.

    Raises:
        WorldError: what listens there is no head of a cluster, or none is found.
    """
    command = [sys.executable, "-c", PROBE, address]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.read(1)
        try:
            _, errors = process.communicate(timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            reason = f"no answer of a head within {ANSWER_TIMEOUT_S:g} s"
            raise no_cluster(address, reason) from error
    if process.returncode:
        raise no_cluster(address, _last_error(errors.decode(errors="replace")))


def _last_error(errors: str) -> str:
    """Return the message of the error that ended a Python program."""
    lines = errors.strip().splitlines()
    match = ERROR_PATTERN.fullmatch(lines[-1]) if lines else None
    return match["message"] if match else "Ray ended without an error"


def no_cluster(address: str, reason: str) -> WorldError:
    """Return the error for a cluster that cannot be reached."""
    return WorldError(
        f"no Ray cluster: {address}: {reason[:160]}; start one with `ray start --head`"
    )

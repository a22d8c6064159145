"""A connection to a Ray cluster, or a cluster of our own.

In: an address or none. Out: the `ray` module, connected while a block lasts. Not covered: what
runs there (`cluster`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from hierrouter_cache.errors import InputError, WorldError, reason_of

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

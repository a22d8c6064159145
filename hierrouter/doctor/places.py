"""Can cache and runs be kept here; are they sound?

In: the folder of a cache; the runs under `runs`. Out: findings. What is written to try the disk is
removed again. Not covered: the rows of a cache (`hierrouter.inspection.verify_cache`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hierrouter.doctor.finding import Finding
from hierrouter.runs import RUNS, finished_runs
from hierrouter_cache.atomic_files import write_atomically
from hierrouter_cache.errors import CacheError, CacheLocked, InputError, NoCache, WorldError
from hierrouter_cache.locks import folder_lock
from hierrouter_cache.parts import parts_folder
from hierrouter_cache.writer import not_writable

GIB = 2**30
LOW = 2 * GIB  # free bytes; a collection of the paper's size fits


def disk(cache: Path) -> Iterator[Finding]:
    """Free room, and whether files, fsync and locks work where the cache and the runs go.

    Raises:
        CacheError: nothing can be written where the cache would be made.
        WorldError: nothing can be written where runs go; a disk is full, fails, or has no locks
            that hold.
    """
    place, runs = _existing(cache), _existing(RUNS)
    try:
        yield _tried_out(place)
    except CacheError:
        if not parts_folder(place).is_dir():
            raise
        text = f"{place.absolute()} can only be read; collect into another --cache"
        yield Finding("disk", "note", text)
    if runs.absolute() == place.absolute():
        return
    try:
        yield _tried_out(runs)
    except CacheError as error:
        raise WorldError(
            f"runs cannot be written: {runs.absolute()}; work in another folder, or give --out"
        ) from error


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _tried_out(place: Path) -> Finding:
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as tried:
            write_atomically(Path(tried) / "file", b"whole")
            with folder_lock(Path(tried), "nobody"):
                _require_held(Path(tried))
    except OSError as error:
        raise not_writable(place, error) from error
    free = shutil.disk_usage(place).free
    text = f"{place.absolute()}: files, fsync and locks work, {free / GIB:.1f} GiB free"
    if free < LOW:
        return Finding("disk", "note", f"{text}; make room before a large collection")
    return Finding("disk", "ok", text)


def _require_held(folder: Path) -> None:
    try:
        with folder_lock(folder, "this process"):
            pass
    except CacheLocked:
        return
    raise WorldError(f"locks do not hold: {folder.parent}; use a disk that has locks")


def cache(folder: Path) -> Iterator[Finding]:
    """What `cache info` knows, after every part was hashed.

    Raises:
        CacheError: it is damaged, or of a newer version.
    """
    from hierrouter.inspection import cache_info

    try:
        info = cache_info(folder)
    except NoCache:
        text = f"none at {folder}; `hierrouter quickstart` or `hierrouter collect` makes one"
        yield Finding("cache", "note", text)
        return
    yield _standing(folder, info)


def _standing(folder: Path, info: dict[str, Any]) -> Finding:
    lacking = info["missing_nodes"] + info["missing_direct"]
    whole = (
        f"{folder}: {info['complete_queries']:,} of {info['queries']:,} queries complete, "
        f"{info['parts']:,} parts of {info['bytes'] / 2**20:.1f} MiB"
    )
    if lacking:
        failed = f", {sum(info['failed_calls'].values()):,} failed" if info["failed_calls"] else ""
        remedy = f"`hierrouter collect --cache {folder}` makes them"
        return Finding("cache", "note", f"{whole}; {lacking:,} calls missing{failed}; {remedy}")
    return Finding("cache", "ok", f"{whole}; `hierrouter cache verify` reads every row")


def router() -> Iterator[Finding]:
    """The router that would answer live questions, and whether its models are here.

    Raises:
        InputError: its files are damaged, or a model's folder is gone.
    """
    from hierrouter.live.runs import live_run

    if not any(finished_runs(command) for command in ("train", "sweep-alpha")):
        yield Finding("router", "note", "none yet under runs; `hierrouter train` makes one")
        return
    try:
        run = live_run()
    except InputError:
        text = (
            "no run has the live.json that `route` needs; train on a cache of models, not imports"
        )
        yield Finding("router", "note", text)
        return
    yield _deployable(run)


def _deployable(run: Path) -> Finding:
    from hierrouter.learn.checkpoint import load_checkpoint
    from hierrouter.live.bundle import load_bundle
    from hierrouter.pool_listing import HERE, SERVED, listed

    load_checkpoint(run)
    bundle = load_bundle(run)
    models = listed(bundle.pool) if bundle else []
    away = {model.name: model.weights for model in models if model.weights not in (HERE, SERVED)}
    if away:
        where = ", ".join(f"{name} {weights}" for name, weights in away.items())
        return Finding("router", "note", f"{run}: {where}; fetched when it is first asked")
    return Finding("router", "ok", f"{run}: `hierrouter route` and `serve` can use it")

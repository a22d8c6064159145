"""What of an installation works: the checks of `hierrouter doctor`, slow to import."""

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hierrouter import __version__
from hierrouter.engines.encoders import PAPER_ENCODER
from hierrouter.engines.identity import folder_digest
from hierrouter.learning.run_folders import RUNS, finished_runs
from hierrouter.questions.shipped import model_path
from hierrouter_cache import errors
from hierrouter_cache.locks import folder_lock
from hierrouter_cache.parts import parts_folder
from hierrouter_cache.writer import not_writable, write_atomically

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """How one thing stands.

    Attributes:
        subject: what was looked at, a word or two.
        state: a "note" is good to know; with a "problem" something does not work.
        text: what was found; of notes and problems also what to do.
        error: of a problem, what a command would raise that met it.
    """

    subject: str
    state: State
    text: str
    error: errors.HierRouterError | None = None


def examine(cache: Path, pool: str | None = None) -> Iterator[Finding]:
    """Look at everything, each thing when the one before was told.

    `cache`: its folder, there or not; `pool`: name or file of a pool, whose models are looked for
    too.
    """
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "packages": packages,
        "extras": extras,
        "devices": devices,
        "models": shipped_models,
        "hub": hub,
        "disk": lambda: disk(cache),
        "cache": lambda: cache_health(cache),
        "router": router,
        "integrity": lambda: integrity(cache),
    }
    if pool:
        checks["pool"] = lambda: pool_models(pool)
    for subject, check in checks.items():
        try:
            yield from check()
        except (errors.HierRouterError, ImportError, OSError) as error:
            problem = _as_problem(error)
            yield Finding(subject, "problem", str(problem), problem)


def _as_problem(error: Exception) -> errors.HierRouterError:
    if isinstance(error, errors.HierRouterError):
        return error
    what, remedy = "cannot look", "check the disk and its permissions"
    if isinstance(error, ImportError):
        what, remedy = "broken package", "install it again"
    return errors.WorldError(f"{what}: {errors.reason_of(error, 160)}; {remedy}")


NAME = "hierrouter"
SHOWN = ("torch", "transformers", "tianshou", "sentence-transformers", "duckdb", "pyarrow")
EXTRAS = {  # a module of each, and what it is for
    "hub": ("datasets", "the paper's datasets from the hub"),
    "ray": ("ray", "collect --engine ray"),
    "serve": ("fastapi", "hierrouter serve"),
}


def packages() -> Iterator[Finding]:
    """Versions of this package, of Python and of the larger libraries."""
    yield Finding(NAME, "ok", f"{__version__}, Python {platform.python_version()}")
    yield Finding("packages", "ok", ", ".join(f"{name} {version(name)}" for name in SHOWN))


def extras() -> Iterator[Finding]:
    """Each extra that a user can install, and what it is for."""
    for extra, (module, use) in EXTRAS.items():
        if find_spec(module):
            yield Finding(f"extra {extra}", "ok", f"installed: {use}")
        else:
            yield Finding(f"extra {extra}", "note", f"pip install '{NAME}[{extra}]' for {use}")


TIMEOUT_S = 3.0
GIB = 2**30


def devices() -> Iterator[Finding]:
    """Cores, threads and memory; every GPU."""
    import torch

    from hierrouter.engines.devices import memory

    free, total = map(_gib, memory([torch.device("cpu")]))
    threads = f"{os.cpu_count()} cores, torch takes {torch.get_num_threads()} threads"
    yield Finding("cpu", "ok", f"{threads}; {free} of {total} memory free")
    if not torch.cuda.is_available():
        yield Finding("gpu", "note", "none that torch can use; models run on the CPU")
    for index in range(torch.cuda.device_count()):
        free, total = map(_gib, memory([torch.device("cuda", index)]))
        name = torch.cuda.get_device_name(index)
        yield Finding(f"cuda:{index}", "ok", f"{name}, {free} of {total} free")


def hub() -> Iterator[Finding]:
    """Whether models and datasets can be fetched; asked once, and not for long."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        HfApi().model_info(PAPER_ENCODER, timeout=TIMEOUT_S)
    except OfflineModeIsEnabled:
        there = "switched off by HF_HUB_OFFLINE; what was downloaded before is used"
        yield Finding("hub", "note", there)
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        there = "the testbed needs none, and what was downloaded before is used"
        yield Finding("hub", "note", f"not reached ({type(error).__name__}); {there}")
    else:
        yield Finding("hub", "ok", "reached; models and datasets can be fetched")


def pool_models(name: str) -> Iterator[Finding]:
    """Each model of a pool that this machine would load: whether it can be had; then the disk."""
    from hierrouter.engines.preflight import GB, require_models, weights_needed, weights_notes
    from hierrouter.pools.files import load_pool

    pool, had = load_pool(name), []
    for each in weights_needed(pool.everyone):
        if each.problem:
            yield Finding(each.name, "problem", each.problem, errors.WorldError(each.problem))
            continue
        had.append(each)
        if each.download is None:
            yield Finding(each.name, "note", "not looked for, the hub was not reached")
        else:
            to_fetch = f"{each.download / GB:.1f} GB to download" if each.download else "here"
            memory = f", {each.memory / GB:.1f} GB in memory" if each.memory else ""
            yield Finding(each.name, "ok", f"{each.model}: {to_fetch}{memory}")
    for note in weights_notes(pool, had):
        yield Finding("pool", "note", note)
    require_models(pool, had)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


LOW = 2 * GIB  # free bytes; a collection of the paper's size fits


def disk(cache: Path) -> Iterator[Finding]:
    """Free room, and whether files, fsync and locks work where the cache and the runs go."""
    place, runs = _existing(cache), _existing(RUNS)
    try:
        yield _tried_out(place)
    except errors.CacheError:
        if not parts_folder(place).is_dir():
            raise
        text = f"{place.absolute()} can only be read; collect into another --cache"
        yield Finding("disk", "note", text)
    if runs.absolute() == place.absolute():
        return
    try:
        yield _tried_out(runs)
    except errors.CacheError as error:
        raise errors.WorldError(
            f"runs cannot be written: {runs.absolute()}; work in another folder, or give --out"
        ) from error


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _tried_out(place: Path) -> Finding:
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as name:
            tried = Path(name)
            write_atomically(tried / "file", b"whole")
            with folder_lock(tried, "nobody"):
                try:
                    with folder_lock(tried, "this process"):
                        raise errors.WorldError(
                            f"locks do not hold: {place}; use a disk that has locks"
                        )
                except errors.CacheLocked:
                    pass
    except OSError as error:
        raise not_writable(place, error) from error
    free = shutil.disk_usage(place).free
    text = f"{place.absolute()}: files, fsync and locks work, {_gib(free)} free"
    if free < LOW:
        return Finding("disk", "note", f"{text}; make room before a large collection")
    return Finding("disk", "ok", text)


def cache_health(folder: Path) -> Iterator[Finding]:
    """What `cache info` knows, after every part was hashed."""
    from hierrouter.replay.inspection import cache_info

    try:
        info = cache_info(folder)
    except errors.NoCache:
        text = f"none at {folder}; `hierrouter quickstart` or `hierrouter collect` makes one"
        yield Finding("cache", "note", text)
        return
    lacking = info["missing_nodes"] + info["missing_direct"]
    whole = (
        f"{folder}: {info['complete_queries']:,} of {info['queries']:,} queries complete, "
        f"{info['parts']:,} parts of {info['bytes'] / 2**20:.1f} MiB"
    )
    if lacking:
        failed = f", {sum(info['failed_calls'].values()):,} failed" if info["failed_calls"] else ""
        remedy = f"`hierrouter collect --cache {folder}` makes them"
        yield Finding("cache", "note", f"{whole}; {lacking:,} calls missing{failed}; {remedy}")
    else:
        yield Finding("cache", "ok", f"{whole}; `hierrouter cache verify` reads every row")


def router() -> Iterator[Finding]:
    """The router that would answer live questions, and whether its models are here."""
    from hierrouter.engines.listing import SOUND, listed
    from hierrouter.learning.bundle import load_bundle
    from hierrouter.learning.checkpoint import load_checkpoint
    from hierrouter.serving.router import live_run

    if not finished_runs("train", "sweep-alpha"):
        yield Finding("router", "note", "none yet under runs; `hierrouter train` makes one")
        return
    try:
        run = live_run()
    except errors.InputError:
        text = (
            "no run has the live.json that `route` needs; train on a cache of models, not imports"
        )
        yield Finding("router", "note", text)
        return
    load_checkpoint(run)
    bundle = load_bundle(run)
    known = map(listed, (*bundle.pool.models, *bundle.pool.references) if bundle else ())
    away = [f"{one['name']} {one['weights']}" for one in known if one["weights"] not in SOUND]
    if away:
        text = f"{run}: {', '.join(away)}; fetched when it is first asked"
        yield Finding("router", "note", text)
    else:
        yield Finding("router", "ok", f"{run}: `hierrouter route` and `serve` can use it")


def integrity(cache: Path) -> Iterator[Finding]:
    """Whether embeddings, runs and reports are what was written, too."""
    from hierrouter.learning.integrity import look_over

    found = look_over(cache)
    if found.faults:
        _, file, why = found.faults[0]
        raise errors.DamagedPart(
            f"{len(found.faults)} files damaged or missing, the first: {file}: {why}; "
            "`hierrouter verify` names all"
        )
    if found.notes:
        folder, why = found.notes[0]
        text = f"{len(found.notes)} not looked at, the first: {folder}: {why}"
        yield Finding("integrity", "note", text)
    sound = found.files.total() - len(found.notes)
    text = f"{sound:,} files of cache and runs: every byte as written"
    yield Finding("integrity", "ok", text)


# `folder_digest` of each shipped model; new weights come with new digests.
DIGESTS = {
    "testbed/calc": "81e2fb3912fa797badad212db6af727e",
    "testbed/text": "c50b0e506343dc375414a9002d05b6b6",
    "testbed/facts": "00f5032cc4487ff13ffa92669a87f098",
    "graded/nano": "90a8712ad6490c378845785f513a4361",
    "graded/calc": "b4abdf5b288a1c630f297580c2f8f1bb",
    "graded/text": "449e987fd0c4f2056380dbeba88d27c7",
    "graded/facts": "1e7ca657d91fec484d309057600b9643",
    "graded/general": "56112fbea79e8a6ec8bf3a59041f8524",
}
MODELS = model_path("testbed:calc").parents[1]


def shipped_models(folder: Path = MODELS) -> Iterator[Finding]:
    """Every file of the package's models, a folder each, hashed."""
    damaged = []
    for name, digest in DIGESTS.items():
        with contextlib.suppress(errors.InputError):  # no weights there
            if folder_digest(folder / name) == digest:
                continue
        damaged.append(name)
    if damaged:
        raise errors.WorldError(
            f"damaged or missing: {', '.join(damaged)} in {folder}; install the package again"
        )
    yield Finding("models", "ok", f"{', '.join(DIGESTS)}: every byte as shipped")

"""What of an installation works: the checks of `hierrouter doctor`, slow to import."""

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hierrouter import __version__
from hierrouter.engines.encoders import PAPER_ENCODER
from hierrouter.engines.identity import folder_digest
from hierrouter.learning.run_folders import RUNS
from hierrouter.questions.shipped import model_path
from hierrouter_cache import errors
from hierrouter_cache.locks import folder_lock
from hierrouter_cache.parts import parts_folder
from hierrouter_cache.writer import not_writable, write_atomically

SHOWN = ("torch", "transformers", "tianshou", "sentence-transformers", "duckdb", "pyarrow")
EXTRAS = {  # a module of each, and what it is for
    "hub": ("datasets", "the paper's datasets from the hub"),
    "ray": ("ray", "collect --engine ray"),
    "serve": ("fastapi", "hierrouter serve"),
}
TIMEOUT_S = 3.0
GIB = 2**30
LOW = 2 * GIB  # free bytes; a collection of the paper's size fits
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


class Finding(NamedTuple):
    """How one thing stands.

    Attributes:
        state: "ok"; a "note" is good to know; with a "problem" something does not work.
        error: of a problem, what a command would raise that met it.
    """

    subject: str
    state: str
    text: str
    error: errors.HierRouterError | None = None


def examine(cache: Path) -> Iterator[Finding]:
    """Look at everything, each thing when the one before was told; `cache`: there or not."""
    checks = {
        "packages": packages(),
        "devices": devices(),
        "models": shipped_models(),
        "hub": hub(),
        "disk": disk(cache),
        "cache": cache_health(cache),
        "router": router(),
    }
    for subject, check in checks.items():
        problem: errors.HierRouterError
        try:
            yield from check
            continue
        except errors.HierRouterError as error:
            problem = error
        except (ImportError, OSError) as error:
            why = f"cannot look: {errors.reason_of(error, 160)}"
            problem = errors.WorldError(f"{why}; install the package again, or check the disk")
        yield Finding(subject, "problem", str(problem), problem)


def packages() -> Iterator[Finding]:
    """Versions of this package, of Python and of the larger libraries; the extras for users."""
    yield Finding("hierrouter", "ok", f"{__version__}, Python {platform.python_version()}")
    yield Finding("packages", "ok", ", ".join(f"{name} {version(name)}" for name in SHOWN))
    for extra, (module, use) in EXTRAS.items():
        there = find_spec(module)
        told = f"installed: {use}" if there else f"pip install 'hierrouter[{extra}]' for {use}"
        yield Finding(f"extra {extra}", "ok" if there else "note", told)


def devices() -> Iterator[Finding]:
    """Cores, threads and memory; every GPU."""
    import torch

    from hierrouter.engines.devices import memory

    threads = f"{os.cpu_count()} cores, torch takes {torch.get_num_threads()} threads"
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for device in ("cpu", *gpus):
        name = torch.cuda.get_device_name(device) if device in gpus else threads
        free, total = (f"{size / GIB:.1f}" for size in memory([torch.device(device)]))
        yield Finding(device, "ok", f"{name}; {free} of {total} GiB memory free")
    if not torch.cuda.is_available():
        yield Finding("gpu", "note", "none that torch can use; models run on the CPU")


def shipped_models(folder: Path = MODELS) -> Iterator[Finding]:
    """Every file of the package's models, a folder each, hashed."""
    damaged = dict(DIGESTS)
    for name, digest in DIGESTS.items():
        with contextlib.suppress(errors.InputError):  # no weights there
            if folder_digest(folder / name) == digest:
                del damaged[name]
    if damaged:
        raise errors.WorldError(
            f"damaged or missing: {', '.join(damaged)} in {folder}; install the package again"
        )
    yield Finding("models", "ok", f"{', '.join(DIGESTS)}: every byte as shipped")


def hub() -> Iterator[Finding]:
    """Whether models and datasets can be fetched; asked once, and not for long."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(PAPER_ENCODER, timeout=TIMEOUT_S)
        yield Finding("hub", "ok", "reached; models and datasets can be fetched")
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        why = f"not reached ({type(error).__name__})"
        yield Finding("hub", "note", f"{why}; the testbed needs none, what was downloaded is used")


def disk(cache: Path) -> Iterator[Finding]:
    """Free room, and whether files, fsync and locks work where the cache and the runs go."""
    above = [(folder, *folder.absolute().parents) for folder in (RUNS, cache)]
    runs, home = (next(at for at in each if at.exists()).absolute() for each in above)
    for place in dict.fromkeys((home, runs)):
        try:
            with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as name:
                write_atomically(Path(name, "file"), b"whole")
                held, again = (folder_lock(Path(name), "nobody") for _ in range(2))
                with held, contextlib.suppress(errors.CacheLocked), again:
                    raise errors.WorldError(f"no locks hold: {place}; use a disk that has locks")
        except OSError as error:
            if place != home:
                raise errors.WorldError(f"runs cannot be written: {place}; give --out") from error
            if not parts_folder(place).is_dir():
                raise not_writable(place, error) from error
            yield Finding("disk", "note", f"{place} can only be read; collect into another --cache")
            continue
        free = shutil.disk_usage(place).free
        text = f"{place}: files, fsync and locks work, {free / GIB:.1f} GiB free"
        more = "; make room before a large collection" if free < LOW else ""
        yield Finding("disk", "note" if more else "ok", text + more)


def cache_health(folder: Path) -> Iterator[Finding]:
    """Whether there is a cache that can be read, and what it lacks."""
    from hierrouter.replay.inspection import cache_info

    try:
        info = cache_info(folder)
    except errors.NoCache:
        yield Finding("cache", "note", f"none at {folder}; `hierrouter quickstart` makes one")
        return
    told = f"{folder}: {info['complete_queries']:,} of {info['queries']:,} queries complete"
    if lacking := info["missing_nodes"] + info["missing_direct"]:
        told += f"; {lacking:,} calls missing; `hierrouter collect --cache {folder}` makes them"
    yield Finding("cache", "note" if lacking else "ok", f"{told}; see `hierrouter verify`")


def router() -> Iterator[Finding]:
    """The router that would answer live questions."""
    from hierrouter.learning.checkpoint import load_checkpoint
    from hierrouter.serving.router import live_run

    try:
        run = live_run()
    except errors.InputError:
        yield Finding("router", "note", "none that can answer; `hierrouter train` makes one")
        return
    load_checkpoint(run)
    yield Finding("router", "ok", f"{run}: `hierrouter route` and `serve` can use it")

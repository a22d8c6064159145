"""The folders that runs leave their results in: made, gone on with, and found again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError, WorldError

RUNS = Path("runs")
# The file whose presence says that a run is finished: it is written last.
DONE = {"train": "policy.json", "sweep-alpha": "sweep.json"}
# What a run was asked for; written first.
BEGUN = "run.json"


@dataclass(frozen=True)
class QuickstartFolders:
    """Where the four stages of a quickstart leave their results."""

    cache: Path
    train: Path
    sweep: Path
    report: Path


def quickstart_folders(out: Path | None) -> QuickstartFolders:
    """Below `out`, or where the other commands look by default; the same on every call.

    Raises:
        InputError: the parent of `out` does not exist.
    """
    if out is None:
        return QuickstartFolders(
            CACHE, *(RUNS / f"quickstart-{name}" for name in ("train", "sweep-alpha", "report"))
        )
    _check_parent(out)
    return QuickstartFolders(
        out / "cache", *(out / "runs" / name for name in ("train", "sweep-alpha", "report"))
    )


def new_run(command: str, out: Path | None) -> Path:
    """Make the folder of a new run.

    Args:
        command: the last part of the folder's name.
        out: a folder the user chose; it must not hold anything yet.

    Raises:
        InputError: `out` holds something already, or its parent does not exist.
        WorldError: the folder cannot be made.
    """
    check_out(out)
    try:
        if out is None:
            return _made(command)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(
            f"cannot make the output folder: {out or RUNS}: {error.strerror}; choose another --out"
        ) from error
    return out


@contextmanager
def resumable(command: str, asked: Mapping[str, Any], out: Path | None) -> Iterator[Path]:
    """The folder of a run: a new one, or `out` where the very same run was begun before.

    What was asked for is written down before the first result, so that a run is never gone on with
    as another one. The folder is this process's alone meanwhile.

    Args:
        command: "train" or "sweep-alpha".
        asked: what the result depends on, as JSON values.

    Raises:
        InputError: `out` holds something else, or its parent does not exist.
        CacheLocked: another process is at work there.
        WorldError: the disk is full or failed.
    """
    # The command line reads this module's constants at its start, and these import numpy.
    from hierrouter_cache.locks import folder_lock
    from hierrouter_cache.writer import write_atomically

    described = {"asked": dict(asked), "command": command}
    found = _begun(out)
    if out is None or found is None:
        run = new_run(command, out)
        text = json.dumps(described, sort_keys=True, indent=2)
        write_atomically(run / BEGUN, f"{text}\n".encode())
    else:
        run = out
        if different := sorted(differences(found, described)):
            raise InputError(
                f"another run was begun in {out}: {', '.join(different)} differ; "
                "give the same flags, or another --out"
            )
    with folder_lock(run, "another run"):
        remove_drafts(run)
        yield run


def timed(command: str) -> Path:
    """Where a run of this command goes that nobody chose a folder for."""
    return RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{command}"


def seed_folders(base: Path, seeds: Iterable[int]) -> dict[int, Path]:
    """A folder for each of several trainings, side by side, found as those of single ones are.

    Args:
        base: what their names begin with.
        seeds: of the trainings.
    """
    return {seed: base.with_name(f"{base.name}-seed-{seed}") for seed in seeds}


def make_newest(run: Path, command: str) -> None:
    """Let a finished run be the first of `finished_runs`.

    Raises:
        WorldError: its file cannot be written.
    """
    file = run / DONE[command]
    try:
        # A file system's clock ticks in milliseconds: two files can be of one moment.
        latest = max((_finished_ns(each, command) for each in finished_runs(command)), default=0)
        now = max(time.time_ns(), latest + 1)
        os.utime(file, ns=(now, now))
    except OSError as error:
        raise WorldError(f"cannot write: {file}: {error.strerror}; check its owner") from error


def remove_drafts(run: Path) -> None:
    """Remove what killed saves left in the folder of a run, and below it.

    Only this process may be at work there, so whatever draft is found was abandoned.

    Raises:
        WorldError: one cannot be removed.
    """
    for draft in run.rglob(".*.????????.tmp"):  # as `write_atomically` calls it
        remove(draft)


def remove(file: Path) -> None:
    """Remove a file that may be gone already.

    Raises:
        WorldError: it cannot be removed.
    """
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise WorldError(f"cannot remove: {file}: {error.strerror}; remove it yourself") from error


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> set[str]:
    """Names of what two nested values do not share; of nested values the inner ones."""
    for whole in ("algo", "preset"):  # and so every setting
        if found.get(whole) != wanted.get(whole):
            return {whole}
    different: set[str] = set()
    for name in found.keys() | wanted.keys():
        here, there = found.get(name), wanted.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            different |= differences(here, there)
        elif here != there:
            different.add(name)
    return different


def _begun(run: Path | None) -> dict[str, Any] | None:
    """What a run in this folder was asked for; None where none was begun."""
    try:
        found = json.loads((run / BEGUN).read_text("utf-8")) if run else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_out(out: Path | None, command: str = "") -> None:
    """Refuse an output folder before any work is done for it.

    Args:
        command: a run of it may be there, to be gone on with.

    Raises:
        InputError: it holds something else already, or its parent does not exist.
    """
    if out is None:
        return
    _check_parent(out)
    if command and (_begun(out) or {}).get("command") == command:
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output exists: {out}; nothing is overwritten, choose another --out")


def _check_parent(out: Path) -> None:
    if out.parent == RUNS:
        return  # is made with the first run
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")


def finished_runs(command: str) -> list[Path]:
    """The finished runs of a command, the newest first.

    Args:
        command: "train" or "sweep-alpha".
    """
    found = [path.parent for path in RUNS.glob(f"*/{DONE[command]}")]
    return sorted(found, key=lambda run: _finished_ns(run, command), reverse=True)


def _finished_ns(run: Path, command: str) -> int:
    return (run / DONE[command]).stat().st_mtime_ns


def _made(command: str) -> Path:
    """A new folder; of two runs that begin in one second each has its own."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = RUNS / f"{stamp}-{command}", 2
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            path = RUNS / f"{stamp}.{number}-{command}"
            number += 1

"""Where runs leave their results, and how the next command finds them.

A run is a folder `runs/<time>-<command>` with what the command wrote. Not covered: what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hierrouter_cache.errors import InputError, WorldError

RUNS = Path("runs")
CACHE = Path("caches/default")
# The file whose presence says that a run is finished: it is written last.
DONE = {"train": "policy.json", "sweep-alpha": "sweep.json"}
# The file whose presence says that a run was begun and not finished.
BEGUN = "unfinished"


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
    out = out or _unused(command)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(f"cannot make the output folder: {out}: {error.strerror}") from error
    return out


def begin_run(command: str, out: Path | None) -> Path:
    """Make the folder of a run that can be gone on with until `end_run`; or go on with it.

    Raises:
        InputError, WorldError: as `new_run`.
    """
    if out is not None and _begun(out) == command:
        return out
    run = new_run(command, out)
    try:
        (run / BEGUN).write_text(f"{command}\n")
    except OSError as error:
        raise WorldError(f"cannot write into: {run}: {error.strerror}") from error
    return run


def end_run(run: Path) -> None:
    """The run is finished."""
    (run / BEGUN).unlink(missing_ok=True)


def _begun(run: Path) -> str | None:
    """The command that began a run in this folder and did not finish it."""
    try:
        return (run / BEGUN).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def check_out(out: Path | None, command: str = "") -> None:
    """Refuse an output folder before any work is done for it.

    Args:
        command: an unfinished run of it may be there, to be gone on with.

    Raises:
        InputError: it holds something already and no unfinished run, or its parent does not exist.
    """
    if out is None:
        return
    _check_parent(out)
    if command and _begun(out) == command:
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output exists: {out}; nothing is overwritten, choose another --out")


def _check_parent(out: Path) -> None:
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")


def finished_runs(command: str) -> list[Path]:
    """The finished runs of a command, the newest first.

    Args:
        command: "train" or "sweep-alpha".
    """
    done = DONE[command]
    found = [path.parent for path in RUNS.glob(f"*-{command}/{done}")]
    return sorted(found, key=lambda run: (run / done).stat().st_mtime_ns, reverse=True)


def _unused(command: str) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = RUNS / f"{stamp}-{command}"
    number = 2
    while path.exists():
        path = RUNS / f"{stamp}.{number}-{command}"
        number += 1
    return path

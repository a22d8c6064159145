"""Where runs leave their results, and how the next command finds them.

A run is a folder `runs/<time>-<command>` with what the command wrote. Not covered: what is in it.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hierrouter_cache.errors import InputError, WorldError

RUNS = Path("runs")


def new_run(command: str, out: Path | None) -> Path:
    """Make the folder of a new run.

    Args:
        command: the last part of the folder's name.
        out: a folder the user chose; it must not hold anything yet.

    Raises:
        InputError: `out` holds something already, or its parent does not exist.
        WorldError: the folder cannot be made.
    """
    if out is None:
        out = _unused(command)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output exists: {out}; choose another --out or remove it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(f"cannot make the output folder: {out}: {error.strerror}") from error
    return out


def latest_run(command: str, done: str) -> Path | None:
    """The newest finished run of a command, or None.

    Args:
        command: as given to `new_run`.
        done: name of the file that a finished run holds.
    """
    finished = [path.parent for path in RUNS.glob(f"*-{command}/{done}")]
    return max(finished, key=lambda path: path.name, default=None)


def _unused(command: str) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = RUNS / f"{stamp}-{command}"
    number = 2
    while path.exists():
        path = RUNS / f"{stamp}.{number}-{command}"
        number += 1
    return path

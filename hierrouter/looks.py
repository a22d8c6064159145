"""How often the test fold was looked at.

In: what a command shows of a router on the test fold. Out: a line in the folder of each run that
was looked at, and how many different looks there were. Whoever changes something after a look has
tuned on it; the log says how often that could have been. Not covered: looks from Python, by those
who remove the log, or without a trained router, which has no folder; and in the sum over all
routers, looks at trees of other content, such as some datasets of the same cache.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.learn.checkpoint import DESCRIPTION, SUMMARY, description_of
from hierrouter.runs import DONE, finished_runs
from hierrouter_cache.tree import RouteTree

LOG = "test_looks.jsonl"
UNTOLD = ("time", "version")  # the same look at another time shows nothing new
# No link is followed and nothing is waited for: a run's folder may come from elsewhere.
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK


def log_look(runs: Iterable[Path], command: str, look: Mapping[str, Any]) -> list[str]:
    """Write a look into the log of each run that was looked at, where it is not there yet.

    Args:
        runs: folders of runs, or checkpoints in them.
        command: that looks.
        look: what is looked at, JSON values; equal ones are the same look.

    Returns:
        What could not be written, in words; a log that fails stops no command.
    """
    folders = sorted({_folder(run) for run in runs})
    told = {"command": command, "routers": [_name(folder) for folder in folders], **look}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = _line({"time": now, "version": __version__, **told})
    failures = []
    for folder in folders:
        try:
            if _line(told) not in looks_in(folder):
                _append(folder / LOG, line.encode())
        except OSError as error:
            failures.append(
                f"this look at the test fold is not logged: {folder / LOG}: {error.strerror}"
            )
    return failures


def count_looks(tree: RouteTree, run: Path | None) -> dict[str, int]:
    """Different looks at the test fold that were logged.

    Args:
        tree: runs that learned from it, under whichever prices, are counted.
        run: of the router shown, or its checkpoint; None where there is none.

    Returns:
        this_router: looks at the routers in `run`; all_routers: at these and those of every
        finished run on the same content.
    """
    own = looks_in(_folder(run)) if run else set()
    others = (
        looks_in(log.parent)
        for command in DONE
        for other in finished_runs(command)
        if tree.same_content(str(description_of(other).get("fingerprint")))
        for log in other.rglob(LOG)
    )
    return {"this_router": len(own), "all_routers": len(own.union(*others))}


def looks_in(folder: Path) -> set[str]:
    """The different looks in the log of a folder; a line that is torn or foreign is none."""
    found = set()
    for line in _read(folder / LOG).splitlines():
        try:
            look = json.loads(line)
            found.add(_line({name: look[name] for name in look.keys() - set(UNTOLD)}))
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue
    return found


def _folder(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _name(folder: Path) -> str:
    """The folder's own name and a digest of what it holds: it may move, and be copied."""
    for told in (DESCRIPTION, SUMMARY):
        try:
            digest = hashlib.sha256((folder / told).read_bytes()).hexdigest()
            return f"{folder.resolve().name} {digest[:12]}"
        except OSError:
            continue
    return folder.resolve().name


def _line(look: Mapping[str, Any]) -> str:
    return json.dumps(look, sort_keys=True)


def _read(log: Path) -> bytes:
    """What is in a log; nothing where it cannot be read."""
    try:
        with os.fdopen(os.open(log, os.O_RDONLY | SAFELY), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _append(log: Path, line: bytes) -> None:
    """One line in one write: whole beside those of other processes.

    Raises:
        OSError: it is no file, or the disk is full or failed.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | SAFELY
    with os.fdopen(os.open(log, flags, 0o666), "r+b", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        torn = found.st_size > 0 and os.pread(file.fileno(), 1, found.st_size - 1) != b"\n"
        file.write(b"\n" * torn + line + b"\n")

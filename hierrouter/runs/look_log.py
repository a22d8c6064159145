"""The log of looks at the test fold, in the folder of each run that was looked at.

A change made after a look at the test fold is tuned on that fold, so each different look counts.
"""

import errno
import json
import os
import stat
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.declarations.flags import ALL_FOLDS, TEST_FOLD
from hierrouter.runs import folders
from hierrouter_cache.keys import digest
from hierrouter_cache.tree import RouteTree

LOOKS_FILE = "test_looks.jsonl"
LINE_CHECKSUM_KEY = "sum"
NOT_COMPARED = ("time", "version")  # the same look at another time shows nothing new
# No link is followed and nothing is waited for, because a run's folder may come from elsewhere.
SAFE_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


def record_looks(
    command: str, tree: RouteTree, split: str, runs: Iterable[Path | None], look: Mapping[str, Any]
) -> list[str]:
    """Log that routers are looked at, if that is on the test fold.

    Args:
        command: that shows them.
        tree: all folds, under the prices shown.
        split: the fold that is looked at; "all" includes the test fold.
        runs: of the routers, that of the main one first; None is a router without a run.
        look: what is looked at beside the tree, JSON values.

    Returns:
        Lines for the person who looks: what could not be logged, and how often the fold was looked
        at; nothing for other folds, or without runs.

    Raises:
        InputError: the record of a run is damaged.
    """
    shown_runs = [run for run in runs if run]
    if split not in (TEST_FOLD, ALL_FOLDS) or not shown_runs or TEST_FOLD not in tree.splits:
        return []
    notes = log_test_look(shown_runs, command, {"tree": tree.fingerprint, **look})
    counts = count_test_looks(tree, shown_runs[0])
    if counts["all_routers"] > 1:
        notes.append(
            f"the test fold was looked at {counts['all_routers']} times, "
            f"{counts['this_router']} of them for this router"
        )
    return notes


def log_test_look(runs: Iterable[Path], command: str, look: Mapping[str, Any]) -> list[str]:
    """Write a look into the log of each run that was looked at, unless it is there already.

    Args:
        runs: folders of the runs, or their checkpoints.
        command: that shows them.
        look: what is looked at, JSON values.

    Returns:
        What could not be written, in words; a log that fails stops no command.
    """
    run_folders = sorted({_folder_of(run) for run in runs})
    routers = [_name_with_digest(folder) for folder in run_folders]
    content = {"command": command, "routers": routers, **look}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = _line_with_checksum({"time": now, "version": __version__, **content})
    failures = []
    for folder in run_folders:
        try:
            if _line(content) not in read_test_looks(folder):
                _append(folder / LOOKS_FILE, line.encode())
        except OSError as error:
            failures.append(
                f"this look at the test fold is not logged: {folder / LOOKS_FILE}: {error.strerror}"
            )
    return failures


def count_test_looks(tree: RouteTree, run: Path | None) -> dict[str, int]:
    """Count the different looks at the test fold that were logged.

    Args:
        tree: runs that learned from it, under any prices, are counted.
        run: of the router shown, or its checkpoint; None if there is none.

    Returns:
        `this_router`: looks at the routers in `run`; `all_routers`: looks at these and at those of
        every finished run on the same content.

    Raises:
        InputError: the record of a run is damaged.
    """
    own = read_test_looks(_folder_of(run)) if run else set()
    looks = set(own)
    for other in folders.finished_runs("train", "sweep-alpha"):
        if tree.same_content(str(other.result["fingerprint"])):
            for log in other.folder.rglob(LOOKS_FILE):
                looks |= read_test_looks(log.parent)
    return {"this_router": len(own), "all_routers": len(looks)}


def read_test_looks(folder: Path) -> set[str]:
    """Return the different looks in the log of a folder; torn and foreign lines do not count."""
    return {look for look in looks_in(folder / LOOKS_FILE) if look}


def looks_in(log: Path) -> list[str | None]:
    """Return the look in each line of a log; None if the line is not as it was written."""
    looks: list[str | None] = []
    for line in _read(log).splitlines():
        try:
            value = json.loads(line)
            content = {name: value for name, value in value.items() if name != LINE_CHECKSUM_KEY}
            is_intact = line.decode() == _line_with_checksum(content)
        except (ValueError, TypeError, AttributeError, RecursionError):
            looks.append(None)
            continue
        if is_intact:
            compared = content.keys() - set(NOT_COMPARED)
            looks.append(_line({name: content[name] for name in compared}))
        else:
            looks.append(None)
    return looks


def _folder_of(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _name_with_digest(folder: Path) -> str:
    """Return a folder's name with a digest of what it holds, because it may be moved or copied."""
    name = folder.resolve().name
    if (folder / folders.WEIGHTS).is_file():
        return f"{name} {folders.file_digest(folder / folders.WEIGHTS)[:12]}"
    record = folders.read_record(folder)  # of a sweep
    return f"{name} {digest(record.files)[:12]}" if record else name


def _line(look: Mapping[str, Any]) -> str:
    return json.dumps(look, sort_keys=True)


def _line_with_checksum(look: Mapping[str, Any]) -> str:
    return _line({**look, LINE_CHECKSUM_KEY: digest(look)})


def _read(log: Path) -> bytes:
    """Return the lines of a log that is a plain file; one empty line if it cannot be read."""
    try:
        with os.fdopen(os.open(log, os.O_RDONLY | SAFE_OPEN_FLAGS), "rb") as file:
            is_plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(folders.MAX_JSON) if is_plain else b"\n"
    except FileNotFoundError:
        return b""
    except OSError:
        return b"\n"


def _append(log: Path, line: bytes) -> None:
    """Append a line by one write, so that lines of other processes do not mix with it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | SAFE_OPEN_FLAGS
    with os.fdopen(os.open(log, flags, 0o666), "r+b", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        end = b""
        if status.st_size > 0 and os.pread(file.fileno(), 1, status.st_size - 1) != b"\n":
            end = b"\n"  # ends a line that a killed process has torn
        file.write(end + line + b"\n")

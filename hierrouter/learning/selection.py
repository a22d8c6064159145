"""Which finished run a command shows, why, and how often the test fold was looked at."""

import errno
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.learning import run_folders
from hierrouter.learning.checkpoint import load_sweep, router_at
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import TrainedRouter
from hierrouter.paper import PAPER_ALPHA
from hierrouter.pools.pool import price_table
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import digest
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class SelectedRun:
    """The router that a command shows.

    Attributes:
        run: where it lies; the sweep's folder for a sweep's router. None where there is none.
        trained: the router; None where nothing has learned from the tree.
        sweep_run: folder of the sweep that was read; None where none was, or there is none.
        remarks: sentences, without a full stop, on what a reader would not expect.
    """

    run: Path | None
    trained: TrainedRouter | None
    alpha: float
    sweep_run: Path | None = None
    sweep: TrainedSweep | None = None
    remarks: tuple[str, ...] = ()

    def required(self) -> tuple[Path, TrainedRouter]:
        """Where the router lies, and the router; raises InputError: there is none."""
        if self.run is None or self.trained is None:
            raise InputError(
                f"no router was trained on this tree: none in {run_folders.RUNS}; run "
                "`hierrouter train`, or give --checkpoint"
            )
        return self.run, self.trained


def select_run(
    tree: RouteTree,
    alpha: float | None,
    checkpoint: Path | None = None,
    sweep_run: Path | None = None,
    with_sweep: bool = False,
) -> SelectedRun:
    """The newest router that learned from the tree; a sweep's, where no other is for this alpha.

    Raises InputError: a checkpoint or a sweep that cannot be read, or is for another tree.

    Args:
        alpha: None is the alpha that the router was trained for.
        checkpoint: the user's choice; no other router is shown for it.
        sweep_run: the user's choice, instead of the latest sweep; its router is shown, unless
            `with_sweep`.
        with_sweep: read the sweep beside the router of a run.
    """
    by_sweep = sweep_run is not None and not with_sweep
    run = checkpoint or (None if by_sweep else latest_run(tree, "train", alpha))
    trained = router_at(run, alpha) if run else None
    value = trained.alpha if trained and alpha is None else alpha
    value = PAPER_ALPHA if value is None else value
    remarks = list[str]()
    is_lacking = checkpoint is None and (trained is None or trained.alpha != value)
    sweep = None
    if is_lacking or with_sweep:
        sweep_run = sweep_run or latest_run(tree, "sweep-alpha")
        sweep = load_sweep(sweep_run) if sweep_run else None
    if is_lacking and sweep and (found := sweep.like(trained, value)):
        may_stop = trained and found.objective.allow_stop > trained.objective.allow_stop
        run, trained = sweep_run, found
        why = "" if by_sweep else f"no run of `train` for alpha {value:g} on this tree; "
        remarks.append(
            f"{why}the sweep's router is shown, "
            f"seed {found.origin.seed}{', which may stop early' if may_stop else ''}"
        )
    if trained:
        trained.origin.check_matches(tree, trained.dim)
        remarks += training_remarks(trained, value, tree)
    else:
        what = "no router can be shown" if tree.unembedded else "no router trained on this tree"
        remedy = tree.unembedded or "`hierrouter train`, or the --state and --encoder of a run"
        remarks.append(f"{what}; baselines only ({remedy})")
    return SelectedRun(run, trained, value, sweep_run, sweep, tuple(remarks))


def training_remarks(
    trained: TrainedRouter, alpha: float, tree: RouteTree | None = None
) -> tuple[str, ...]:
    """How a router is shown otherwise than it was trained.

    `alpha`: that it is shown at; `tree`: that it is shown on; None where there is none.
    """
    found = []
    fingerprint = trained.origin.fingerprint
    if tree is not None and fingerprint != tree.fingerprint:
        what = "under other prices" if tree.same_content(fingerprint) else "on other data or scores"
        found.append(f"the router was trained {what} than shown here")
    if trained.alpha != alpha:
        found.append(f"the router was trained at alpha {trained.alpha:g}, shown at {alpha:g}")
    return tuple(found)


def latest_run(tree: RouteTree, command: str, alpha: float | None = None) -> Path | None:
    """The newest finished run that learned from this very tree, seen in this way.

    Where there is none, the newest one that learned from it under other prices.

    `command`: "train" or "sweep-alpha"; `alpha`: runs for this alpha come before newer ones for
    another.
    """
    found: list[tuple[bool, bool, Path]] = []
    for run in run_folders.finished_runs(command):
        learned, objective = run.result, run.result.get("objective", {})
        returns = bool(objective.get("allow_return"))
        shown = tree.shows_leaves >= returns
        if tree.numbers:  # there are more where the last answer is seen
            shown = tree.shows_leaves == returns
        seen = learned["view"], learned["encoder"], float(learned.get("second", 0.0))
        alike = seen == (tree.view, tree.encoder, tree.second)
        fingerprint = str(learned["fingerprint"])
        if shown and alike and tree.same_content(fingerprint):
            other_alpha = alpha is not None and objective.get("alpha") != alpha
            found.append((fingerprint != tree.fingerprint, other_alpha, run.folder))
    # Of equal ones the first: the newest.
    return min(found, key=lambda each: each[:2])[2] if found else None


LOG = "test_looks.jsonl"
SUM = "sum"  # key of a line's checksum
NOT_COMPARED = ("time", "version")  # the same look at another time shows nothing new
# No link is followed and nothing is waited for: a run's folder may come from elsewhere.
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK


def log_test_look(runs: Iterable[Path], command: str, look: Mapping[str, Any]) -> list[str]:
    """Write a look into the log of each run that was looked at, where it is not there yet.

    Returns what could not be written, in words; a log that fails stops no command.
    """
    folders = sorted({_folder(run) for run in runs})
    seen = {"command": command, "routers": [_name(folder) for folder in folders], **look}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = _line({"time": now, "version": __version__, **seen}, with_sum=True)
    failures = []
    for folder in folders:
        try:
            if _line(seen) not in read_test_looks(folder):
                _append(folder / LOG, line.encode())
        except OSError as error:
            failures.append(
                f"this look at the test fold is not logged: {folder / LOG}: {error.strerror}"
            )
    return failures


def count_test_looks(tree: RouteTree, run: Path | None) -> dict[str, int]:
    """Different looks at the test fold that were logged.

    `tree`: runs that learned from it, under whichever prices, are counted; `run`: of the router
    shown, or its checkpoint; None where there is none.

    Returns:
        this_router: looks at the routers in `run`; all_routers: at these and those of every
        finished run on the same content.
    """
    own = read_test_looks(_folder(run)) if run else set()
    others = (
        read_test_looks(log.parent)
        for other in run_folders.finished_runs("train", "sweep-alpha")
        if tree.same_content(str(other.result["fingerprint"]))
        for log in other.folder.rglob(LOG)
    )
    return {"this_router": len(own), "all_routers": len(own.union(*others))}


def read_test_looks(folder: Path) -> set[str]:
    """The different looks in the log of a folder; a line that is torn or foreign is none."""
    return {look for look in looks_in(folder / LOG) if look}


def looks_in(log: Path) -> list[str | None]:
    """The look in each line of a log; None where the line is not as it was written."""
    found: list[str | None] = []
    for line in _read(log).splitlines():
        try:
            look = json.loads(line)
            whole = {name: value for name, value in look.items() if name != SUM}
            is_whole = line.decode() == _line(whole, with_sum=True)
        except (ValueError, TypeError, AttributeError, RecursionError):
            is_whole = False
        if is_whole:
            look = _line({name: whole[name] for name in whole.keys() - set(NOT_COMPARED)})
        found.append(look if is_whole else None)
    return found


def _folder(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _name(folder: Path) -> str:
    """The folder's own name and a digest of what it holds: it may move, and be copied."""
    name = folder.resolve().name
    if (folder / run_folders.WEIGHTS).is_file():
        return f"{name} {run_folders.file_digest(folder / run_folders.WEIGHTS)[:12]}"
    record = run_folders.record_of(folder)  # of a sweep
    return f"{name} {digest(record.files)[:12]}" if record else name


def _line(look: Mapping[str, Any], with_sum: bool = False) -> str:
    return json.dumps({**look, SUM: digest(look)} if with_sum else look, sort_keys=True)


def _read(log: Path) -> bytes:
    """The lines of a log that has an end; one line of nothing where it cannot be read."""
    try:
        with os.fdopen(os.open(log, os.O_RDONLY | SAFELY), "rb") as file:
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(run_folders.MAX_JSON) if plain else b"\n"
    except FileNotFoundError:
        return b""
    except OSError:
        return b"\n"


def _append(log: Path, line: bytes) -> None:
    """One line in one write: whole beside those of other processes."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | SAFELY
    with os.fdopen(os.open(log, flags, 0o666), "r+b", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        torn = found.st_size > 0 and os.pread(file.fileno(), 1, found.st_size - 1) != b"\n"
        file.write(b"\n" * torn + line + b"\n")


def provenance(
    tree: RouteTree,
    cache: Path,
    trained_in: Path | None,
    trained: TrainedRouter | None,
    swept_in: Path | None,
    price_lists: Mapping[str, RouteTree],
) -> dict[str, object]:
    """What was read, and how the router was made.

    Args:
        cache: the folder that the tree was opened from.
    """
    return {
        "version": __version__,
        "cache": str(cache),
        "tree": tree.fingerprint,
        "prices": price_table(tree),
        "price_lists": {name: price_table(priced) for name, priced in price_lists.items()},
        "left_out": tree.left_out,
        "context_free": tree.context_free,
        "checkpoint": str(trained_in) if trained_in else None,
        "sweep": str(swept_in) if swept_in else None,
        "seed": trained.origin.seed if trained else None,
        "algo": trained.origin.config.algo if trained else None,
        "preset": trained.origin.config.preset if trained else None,
        "encoder": tree.encoder,
        "view": tree.view,
        "trained_alpha": trained.alpha if trained else None,
        "allow_stop": trained.objective.allow_stop if trained else None,
        **({"allow_return": True} if trained and trained.objective.allow_return else {}),
        "budget": trained.budget if trained else None,
        "trained_on": trained.origin.fingerprint if trained else None,
        "test_looks": count_test_looks(tree, trained_in),
    }

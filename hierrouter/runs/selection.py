"""Which finished run a command shows, why, and how often the test fold was looked at."""

import errno
import json
import math
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import TrainedRouter, training_remarks
from hierrouter.paper import PAPER_ALPHA, PAPER_SCORER
from hierrouter.pools.pool import price_table
from hierrouter.questions.scoring import SCORERS_BY_NAME
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.stored_pool import open_pool
from hierrouter.replay.tree import Tree
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import load_checkpoint, load_sweep, router_at
from hierrouter_cache.errors import CacheError, HierRouterError, InputError
from hierrouter_cache.keys import digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree, rate_table

AGAIN = "`hierrouter report --retrain`, with the same flags, trains it again"


@dataclass(frozen=True)
class SelectedRun:
    """The router that a command shows.

    Attributes:
        run: where it lies; the sweep's folder for a sweep's router. None where there is none.
        trained: the router; None where nothing has learned from the tree.
        sweep_run: folder of the sweep that was read; None where none was, or there is none.
        remarks: sentences, without a full stop, on what a reader would not expect.
        why: this run and no other, in words; empty where the user named it.
    """

    run: Path | None
    trained: TrainedRouter | None
    alpha: float
    sweep_run: Path | None = None
    sweep: TrainedSweep | None = None
    remarks: tuple[str, ...] = ()
    why: str = ""

    def required(self) -> tuple[Path, TrainedRouter]:
        """Where the router lies, and the router; raises InputError: there is none."""
        if self.run is None or self.trained is None:
            raise InputError(
                f"no router was trained on this tree: none in {folders.RUNS}; run "
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
    run, why = (checkpoint, "") if checkpoint or by_sweep else latest_run(tree, "train", alpha)
    trained = router_at(run, alpha) if run else None
    value = trained.alpha if trained and alpha is None else alpha
    value = PAPER_ALPHA if value is None else value
    remarks = list[str]()
    is_lacking = checkpoint is None and (trained is None or trained.alpha != value)
    sweep = None
    if is_lacking or with_sweep:
        sweep_run = sweep_run or latest_run(tree, "sweep-alpha")[0]
        sweep = load_sweep(sweep_run) if sweep_run else None
    if is_lacking and sweep and (found := sweep.matching(trained, value)):
        may_stop = trained and found.objective.allow_stop > trained.objective.allow_stop
        run, trained = sweep_run, found
        no_run = "" if by_sweep else f"no run of `train` for alpha {value:g} on this tree; "
        why = "" if by_sweep else "the latest sweep"
        remarks.append(
            f"{no_run}the sweep's router is shown, "
            f"seed {found.origin.seed}{', which may stop early' if may_stop else ''}"
        )
    if trained:
        trained.origin.check_matches(tree, trained.dim)
        remarks += training_remarks(trained, value, tree)
        if trained.origin.fingerprint != tree.fingerprint:
            remarks.append(AGAIN)
    else:
        what = "no router can be shown" if tree.unembedded else "no router trained on this tree"
        remedy = tree.unembedded or "`hierrouter train`, or the --state and --encoder of a run"
        remarks += [f"{what}; baselines only ({remedy})", *([f"{why}; {AGAIN}"] if why else [])]
    return SelectedRun(run, trained, value, sweep_run, sweep, tuple(remarks), why)


def as_trained(opening: OpenTree, run: Path | None) -> OpenTree:
    """Return an opening that shows the states as a run saw them, where nothing else is asked for.

    Args:
        opening: what was asked for.
        run: the run that is to be shown; None leaves the opening as it is.

    Raises:
        InputError: there is no such run, or it is damaged.
    """
    if run is None:
        return opening
    policy = load_checkpoint(run)
    price_of_second = opening.price_of_second
    if price_of_second is None:
        price_of_second = policy.origin.second
    return replace(
        opening,
        encoder=opening.encoder or policy.origin.encoder,
        state=opening.state or policy.origin.view,
        price_of_second=price_of_second,
        allow_return=opening.allow_return or policy.objective.allow_return,
    )


def latest_run(
    tree: RouteTree, command: str, alpha: float | None = None
) -> tuple[Path | None, str]:
    """The newest finished run that learned from this very tree, seen in this way, and why this one.

    Where there is none, the newest one that learned from it under other prices; or None, and how
    the newest of all was trained.

    `command`: "train" or "sweep-alpha"; `alpha`: runs for this alpha come before newer ones for
    another.
    """
    runs = folders.finished_runs(command)
    found = [_how_near(run.result, tree, alpha) for run in runs]
    if not found or min(found)[0] == NO_WAY:
        return None, f"{runs[0].folder} was trained {found[0][1]}" if runs else ""
    at = found.index(min(found))  # of equal ones the first: the newest
    newer = ", ".join(f"{n} trained {how}" for (_, how), n in Counter(found[:at]).items())
    return runs[at].folder, f"the latest {found[at][1]}" + f"; newer: {newer}" * bool(newer)


NO_WAY = 4


def _how_near(learned: Mapping[str, Any], tree: RouteTree, alpha: float | None) -> tuple[int, str]:
    """How far a run is from what is wanted, 0 for not at all, and in words."""
    objective, fingerprint = learned.get("objective", {}), str(learned["fingerprint"])
    returns = bool(objective.get("allow_return"))
    shown = tree.shows_leaves >= returns
    if tree.numbers:  # there are more where the last answer is seen
        shown = tree.shows_leaves == returns
    if not tree.same_content(fingerprint):
        return NO_WAY, "on other models, questions or scores"
    if not shown or (learned["view"], learned["encoder"]) != (tree.view, tree.encoder):
        return NO_WAY, "with another --state or --encoder"
    if float(learned.get("second", 0.0)) != tree.second:
        return NO_WAY, "with another --price-of-second"
    other_alpha = alpha is not None and objective.get("alpha") != alpha
    if fingerprint != tree.fingerprint:
        return 2 + other_alpha, "under other prices"
    return other_alpha, "for another alpha" if other_alpha else "that fits this cache"


FITS, UNKNOWN, DAMAGED = "yes", "not known", "damaged"
LISTED = ("algo", "alphas", "cache", "questions", "reward", "gain", "low", "high")


def trained_on(tree: Tree) -> dict[str, Any]:
    """What a run learns from, for its record and `how_it_fits`; raises CacheError: it is gone."""
    on = {"cache": str(tree.root), "pool": tree.pool, "models": tree.models, "hops": tree.hops}
    state = _state(CacheReader(tree.root), on)
    state["prices"] = [tree.rate.tolist(), tree.second]
    state["scorer"] = getattr(SCORERS_BY_NAME.get(tree.scorer), "key", tree.scorer)
    return {**on, "questions": len(tree), "state": state}


def _state(reader: CacheReader, on: Mapping[str, Any]) -> dict[str, Any]:
    plan = reader.latest_plan()
    opened = open_pool(plan.pool, on["pool"], on["models"], on["hops"])
    return {
        "models or settings": digest([opened.spec.steps, opened.spec.direct]),
        "prices": [rate_table(opened.spec.models, opened.pool.rates()).tolist(), 0.0],
        "questions": digest(plan.queries),
        "scorer": SCORERS_BY_NAME[PAPER_SCORER].key,
    }


def how_it_fits(
    learned: Mapping[str, Any], reader: Callable[[Path], CacheReader] = CacheReader
) -> str:
    """Whether the result of a run fits its cache as a plain command opens it, by the plan there.

    `FITS`, `UNKNOWN`, or what it was trained with instead: "other prices".
    """
    try:
        now = _state(reader(Path(learned["cache"])), learned)
    except (CacheError, KeyError):  # which a record of before does not name
        return UNKNOWN
    except HierRouterError:
        return "other models"
    other = [name for name, value in now.items() if value != learned["state"][name]]
    return f"other {', '.join(other)}" if other else FITS


def about(run: Path) -> str:
    """Whether a run that answers questions is the latest, and fits its cache, in words."""
    record, newer = folders.record_of(run) or folders.record_of(run.parent), 0
    if record is None or not record.is_finished:
        return ""
    with suppress(InputError):  # another run is damaged
        newer = sum(one.seq > record.seq for one in folders.finished_runs(record.command))
    said, fits = f"newer: {newer}" if newer else "the latest", how_it_fits(record.result)
    if fits not in (FITS, UNKNOWN):
        root = record.result["cache"]
        again = f"`hierrouter report --retrain --cache {root} --checkpoint {run}` trains it again"
        said += f"; trained with {fits} than {root} has now; {again}"
    return said


def listed_runs() -> list[dict[str, Any]]:
    """Every run below `RUNS`, the newest first, those that are not finished before all.

    Of each name, command, `LISTED` (gain: over the best fixed route, with its interval), fits (see
    `how_it_fits`; or "not finished", or why it is damaged), age_s (seconds); None is not known.
    """
    rows, reader = list[tuple[float, dict[str, Any]]](), cache(CacheReader)
    for folder in sorted(folders.RUNS.glob("*/")):
        row: dict[str, Any] = dict.fromkeys(("name", "command", *LISTED, "fits", "age_s"))
        row["name"], seq = folder.name, math.inf
        try:
            if (record := folders.run_in(folder)) is None:
                continue
            if lost := [name for name in record.files if not (folder / name).is_file()]:
                raise InputError(f"{lost[0]} is gone")
            row |= {name: record.result.get(name) for name in LISTED}
            row |= {"command": record.command, "fits": "not finished"}
            row["age_s"] = time.time() - (folder / folders.RECORD).stat().st_mtime
            if record.is_finished:
                seq, row["fits"] = record.seq, how_it_fits(record.result, reader)
        except InputError as error:
            row["fits"] = f"{DAMAGED}: {error}".partition(";")[0]
        rows.append((seq, row))
    return [row for _, row in sorted(rows, key=itemgetter(0), reverse=True)]


LOG = "test_looks.jsonl"
SUM = "sum"  # key of a line's checksum
NOT_COMPARED = ("time", "version")  # the same look at another time shows nothing new
# No link is followed and nothing is waited for: a run's folder may come from elsewhere.
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK


def log_test_look(runs: Iterable[Path], command: str, look: Mapping[str, Any]) -> list[str]:
    """Write a look into the log of each run that was looked at, where it is not there yet.

    Returns what could not be written, in words; a log that fails stops no command.
    """
    logged = sorted({_folder(run) for run in runs})
    seen = {"command": command, "routers": [_name(folder) for folder in logged], **look}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = _line({"time": now, "version": __version__, **seen}, with_sum=True)
    failures = []
    for folder in logged:
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
        for other in folders.finished_runs("train", "sweep-alpha")
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
            found.append(None)
            continue
        compared = {name: whole[name] for name in whole.keys() - set(NOT_COMPARED)}
        found.append(_line(compared) if is_whole else None)
    return found


def _folder(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _name(folder: Path) -> str:
    """The folder's own name and a digest of what it holds: it may move, and be copied."""
    name = folder.resolve().name
    if (folder / folders.WEIGHTS).is_file():
        return f"{name} {folders.file_digest(folder / folders.WEIGHTS)[:12]}"
    record = folders.record_of(folder)  # of a sweep
    return f"{name} {digest(record.files)[:12]}" if record else name


def _line(look: Mapping[str, Any], with_sum: bool = False) -> str:
    return json.dumps({**look, SUM: digest(look)} if with_sum else look, sort_keys=True)


def _read(log: Path) -> bytes:
    """The lines of a log that has an end; one line of nothing where it cannot be read."""
    try:
        with os.fdopen(os.open(log, os.O_RDONLY | SAFELY), "rb") as file:
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(folders.MAX_JSON) if plain else b"\n"
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

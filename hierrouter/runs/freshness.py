"""Whether runs still fit the caches that they learned from."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from hierrouter.questions.scoring import SCORERS_BY_NAME
from hierrouter.replay.opening import default_scorer
from hierrouter.replay.stored_pool import open_pool
from hierrouter.replay.tree import Tree
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import SEED_FOLDER
from hierrouter.runs.saved_states import epoch_folders, epochs_in_words
from hierrouter.tables import Column, Line, Table, duration
from hierrouter_cache.errors import CacheError, HierRouterError, InputError
from hierrouter_cache.keys import digest
from hierrouter_cache.layout import Layout
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import rate_table

FITS = "yes"
NOT_KNOWN = "not known"
NOT_FINISHED = "not finished"
DAMAGED = "damaged"
INTERVAL_COLUMNS = ("gain", "low", "high")  # shown with their sign
LISTED_RESULTS = ("algo", "alphas", "cache", "questions", "reward", "gain", "low", "high")


def trained_on(tree: Tree) -> dict[str, Any]:
    """Return what a run learns from, as JSON values for its record and `how_it_fits`.

    Raises:
        CacheError: the cache is gone or damaged.
    """
    source = {"cache": str(tree.root), "pool": tree.pool, "models": tree.models, "hops": tree.hops}
    if tree.layout.draws > 1:
        source["draws"] = tree.layout.draws
    state = _cache_state(CacheReader(tree.root), source, tree.layout)
    state["prices"] = [tree.rate.tolist(), tree.second]
    state["scorer"] = _scorer_key(tree.scorer)
    return {**source, "questions": len(tree), "state": state}


def _cache_state(
    reader: CacheReader, source: Mapping[str, Any], layout: Layout | None = None
) -> dict[str, Any]:
    """Return what a plain command opens of a cache, by the names that messages use.

    Args:
        reader: of the cache.
        source: of a run, with "pool", "models", "hops" and, if there are several, "draws"; see
            `trained_on`.
        layout: of a tree that was opened, perhaps with fewer draws than there are; None is that of
            the plan. That of a log is not looked at: other answers are those of other models.
    """
    plan = reader.latest_plan()
    opened = open_pool(plan.pool, source["pool"], source["models"], source["hops"])
    # Direct calls have a step for each draw; other draws are no other models.
    pool = replace(opened.pool, draws=source.get("draws", 1))
    spec = pool.tree_spec(opened.identities)
    if pool.as_stored or layout is None:
        layout = opened.spec.layout
    return {
        "models or settings": digest([spec.steps, spec.direct]),
        "routes": digest(sorted({layout.path(node) for node in range(1, layout.nodes)})),
        "draws": layout.without_give_backs.digest,
        "prices": [rate_table(spec.models, opened.pool.rates()).tolist(), 0.0],
        "questions": digest(plan.queries),
        "scorer": _scorer_key(default_scorer(plan.pool)),
    }


def _scorer_key(name: str) -> str:
    """Return name and version of a scorer; of a user's own only the name."""
    return getattr(SCORERS_BY_NAME.get(name), "key", name)


def how_it_fits(
    result: Mapping[str, Any], open_cache: Callable[[Path], CacheReader] = CacheReader
) -> str:
    """Return whether a run fits its cache as a plain command opens it, by the plan there.

    Args:
        result: of the run, from its record.
        open_cache: reads a cache; a function that remembers caches saves time.

    Returns:
        `FITS`, `NOT_KNOWN`, or what the run was trained with instead: "other prices". With "other
        routes" or "other draws" a network decides all the same, see `TrainedRouter.fitted_to`.
    """
    try:
        state = _cache_state(open_cache(Path(result["cache"])), result)
    except (CacheError, KeyError):  # the cache is gone, or the record of an early run names none
        return NOT_KNOWN
    except HierRouterError:
        return "other models"
    # Records of earlier versions do not say which routes and draws there were.
    recorded = result["state"]
    other = [name for name, value in state.items() if recorded.get(name, value) != value]
    if "routes" in other:  # which have other draws, too
        other = [name for name in other if name != "draws"]
    return f"other {', '.join(other)}" if other else FITS


def run_status(run: Path) -> str:
    """Return whether a run that answers questions is the latest, and fits its cache, in words.

    It is empty for what is no finished run.
    """
    record = folders.read_record(run) or folders.read_record(run.parent)
    if record is None or not record.is_finished:
        return ""
    newer = 0
    with suppress(InputError):  # another run is damaged
        for other in folders.finished_runs(record.command):
            newer += other.seq > record.seq
    status = f"newer: {newer}" if newer else "the latest"
    fits = how_it_fits(record.result)
    if fits not in (FITS, NOT_KNOWN):
        root = record.result["cache"]
        remedy = f"`hierrouter report --retrain --cache {root} --checkpoint {run}` trains it again"
        status += f"; trained with {fits} than {root} has now; {remedy}"
    return status


def list_runs() -> list[dict[str, Any]]:
    """Return every run below `RUNS`, the newest first, those that are not finished before all.

    Returns:
        Of each run: name, command, `LISTED_RESULTS` (gain is over the best fixed route, with its
        interval), checkpoints (their epochs), fits (see `how_it_fits`; or "not finished", or why it
        is damaged), age_s (seconds); None is not known.
    """
    rows: list[tuple[float, dict[str, Any]]] = []
    open_cache = cache(CacheReader)
    for folder in sorted(folders.RUNS.glob("*/")):
        names = ("name", "command", *LISTED_RESULTS, "checkpoints", "fits", "age_s")
        row: dict[str, Any] = dict.fromkeys(names)
        row["name"] = folder.name
        # Those of a sweep are in the folder of each of its seeds.
        holders = [folder, *sorted(folder.glob(f"{SEED_FOLDER}*"))]
        row["checkpoints"] = sorted(
            {epoch for holder in holders for epoch in epoch_folders(holder)}
        )
        rank = math.inf
        try:
            record = folders.read_run(folder)
            if record is None:
                continue
            lost = [name for name in record.files if not (folder / name).is_file()]
            if lost:
                raise InputError(f"{lost[0]} is gone")
            for name in LISTED_RESULTS:
                row[name] = record.result.get(name)
            row["command"] = record.command
            row["fits"] = NOT_FINISHED
            row["age_s"] = time.time() - (folder / folders.RECORD).stat().st_mtime
            if record.is_finished:
                rank = record.seq
                row["fits"] = how_it_fits(record.result, open_cache)
        except InputError as error:
            row["fits"] = f"{DAMAGED}: {error}".partition(";")[0]
        rows.append((rank, row))
    return [row for _, row in sorted(rows, key=itemgetter(0), reverse=True)]


def damaged_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the damaged ones of the runs of `list_runs`."""
    return [run["name"] for run in runs if str(run["fits"]).startswith(DAMAGED)]


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row for each of the runs of `list_runs`; there is at least one."""
    rows = []
    hidden = {"age_s"}
    if not any(run["checkpoints"] for run in runs):
        hidden.add("checkpoints")
    for run in runs:
        cells = {name: value for name, value in run.items() if name not in hidden}
        if "checkpoints" in cells:
            cells["checkpoints"] = epochs_in_words(run["checkpoints"])
        cells["alphas"] = ", ".join(f"{alpha:g}" for alpha in run["alphas"] or ())
        cells["age"] = None if run["age_s"] is None else duration(run["age_s"])
        rows.append(cells)
    columns = [Column(name, signed=name in INTERVAL_COLUMNS) for name in rows[0]]
    lines = [Line("", tuple(cells.values())) for cells in rows]
    return Table("Runs, the newest first", tuple(columns), tuple(lines))

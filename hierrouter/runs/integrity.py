"""Whether everything that a figure rests on is what was written: cache, embeddings and runs."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hierrouter.runs import folders
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import load_checkpoint
from hierrouter.runs.look_log import LOOKS_FILE, looks_in
from hierrouter.runs.saved_states import SavedState
from hierrouter_cache.chain import examine
from hierrouter_cache.embeddings import embedding_fault, embedding_files
from hierrouter_cache.errors import HierRouterError, InputError, NoCache, read_small
from hierrouter_cache.parts import ROW_SCHEMAS
from hierrouter_cache.saved_trees import list_saved_trees, saved_tree_fault

# The files that a run lists in its record, with the names of their kinds.
RUN_FILES = (
    ("checkpoint", folders.WEIGHTS),
    ("live file", folders.LIVE),
    ("training state", folders.STATE),
)


@dataclass
class Inspection:
    """The files that were hashed, and what is wrong with them.

    Attributes:
        files: how many there are, by kind.
        faults: (kind, file, what is wrong) of each that is damaged or missing.
    """

    files: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, Path, str]] = field(default_factory=list)

    def add(self, kind: str, file: Path, fault: str | None) -> None:
        """Count a file; `fault` is None if it is sound."""
        self.files[kind] += 1
        if fault:
            self.faults.append((kind, file, fault))


def inspect_files(cache: Path, runs: Path = folders.RUNS) -> Inspection:
    """Hash every byte of a cache, its embeddings and all runs; rows are not looked at.

    Args:
        cache: its folder; there may be none.
        runs: folder of the runs.

    Raises:
        CacheError: the cache is of a newer version, or keeps changing.
    """
    inspection = Inspection()
    try:
        chain = examine(cache)
    except NoCache:
        pass
    else:
        for part, fault in chain.faults.items():
            kind = f"{part.kind} part" if part.kind in (*ROW_SCHEMAS, "seals") else part.kind
            inspection.add(kind, part.path, fault)
        for vectors in embedding_files(cache):
            inspection.add("embeddings", vectors.path, embedding_fault(vectors))
        for tree in list_saved_trees(cache):
            inspection.add("kept tree", tree, saved_tree_fault(tree))
    if os.path.lexists(runs / folders.SERVICE):
        fault = None
        try:
            folders.read_service(runs)
        except HierRouterError as error:
            fault = str(error)
        inspection.add(folders.SERVICE_KIND, runs / folders.SERVICE, fault)
    for run in sorted(path for path in runs.glob("*/") if not path.name.startswith(".")):
        for kind, file, fault in _run_files(run):
            inspection.add(kind, file, fault)
    return inspection


def _run_files(run: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Yield (kind, file, what is wrong) of each file of a run or a report."""
    record = None
    fault = None
    try:
        record = folders.read_record(run)
        if record is None and any(run.rglob(folders.WEIGHTS)):
            fault = "is gone"
    except HierRouterError as error:
        fault = str(error)
    if record or fault:
        yield "record", run / folders.RECORD, fault
    listed = {run / name for name in record.files} if record else set()
    for kind, name in RUN_FILES:
        files = {file for file in listed if file.name == name} | set(run.rglob(name))
        for file in sorted(files):
            yield kind, file, _fault_of(file, file in listed)
    for file in sorted(run.rglob(folders.PROGRESS)):
        fault = _fault_of(file, is_listed=False)
        # A training that finishes meanwhile removes the file.
        if file.exists():
            yield "training state", file, fault
    for log in sorted(run.rglob(LOOKS_FILE)):
        torn = looks_in(log).count(None)
        yield "looks", log, f"{torn} lines are not as they were written" if torn else None
    if (run / folders.CONTENTS).is_file():
        yield from _report_files(run)
    elif not record and any(run.glob("*.html")):
        yield "contents", run / folders.CONTENTS, "is gone"


def _fault_of(file: Path, is_listed: bool) -> str | None:
    """Return what is wrong with a file of a run; None if it is sound."""
    try:
        if is_listed:
            folders.require_listed(file)
        if file.name == folders.WEIGHTS:
            load_checkpoint(file)
        elif file.name in (folders.PROGRESS, folders.STATE):
            SavedState.read(file)
        else:
            load_bundle(file.parent)
    except HierRouterError as error:
        return str(error)
    return None


def _report_files(folder: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Yield (kind, file, what is wrong) of each file that a report lists, and of the list."""
    try:
        contents = read_small(folder / folders.CONTENTS, folders.MAX_JSON)
        listed = folders.unseal(contents)
    except (OSError, ValueError, InputError):
        yield "contents", folder / folders.CONTENTS, "checksum mismatch"
        return
    yield "contents", folder / folders.CONTENTS, None
    for name, expected in listed.items():
        file = folder / name
        fault = None
        if not file.is_file():
            fault = "is gone"
        elif folders.file_digest(file) != expected:
            fault = "checksum mismatch"
        yield "report", file, fault

"""Whether everything that a figure rests on is what was written: cache, embeddings and runs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hierrouter.runs import folders
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import load_checkpoint
from hierrouter.runs.selection import LOG, looks_in
from hierrouter_cache.chain import examine
from hierrouter_cache.embeddings import embedding_fault, embedding_files
from hierrouter_cache.errors import HierRouterError, InputError, NoCache, read_small
from hierrouter_cache.parts import ROW_SCHEMAS
from hierrouter_cache.saved_trees import list_saved_trees, saved_tree_fault


@dataclass
class Looked:
    """What was looked at.

    Attributes:
        files: how many there are, by kind.
        faults: (kind, file, what is wrong) of each that is damaged or missing.
    """

    files: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, Path, str]] = field(default_factory=list)

    def add(self, kind: str, file: Path, why: str | None) -> None:
        """One file; `why` is None where it is sound."""
        self.files[kind] += 1
        if why:
            self.faults.append((kind, file, why))


def look_over(cache: Path, runs: Path = folders.RUNS) -> Looked:
    """Hash every byte of a cache, its embeddings and all runs; rows are not looked at.

    Raises CacheError: the cache is of a newer version, or does not come to rest.
    """
    found = Looked()
    try:
        chain = examine(cache)
    except NoCache:
        pass
    else:
        for part, why in chain.faults.items():
            kind = f"{part.kind} part" if part.kind in (*ROW_SCHEMAS, "seals") else part.kind
            found.add(kind, part.path, why)
        for vectors in embedding_files(cache):
            found.add("embeddings", vectors.path, embedding_fault(vectors))
        for tree in list_saved_trees(cache):
            found.add("kept tree", tree, saved_tree_fault(tree))
    for run in sorted(path for path in runs.glob("*/") if not path.name.startswith(".")):
        for kind, file, why in _run_files(run):
            found.add(kind, file, why)
    return found


def _run_files(run: Path) -> Iterator[tuple[str, Path, str | None]]:
    """(kind, file, what is wrong) of each file of a run or a report."""
    record, why = None, None
    try:
        record = folders.record_of(run)
        if record is None and any(run.rglob(folders.WEIGHTS)):
            why = "is gone"
    except HierRouterError as error:
        why = str(error)
    if record or why:
        yield "record", run / folders.RECORD, why
    listed = {run / name for name in record.files} if record else set()
    for kind, name in (("checkpoint", folders.WEIGHTS), ("live file", folders.LIVE)):
        there = {file for file in listed if file.name == name} | set(run.rglob(name))
        for file in sorted(there):
            yield kind, file, _fault(file, file in listed)
    for log in sorted(run.rglob(LOG)):
        torn = looks_in(log).count(None)
        yield "looks", log, f"{torn} lines are not as they were written" if torn else None
    if (run / folders.CONTENTS).is_file():
        yield from _report_files(run)
    elif not record and any(run.glob("*.html")):
        yield "contents", run / folders.CONTENTS, "is gone"


def _fault(file: Path, is_listed: bool) -> str | None:
    try:
        if is_listed:
            folders.require_listed(file)
        if file.name == folders.WEIGHTS:
            load_checkpoint(file)
        else:
            load_bundle(file.parent)
    except HierRouterError as error:
        return str(error)
    return None


def _report_files(folder: Path) -> Iterator[tuple[str, Path, str | None]]:
    try:
        contents = read_small(folder / folders.CONTENTS, folders.MAX_JSON)
        listed = folders.unsealed(contents)
    except (OSError, ValueError, InputError):
        yield "contents", folder / folders.CONTENTS, "checksum mismatch"
        return
    yield "contents", folder / folders.CONTENTS, None
    for name, known in listed.items():
        file = folder / name
        if not file.is_file():
            yield "report", file, "is gone"
        else:
            yield (
                "report",
                file,
                None if folders.file_digest(file) == known else "checksum mismatch",
            )

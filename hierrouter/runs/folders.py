"""The folders that runs leave their results in: made, gone on with, and found again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hierrouter_cache.errors import InputError, WorldError, open_plain, read_small

RUNS = Path("runs")
RECORD = "run.json"  # what a run was asked for, and what it left; see `Record`
WEIGHTS = "policy.safetensors"
LIVE = "live.json"
CONTENTS = "contents.json"  # SHA-256 of each file of a report, by its name
RECORD_FORMAT = 2
MAX_JSON = 1 << 24  # bytes of a file of JSON in a run
KINDS = {"command": str, "asked": dict, "seq": int, "result": dict, "files": dict}  # of a record
MAX_VALUES = 400_000  # in it; a pool of 10,000 models leaves fewer
SEAL = "sha256"  # key of the checksum in a JSON file of a run
NAME = re.compile(r"\w[\w.+-]{0,63}")  # of a run: that of its folder in `RUNS`
REPAIR = "remove the folder, or put the file back; or give --checkpoint"


def sealed(value: Mapping[str, Any]) -> bytes:
    """A JSON object as a file that holds its own checksum."""
    found = {**value, SEAL: hashlib.sha256(_canonical(value)).hexdigest()}
    return _canonical(found) + b"\n"


def parsed(data: bytes) -> Any:
    """The value in a file of JSON; raises ValueError: it is none, or has too many values in it."""
    if sum(map(data.count, (b"[", b"{", b","))) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    return json.loads(data)


def unsealed(data: bytes) -> dict[str, Any]:
    """What was given to `sealed`; raises ValueError: these are not the bytes that `sealed` gave."""
    found = parsed(data)
    if not isinstance(found, dict) or not found.pop(SEAL, None) or sealed(found) != data:
        raise ValueError("checksum mismatch")
    return found


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode()


@dataclass(frozen=True)
class Record:
    """What `run.json` says of a run.

    Attributes:
        command: "train" or "sweep-alpha".
        asked: what the result depends on, as JSON values.
        seq: which run of `RUNS` was finished when: the newest has the greatest number; 0 is not
            finished.
        result: what was learned, from what; of the JSON values at least fingerprint, view, encoder.
        files: SHA-256 of each file that the run left, by its path in the folder.
    """

    folder: Path
    command: str
    asked: Mapping[str, Any]
    seq: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether it can be shown."""
        return self.seq > 0

    def write(self) -> Record:
        """Replace `run.json`; returns itself.

        Raises WorldError: the disk is full or failed; the old file is untouched then.
        """
        found = {name: value for name, value in vars(self).items() if name != "folder"}
        # The command line reads this module's constants at its start, and this imports numpy.
        from hierrouter_cache.writer import write_atomically

        write_atomically(self.folder / RECORD, sealed({**found, "format": RECORD_FORMAT}))
        return self


def record_of(run: Path) -> Record | None:
    """What a run says of itself; None where the folder holds no run.

    Raises InputError: `run.json` is damaged.
    """
    file = run / RECORD
    try:
        data = read_small(file, MAX_JSON)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"cannot read: {file}: {error.strerror}; {REPAIR}") from error
    try:
        found = unsealed(data)
        if found.pop("format") != RECORD_FORMAT:
            raise InputError(f"{RECORD} is of another version: {file}; train again")
        if any(type(found[name]) is not kind for name, kind in KINDS.items()):
            raise TypeError("a value of another type")
        return Record(run, **found)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{RECORD} is damaged: {file}: checksum mismatch; {REPAIR}") from error


def finish_run(run: Path, result: Mapping[str, Any]) -> Record:
    """Say in `run.json` that a run is finished, what it left, and that it is the newest.

    One that was finished before is left as it is. Raises InputError: a `run.json` is damaged, or
    the run was finished with other files; WorldError: the disk is full or failed.
    """
    found = record_of(run)
    assert found, "a run is begun before it is finished"
    files = {
        file.relative_to(run).as_posix(): file_digest(file)
        for name in (WEIGHTS, LIVE)
        for file in sorted(run.rglob(name))
    }
    if not found.is_finished:
        return make_newest(replace(found, result=dict(result), files=files))
    for name in sorted({*found.files, *files}):
        require_listed(run / name)
    return found


def make_newest(record: Record) -> Record:
    """Let a finished run be the first of `finished_runs`.

    Raises InputError: a `run.json` is damaged; WorldError: its file cannot be written.
    """
    from hierrouter_cache.locks import folder_lock

    among = RUNS.is_dir() and RUNS.samefile(record.folder.parent)
    # Of two that finish at once one is the newer.
    with folder_lock(RUNS, "another run", wait=True) if among else nullcontext():
        others = (other.seq for other in _records() if other.folder != record.folder)
        return replace(record, seq=1 + max(others, default=0)).write()


def finished_runs(*commands: str) -> list[Record]:
    """The finished runs of some commands below `RUNS`, the newest first.

    Raises:
        InputError: a `run.json` is damaged or gone, so that nobody knows which run is the newest.
    """
    runs = [run for run in _records() if run.command in commands and run.is_finished]
    return sorted(runs, key=lambda run: (run.seq, run.folder.name), reverse=True)


def _records() -> list[Record]:
    return [found for run in sorted(RUNS.glob("*/")) if (found := run_in(run))]


def run_in(folder: Path) -> Record | None:
    """As `record_of`, but weights without a record are damage."""
    if (record := record_of(folder)) is None and any(folder.rglob(WEIGHTS)):
        raise InputError(f"{RECORD} is gone: {folder}; {REPAIR}")
    return record


def require_listed(file: Path) -> None:
    """Refuse a file that is not the one that its run was finished with.

    The run is in the folder of the file, or one or two above. What lies in no run, or in one that
    is not finished, is not known there. Raises InputError: it was altered, exchanged or set back;
    or `run.json` is damaged.
    """
    place = file.absolute()
    for run in list(place.parents)[:3]:
        record = record_of(run)
        if record is None:
            continue
        known = record.files.get(place.relative_to(run).as_posix())
        if record.is_finished and (not file.is_file() or known != file_digest(file)):
            what = "is not the one that its run was finished with" if file.exists() else "is gone"
            raise InputError(f"damaged run: {file} {what}; {REPAIR}")
        return


def file_digest(file: Path) -> str:
    """SHA-256 of a file's bytes; raises as `open_plain`."""
    with open_plain(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def named(name: str | None, out: str | Path | None = None) -> Path | None:
    """The folder of a run of this name, without one `out`; raises InputError: no name, or both."""
    if name is None:
        return None if out is None else Path(out)
    if not NAME.fullmatch(name):
        what = "letters, digits and . _ + -, no more than 64, a letter or a digit first"
        raise InputError(f"not a name for a run: {name:.65}; take {what}")
    if out not in (None, str(RUNS / name), RUNS / name):
        raise InputError(f"--name {name} and --out {out} contradict each other; give one of them")
    return RUNS / name


def find_run(given: str | os.PathLike[str]) -> Path:
    """The folder of a run, which may be given by its name; what lies at a path comes first."""
    path = Path(given)
    lies_there = path.is_file() or any((path / file).exists() for file in (RECORD, WEIGHTS))
    is_name = path.parts == (path.name,) and (RUNS / path).is_dir()
    return RUNS / path if is_name and not lies_there else path


def new_run(command: str, out: Path | None) -> Path:
    """Make the folder of a new run.

    Raises InputError: `out` holds something already, or its parent does not exist; WorldError: the
    folder cannot be made.
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
def drafted(folder: Path) -> Iterator[Path]:
    """A folder to write results into; all at once it becomes `folder` when the block ends well.

    Whatever ends it early, the same command can be given again. Raises WorldError: the disk is full
    or failed.
    """
    from hierrouter_cache.writer import fsync_folder, write_atomically

    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # as a kill left it
    try:
        draft.mkdir(parents=True)
        yield draft
        files = {file.name: file_digest(file) for file in sorted(draft.iterdir())}
        write_atomically(draft / CONTENTS, sealed(files))
        if (folder / CONTENTS).is_file():
            shutil.rmtree(folder)
        draft.replace(folder)
        with suppress(OSError):  # it is there; at worst a power cut takes it away again
            fsync_folder(folder.parent)
    except OSError as error:
        raise WorldError(
            f"cannot write: {folder}: {error.strerror}; give the same command again"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def resumable(
    command: str, asked: Mapping[str, Any], out: Path | None, over: bool = False
) -> Iterator[Record]:
    """A run in its folder: a new one, or `out` where the very same run was begun before.

    What was asked for is written down before the first result, so that a run is never gone on with
    as another one. The folder is this process's alone meanwhile. Raises InputError: `out` holds
    something else or a finished run that is damaged, its parent does not exist, or the record of
    any run is damaged, so that nobody could say that this one is newer; CacheLocked: another
    process is at work there; WorldError: the disk is full or failed.
    """
    from hierrouter_cache.locks import folder_lock

    asked = json.loads(json.dumps(asked))  # as it is read again
    _records()
    begun = record_of(out) if out else None
    found = {"command": begun.command, "asked": begun.asked} if begun else {}
    different = sorted(differences(found, {"command": command, "asked": asked})) if begun else []
    if begun and different and not over:
        raise InputError(
            f"another run was begun in {out}: {', '.join(different)} differ; "
            "give the same flags, or another --out or --name"
        )
    if begun is None or different:
        folder = out if over and out else new_run(command, out)
        folder.mkdir(parents=True, exist_ok=True)
        begun = Record(folder, command, asked).write()
    for name in begun.files:
        require_listed(begun.folder / name)
    with folder_lock(begun.folder, "another run"):
        remove_drafts(begun.folder)
        yield begun


def timed(command: str) -> Path:
    """Where a run of this command goes that nobody chose a folder for."""
    return RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{command}"


def seed_folders(base: Path, seeds: Iterable[int]) -> dict[int, Path]:
    """A folder for each of several trainings, side by side, found as those of single ones are."""
    return {seed: base.with_name(f"{base.name}-seed-{seed}") for seed in seeds}


def remove_drafts(run: Path) -> None:
    """Remove what killed saves left in the folder of a run, and below it.

    Only this process may be at work there, so whatever draft is found was abandoned. Raises
    WorldError: one cannot be removed.
    """
    for draft in run.rglob(".*.????????.tmp"):  # as `write_atomically` calls it
        remove(draft)


def remove(file: Path) -> None:
    """Remove a file that may be gone already; raises WorldError: it cannot be removed."""
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


def check_out(out: Path | None, command: str = "") -> None:
    """Refuse an output folder before any work is done for it.

    Raises InputError: it holds something else already, or a record that is damaged; or its parent
    does not exist.

    `command`: a run of it may be there, to be gone on with.
    """
    if out is None:
        return
    check_parent(out)
    if command and (begun := record_of(out)) and begun.command == command:
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output exists: {out}; nothing is overwritten, choose another")


def check_parent(out: Path) -> None:
    """Raises InputError: there is no folder to make this one in."""
    if out.parent == RUNS:
        return  # is made with the first run
    if not out.parent.is_dir():
        raise InputError(f"output folder does not exist: {out.parent}; make it first")


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

"""Folders of runs: their records, names and checksums.

The command line imports this module at its start, so whatever needs numpy is imported inside
functions.
"""

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
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from hierrouter.declarations.declaration import Flag
from hierrouter_cache.errors import (
    InputError,
    WorldError,
    open_plain,
    read_small,
    require_free_files,
)

RUNS = Path("runs")
RECORD = "run.json"  # what a run was asked for, and what it left; see `Record`
WEIGHTS = "policy.safetensors"
LIVE = "live.json"
PROGRESS = "progress.safetensors"  # the state of a training that is not finished
CHECKPOINTS = "checkpoints"  # folder of the checkpoints of single epochs, see `epochs`
STATE = "state.safetensors"  # of such a checkpoint: the state of the training after its epoch
CONTENTS = "contents.json"  # SHA-256 of each file of a report, by its name
SERVICE = "service.json"  # in `RUNS`: which runs servers answer with, see `serving.versions`
SERVICE_KIND = "service"  # its kind in the table of `hierrouter verify`
OLD_SERVICE_KEYS = {"run", "candidate", "share", "before", "refused"}  # of files without a checksum
RECORD_FORMAT = 2
RECORD_TYPES = {"command": str, "asked": dict, "seq": int, "result": dict, "files": dict}
MAX_JSON = 1 << 24  # bytes of a file of JSON in a run
MAX_JSON_VALUES = 400_000  # in such a file; a pool of 10,000 models leaves fewer
CHECKSUM_KEY = "sha256"  # in a JSON file of a run
RUN_NAME = re.compile(r"\w[\w.+-]{0,63}")  # that of the run's folder in `RUNS`
REPAIR_HINT = "remove the folder, or put the file back; or give --checkpoint"


def seal(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as the bytes of a file that holds its own checksum."""
    checksum = hashlib.sha256(_canonical(value)).hexdigest()
    return _canonical({**value, CHECKSUM_KEY: checksum}) + b"\n"


def unseal(data: bytes) -> dict[str, Any]:
    """Return what was given to `seal`.

    Raises:
        ValueError: these are not the bytes that `seal` returned.
    """
    value = parse_json(data)
    is_sealed = isinstance(value, dict) and value.pop(CHECKSUM_KEY, None)
    if not is_sealed or seal(value) != data:
        raise ValueError("checksum mismatch")
    return value


def parse_json(data: bytes) -> Any:
    """Return the value in a file of JSON.

    Raises:
        ValueError: it is no JSON, or has too many values in it.
    """
    if sum(map(data.count, (b"[", b"{", b","))) > MAX_JSON_VALUES:
        raise ValueError(f"more than {MAX_JSON_VALUES:,} values")
    return json.loads(data)


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode()


@dataclass(frozen=True)
class Record:
    """What `run.json` says of a run; the attributes but `folder` are its keys.

    Attributes:
        folder: of the run.
        command: "train" or "sweep-alpha".
        asked: what the result depends on, as JSON values.
        seq: which run of `RUNS` was finished when: the newest has the greatest number; 0 if it is
            not finished.
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
        """Whether the run can be shown."""
        return self.seq > 0

    def write(self) -> Record:
        """Replace `run.json`; return the record itself.

        Raises:
            WorldError: the disk is full or failed; the old file is untouched then.
        """
        from hierrouter_cache.writer import write_atomically

        value = {name: value for name, value in vars(self).items() if name != "folder"}
        write_atomically(self.folder / RECORD, seal({**value, "format": RECORD_FORMAT}))
        return self


def read_record(run: Path) -> Record | None:
    """Return what a run says of itself; None if the folder holds no run.

    Raises:
        InputError: `run.json` is damaged.
    """
    file = run / RECORD
    try:
        data = read_small(file, MAX_JSON)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"cannot read: {file}: {error.strerror}; {REPAIR_HINT}") from error
    try:
        value = unseal(data)
        if value.pop("format") != RECORD_FORMAT:
            raise InputError(f"{RECORD} is of another version: {file}; train again")
        if any(type(value[name]) is not kind for name, kind in RECORD_TYPES.items()):
            raise TypeError("a value of another type")
        return Record(run, **value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{RECORD} is damaged: {file}: checksum mismatch; {REPAIR_HINT}"
        ) from error


def finish_run(run: Path, result: Mapping[str, Any]) -> Record:
    """Write into `run.json` that a run is finished, what it left, and that it is the newest.

    A run that was finished before is left as it is. The saved state of a training is removed:
    nothing is left to go on with.

    Args:
        run: its folder.
        result: see `Record`.

    Raises:
        InputError: a `run.json` is damaged, or the run was finished with other files.
        WorldError: the disk is full or failed.
    """
    record = read_record(run)
    assert record, "a run is begun before it is finished"
    for file in sorted(run.rglob(PROGRESS)):
        remove_file(file)
    files = {
        file.relative_to(run).as_posix(): file_digest(file)
        for name in (WEIGHTS, LIVE, STATE)
        for file in sorted(run.rglob(name))
    }
    if not record.is_finished:
        return make_newest(replace(record, result=dict(result), files=files))
    for name in sorted({*record.files, *files}):
        require_listed(run / name)
    return record


def make_newest(record: Record) -> Record:
    """Make a finished run the first of `finished_runs`.

    Raises:
        InputError: a `run.json` is damaged.
        WorldError: its file cannot be written.
    """
    from hierrouter_cache.locks import folder_lock

    is_in_runs = RUNS.is_dir() and RUNS.samefile(record.folder.parent)
    # With a lock, because of two that finish at once one must be the newer.
    with folder_lock(RUNS, "another run", wait=True) if is_in_runs else nullcontext():
        others = (other.seq for other in _all_records() if other.folder != record.folder)
        return replace(record, seq=1 + max(others, default=0)).write()


def finished_runs(*commands: str) -> list[Record]:
    """Return the finished runs of some commands below `RUNS`, the newest first.

    Raises:
        InputError: a `run.json` is damaged or gone, so that nobody knows which run is the newest.
    """
    runs = [run for run in _all_records() if run.command in commands and run.is_finished]
    return sorted(runs, key=lambda run: (run.seq, run.folder.name), reverse=True)


def _all_records() -> list[Record]:
    records = (read_run(folder) for folder in sorted(RUNS.glob("*/")))
    return [record for record in records if record]


def read_run(folder: Path) -> Record | None:
    """Return the record in a folder, like `read_record`; weights without one are damage.

    Raises:
        InputError: `run.json` is damaged or gone.
    """
    record = read_record(folder)
    if record is None and any(folder.rglob(WEIGHTS)):
        raise InputError(f"{RECORD} is gone: {folder}; {REPAIR_HINT}")
    return record


def require_listed(file: Path) -> None:
    """Refuse a file that is not the one that its run was finished with.

    The run is in the folder of the file, or up to three above. A file that lies in no run, or in
    one that is not finished, passes.

    Raises:
        InputError: it was altered, exchanged or set back; or `run.json` is damaged.
    """
    path = file.absolute()
    for run in list(path.parents)[:4]:
        record = read_record(run)
        if record is None:
            continue
        expected = record.files.get(path.relative_to(run).as_posix())
        if record.is_finished and (not file.is_file() or expected != file_digest(file)):
            what = "is not the one that its run was finished with" if file.exists() else "is gone"
            raise InputError(f"damaged run: {file} {what}; {REPAIR_HINT}")
        return


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        InputError: it is no plain file.
        OSError: it cannot be opened or read.
    """
    with open_plain(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def run_digest(run: Path) -> str:
    """Return what a run is, whatever its path is called: the SHA-256 of its weights.

    Args:
        run: its folder, or the file of its weights.

    Raises:
        InputError: the weights are not there, or cannot be read.
    """
    file = run / WEIGHTS if run.is_dir() else run
    try:
        return file_digest(file)
    except OSError as error:
        raise InputError(f"cannot read: {file}: {error.strerror}; {REPAIR_HINT}") from error


def read_service(runs: Path) -> dict[str, Any] | None:
    """Return what `service.json` says; None if there is none.

    Files of earlier versions have no checksum, and are read as they are.

    Args:
        runs: the folder of the runs.

    Raises:
        InputError: the file is damaged, or cannot be read.
    """
    file = runs / SERVICE
    try:
        data = read_small(file, MAX_JSON)
        value = parse_json(data)
        is_old = isinstance(value, dict) and "run" in value and value.keys() <= OLD_SERVICE_KEYS
        return value if is_old else unseal(data)
    except FileNotFoundError:
        if not file.is_symlink():
            return None
        raise damaged_service(runs) from None
    except PermissionError as error:
        raise InputError(f"no permission to read: {file}; ask its owner") from error
    except OSError as error:
        require_free_files(error)
        raise damaged_service(runs) from error
    except (ValueError, InputError, RecursionError) as error:
        raise damaged_service(runs) from error


def damaged_service(runs: Path) -> InputError:
    """Return the error to raise if `service.json` is not as it was written."""
    remedy = "`hierrouter deploy RUN` writes it anew"
    return InputError(f"{SERVICE} is damaged: {runs / SERVICE}; {remedy}")


def chosen_folder(name: str | None, out: str | Path | None = None) -> Path | None:
    """Return the folder that the user chose for a run, by its name or as `out`; None if neither.

    Raises:
        InputError: no name for a run, or a name and a folder that contradict each other.
    """
    if name is None:
        return None if out is None else Path(out)
    if not RUN_NAME.fullmatch(name):
        what = "letters, digits and . _ + -, no more than 64, a letter or a digit first"
        raise InputError(f"not a name for a run: {name:.65}; take {what}")
    if out not in (None, str(RUNS / name), RUNS / name):
        raise InputError(f"--name {name} and --out {out} contradict each other; give one of them")
    return RUNS / name


def find_run(run: str | os.PathLike[str]) -> Path:
    """Return the folder of a run that is given by its folder or its name.

    If something of a run lies at the path, that comes before a run of this name.
    """
    path = Path(run)
    is_there = path.is_file() or any((path / file).exists() for file in (RECORD, WEIGHTS))
    is_name = path.parts == (path.name,) and (RUNS / path).is_dir()
    return RUNS / path if is_name and not is_there else path


def new_run(command: str, out: Path | None) -> Path:
    """Make the folder of a new run.

    Args:
        command: whose run it is.
        out: the folder that the user chose; None makes a new one in `RUNS`.

    Raises:
        InputError: `out` holds something already, or cannot be made.
        WorldError: the folder cannot be made.
    """
    check_out(out)
    try:
        if out is None:
            return _make_timestamped_folder(command)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(
            f"cannot make the output folder: {out or RUNS}: {error.strerror}; choose another --out"
        ) from error
    return out


@contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """Give a folder to write results into, which becomes `folder` when the block ends well.

    Nothing is left of it if something ends the block early, and the command can be given again.

    Raises:
        WorldError: the disk is full or failed.
    """
    from hierrouter_cache.writer import fsync_folder, write_atomically

    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # a kill may have left it
    try:
        draft.mkdir(parents=True)
        yield draft
        files = {file.name: file_digest(file) for file in sorted(draft.iterdir())}
        write_atomically(draft / CONTENTS, seal(files))
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
def begin_or_resume(
    command: str, asked: Mapping[str, Any], out: Path | None, replace_existing: bool = False
) -> Iterator[Record]:
    """Give the record of a run: of a new one, or of the very same run begun in `out` before.

    What was asked for is written down before the first result, so that a run is never continued as
    another one. While the block runs, no other process can work in the folder.

    Args:
        command: whose run it is.
        asked: what the result depends on, as JSON values.
        out: the folder that the user chose; None makes a new one.
        replace_existing: replace another run in `out`, instead of refusing.

    Raises:
        InputError: `out` holds something else or a finished run that is damaged, cannot be made,
            or the record of any run is damaged, so that nobody could say that this one is newer.
        CacheLocked: another process is at work there.
        WorldError: the disk is full or failed.
    """
    from hierrouter_cache.locks import folder_lock

    asked = json.loads(json.dumps(asked))  # as it reads when it is loaded again
    _all_records()  # refuses damaged ones before anything is done
    record = read_record(out) if out else None
    different: list[str] = []
    if record:
        present = {"command": record.command, "asked": record.asked}
        different = sorted(differences(present, {"command": command, "asked": asked}))
    if different and not replace_existing:
        raise InputError(
            f"another run was begun in {out}: {', '.join(different)} differ; "
            "give the same flags, or another --out or --name"
        )
    if record is None or different:
        folder = out if replace_existing and out else new_run(command, out)
        folder.mkdir(parents=True, exist_ok=True)
        record = Record(folder, command, asked).write()
    for name in record.files:
        require_listed(record.folder / name)
    with folder_lock(record.folder, "another run"):
        remove_drafts(record.folder)
        yield record


def timestamped_folder(command: str) -> Path:
    """Return a path in `RUNS` for a run without a folder chosen by the user."""
    return RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{command}"


def seed_folders(base: Path, seeds: Iterable[int]) -> dict[int, Path]:
    """Return the folder of each of several trainings, side by side, by seed."""
    return {seed: base.with_name(f"{base.name}-seed-{seed}") for seed in seeds}


def remove_drafts(run: Path) -> None:
    """Remove the files that killed saves left in the folder of a run, and below it.

    Only this process may be at work there, so every draft was abandoned.

    Raises:
        WorldError: one cannot be removed.
    """
    for draft in run.rglob(".*.????????.tmp"):  # the names that `write_atomically` gives them
        remove_file(draft)


def remove_file(file: Path) -> None:
    """Remove a file that may be gone already.

    Raises:
        WorldError: it cannot be removed.
    """
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise WorldError(f"cannot remove: {file}: {error.strerror}; remove it yourself") from error


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Return the names of what two nested values do not share; of nested values the inner names."""
    for decisive in ("algo", "preset"):  # another one makes every setting differ
        if first.get(decisive) != second.get(decisive):
            return {decisive}
    different: set[str] = set()
    for name in first.keys() | second.keys():
        value = first.get(name)
        other = second.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            different |= differences(value, other)
        elif value != other:
            different.add(name)
    return different


def check_out(out: Path | None, command: str = "") -> None:
    """Refuse an output folder before any work is done for it.

    Args:
        out: the folder; None is always fine.
        command: a run of this command may be there, to be resumed.

    Raises:
        InputError: it holds something else already, or a record that is damaged; or it cannot be
            made.
    """
    if out is None:
        return
    check_place(out)
    if command:
        record = read_record(out)
        if record and record.command == command:
            return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output exists: {out}; nothing is overwritten, choose another")


def require_free_file(out: Path) -> None:
    """Refuse to write over a file, before any work is done for it.

    Its folder need not exist, see `make_folder_of`.

    Raises:
        InputError: the file exists, or cannot be made.
    """
    if out.exists() or out.is_symlink():
        raise InputError(f"output exists: {out}; choose another --out or remove it")
    check_place(out)


def check_place(out: Path) -> None:
    """Refuse a place where nothing can be made; folders above it that are missing can be.

    Raises:
        InputError: something above `out` is no folder, or there is no permission to write.
    """
    existing = out
    # `lexists`: nothing can be made below a link to nowhere either.
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        if existing != out:
            raise InputError(
                f"output cannot be made: {existing} is no folder; choose another --out"
            )
    elif not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"no permission to write: {existing}; choose another --out")


def make_folder_of(file: Path) -> None:
    """Make the folder of a file that is to be written, and those above it, if they are missing.

    Raises:
        WorldError: one cannot be made.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(
            f"cannot make the output folder: {file.parent}: {error.strerror}; choose another --out"
        ) from error


def _make_timestamped_folder(command: str) -> Path:
    """Make a new folder; of two runs that begin in one second each gets its own."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = RUNS / f"{stamp}-{command}"
    number = 2
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            path = RUNS / f"{stamp}.{number}-{command}"
            number += 1


# The flags of jobs that work on a run, as types of their fields.


def check_run(value: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of a run, given by its name, by its folder or as a run.

    Raises:
        InputError: there is no such run.
    """
    return find_run(value)


run_flag = partial(Flag, metavar="NAME|DIR", check=check_run)

Checkpoint = Annotated[Path | None, run_flag("--checkpoint", help="A run; default: the latest.")]
SweepRun = Annotated[Path | None, run_flag("--sweep", help="A sweep; default: the latest.")]

"""States of trainings in the folder of a run, from which a training can go on.

The state of an unfinished training is saved now and then. If the training is interrupted, the same
command goes on from it and ends with the same bytes; the file is removed when the run is finished.

The checkpoint of an epoch stays. It is a folder, `checkpoints/epoch-5`, with two files:
`policy.safetensors` is the router of that epoch, or the routers of a sweep, which every command
takes like that of a run, and `state.safetensors` is the state of the training after the epoch.
Those of a sweep are in the folder of their seed. A finished run lists both files in its record,
with their checksums.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.declarations.declaration import shown_value
from hierrouter.learning.resumption import Array, TrainingState
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import read_tensors, save_checkpoint, write_tensors
from hierrouter_cache.errors import InputError

PROGRESS_FORMAT = 2
STATE_TYPES = {"epoch": int, "identity": dict, "values": dict, "versions": dict}
NUMERIC_LIBRARIES = ("numpy", "tianshou", "torch")  # others may compute other last bits
SECONDS_BETWEEN_SAVES = 5.0  # a shorter training saves nothing
MAX_SAVING_SHARE = 0.01  # of the time of a training, on a slow disk too


class TrainingProgress:
    """Saves states of one training, and reads the last one of them again.

    Args:
        folder: of the checkpoint that the training will leave.
        identity: JSON values that tell the training from others, see `training_identity`.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.file = folder / folders.PROGRESS
        self._identity = as_loaded(identity)
        self._next_save = time.monotonic() + SECONDS_BETWEEN_SAVES

    def load(self) -> TrainingState | None:
        """Return the last saved state; None if there is none of this training.

        Raises:
            InputError: it is damaged, or was saved by another version.
        """
        if not self.file.exists():
            return None
        saved = SavedState.read(self.file)
        return saved.state() if saved.identity == self._identity else None

    def save(self, state: TrainingState) -> None:
        """Replace the saved state.

        Raises:
            WorldError: the disk is full or failed; the last saved state is untouched.
        """
        save_state(self.file, state, self._identity)

    def save_now_and_then(self, make_state: Callable[[], TrainingState]) -> None:
        """Save the state if the last save was long enough ago.

        Raises:
            WorldError: the disk is full or failed; the last saved state is untouched.
        """
        start = time.monotonic()
        if start < self._next_save:
            return
        self.save(make_state())
        end = time.monotonic()
        self._next_save = end + max(SECONDS_BETWEEN_SAVES, (end - start) / MAX_SAVING_SHARE)


@dataclass(frozen=True)
class SavedState:
    """A state as it is in its file.

    Attributes:
        file: the file.
        epoch: number of epochs done.
        identity: of the training, see `training_identity`.
        arrays: see `TrainingState`.
        values: see `TrainingState`.
        versions: of everything on which the numbers of the training depend, when it was saved.
    """

    file: Path
    epoch: int
    identity: dict[str, Any]
    arrays: dict[str, Array]
    values: dict[str, Any]
    versions: dict[str, str]

    @classmethod
    def read(cls, file: Path) -> SavedState:
        """Read the file of a state.

        Raises:
            InputError: the file is damaged, or is another one.
        """
        try:
            arrays, text = read_tensors(file)
            description = folders.parse_json(text.encode())
            if any(type(description[name]) is not kind for name, kind in STATE_TYPES.items()):
                raise TypeError("a value of another type")
            plain = {name: description[name] for name in STATE_TYPES}
            return cls(file, arrays=arrays, **plain)
        except (InputError, KeyError, TypeError, ValueError, RecursionError) as error:
            owner, remedy = _words(file)
            raise InputError(f"the saved state of {owner} is damaged: {file}; {remedy}") from error

    def state(self) -> TrainingState:
        """Return the state to go on from.

        Raises:
            InputError: it was saved by another version.
        """
        present = _versions()
        different = sorted(folders.differences(self.versions, present))
        if different:
            changes = ", ".join(
                f"{name} {self.versions.get(name)}, now {present.get(name)}" for name in different
            )
            owner, remedy = _words(self.file)
            raise InputError(
                f"the saved state of {owner} is of other versions: {self.file}: {changes}; "
                f"install those to go on, or {remedy}"
            )
        remedy = _words(self.file)[1]
        return TrainingState(self.epoch, self.arrays, self.values, self.file, remedy)


def save_state(file: Path, state: TrainingState, identity: Mapping[str, Any]) -> None:
    """Write a state into a file, replacing the one that is there.

    Args:
        file: its folder is made if it does not exist.
        state: to save.
        identity: of the training, see `training_identity`.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    description = {
        "epoch": state.epoch,
        "identity": identity,
        "values": state.values,
        "versions": _versions(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(file, state.arrays, json.dumps(description, sort_keys=True))


def as_loaded(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as they read when they are loaded again."""
    loaded: dict[str, Any] = json.loads(json.dumps(identity))
    return loaded


def _words(file: Path) -> tuple[str, str]:
    """Return what a state belongs to, and what to do if it cannot be used, in words."""
    if file.name == folders.PROGRESS:
        remedy = "remove the file, and the same command trains from the start"
        return "an interrupted training", remedy
    return "a checkpoint", "train from another one, or from the start"


def _versions() -> dict[str, str]:
    """Return the versions of everything on which the numbers of a training depend."""
    libraries = {name: version(name) for name in NUMERIC_LIBRARIES}
    return {"format": str(PROGRESS_FORMAT), "hierrouter": __version__, **libraries}


# Checkpoints of epochs.

EPOCH_FOLDER = re.compile(r"epoch-([1-9][0-9]{0,8})")
IN_CONFIG = "config"  # key of the settings in an identity


def epoch_folders(run: Path) -> dict[int, Path]:
    """Return the folder of each checkpoint of a run by its epoch, in the order of the epochs."""
    numbered = {}
    for folder in (run / folders.CHECKPOINTS).glob("epoch-*"):
        name = EPOCH_FOLDER.fullmatch(folder.name)
        if name and (folder / folders.STATE).is_file():
            numbered[int(name[1])] = folder
    return dict(sorted(numbered.items()))


def epochs_in_words(epochs: list[int]) -> str:
    """Return which epochs have a checkpoint, in a few words; empty if none has."""
    if len(epochs) <= 2:
        return ", ".join(map(str, epochs))
    return f"{len(epochs)}: {epochs[0]} to {epochs[-1]}"


def save_epoch(run: Path, state: TrainingState, identity: Mapping[str, Any]) -> None:
    """Save the checkpoint of an epoch, replacing the one that is there.

    Args:
        run: folder of the run.
        state: with the policy of the epoch.
        identity: of the training, see `training_identity`.

    Raises:
        WorldError: the disk is full or failed.
    """
    assert state.policy, "the state of a checkpoint has a policy"
    folder = run / folders.CHECKPOINTS / f"epoch-{state.epoch}"
    save_checkpoint(state.policy, folder)
    # Last, because a folder without this file is no checkpoint.
    save_state(folder / folders.STATE, state, as_loaded(identity))


def latest_state(run: Path, identity: Mapping[str, Any]) -> TrainingState | None:
    """Return the state of the last checkpoint in a run; None if there is none of this training.

    Raises:
        InputError: it is damaged, or was saved by another version.
    """
    for folder in reversed(epoch_folders(run).values()):
        saved = SavedState.read(folder / folders.STATE)
        if saved.identity == as_loaded(identity):
            return saved.state()
    return None


def remove_epochs(run: Path) -> None:
    """Remove the checkpoints in a folder, which are those of an earlier training.

    Raises:
        WorldError: one cannot be removed.
    """
    for folder in epoch_folders(run).values():
        for name in (folders.STATE, folders.WEIGHTS):
            folders.remove_file(folder / name)
        with suppress(OSError):  # there is something else in it, which stays
            folder.rmdir()


def find_checkpoint(path: Path, name: str) -> Path:
    """Return the file of the state to go on from.

    Args:
        path: folder of a checkpoint, or one of its files; or of a run, whose last checkpoint is
            taken.
        name: of the flag or argument, for messages.

    Raises:
        InputError: there is no checkpoint.
    """
    if path.is_file():
        path = path.parent
    checkpoints = [path, *reversed(epoch_folders(path).values())]
    for folder in checkpoints:
        if (folder / folders.STATE).is_file():
            return folder / folders.STATE
    raise InputError(
        f"no checkpoint to go on from: {shown_value(name, path)}; give the folder of one, "
        f"{path / folders.CHECKPOINTS / 'epoch-N'}, which --checkpoint-every makes"
    )


def state_to_go_on_from(
    file: Path, identity: Mapping[str, Any], is_scheduled: bool
) -> TrainingState:
    """Return the state of a checkpoint, if it is one of this training.

    A training that is not scheduled may go on for more epochs than it had: it ends with the same
    bytes as one that had them from the start.

    Args:
        file: of the state.
        identity: of the training that is to go on.
        is_scheduled: see `NetworkConfig.is_scheduled`.

    Raises:
        InputError: it is damaged, of another training, or was saved by another version.
    """
    folders.require_listed(file)
    saved = SavedState.read(file)
    different = folders.differences(saved.identity, as_loaded(identity))
    if not is_scheduled and saved.epoch <= identity[IN_CONFIG]["epochs"]:
        different -= {"epochs"}
    if different:
        raise InputError(
            f"the checkpoint is of another training: {file.parent}: "
            f"{', '.join(sorted(different))} differ; give the flags of that training"
        )
    return saved.state()

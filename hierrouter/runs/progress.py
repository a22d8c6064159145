"""The state of an unfinished training in the folder of its run, and the files of such states.

It is saved now and then while a network is trained. If the training is interrupted, the same
command goes on from the last saved state and ends with the same bytes. The file is removed when the
run is finished. States that stay are in `epochs`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.learning.resumption import Array, TrainingState
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import read_tensors, write_tensors
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

"""The state of an unfinished training in the folder of its run.

It is saved now and then while a network is trained. If the training is interrupted, the same
command goes on from the last saved state and ends with the same bytes. The file is removed when the
run is finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.learning.resumption import Array, TrainingState
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import read_tensors, write_tensors
from hierrouter_cache.errors import InputError

PROGRESS_FORMAT = 1
PROGRESS_TYPES = {"epoch": int, "identity": dict, "values": dict, "versions": dict}
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
        self._identity = json.loads(json.dumps(identity))  # as it reads when it is loaded again
        self._versions = _versions()
        self._next_save = time.monotonic() + SECONDS_BETWEEN_SAVES

    def load(self) -> TrainingState | None:
        """Return the last saved state; None if there is none of this training.

        Raises:
            InputError: it is damaged, or was saved by another version.
        """
        if not self.file.exists():
            return None
        arrays, description = read_progress(self.file)
        if description["identity"] != self._identity:
            return None
        saved_by = description["versions"]
        different = sorted(folders.differences(saved_by, self._versions))
        if different:
            changes = ", ".join(
                f"{name} {saved_by.get(name)}, now {self._versions.get(name)}" for name in different
            )
            raise InputError(
                f"the training was interrupted under other versions: {self.file}: {changes}; "
                "install those to go on, or remove the file to train from the start"
            )
        return TrainingState(description["epoch"], arrays, description["values"], self.file)

    def save(self, state: TrainingState) -> None:
        """Replace the saved state.

        Raises:
            WorldError: the disk is full or failed; the last saved state is untouched.
        """
        description = {
            "epoch": state.epoch,
            "identity": self._identity,
            "values": state.values,
            "versions": self._versions,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(self.file, state.arrays, json.dumps(description, sort_keys=True))

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


def read_progress(file: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a saved state, and its description.

    Raises:
        InputError: the file is damaged, or is another one.
    """
    try:
        arrays, text = read_tensors(file)
        description = folders.parse_json(text.encode())
        if any(type(description[name]) is not kind for name, kind in PROGRESS_TYPES.items()):
            raise TypeError("a value of another type")
    except (InputError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the saved state of an interrupted training is damaged: {file}; remove the file, and "
            "the same command trains from the start"
        ) from error
    return arrays, description


def _versions() -> dict[str, str]:
    """Return the versions of everything on which the numbers of a training depend."""
    libraries = {name: version(name) for name in NUMERIC_LIBRARIES}
    return {"format": str(PROGRESS_FORMAT), "hierrouter": __version__, **libraries}

"""Checkpoints of single epochs in the folder of a run, from which a training can go on.

Each is a folder, `checkpoints/epoch-5`, with two files: `policy.safetensors` is the router of that
epoch, or the routers of a sweep, which every command takes like that of a run, and
`state.safetensors` is the state of the training after the epoch. Those of a sweep are in the folder
of their seed. A finished run lists both files in its record, with their checksums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hierrouter.declarations.declaration import shown_value
from hierrouter.learning.resumption import TrainingState
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import save_checkpoint
from hierrouter.runs.progress import SavedState, as_loaded, save_state
from hierrouter_cache.errors import InputError

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

"""A training that was interrupted, in a file.

`training.safetensors` in the folder of a run holds everything that the rest of the training
depends on (`loop.Snapshot`) and what was being trained; written whole or not at all, removed
when the checkpoint is there. Not covered: what a checkpoint holds, see `checkpoint`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hierrouter.learn.alpha_router import Policy, TrainedSweep
from hierrouter.learn.checkpoint import DESCRIPTION, load_checkpoint
from hierrouter.learn.loop import Snapshot
from hierrouter.learn.objective import Objective
from hierrouter.learn.origin import Origin
from hierrouter.learn.tensor_file import read_tensors, write_tensors
from hierrouter.runs import differences
from hierrouter_cache.errors import InputError, WorldError

UNFINISHED = "training.safetensors"
FORMAT = 1


def training_named(
    origin: Origin, objective: Objective, alphas: tuple[float, ...] = ()
) -> dict[str, Any]:
    """What is being trained, as JSON values: a training goes on only as itself."""
    return {
        "algo": origin.config.algo,
        "alphas": list(alphas),
        "config": asdict(origin.config),
        "encoder": origin.encoder,
        "fingerprint": origin.fingerprint,
        "format": FORMAT,
        "objective": asdict(objective),
        "seed": origin.seed,
        "view": origin.view,
    }


def save_snapshot(snapshot: Snapshot, named: dict[str, Any], folder: Path) -> None:
    """Write the training into `folder`, replacing an earlier moment of it.

    Raises:
        WorldError: the disk is full or failed.
    """
    held = {"training": named, "epoch": snapshot.epoch, "counters": snapshot.counters}
    write_tensors(folder / UNFINISHED, snapshot.tensors, json.dumps(held))


def load_snapshot(folder: Path, named: dict[str, Any]) -> Snapshot | None:
    """The training in `folder`, or None where none was interrupted there.

    Args:
        named: what is to be trained, see `training_named`.

    Raises:
        InputError: it is damaged, or another training was interrupted there.
    """
    file = folder / UNFINISHED
    if not file.is_file():
        return None
    try:
        tensors, text = read_tensors(file)
        held = json.loads(text)
        found, snapshot = held["training"], Snapshot(held["epoch"], tensors, held["counters"])
    except (InputError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"interrupted training is truncated or damaged: {file}; remove it and train again"
        ) from error
    if different := sorted(differences(found, named)):
        raise InputError(
            f"another training was interrupted in {folder}: {', '.join(different)} differ; "
            "give the same flags, or another --out"
        )
    return snapshot


def finished(folder: Path, named: dict[str, Any]) -> Policy | None:
    """The checkpoint in `folder` where it is of this very training, else None.

    Raises:
        InputError: the checkpoint is damaged.
    """
    if not (folder / DESCRIPTION).is_file():
        return None
    found = load_checkpoint(folder)
    alphas = found.alphas if isinstance(found, TrainedSweep) else ()
    same = training_named(found.origin, found.objective, alphas) == named
    return found if same else None


def forget_snapshot(folder: Path) -> None:
    """Remove the interrupted training: its checkpoint is there.

    Raises:
        WorldError: it cannot be removed.
    """
    _remove(folder / UNFINISHED)


def remove_drafts(run: Path) -> None:
    """Remove what killed saves left in the folder of a run, and below it.

    Only this process may be at work there, so whatever draft is found was abandoned.

    Raises:
        WorldError: one cannot be removed.
    """
    for draft in run.rglob(".*.????????.tmp"):  # as `write_atomically` calls it
        _remove(draft)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise WorldError(f"cannot remove: {file}: {error.strerror}; remove it yourself") from error

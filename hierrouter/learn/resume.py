"""A training that was interrupted, in a file.

`training.safetensors` in the folder of a run holds everything that the rest of the training
depends on (`training.Halfway`) and what was being trained; written whole or not at all, removed
when the checkpoint is there. Not covered: what a checkpoint holds, see `checkpoint`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save

from hierrouter.learn.checkpoint import DESCRIPTION, HEADER, load_checkpoint, read_tensors
from hierrouter.learn.conditioned import TrainedSweep
from hierrouter.learn.objective import Objective
from hierrouter.learn.trained import Origin, TrainedRouter
from hierrouter.learn.training import Halfway
from hierrouter.runs import differences
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.writer import write_atomically

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


def save_halfway(halfway: Halfway, named: dict[str, Any], folder: Path) -> None:
    """Write the training into `folder`, replacing an earlier moment of it.

    Raises:
        WorldError: the disk is full or failed.
    """
    held = {"training": named, "epoch": halfway.epoch, "counters": halfway.counters}
    tensors = {name: value.contiguous() for name, value in halfway.tensors.items()}
    data = save(tensors, metadata={HEADER: json.dumps(held)})
    write_atomically(folder / UNFINISHED, data)


def load_halfway(folder: Path, named: dict[str, Any]) -> Halfway | None:
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
        found, halfway = held["training"], Halfway(held["epoch"], tensors, held["counters"])
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"interrupted training is truncated or damaged: {file}; remove it and train again"
        ) from error
    if different := sorted(differences(found, named)):
        raise InputError(
            f"another training was interrupted in {folder}: {', '.join(different)} differ; "
            "give the same flags, or another --out"
        )
    return halfway


def finished(folder: Path, named: dict[str, Any]) -> TrainedRouter | TrainedSweep | None:
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


def forget_halfway(folder: Path) -> None:
    """Remove the interrupted training: its checkpoint is there.

    Raises:
        WorldError: it cannot be removed.
    """
    try:
        (folder / UNFINISHED).unlink(missing_ok=True)
    except OSError as error:
        raise WorldError(f"cannot remove {folder / UNFINISHED}: {error.strerror}") from error

"""A trained policy in a folder: weights and where they come from.

`policy.safetensors` holds everything, its header the description; one file, so that a crash leaves
the old checkpoint or the new one, whole. `policy.json` is the same description for people and
scripts, and is written last. A policy is a `TrainedRouter` for one alpha, or a `TrainedSweep` for
all of them. Not covered: what a description says, and whether it fits its weights (`description`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from hierrouter.learn.alpha_router import Policy
from hierrouter.learn.description import describe, rebuild, tensors_of
from hierrouter.learn.tensor_file import RETRAIN, read_tensors, write_tensors
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.atomic_files import write_atomically
from hierrouter_cache.errors import InputError

WEIGHTS = "policy.safetensors"
DESCRIPTION = "policy.json"
SUMMARY = "sweep.json"  # of a sweep, see `sweep`


def save_checkpoint(policy: Policy, folder: Path) -> None:
    """Write both files into `folder`, replacing what is there.

    Raises:
        WorldError: the disk is full or failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(describe(policy), sort_keys=True, indent=2, allow_nan=False)
    write_tensors(folder / WEIGHTS, tensors_of(policy), text)
    write_atomically(folder / DESCRIPTION, f"{text}\n".encode())


def load_checkpoint(path: Path) -> Policy:
    """Read a checkpoint.

    Args:
        path: the folder, or its `policy.safetensors` under any name.

    Raises:
        InputError: there is none, it is truncated or no safetensors file, it was not written by
            `save_checkpoint` or by that of another format, or its weights are not finite.
    """
    file = path / WEIGHTS if path.is_dir() else path
    _check_is_no_sweep(path)
    tensors, text = read_tensors(file)
    if not all(torch.isfinite(value).all() for value in tensors.values()):
        raise InputError(f"checkpoint has weights that are not finite (NaN): {file}; {RETRAIN}")
    return rebuild(text, tensors, file)


def router_at(path: Path, alpha: float | None) -> TrainedRouter:
    """The router in a checkpoint, for `alpha` where it holds one for every alpha.

    Args:
        alpha: None is the alpha it was trained for; of a sweep's, the smallest of its grid.

    Raises:
        InputError: see `load_checkpoint`.
    """
    found = load_checkpoint(path)
    if isinstance(found, TrainedRouter):
        return found
    return found.at(found.alphas[0] if alpha is None else alpha)


def description_of(run: Path) -> dict[str, Any]:
    """What a run of `train` or `sweep-alpha` says it learned from; empty where it does not say.

    Returns:
        of the JSON values at least fingerprint, view and encoder.
    """
    for name in (DESCRIPTION, SUMMARY):
        try:
            found = json.loads((run / name).read_text("utf-8"))
            return dict(found) if {"fingerprint", "view", "encoder"} <= found.keys() else {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            continue
    return {}


def _check_is_no_sweep(path: Path) -> None:
    """Name a router of a sweep where the folder of the whole sweep was given."""
    if not (path / SUMMARY).is_file() or (path / WEIGHTS).exists():
        return
    member = min((file.parent for file in path.glob(f"*/**/{WEIGHTS}")), default=path / "seed-N")
    raise InputError(
        f"not a checkpoint, but the folder of a sweep: {path}; give one of its own: {member}"
    )

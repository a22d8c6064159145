"""A trained router in a folder: weights and where they come from.

`policy.safetensors` holds everything, its header the description; one file, so that a crash leaves
the old checkpoint or the new one, whole. `policy.json` is the same description for people and
scripts, and is written last. Neither holds a time or a path: same training, same bytes. Nothing is
ever unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hierrouter.learn.config import PPOConfig
from hierrouter.learn.router import Router, RouterShape
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from hierrouter_cache.writer import write_atomically

WEIGHTS = "policy.safetensors"
DESCRIPTION = "policy.json"
SUMMARY = "sweep.json"  # of a sweep, see `sweep`
FORMAT = 1
HEADER = "hierrouter"
LFS_POINTER = b"version https://git-lfs"
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch's zip around one
RETRAIN = "train again"


def save_checkpoint(trained: TrainedRouter, folder: Path) -> None:
    """Write both files into `folder`, replacing what is there.

    Raises:
        WorldError: the disk is full or failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(describe(trained), sort_keys=True, indent=2, allow_nan=False)
    weights = {name: value.contiguous() for name, value in trained.router.state_dict().items()}
    write_atomically(folder / WEIGHTS, save(weights, metadata={HEADER: text}))
    write_atomically(folder / DESCRIPTION, f"{text}\n".encode())


def load_checkpoint(path: Path) -> TrainedRouter:
    """Read a checkpoint.

    Args:
        path: the folder, or its `policy.safetensors` under any name.

    Raises:
        InputError: there is none, it is truncated or no safetensors file, it was not written by
            `save_checkpoint`, or its weights are not finite.
    """
    file = path / WEIGHTS if path.is_dir() else path
    _check_start(file)
    weights, text = _read(file)
    if not all(torch.isfinite(value).all() for value in weights.values()):
        raise InputError(f"checkpoint has weights that are not finite (NaN): {file}; {RETRAIN}")
    try:
        return _rebuild(json.loads(text), weights)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(
            f"checkpoint is damaged, weights and description do not fit: {file}; {RETRAIN}"
        ) from error


def fingerprint_of(run: Path) -> str | None:
    """Fingerprint of the tree that a run of `train` or `sweep-alpha` learned from, if it says."""
    for name in (DESCRIPTION, SUMMARY):
        try:
            return str(json.loads((run / name).read_text("utf-8"))["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def describe(trained: TrainedRouter) -> dict[str, Any]:
    """Everything but the weights, as JSON values."""
    shape = trained.router.shape
    return {
        "format": FORMAT,
        "models": list(trained.models),
        "base_rate": list(trained.base_rate),
        "hops": shape.hops,
        "dim": shape.dim,
        "embedding_scale": shape.embedding_scale,
        "cost_scale": shape.cost_scale,
        "encoder": trained.encoder,
        "alpha": trained.alpha,
        "config": asdict(trained.config),
        "seed": trained.seed,
        "fingerprint": trained.fingerprint,
        "history": list(trained.history),
        "version": trained.version,
    }


def _check_start(file: Path) -> None:
    """Name the usual wrong files for what they are."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(LFS_POINTER))
    except FileNotFoundError:
        raise InputError(f"checkpoint not found: {file}; run `hierrouter train` first") from None
    except OSError as error:
        raise InputError(f"checkpoint cannot be read: {file}: {error.strerror}") from None
    if start == LFS_POINTER:
        raise InputError(
            f"checkpoint is a git-lfs pointer, not a safetensors file: {file}; run `git lfs pull`"
        )
    # A safetensors file starts with 8 bytes of length, which may look like anything, then a brace.
    if start.startswith(PICKLE_STARTS) and start[8:9] != b"{":
        raise InputError(
            f"checkpoint is not a safetensors file: {file}; pickles are unsafe and refused"
        )


def _read(file: Path) -> tuple[dict[str, Tensor], str]:
    """Weights and description."""
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get(HEADER)
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"checkpoint is truncated, damaged or not a safetensors file: {file}; {RETRAIN}"
        ) from error
    if text is None:
        raise InputError(f"checkpoint was not written by hierrouter: {file}; {RETRAIN}")
    return weights, text


def _rebuild(found: dict[str, Any], weights: dict[str, Tensor]) -> TrainedRouter:
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']}, expected {FORMAT}")
    config = PPOConfig(**found["config"])
    shape = RouterShape(
        models=len(found["models"]),
        hops=found["hops"],
        dim=found["dim"],
        hidden=config.hidden,
        stage_dim=config.stage_dim,
        embedding_scale=found["embedding_scale"],
        cost_scale=found["cost_scale"],
    )
    if weights["context.weight"].shape != (shape.hidden, shape.dim):
        raise ValueError("weights of another shape")
    router = Router(shape)
    router.load_state_dict(weights)
    return TrainedRouter(
        router=router.requires_grad_(False).eval(),
        models=tuple(found["models"]),
        base_rate=tuple(found["base_rate"]),
        encoder=found["encoder"],
        alpha=found["alpha"],
        config=config,
        seed=found["seed"],
        fingerprint=found["fingerprint"],
        history=tuple(found["history"]),
        version=found["version"],
    )

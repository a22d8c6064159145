"""A trained policy in a folder: weights and where they come from.

`policy.safetensors` holds everything, its header the description; one file, so that a crash leaves
the old checkpoint or the new one, whole. `policy.json` is the same description for people and
scripts, and is written last. Neither holds a time or a path: same training, same bytes. Nothing is
ever unpickled. A policy is a `TrainedRouter` for one alpha, or a `TrainedSweep` for all of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hierrouter.actions import Actions
from hierrouter.evaluate.ceilings import Ceilings
from hierrouter.learn.conditioned import AlphaRouter, TrainedSweep
from hierrouter.learn.config import ALGORITHMS, TrainConfig
from hierrouter.learn.objective import Objective
from hierrouter.learn.router import Router, RouterShape
from hierrouter.learn.trained import Origin, TrainedRouter
from hierrouter_cache.errors import InputError
from hierrouter_cache.writer import write_atomically

WEIGHTS = "policy.safetensors"
DESCRIPTION = "policy.json"
SUMMARY = "sweep.json"  # of a sweep, see `sweep`
FORMAT = 2
HEADER = "hierrouter"
LFS_POINTER = b"version https://git-lfs"
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch's zip around one
RETRAIN = "train again"
CEILINGS = ("ceilings.longest", "ceilings.growth")


def save_checkpoint(trained: TrainedRouter | TrainedSweep, folder: Path) -> None:
    """Write both files into `folder`, replacing what is there.

    Raises:
        WorldError: the disk is full or failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(describe(trained), sort_keys=True, indent=2, allow_nan=False)
    write_atomically(folder / WEIGHTS, save(_tensors(trained), metadata={HEADER: text}))
    write_atomically(folder / DESCRIPTION, f"{text}\n".encode())


def load_checkpoint(path: Path) -> TrainedRouter | TrainedSweep:
    """Read a checkpoint.

    Args:
        path: the folder, or its `policy.safetensors` under any name.

    Raises:
        InputError: there is none, it is truncated or no safetensors file, it was not written by
            `save_checkpoint` or by that of another format, or its weights are not finite.
    """
    file = path / WEIGHTS if path.is_dir() else path
    _check_is_no_sweep(path)
    weights, text = read_tensors(file)
    if not all(torch.isfinite(value).all() for value in weights.values()):
        raise InputError(f"checkpoint has weights that are not finite (NaN): {file}; {RETRAIN}")
    try:
        found = json.loads(text)
        _check_format(found["format"], file)
        return _rebuild(found, _objective(found["objective"], file), weights)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(
            f"checkpoint is damaged, weights and description do not fit: {file}; {RETRAIN}"
        ) from error


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
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return {}


def describe(trained: TrainedRouter | TrainedSweep) -> dict[str, Any]:
    """Everything but the weights, as JSON values."""
    origin = trained.origin
    found = {
        "format": FORMAT,
        "models": list(origin.models),
        "rate": [list(pair) for pair in origin.rate],
        "hops": origin.hops,
        "encoder": origin.encoder,
        "view": origin.view,
        "algo": origin.config.algo,
        "config": asdict(origin.config),
        "seed": origin.seed,
        "fingerprint": origin.fingerprint,
        "version": origin.version,
        "objective": asdict(trained.objective),
        "history": list(trained.history),
    }
    if isinstance(trained, TrainedSweep):
        return {**found, "shape": _shape(trained.network.base), "alphas": list(trained.alphas)}
    return {**found, "shape": _shape(trained.router)}


def read_tensors(file: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file that this program wrote, and the text in its header.

    Raises:
        InputError: there is none, or it is something else.
    """
    _check_start(file)
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


def _shape(router: Router) -> dict[str, Any]:
    return asdict(router.shape)


def _tensors(trained: TrainedRouter | TrainedSweep) -> dict[str, Tensor]:
    """The weights and, where cost is limited, the ceilings."""
    network = trained.network if isinstance(trained, TrainedSweep) else trained.router
    tensors = {name: value.contiguous() for name, value in network.state_dict().items()}
    ceilings = None if isinstance(trained, TrainedSweep) else trained.ceilings
    if ceilings:
        arrays = ceilings.longest, ceilings.growth
        tensors |= dict(zip(CEILINGS, map(torch.from_numpy, arrays), strict=True))
    return tensors


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


def _check_is_no_sweep(path: Path) -> None:
    """Name a router of a sweep where the folder of the whole sweep was given."""
    if not (path / SUMMARY).is_file() or (path / WEIGHTS).exists():
        return
    member = min((file.parent for file in path.glob(f"*/**/{WEIGHTS}")), default=path / "seed-N")
    raise InputError(
        f"not a checkpoint, but the folder of a sweep: {path}; give one of its own: {member}"
    )


def _check_format(found: Any, file: Path) -> None:
    """A whole number that is not this version's says which version is needed."""
    if not isinstance(found, int):
        raise TypeError(f"format {found}")
    if found != FORMAT:
        remedy = RETRAIN if found < FORMAT else "upgrade hierrouter"
        raise InputError(
            f"checkpoint has format {found}, this version reads {FORMAT}: {file}; {remedy}"
        )


def _objective(found: dict[str, Any], file: Path) -> Objective:
    try:
        return Objective(**found)
    except InputError as error:
        raise InputError(f"checkpoint is damaged, {error}: {file}; {RETRAIN}") from error


def _rebuild(
    found: dict[str, Any], objective: Objective, tensors: dict[str, Tensor]
) -> TrainedRouter | TrainedSweep:
    origin, shape, history = _origin(found), RouterShape(**found["shape"]), tuple(found["history"])
    ceilings = _ceilings(tensors)
    _check_fit(origin, objective, shape, ceilings)
    if "alphas" in found:
        network = AlphaRouter(shape, tensors["scales"])
        network.load_state_dict(tensors)
        network.requires_grad_(False).eval()
        return TrainedSweep(network, tuple(found["alphas"]), objective, origin, history)
    if tensors["context.weight"].shape != (shape.hidden, shape.dim):
        raise ValueError("weights of another shape")
    router = Router(shape)
    router.load_state_dict(tensors)
    router.requires_grad_(False).eval()
    return TrainedRouter(router, objective, origin, history, ceilings)


def _origin(found: dict[str, Any]) -> Origin:
    config: TrainConfig = ALGORITHMS[found["algo"]](**found["config"])
    return Origin(
        models=tuple(found["models"]),
        hops=found["hops"],
        rate=tuple(
            (float(tokens_in), float(tokens_out)) for tokens_in, tokens_out in found["rate"]
        ),
        encoder=found["encoder"],
        view=found["view"],
        config=config,
        seed=found["seed"],
        fingerprint=found["fingerprint"],
        version=found["version"],
    )


def _ceilings(tensors: dict[str, Tensor]) -> Ceilings | None:
    """Taken out of the tensors, so that the weights are left."""
    if not tensors.keys() & set(CEILINGS):
        return None
    longest, growth = (tensors.pop(name).numpy() for name in CEILINGS)
    return Ceilings(longest, growth)


def _check_fit(
    origin: Origin, objective: Objective, shape: RouterShape, ceilings: Ceilings | None
) -> None:
    """The parts of a description agree with each other, and with the ceilings."""
    texts = (*origin.models, origin.encoder, origin.view, origin.fingerprint, origin.version)
    fits = [
        all(isinstance(text, str) for text in texts),
        all(isinstance(number, int) for number in (origin.seed, origin.hops, shape.actions)),
        len(origin.rate) == len(origin.models),
        np.isfinite(origin.rate).all(),
        shape.hops == origin.hops,
        shape.actions == Actions(origin.routes, objective.allow_stop).count,
        (ceilings is None) == (objective.max_cost is None),
    ]
    if ceilings:
        of_each_node = (origin.routes.nodes,)
        fits += [array.shape == of_each_node for array in (ceilings.longest, ceilings.growth)]
    if not all(fits):
        raise ValueError("the parts of the description do not fit")

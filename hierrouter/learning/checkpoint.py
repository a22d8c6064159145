"""A trained policy in a folder, and a training that goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hierrouter.evaluation.budget import Ceilings
from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.conditioned import SCALES, AlphaRouter, Policy, TrainedSweep
from hierrouter.learning.config import ALGORITHMS, Objective
from hierrouter.learning.loop import Snapshot
from hierrouter.learning.network import Router, RouterShape
from hierrouter.learning.runs import differences
from hierrouter.learning.trained import Origin, TrainedRouter
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.writer import write_atomically

HEADER = "hierrouter"
LFS_POINTER = b"version https://git-lfs"
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch's zip around one
RETRAIN = "train again"


def write_tensors(file: Path, tensors: Mapping[str, Tensor], text: str) -> None:
    """Replace `file`; the same tensors and text give the same bytes.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    whole = {name: value.contiguous() for name, value in tensors.items()}
    write_atomically(file, save(whole, metadata={HEADER: text}))


def read_tensors(file: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file that `write_tensors` wrote, and the text in its header.

    Raises:
        InputError: there is none, or it is something else.
    """
    _check_start(file)
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get(HEADER)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"checkpoint is truncated, damaged or not a safetensors file: {file}; {RETRAIN}"
        ) from error
    if text is None:
        raise InputError(f"checkpoint was not written by hierrouter: {file}; {RETRAIN}")
    return tensors, text


def _check_start(file: Path) -> None:
    """Name the usual wrong files for what they are."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(LFS_POINTER))
    except FileNotFoundError:
        raise InputError(f"checkpoint not found: {file}; run `hierrouter train` first") from None
    except OSError as error:
        raise InputError(
            f"checkpoint cannot be read: {file}: {error.strerror}; give another --checkpoint"
        ) from None
    if start == LFS_POINTER:
        raise InputError(
            f"checkpoint is a git-lfs pointer, not a safetensors file: {file}; run `git lfs pull`"
        )
    # A safetensors file starts with 8 bytes of length, which may look like anything, then a brace.
    if start.startswith(PICKLE_STARTS) and start[8:9] != b"{":
        raise InputError(
            f"checkpoint is not a safetensors file: {file}; pickles are unsafe and refused"
        )


FORMAT = 2
Network = TypeVar("Network", Router, AlphaRouter)
CEILINGS = ("ceilings.longest", "ceilings.growth")


def describe(policy: Policy) -> dict[str, Any]:
    """Everything but the tensors, as JSON values."""
    origin = policy.origin
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
        "objective": asdict(policy.objective),
        "history": list(policy.history),
        **({} if policy.kept is None else {"kept": policy.kept}),
    }
    if isinstance(policy, TrainedSweep):
        shape = policy.network.base.shape
        return {**found, "shape": asdict(shape), "alphas": list(policy.alphas)}
    budget = {} if policy.budget is None else {"budget": policy.budget}
    return {**found, **budget, "shape": asdict(policy.router.shape)}


def tensors_of(policy: Policy) -> dict[str, Tensor]:
    """The weights and, where the cost of a query is limited, the ceilings."""
    if isinstance(policy, TrainedSweep):
        return policy.network.state_dict()
    tensors = policy.router.state_dict()
    if policy.ceilings:
        arrays = policy.ceilings.longest, policy.ceilings.growth
        tensors |= dict(zip(CEILINGS, map(torch.from_numpy, arrays), strict=True))
    return tensors


def rebuild(text: str, tensors: dict[str, Tensor], file: Path) -> Policy:
    """The policy of which these are the description and the tensors.

    Args:
        text: what `describe` gave, as JSON.
        tensors: what `tensors_of` gave; the ceilings are taken out.
        file: where both were read, for messages.

    Raises:
        InputError: another format, or parts that are missing, impossible or do not fit together.
    """
    try:
        found = json.loads(text)
        _check_format(found["format"], file)
        objective = _objective(found["objective"], file)
        return _policy(found, objective, tensors, _ceilings(tensors))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"checkpoint is damaged, weights and description do not fit: {file}; {RETRAIN}"
        ) from error


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


def _policy(
    found: dict[str, Any],
    objective: Objective,
    weights: dict[str, Tensor],
    ceilings: Ceilings | None,
) -> Policy:
    origin, shape, history = (
        _origin(found),
        RouterShape(**found["shape"]),
        _floats(found, "history"),
    )
    _check_fit(origin, objective, shape, ceilings)
    if "alphas" in found:
        scales = weights["scales"]
        if scales.shape != (SCALES,):
            raise ValueError(f"scales {tuple(scales.shape)}")
        network = _filled(lambda: AlphaRouter(shape, scales), shape, weights)
        return TrainedSweep(network, grid_of(found), objective, origin, history, _kept(found))
    router = _filled(lambda: Router(shape), shape, weights)
    return TrainedRouter(router, objective, origin, history, ceilings, _budget(found), _kept(found))


def _filled(make: Callable[[], Network], shape: RouterShape, weights: dict[str, Tensor]) -> Network:
    """The network with these weights; one that would take more memory than they do is not made."""
    if shape.weights > sum(value.numel() for value in weights.values()):
        raise ValueError("weights of another shape")
    network = make()
    network.load_state_dict(weights)
    return network.requires_grad_(False).eval()


def _floats(found: dict[str, Any], name: str) -> tuple[float, ...]:
    return tuple(map(float, found[name]))


def grid_of(found: dict[str, Any]) -> tuple[float, ...]:
    """The alphas of a sweep's description.

    Raises:
        KeyError, TypeError, ValueError: there are none, or one is no finite number >= 0.
    """
    alphas = _floats(found, "alphas")
    if not alphas or not all(0 <= alpha < np.inf for alpha in alphas):
        raise ValueError(f"alphas {alphas}")
    return alphas


def _budget(found: dict[str, Any]) -> float | None:
    """None where alpha was given, and in files of before."""
    budget: float | None = found.get("budget")
    if budget is not None and not 0 < budget < np.inf:
        raise ValueError(f"budget {budget}")
    return budget


def _kept(found: dict[str, Any]) -> int | None:
    """None in files of before."""
    kept: int | None = found.get("kept")
    if kept is not None and not (isinstance(kept, int) and 0 <= kept < len(found["history"])):
        raise ValueError(f"kept {kept}")
    return kept


def _origin(found: dict[str, Any]) -> Origin:
    return Origin(
        models=tuple(found["models"]),
        hops=found["hops"],
        rate=tuple(
            (float(tokens_in), float(tokens_out)) for tokens_in, tokens_out in found["rate"]
        ),
        encoder=found["encoder"],
        view=found["view"],
        config=ALGORITHMS[found["algo"]](**found["config"]),
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
        all(0 <= rate < np.inf for pair in origin.rate for rate in pair),
        0 < shape.cost_scale < np.inf and 0 < shape.embedding_scale < np.inf,
        shape.hops == origin.hops,
        shape.dim >= 0 and shape.hidden > 0 and shape.stage_dim >= 0,
        shape.actions == Actions(origin.routes, objective.allow_stop).count,
        (ceilings is None) == (objective.max_cost is None),
    ]
    if ceilings:
        of_each_node = (origin.routes.nodes,)
        fits += [array.shape == of_each_node for array in (ceilings.longest, ceilings.growth)]
    if not all(fits):
        raise ValueError("the parts of the description do not fit")


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


UNFINISHED = "training.safetensors"
SNAPSHOT_FORMAT = 1


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
        "format": SNAPSHOT_FORMAT,
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

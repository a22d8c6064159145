"""What training leaves on disk: a policy, or a sweep of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import CONFIG_CLASSES, Objective
from hierrouter.learning.forward import RouterShape, TrainedNetwork
from hierrouter.learning.sweep import Policy, TrainedSweep
from hierrouter.learning.training import Constant, Origin, TrainedRouter
from hierrouter.learning.value import StateRegression, TextProjection, ValueModel, ValueRouter
from hierrouter.runs import folders
from hierrouter_cache.errors import InputError, open_plain
from hierrouter_cache.writer import write_atomically

Array = NDArray[Any]
FORMAT = 7
TRAINING_FORMAT = 4  # of what names a training
HEADER = "hierrouter"  # in a safetensors file: checksum and description; two keys have no order
MAX_NUMBERS = 1 << 28  # in a file: the paper's network has 2 million, a value model the most
MAX_NODES = 1 << 25
HEX = 64  # characters of a checksum
LFS_POINTER = b"version https://git-lfs"
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch's zip around one
AS_WRITTEN = ("hops", "encoder", "view", "seed", "fingerprint", "version")  # of an origin
WHOLE = ("numbers", "learned", "kernel", "columns")  # of the value model: whole numbers
RETRAIN = "train again"
TYPES = ("F32", "I64")  # of tensors, as safetensors calls them
Part = TypeVar("Part", TextProjection, StateRegression)


def save_checkpoint(policy: Policy, folder: Path) -> None:
    """Write a policy into `folder`, replacing what is there.

    Raises WorldError: the disk is full or failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(describe(policy), sort_keys=True, allow_nan=False)
    write_tensors(folder / folders.WEIGHTS, tensors_of(policy), text)


def load_checkpoint(path: Path) -> Policy:
    """Read a checkpoint.

    Raises InputError: there is none, it is truncated or no safetensors file, it was not written by
    `save_checkpoint` or by that of another format, its checksum or that of its run is another, or
    its weights are not finite.

    `path`: the folder, or its `policy.safetensors` under any name.
    """
    file = path / folders.WEIGHTS if path.is_dir() else path
    if not file.exists() and is_sweep(path):
        members = (member.parent for member in path.glob(f"*/**/{folders.WEIGHTS}"))
        raise InputError(
            f"not a checkpoint, but the folder of a sweep: {path}; "
            f"give one of its own: {min(members, default=path / 'seed-N')}"
        )
    tensors, text = read_tensors(file)
    folders.require_listed(file)
    if not all(np.isfinite(value).all() for value in tensors.values()):
        raise InputError(f"checkpoint has weights that are not finite (NaN): {file}; {RETRAIN}")
    return rebuild(text, tensors, file)


def router_at(path: Path, alpha: float | None) -> TrainedRouter:
    """The router in a checkpoint, for `alpha` where it holds one for every alpha.

    Raises InputError: see `load_checkpoint`.

    `alpha`: None is the alpha it was trained for; of a sweep's, the smallest of its grid.
    """
    found = load_checkpoint(path)
    if isinstance(found, TrainedRouter):
        return found
    return found.at(found.alphas[0] if alpha is None else alpha)


def is_sweep(path: Path) -> bool:
    """Whether a folder is that of a run of `sweep-alpha`.

    Raises InputError: its record is damaged.
    """
    record = folders.read_record(path)
    return record is not None and record.command == "sweep-alpha"


def learned(policy: Policy) -> dict[str, Any]:
    """What the record of a run says of its policy, as JSON values."""
    origin = policy.origin
    return {
        **({"second": origin.second} if origin.second else {}),
        "algo": origin.config.algo,
        "encoder": origin.encoder,
        "fingerprint": origin.fingerprint,
        "objective": policy.objective.as_object(),
        "view": origin.view,
    }


def describe(policy: Policy) -> dict[str, Any]:
    """Everything but the tensors, as JSON values."""
    origin = policy.origin
    found = {
        **asdict(origin),
        "format": FORMAT,
        "models": list(origin.models),
        "rate": [list(pair) for pair in origin.rate],
        "algo": origin.config.algo,
        "objective": policy.objective.as_object(),
    }
    if not origin.second:  # as before there was one
        del found["second"]
    if isinstance(policy, TrainedSweep):
        constants = [one and asdict(one) for one in policy.constants]
        return {**found, **_told(policy.model), "constants": constants, "alphas": policy.alphas}
    found["history"] = list(policy.history)
    if policy.budget is not None:
        found["budget"] = policy.budget
    if policy.constant:
        found["constant"] = asdict(policy.constant)
    if isinstance(policy.router, ValueRouter):
        return {**found, **_told(policy.router.model)}
    return {**found, "shape": asdict(policy.router.shape)}


def _told(model: ValueModel) -> dict[str, Any]:
    return {"knots": model.knots, "texts": len(model.texts)}


def tensors_of(policy: Policy) -> dict[str, Array]:
    """The weights."""
    if isinstance(policy, TrainedSweep):
        return _tensors_of_model(policy.model)
    if isinstance(policy.router, ValueRouter):
        return _tensors_of_model(policy.router.model)
    return policy.router.weights


def _tensors_of_model(model: ValueModel) -> dict[str, Array]:
    arrays = {"learned": model.learned, "numbers": model.numbers}
    for kind, parts in (("text", model.texts), ("state", model.positions)):
        arrays |= {
            f"{kind}{number}.{name}": value
            for number, part in enumerate(parts)
            for name, value in vars(part).items()
        }
    return arrays


def rebuild(text: str, tensors: dict[str, Array], file: Path) -> Policy:
    """The policy of which these are the description and the tensors.

    Raises InputError: another format, or parts that are missing, impossible or do not fit together.
    """
    try:
        found = folders.parse_json(text.encode())
        if not isinstance(found["format"], int):
            raise TypeError(f"format {found['format']}")
        if found["format"] != FORMAT:
            remedy = RETRAIN if found["format"] < FORMAT else "upgrade hierrouter"
            raise InputError(
                f"checkpoint has format {found['format']}, this version reads {FORMAT}: {file}; "
                f"{remedy}"
            )
        try:
            objective = Objective(**found["objective"])
        except InputError as error:
            raise InputError(f"checkpoint is damaged, {error}: {file}; {RETRAIN}") from error
        return _policy(found, objective, tensors)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"checkpoint is damaged, weights and description do not fit: {file}; {RETRAIN}"
        ) from error


def _policy(found: dict[str, Any], objective: Objective, tensors: dict[str, Array]) -> Policy:
    origin = Origin(
        models=tuple(found["models"]),
        rate=tuple(
            (float(tokens_in), float(tokens_out)) for tokens_in, tokens_out in found["rate"]
        ),
        config=CONFIG_CLASSES[found["algo"]](**found["config"]),
        **{name: found[name] for name in AS_WRITTEN},
        second=float(found.get("second", 0.0)),
    )
    shape = RouterShape(**found["shape"]) if "shape" in found else None
    _check_fit(origin, objective, shape)
    if shape is None:
        model = _value_model(found, origin, objective, tensors)
        if "alphas" in found:
            grid = tuple(map(float, found["alphas"]))
            if not grid or not all(0 <= alpha < np.inf for alpha in grid):
                raise ValueError(f"alphas {grid}")
            constants = [_constant(one, origin) for one in found["constants"]]
            if constants and len(constants) != len(grid):
                raise ValueError(f"{len(constants)} constants")
            return TrainedSweep(model, grid, objective, origin, tuple(constants))
        router: TrainedNetwork | ValueRouter = ValueRouter(model, objective.alpha)
    else:
        router = TrainedNetwork(shape, tensors)
    budget = found.get("budget")  # None where alpha was given, and in files of before
    if budget is not None and not 0 < budget < np.inf:
        raise ValueError(f"budget {budget}")
    history = tuple(map(float, found["history"]))
    constant = _constant(found.get("constant"), origin)
    return TrainedRouter(router, objective, origin, history, budget, constant)


def _value_model(
    found: dict[str, Any], origin: Origin, objective: Objective, tensors: dict[str, Array]
) -> ValueModel:
    for name, value in tensors.items():
        if (name.rpartition(".")[2] in WHOLE) != (value.dtype == np.int64):
            raise TypeError(f"{name} of {value.dtype}")
    actions = Actions(origin.routes, objective.allow_stop, objective.allow_return)

    def part(kind: type[Part], name: str) -> Part:
        return kind(**{one.name: tensors[f"{name}.{one.name}"] for one in fields(kind)})

    return ValueModel(
        actions=actions,
        knots=tuple(map(float, found["knots"])),
        rate=origin.rate,
        fingerprint=origin.fingerprint,
        texts=tuple(part(TextProjection, f"text{number}") for number in range(found["texts"])),
        numbers=tensors["numbers"],
        positions=tuple(
            part(StateRegression, f"state{number}") for number in range(actions.states)
        ),
        learned=tensors["learned"],
    )


def _constant(found: dict[str, Any] | None, origin: Origin) -> Constant | None:
    if found is None:
        return None
    constant = Constant(**found)
    figures = constant.gain, constant.low, constant.high
    whole = isinstance(constant.node, int) and isinstance(constant.needed, int)
    if not whole or not 0 < constant.node < origin.routes.nodes or not np.isfinite(figures).all():
        raise ValueError(f"no constant choice: {found}")
    return constant


def _check_fit(origin: Origin, objective: Objective, shape: RouterShape | None) -> None:
    """The parts of a description agree with each other."""
    if origin.hops * math.log(len(origin.models) + 1) >= math.log(MAX_NODES):
        raise ValueError("more nodes than can be counted")
    actions = Actions(origin.routes, objective.allow_stop, objective.allow_return)
    texts = (*origin.models, origin.encoder, origin.view, origin.fingerprint, origin.version)
    fits = [
        all(isinstance(text, str) for text in texts),
        isinstance(origin.seed, int) and isinstance(origin.hops, int),
        len(origin.rate) == len(origin.models),
        actions.states * actions.count <= MAX_NUMBERS,
        all(0 <= rate < np.inf for pair in (*origin.rate, (origin.second,)) for rate in pair),
    ]
    if shape:
        fits += [
            isinstance(shape.actions, int) and shape.actions == actions.count,
            0 < shape.cost_scale < np.inf and 0 < shape.embedding_scale < np.inf,
            (shape.models, shape.hops) == (len(origin.models), actions.steps),
            0 <= shape.numbers <= shape.dim and shape.hidden > 0 and shape.stage_dim >= 0,
        ]
    if not all(fits):
        raise ValueError("the parts of the description do not fit")


def member_folder(run: Path, seed: int) -> Path:
    """Where the checkpoint of a seed lies in the folder of a sweep."""
    return run / f"seed-{seed}"


def load_sweep(run: Path) -> TrainedSweep:
    """A finished sweep.

    Raises InputError: there is no finished sweep in `run`, or its checkpoint is missing or damaged.
    """
    record = folders.read_record(run)
    if record is None or not record.is_finished or record.command != "sweep-alpha":
        raise InputError(f"no finished sweep: {run}; run `hierrouter sweep-alpha` first")
    try:
        (seed,) = map(int, record.result["seeds"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{folders.RECORD} of a sweep is damaged: {run}; sweep again") from error
    found = load_checkpoint(member_folder(run, seed))
    if not isinstance(found, TrainedSweep):
        raise InputError(f"the sweep's checkpoint is for one alpha: {run}; sweep again")
    return found


def training_named(
    origin: Origin, objective: Objective, alphas: tuple[float, ...] = ()
) -> dict[str, Any]:
    """What is being trained, as JSON values: what is there is taken only for itself."""
    return {
        "algo": origin.config.algo,
        "alphas": list(alphas),
        "config": asdict(origin.config),
        "encoder": origin.encoder,
        "fingerprint": origin.fingerprint,
        "format": TRAINING_FORMAT,
        "objective": objective.as_object(),
        "seed": origin.seed,
        "view": origin.view,
    }


def finished(folder: Path, named: dict[str, Any]) -> Policy | None:
    """The checkpoint in `folder` where it is of this very training, else None.

    Raises InputError: the checkpoint is damaged.
    """
    if not (folder / folders.WEIGHTS).is_file():
        return None
    found = load_checkpoint(folder)
    alphas = found.alphas if isinstance(found, TrainedSweep) else ()
    same = training_named(found.origin, found.objective, alphas) == named
    return found if same else None


def write_tensors(file: Path, tensors: Mapping[str, Array], text: str) -> None:
    """Replace `file`; the same tensors and text give the same bytes.

    Raises WorldError: the disk is full or failed; the old file is untouched then.
    """
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    write_atomically(file, save(whole, metadata={HEADER: _digest(whole, text) + text}))


def _digest(tensors: Mapping[str, Array], text: str) -> str:
    """SHA-256 over the text and each tensor's name, dtype, shape and bytes."""
    found = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        found.update(f"{name} torch.{value.dtype} {tuple(value.shape)}\n".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def read_tensors(file: Path) -> tuple[dict[str, Array], str]:
    """The tensors of a file that `write_tensors` wrote, and the text in its header.

    Raises InputError: there is none, it is something else, or it was altered.
    """
    _check_start(file)
    try:
        with safe_open(file, framework="np") as opened:
            held = (opened.metadata() or {}).get(HEADER)
            shapes = (opened.get_slice(name).get_shape() for name in opened.keys())  # noqa: SIM118
            if sum(map(prod, shapes)) > MAX_NUMBERS:
                raise InputError(f"checkpoint has more numbers than any router: {file}; {RETRAIN}")
            if any(opened.get_slice(name).get_dtype() not in TYPES for name in opened.keys()):  # noqa: SIM118
                raise InputError(
                    f"checkpoint has weights of a type that no router has: {file}; {RETRAIN}"
                )
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"checkpoint is truncated, damaged or not a safetensors file: {file}; {RETRAIN}"
        ) from error
    if held is None:
        raise InputError(f"checkpoint was not written by hierrouter: {file}; {RETRAIN}")
    digest, text = held[:HEX], held[HEX:]
    if digest != _digest(tensors, text):
        raise InputError(
            f"checkpoint is damaged, or of an earlier version: {file}: checksum mismatch; {RETRAIN}"
        )
    return tensors, text


def _check_start(file: Path) -> None:
    """Name the usual wrong files for what they are."""
    try:
        with open_plain(file) as stream:
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

"""Save and load what training has made: a router, or the routers of a sweep.

A checkpoint is a safetensors file: its tensors are the weights, and its header has a checksum and a
description of the policy in JSON. The keys of the description are the names of the attributes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hierrouter.evaluation.budget import RouteHull
from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import NetworkConfig, Objective, config_class
from hierrouter.learning.forward import NetworkGrid, NetworkRouter, RouterShape, TrainedNetwork
from hierrouter.learning.policy_classes import MeanModel, RouteTable, TableGrid, TableRouter
from hierrouter.learning.resumption import prefix, select
from hierrouter.learning.router import (
    Constant,
    Ladder,
    LearnedPolicy,
    Origin,
    PolicyFamily,
    TrainedRouter,
    requested_config,
)
from hierrouter.learning.sweep import FixedChoices, Policy, TrainedSweep
from hierrouter.learning.value import ValueModel
from hierrouter.runs import folders
from hierrouter_cache.errors import InputError, open_plain
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.writer import write_atomically

Array = NDArray[Any]
CHECKPOINT_FORMAT = 7
TRAINING_FORMAT = 4  # of `training_identity`
# Key in the header of a safetensors file, of checksum and description. They share one key, because
# the order in which safetensors writes several keys is not fixed.
HEADER_KEY = "hierrouter"
MAX_NUMBERS = 1 << 28  # in a file: the paper's network has 2 million, a value model the most
MAX_TREE_NODES = 1 << 25
CHECKSUM_LENGTH = 64  # characters of a SHA-256 in hexadecimal
LFS_POINTER = b"version https://git-lfs"
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch's zip around one
# Attributes of an origin that are in the description as they are.
PLAIN_ORIGIN_KEYS = ("hops", "encoder", "view", "seed", "fingerprint", "version")
SEED_FOLDER = "seed-"  # begins the names of the folders within that of a sweep
RETRAIN_REMEDY = "train again"
TENSOR_TYPES = ("F32", "F64", "I64")  # as safetensors calls them
STATISTICS = "statistics"  # group of the columns of a router's history, the only float64 tensors
STATISTIC_NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


def save_checkpoint(policy: Policy, folder: Path) -> None:
    """Write a policy into a folder, replacing the one that is there.

    Args:
        policy: a router, or a sweep.
        folder: made if it does not exist.

    Raises:
        WorldError: the disk is full or failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(describe(policy), sort_keys=True, allow_nan=False)
    write_tensors(folder / folders.WEIGHTS, tensors_of(policy), text)


def load_checkpoint(path: Path) -> Policy:
    """Read a checkpoint.

    Args:
        path: the folder, or its `policy.safetensors` under any name.

    Raises:
        InputError: there is none, it is truncated or no safetensors file, `save_checkpoint` did not
            write it or has another format now, its checksum or that in the record of its run does
            not match, or its weights are not finite.
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
    weights = [tensor for name, tensor in tensors.items() if not _is_statistic(name)]
    if not all(np.isfinite(tensor).all() for tensor in weights):
        raise InputError(
            f"checkpoint has weights that are not finite (NaN): {file}; {RETRAIN_REMEDY}"
        )
    return rebuild(text, tensors, file)


def router_at(path: Path, alpha: float | None) -> TrainedRouter:
    """Load the router in a checkpoint.

    Args:
        path: see `load_checkpoint`.
        alpha: which router of a sweep; None is the one for the smallest alpha of its grid. The
            checkpoint of a single router ignores it.

    Raises:
        InputError: see `load_checkpoint`.
    """
    return load_checkpoint(path).for_alpha(alpha)


def is_sweep(path: Path) -> bool:
    """Return whether a folder is that of a run of `sweep-alpha`.

    Raises:
        InputError: its record is damaged.
    """
    record = folders.read_record(path)
    return record is not None and record.command == "sweep-alpha"


def policy_record(policy: Policy) -> dict[str, Any]:
    """Return the facts about a policy for the record of its run, as JSON values."""
    origin = policy.origin
    facts: dict[str, Any] = {
        "algo": origin.config.algo,
        "encoder": origin.encoder,
        "fingerprint": origin.fingerprint,
        "objective": policy.objective.as_object(),
        "view": origin.view,
    }
    if origin.second:  # the records of runs without a price of time have no such key
        facts["second"] = origin.second
    return facts


def describe(policy: Policy) -> dict[str, Any]:
    """Return everything about a policy except its tensors, as JSON values."""
    origin = policy.origin
    description: dict[str, Any] = {
        **asdict(replace(origin, routes=None)),
        "format": CHECKPOINT_FORMAT,
        "models": list(origin.models),
        "rate": [list(prices) for prices in origin.rate],
        "algo": origin.config.algo,
        "objective": policy.objective.as_object(),
    }
    if not origin.second:  # checkpoints without a price of time have no such key
        del description["second"]
    del description["routes"]
    if origin.routes:  # those of the paper's tree follow from models and hops
        description["layout"] = origin.routes.as_object()
    if policy.ladder:  # of the best of several policy classes
        description["ladder"] = [list(entry) for entry in policy.ladder]
    if isinstance(policy, TrainedSweep):
        description.update(policy.model.as_object())
        description["constants"] = [_constant_values(constant) for constant in policy.constants]
        if policy.fixed:
            description["fixed"] = {
                "hull": asdict(policy.fixed.hull),
                "alphas": list(policy.fixed.alphas),
                "constants": [_constant_values(constant) for constant in policy.fixed.constants],
            }
        description["alphas"] = policy.alphas
        return description
    description["history"] = list(policy.history)
    if policy.budget is not None:
        description["budget"] = policy.budget
    if policy.constant:
        description["constant"] = _constant_values(policy.constant)
    description.update(policy.router.as_object())
    return description


def _constant_values(constant: Constant | None) -> dict[str, Any] | None:
    """Return a constant choice as JSON values."""
    if constant is None:
        return None
    values = asdict(constant)
    if constant.alpha is None:  # files of versions that measured at each alpha have no such key
        del values["alpha"]
    if not constant.others:  # all queries offer the route
        del values["others"]
    if not constant.cross_fitted:  # files of versions that judged on one fold have no such key
        del values["cross_fitted"]
    return values


def tensors_of(policy: Policy) -> dict[str, Array]:
    """Return the weights of a policy by name, and the statistics of its history."""
    if isinstance(policy, TrainedSweep):
        return policy.model.tensors()
    statistics = {name: np.array(column) for name, column in policy.statistics.items()}
    return {**policy.router.tensors(), **prefix(STATISTICS, statistics)}


def _is_statistic(name: str) -> bool:
    """Return whether a tensor of this name belongs to the history, and not to the weights."""
    return name.startswith(f"{STATISTICS}.")


def rebuild(text: str, tensors: dict[str, Array], file: Path) -> Policy:
    """Make a policy from its description and its tensors.

    Args:
        text: the description, as JSON; see `describe`.
        tensors: the weights; see `tensors_of`.
        file: that they come from, for messages.

    Raises:
        InputError: another format, or parts that are missing, impossible or do not fit together.
    """
    try:
        description = folders.parse_json(text.encode())
        _require_format(description["format"], file)
        try:
            objective = Objective(**description["objective"])
        except InputError as error:
            raise InputError(f"checkpoint is damaged, {error}: {file}; {RETRAIN_REMEDY}") from error
        return _policy(description, objective, tensors)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"checkpoint is damaged, weights and description do not fit: {file}; {RETRAIN_REMEDY}"
        ) from error


def _require_format(number: Any, file: Path) -> None:
    """Require the format that this version reads.

    Raises:
        InputError: it is older or newer.
        TypeError: it is no number.
    """
    if not isinstance(number, int):
        raise TypeError(f"format {number}")
    if number != CHECKPOINT_FORMAT:
        remedy = RETRAIN_REMEDY if number < CHECKPOINT_FORMAT else "upgrade hierrouter"
        raise InputError(
            f"checkpoint has format {number}, this version reads {CHECKPOINT_FORMAT}: {file}; "
            f"{remedy}"
        )


def _policy(description: dict[str, Any], objective: Objective, tensors: dict[str, Array]) -> Policy:
    """Make a policy from its description as JSON values; any error means that it is damaged."""
    origin = Origin(
        models=tuple(description["models"]),
        rate=tuple(tuple(map(float, prices)) for prices in description["rate"]),
        config=config_class(description["algo"])(**description["config"]),
        **{key: description[key] for key in PLAIN_ORIGIN_KEYS},
        second=float(description.get("second", 0.0)),
        routes=_routes(description.get("layout"), len(description["models"])),
    )
    if origin.config.algo != description["algo"]:
        raise ValueError(f"settings of {origin.config.algo}")
    shape = RouterShape.from_object(description["shape"]) if "shape" in description else None
    _check_fit(origin, objective, shape)
    if "alphas" in description:
        return _sweep(description, origin, objective, shape, tensors)
    weights = {name: tensor for name, tensor in tensors.items() if not _is_statistic(name)}
    actions = objective.actions(origin.layout)
    router: LearnedPolicy
    if "table" in description:
        table = RouteTable.from_object(description["table"], weights, actions, origin)
        router = TableRouter(table)
    elif shape is not None:
        router = NetworkRouter(TrainedNetwork(shape, weights), actions)
    else:
        family = _family(description, origin, actions, None, weights, 1)
        router = family.at(objective.alpha, (objective.alpha,), actions)
    budget = description.get("budget")  # None if alpha was given, and in older files
    if budget is not None and not 0 < budget < np.inf:
        raise ValueError(f"budget {budget}")
    history = tuple(map(float, description["history"]))
    constant = _constant(description.get("constant"), origin)
    statistics = _statistics(tensors, len(history))
    ladder = _ladder(description.get("ladder", []))
    return TrainedRouter(router, objective, origin, history, budget, constant, statistics, ladder)


def _ladder(values: list[Any]) -> Ladder:
    """Return the ladder of a description; empty if it has none, as those of earlier versions."""
    ladder = tuple((config_class(name).learner, float(gain)) for name, gain in values)
    if not np.isfinite([gain for _, gain in ladder]).all():
        raise ValueError(f"ladder {ladder}")
    return ladder


def _routes(values: dict[str, Any] | None, actions: int) -> Layout | None:
    """Return the layout of a description; None if it has none.

    Raises:
        ValueError, TypeError, KeyError: it is none, or has other actions.
    """
    if values is None:
        return None
    layout = Layout.from_object(values)
    is_sound = layout.call_actions == actions and layout.action[1:].min() >= 0
    # The stop of a log is its own; other offers to end are those of the objective.
    has_own_offers = layout.give_backs in ((), (NEWEST,))
    if not is_sound or layout.action.max() >= actions or not has_own_offers:
        raise ValueError("routes of other actions")
    return layout


def _statistics(tensors: dict[str, Array], evaluations: int) -> dict[str, tuple[float, ...]]:
    """Return the columns of a history, each with a number for each evaluation."""
    columns = {}
    for name, tensor in select(tensors, STATISTICS).items():
        is_name = STATISTIC_NAME.fullmatch(name) and name not in ("epoch", "validation")
        if not is_name or tensor.shape != (evaluations,) or tensor.dtype != np.float64:
            raise ValueError(f"statistics {name} of {tensor.shape}")
        columns[name] = tuple(tensor.tolist())
    return columns


def _sweep(
    description: dict[str, Any],
    origin: Origin,
    objective: Objective,
    shape: RouterShape | None,
    tensors: dict[str, Array],
) -> TrainedSweep:
    grid = tuple(map(float, description["alphas"]))
    if not grid or not all(0 <= alpha < np.inf for alpha in grid):
        raise ValueError(f"alphas {grid}")
    family = _family(
        description, origin, objective.actions(origin.layout), shape, tensors, len(grid)
    )
    constants = [_constant(constant, origin) for constant in description["constants"]]
    if constants and len(constants) != len(grid):
        raise ValueError(f"{len(constants)} constants")
    fixed = _fixed_choices(description.get("fixed"), grid, origin)
    ladder = _ladder(description.get("ladder", []))
    return TrainedSweep(family, grid, objective, origin, tuple(constants), fixed, ladder)


def _family(
    description: dict[str, Any],
    origin: Origin,
    actions: Actions,
    shape: RouterShape | None,
    tensors: dict[str, Array],
    count: int,
) -> PolicyFamily:
    """Make the policies of several alphas.

    Args:
        description: of the policy.
        origin: of the description.
        actions: what may be chosen.
        shape: of networks; None of other policies.
        tensors: the weights.
        count: number of alphas of the grid.
    """
    if shape is not None:
        return NetworkGrid.from_object(description, shape, tensors, count)
    if "tables" in description:
        return TableGrid.from_object(description["tables"], tensors, actions, origin, count)
    if "mean" in description:
        return MeanModel.from_object(description["mean"], tensors, actions, origin, count)
    return ValueModel.from_object(description, tensors, actions, origin)


def _fixed_choices(
    values: dict[str, Any] | None, grid: tuple[float, ...], origin: Origin
) -> FixedChoices | None:
    """Make fixed choices from their JSON values; None of files of versions that had none."""
    if values is None:
        return None
    hull = RouteHull(
        node=tuple(values["hull"]["node"]),
        quality=tuple(map(float, values["hull"]["quality"])),
        cost=tuple(map(float, values["hull"]["cost"])),
    )
    alphas = tuple(map(float, values["alphas"]))
    constants = tuple(_constant(constant, origin) for constant in values["constants"])
    numbers = (*hull.quality, *hull.cost, *alphas)
    fits = [
        len({len(hull.node), len(hull.quality), len(hull.cost)}) == 1 and len(hull.node) > 0,
        all(isinstance(node, int) and 0 < node < origin.layout.nodes for node in hull.node),
        len(constants) == len(alphas) and {*grid} <= {*alphas},
        all(low < high for low, high in pairwise(alphas)),
        bool(np.isfinite(numbers).all()) and alphas[0] >= 0,
    ]
    if not all(fits):
        raise ValueError(f"fixed choices {values}")
    return FixedChoices(hull, alphas, constants)


def _constant(values: dict[str, Any] | None, origin: Origin) -> Constant | None:
    """Make a constant choice from its JSON values; None stays None."""
    if values is None:
        return None
    constant = Constant(**{**values, "others": tuple(values.get("others", ()))})
    counts = (constant.node, constant.needed, constant.judged, *constant.others)
    has_integers = all(isinstance(count, int) for count in counts)
    figures = (constant.gain, constant.low, constant.high, constant.alpha or 0.0)
    if (
        not has_integers
        or not all(0 < node < origin.layout.nodes for node in (constant.node, *constant.others))
        or not np.isfinite(figures).all()
        or not isinstance(constant.cross_fitted, bool)
    ):
        raise ValueError(f"no constant choice: {values}")
    return constant


def _check_fit(origin: Origin, objective: Objective, shape: RouterShape | None) -> None:
    """Require that the parts of a description agree with each other.

    Raises:
        ValueError: they do not.
    """
    is_full = origin.routes is None
    if is_full and origin.hops * math.log(len(origin.models) + 1) >= math.log(MAX_TREE_NODES):
        raise ValueError("more nodes than can be counted")
    if origin.hops != origin.layout.hops:
        raise ValueError("other hops than those of the routes")
    actions = objective.actions(origin.layout)
    texts = (*origin.models, origin.encoder, origin.view, origin.fingerprint, origin.version)
    fits = [
        all(isinstance(text, str) for text in texts),
        isinstance(origin.seed, int) and isinstance(origin.hops, int),
        len(origin.rate) == len(origin.models) == origin.layout.call_actions,
        origin.hops == origin.layout.hops,
        actions.states * actions.count <= MAX_NUMBERS,
        # Two prices of each model, or five, see `hierrouter_cache.tree.rate_table`.
        {len(prices) for prices in origin.rate} in ({2}, {5}),
        all(0 <= rate < np.inf for prices in (*origin.rate, (origin.second,)) for rate in prices),
    ]
    if isinstance(origin.config, NetworkConfig):
        turns = (origin.config.epochs, origin.config.evaluate_every)
        fits += [isinstance(turn, int) and turn > 0 for turn in turns]
    if shape:
        fits += [
            isinstance(shape.actions, int) and shape.actions == actions.count,
            0 < shape.cost_scale < np.inf and 0 < shape.embedding_scale < np.inf,
            (shape.models, shape.hops) == (len(origin.models), actions.steps),
            shape.layout == (None if is_full else actions.layout),
            0 <= shape.numbers <= shape.dim and shape.hidden > 0 and shape.stage_dim >= 0,
        ]
    if not all(fits):
        raise ValueError("the parts of the description do not fit")


def member_folder(run: Path, seed: int) -> Path:
    """Return the folder of the checkpoint of a seed, within the folder of a sweep."""
    return run / f"{SEED_FOLDER}{seed}"


def load_sweep(run: Path) -> TrainedSweep:
    """Load a finished sweep; of several seeds the one that is best on validation.

    Args:
        run: folder of the sweep.

    Raises:
        InputError: there is no finished sweep, or its checkpoint is missing or damaged.
    """
    return _load_member(run, sweep_seeds(run)[0])


def load_seeds(run: Path) -> tuple[TrainedSweep, ...]:
    """Load the sweep of every seed of a finished run, the one that is best on validation first.

    Args:
        run: folder of the sweep.

    Raises:
        InputError: see `load_sweep`.
    """
    return tuple(_load_member(run, seed) for seed in sweep_seeds(run))


def sweep_seeds(run: Path) -> tuple[int, ...]:
    """Return the seeds of a finished sweep, the one that is best on validation first.

    Args:
        run: folder of the sweep.

    Raises:
        InputError: there is no finished sweep, or its record is damaged.
    """
    record = folders.read_record(run)
    if record is None or not record.is_finished or record.command != "sweep-alpha":
        raise InputError(f"no finished sweep: {run}; run `hierrouter sweep-alpha` first")
    try:
        seeds = tuple(map(int, record.result["seeds"]))
        if not seeds or len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds {seeds}")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{folders.RECORD} of a sweep is damaged: {run}; sweep again") from error
    return seeds


def _load_member(run: Path, seed: int) -> TrainedSweep:
    policy = load_checkpoint(member_folder(run, seed))
    if not isinstance(policy, TrainedSweep):
        raise InputError(f"the sweep's checkpoint is for one alpha: {run}; sweep again")
    return policy


def training_identity(
    origin: Origin, objective: Objective, alphas: tuple[float, ...] = ()
) -> dict[str, Any]:
    """Return what tells a training from all others, as JSON values.

    A policy in a folder is used again only if its training has the same identity.

    Args:
        origin: what the policy learns from, and how.
        objective: what it is trained for.
        alphas: the grid of a sweep; empty for a single router.
    """
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


def load_finished(folder: Path, identity: dict[str, Any]) -> Policy | None:
    """Load the checkpoint in a folder, if it comes from a certain training.

    Args:
        folder: perhaps with a checkpoint.
        identity: of the training, see `training_identity`.

    Returns:
        The policy; None if there is none, or it comes from another training.

    Raises:
        InputError: the checkpoint is damaged.
    """
    if not (folder / folders.WEIGHTS).is_file():
        return None
    policy = load_checkpoint(folder)
    alphas = policy.alphas if isinstance(policy, TrainedSweep) else ()
    config = requested_config(policy.origin.config, policy.ladder)
    origin = replace(policy.origin, config=config)
    if training_identity(origin, policy.objective, alphas) != identity:
        return None
    return policy


def write_tensors(file: Path, tensors: Mapping[str, Array], text: str) -> None:
    """Write tensors and a text into a safetensors file; equal ones give equal bytes.

    Args:
        file: is replaced.
        tensors: by name.
        text: for the header.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header = {HEADER_KEY: _digest(contiguous, text) + text}
    write_atomically(file, save(contiguous, metadata=header))


def _digest(tensors: Mapping[str, Array], text: str) -> str:
    """Return the SHA-256 over the text and each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        # "torch." because the first checkpoints were digested as tensors of torch.
        digest.update(f"{name} torch.{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def read_tensors(file: Path) -> tuple[dict[str, Array], str]:
    """Read a file that `write_tensors` wrote.

    Returns:
        (tensors by name, the text in the header).

    Raises:
        InputError: there is none, it is something else, or it was altered.
    """
    _check_start(file)
    try:
        with safe_open(file, framework="np") as opened:
            header = (opened.metadata() or {}).get(HEADER_KEY)
            shapes = (opened.get_slice(name).get_shape() for name in opened.keys())  # noqa: SIM118
            if sum(map(prod, shapes)) > MAX_NUMBERS:
                raise InputError(
                    f"checkpoint has more numbers than any router: {file}; {RETRAIN_REMEDY}"
                )
            types = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
            if not types <= set(TENSOR_TYPES):
                raise InputError(
                    f"checkpoint has weights of a type that no router has: {file}; {RETRAIN_REMEDY}"
                )
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"checkpoint is truncated, damaged or not a safetensors file: {file}; {RETRAIN_REMEDY}"
        ) from error
    if header is None:
        raise InputError(f"checkpoint was not written by hierrouter: {file}; {RETRAIN_REMEDY}")
    digest = header[:CHECKSUM_LENGTH]
    text = header[CHECKSUM_LENGTH:]
    if digest != _digest(tensors, text):
        raise InputError(
            f"checkpoint is damaged, or of an earlier version: {file}: checksum mismatch; "
            f"{RETRAIN_REMEDY}"
        )
    return tensors, text


def _check_start(file: Path) -> None:
    """Refuse files that are often taken for a checkpoint, with what they are.

    Raises:
        InputError: there is no file, or it is a git-lfs pointer or a pickle.
    """
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

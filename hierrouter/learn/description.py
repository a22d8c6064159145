"""A trained policy as JSON values and tensors, and back.

In: a `TrainedRouter` or a `TrainedSweep`. Out: `describe` and `tensors_of`, which hold no time and
no path: same training, same values. `rebuild` makes the policy of them again and refuses what does
not fit together. Not covered: files, see `checkpoint`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hierrouter.actions import Actions
from hierrouter.evaluate.ceilings import Ceilings
from hierrouter.learn.alpha_router import SCALES, AlphaRouter, Policy, TrainedSweep
from hierrouter.learn.config import ALGORITHMS
from hierrouter.learn.objective import Objective
from hierrouter.learn.origin import Origin
from hierrouter.learn.router import Router, RouterShape
from hierrouter.learn.tensor_file import RETRAIN
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError

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

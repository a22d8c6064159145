"""What a person wants to know of a pool before using it.

In: a pool. Out: for each model its size, price, window and whether its files are on this machine.
Nothing is loaded and no network is asked. Not covered: whether the files are sound; loading says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierrouter.collect.backends.weights import weight_files
from hierrouter.collect.identity import local_folder
from hierrouter.endpoint import OPENAI
from hierrouter.pool import ModelSpec, Pool
from hierrouter.pricing import size_in

HERE, PARTLY, ABSENT, SERVED = "here", "in part", "not here", "served"
NO_URL = "no base_url"
WINDOWS = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True)
class Listed:
    """One model of a pool.

    Attributes:
        name, model: as in the pool.
        role: "model" or "reference".
        parameters: how many it has; None where neither the pool nor a name tells.
        rate_in, rate_out: cost per token.
        price_source: who says so.
        max_new_tokens: where a response is cut.
        window: tokens of prompt and response together; None where its files are not here.
        weights: "here", "in part", "not here", "served" by an endpoint, or "no base_url" for one.
    """

    name: str
    role: str
    model: str
    parameters: float | None
    rate_in: float
    rate_out: float
    price_source: str
    max_new_tokens: int
    window: int | None
    weights: str


def listed(pool: Pool) -> list[Listed]:
    """Every model of the pool, then its references.

    Raises:
        InputError: a local folder that is not there or holds no model.
    """
    roles = {"model": pool.models, "reference": pool.references}
    return [_listed(model, role) for role, models in roles.items() for model in models]


def _listed(model: ModelSpec, role: str) -> Listed:
    price = model.price()
    served = model.backend == OPENAI
    folder = None if served else _saved(model)
    return Listed(
        name=model.name,
        role=role,
        model=model.model,
        parameters=model.parameters or size_in(model.name) or size_in(Path(model.model).name),
        rate_in=price.rate.tokens_in,
        rate_out=price.rate.tokens_out,
        price_source=price.source,
        max_new_tokens=model.generation.max_new_tokens,
        window=_window(folder) if folder else None,
        weights=_served(model) if served else _weights(folder),
    )


def _served(model: ModelSpec) -> str:
    return SERVED if model.endpoint and model.endpoint.base_url else NO_URL


def _saved(model: ModelSpec) -> Path | None:
    """The folder with the model's files on this machine, or None."""
    if folder := local_folder(model):
        return folder
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(model.model, "config.json", revision=model.revision)
    except ValueError:  # not the form of a hub id
        return None
    return Path(config).parent if isinstance(config, str) else None


def _weights(folder: Path | None) -> str:
    if folder is None:
        return ABSENT
    files = weight_files(folder)
    return HERE if files and all(file.is_file() for file in files) else PARTLY


def _window(folder: Path) -> int | None:
    config = _read(folder / "config.json")
    text = config.get("text_config") or config
    return next((text[key] for key in WINDOWS if key in text), None)


def _read(path: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""A pool as a table: who is in it, at what price, and whether its weights are here."""

import json
from pathlib import Path
from typing import Any

from hierrouter.engines.identity import saved_folder, weight_files
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool, size_in
from hierrouter.tables import Column, Line, Table, short

HERE, PARTLY, ABSENT, SERVED = "here", "in part", "not here", "served"
NO_URL = "no base_url"
WINDOWS = ("max_position_embeddings", "n_positions")
POOL_COLUMNS = ("model", "parameters", "price", "max new", "window", "weights", "source")
UNKNOWN = "unknown"


def listed(model: ModelSpec) -> dict[str, Any]:
    """What a pool's file does not say of a model, or not in one place.

    Its size ("parameters"; None where neither the pool nor a name tells), its "window", tokens of
    prompt and response together (None where its files are not here), and its "weights": "here",
    "in part", "not here", "served" by an endpoint, or "no base_url" for one.

    Raises InputError: a local folder that is not there or holds no model.
    """
    if model.backend == OPENAI:
        folder = None
        weights = SERVED if model.endpoint and model.endpoint.base_url else NO_URL
    else:
        folder = saved_folder(model)
        weights = _weights(folder)
    return {
        "name": model.name,
        "parameters": model.parameters or size_in(model.name) or size_in(Path(model.model).name),
        "window": _window(folder) if folder else None,
        "weights": weights,
    }


def _weights(folder: Path | None) -> str:
    if folder is None:
        return ABSENT
    files = weight_files(folder)
    return HERE if files and all(file.is_file() for file in files) else PARTLY


def _window(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    text = config.get("text_config") or config
    return next((text[key] for key in WINDOWS if key in text), None)


def pool_table(name: str, pool: Pool, instructions: bool) -> Table:
    """A row a model, then the references; `instructions`: with what they are told at each hop."""
    told = [f"hop {hop + 1}: {pool.instruction(hop) or 'nothing'}" for hop in range(pool.hops)]
    count = "token" if pool.per_tokens in (None, 1) else f"{pool.per_tokens:,} tokens"
    return Table(
        title=f"{name}: {len(pool.models)} models, {pool.hops} hops; "
        f"prices in {pool.currency} per {count}",
        columns=tuple(Column(title) for title in POOL_COLUMNS),
        rows=(
            *(_row(model, "models") for model in pool.models),
            *(_row(model, "references") for model in pool.references),
        ),
        note="  ".join(told) if instructions else "",
    )


def _row(model: ModelSpec, group: str) -> Line:
    known, rate = listed(model), model.price().rate
    cells = (
        model.name,
        short(known["parameters"]).replace("G", "B") if known["parameters"] else UNKNOWN,
        "/".join(f"{price:g}" for price in dict.fromkeys((rate.tokens_in, rate.tokens_out))),
        model.generation.max_new_tokens,
        known["window"],
        known["weights"],
        model.model,
    )
    return Line(group, cells)

"""A pool as a table: its models, their prices, and whether their weights are on this machine."""

import json
from pathlib import Path
from typing import Any

from hierrouter.engines.identity import saved_folder, weight_files
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool, size_in_name
from hierrouter.tables import Column, Line, Table, short_number

# Where a model's weights are. The JSON of `hierrouter pools` holds these words.
WEIGHTS_PRESENT = "here"
WEIGHTS_PARTIAL = "in part"
WEIGHTS_ABSENT = "not here"
WEIGHTS_SERVED = "served"
WEIGHTS_WITHOUT_URL = "no base_url"
# Names that architectures give their context window in `config.json`.
WINDOW_KEYS = ("max_position_embeddings", "n_positions")
POOL_COLUMNS = ("model", "parameters", "price", "max new", "window", "weights", "source")
UNKNOWN_SIZE = "unknown"


def model_details(model: ModelSpec) -> dict[str, Any]:
    """Describe a model beyond what its pool file states.

    Args:
        model: a model of a pool.

    Returns:
        "name"; "parameters", the model's size, None if neither the pool nor a name states it;
        "window", tokens of prompt and response together, None if the model's files are not on this
        machine; and "weights": "here", "in part", "not here", "served" by an endpoint, or
        "no base_url" for an endpoint without an address.

    Raises:
        InputError: a local folder does not exist or holds no model.
    """
    if model.backend == OPENAI:
        folder = None
        has_url = model.endpoint is not None and bool(model.endpoint.base_url)
        weights = WEIGHTS_SERVED if has_url else WEIGHTS_WITHOUT_URL
    else:
        folder = saved_folder(model)
        weights = _weights(folder)
    return {
        "name": model.name,
        "parameters": model.parameters
        or size_in_name(model.name)
        or size_in_name(Path(model.model).name),
        "window": _window(folder) if folder else None,
        "weights": weights,
    }


def _weights(folder: Path | None) -> str:
    if folder is None:
        return WEIGHTS_ABSENT
    files = weight_files(folder)
    is_complete = bool(files) and all(file.is_file() for file in files)
    return WEIGHTS_PRESENT if is_complete else WEIGHTS_PARTIAL


def _window(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    # Models that also read images keep the language model's settings one level down.
    text_config = config.get("text_config") or config
    return next((text_config[key] for key in WINDOW_KEYS if key in text_config), None)


def pool_table(name: str, pool: Pool, instructions: bool) -> Table:
    """Make the table of a pool: a row for each model, then one for each reference model.

    Args:
        name: the pool's name, for the title.
        pool: the pool.
        instructions: whether a note lists the stage instruction of each hop.

    Returns:
        The table.

    Raises:
        InputError: a local folder does not exist or holds no model.
    """
    note = ""
    if instructions:
        hops = range(pool.hops)
        note = "  ".join(f"hop {hop + 1}: {pool.instruction(hop) or 'nothing'}" for hop in hops)
    count = "token" if pool.per_tokens in (None, 1) else f"{pool.per_tokens:,} tokens"
    return Table(
        title=f"{name}: {len(pool.models)} models, {pool.hops} hops; "
        f"prices in {pool.currency} per {count}",
        columns=tuple(Column(title) for title in POOL_COLUMNS),
        rows=(
            *(_row(model, "models") for model in pool.models),
            *(_row(model, "references") for model in pool.references),
        ),
        note=note,
    )


def _row(model: ModelSpec, group: str) -> Line:
    details = model_details(model)
    rate = model.price().rate
    size = UNKNOWN_SIZE
    if details["parameters"]:  # billions are "B" in the names of models
        size = short_number(details["parameters"]).replace("G", "B")
    # One price if tokens of prompt and response cost the same.
    prices = dict.fromkeys((rate.tokens_in, rate.tokens_out))
    cells = (
        model.name,
        size,
        "/".join(f"{price:g}" for price in prices),
        model.generation.max_new_tokens,
        details["window"],
        details["weights"],
        model.model,
    )
    return Line(group, cells)

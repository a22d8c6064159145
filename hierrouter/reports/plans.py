"""A pool, and what a collection will take, as tables."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hierrouter.collection.estimate import Amount, Estimate, StageEstimate
from hierrouter.engines.identity import saved_folder, weight_files
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool, size_in
from hierrouter.tables import Cell, Column, Line, Table

HERE, PARTLY, ABSENT, SERVED = "here", "in part", "not here", "served"
SOUND = (HERE, SERVED)  # of such a model nothing has to be fetched
NO_URL = "no base_url"
WINDOWS = ("max_position_embeddings", "n_positions")
POOL_COLUMNS = ("model", "parameters", "price", "max new", "window", "weights", "source")
ESTIMATE_COLUMNS = ("model", "there", "calls", "tokens in", "tokens out", "time", "cost", "disk")
UNKNOWN = "unknown"
THOUSANDS = ("", "k", "M", "G", "T")
DAYS, HOURS, MINUTES = 86_400, 3_600, 60

Show = Callable[[float], str]


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


def estimate_table(estimate: Estimate) -> Table:
    """A row a stage with something to tell, and two for all: as expected, and at most."""
    shown = [stage for stage in estimate.stages if stage.there or stage.calls.most]
    rows = [
        Line(level, (model, *_cells(stage, _expected)))
        for stage in shown
        for level, _, model in [stage.label.rpartition(" ")]
    ]
    total = estimate.total
    rows += [
        Line("all", ("expected", *_cells(total, _expected))),
        Line("all", ("at most", *_cells(total, _most))),
    ]
    return Table(
        title=f"{estimate.queries:,} queries: {estimate.nodes:,} nodes and {estimate.direct:,} "
        "direct calls, equal ones once",
        columns=tuple(Column(title) for title in ESTIMATE_COLUMNS),
        rows=tuple(rows),
        note="~ is expected from earlier calls, or 4 bytes a token; <= where nothing is; time is "
        f"that of earlier calls; cost is tokens times the pool's rates, in {estimate.currency}; "
        "embeddings come on top; at most holds where the models' tokenizers count alike",
    )


def estimate_object(estimate: Estimate) -> dict[str, Any]:
    """JSON values: counts, `stages` and `total`, each amount as {"expected", "most"}."""
    return {**asdict(estimate), "total": asdict(estimate.total)}


def _cells(stage: StageEstimate, show: Callable[[Amount, Show], str]) -> tuple[Cell, ...]:
    return (
        f"{stage.there:,}",
        show(stage.calls, whole),
        show(stage.tokens_in, short),
        show(stage.tokens_out, short),
        show(stage.seconds, duration),
        show(stage.cost, short),
        show(stage.disk, size),
    )


def _expected(amount: Amount, show: Show) -> str:
    if amount.is_exact:
        return show(amount.expected or 0)
    if amount.expected is not None:
        return f"~{show(amount.expected)}"
    return UNKNOWN if amount.most is None else f"<={show(amount.most)}"


def _most(amount: Amount, show: Show) -> str:
    return UNKNOWN if amount.most is None else show(amount.most)


def whole(number: float) -> str:
    """A count: 33,000."""
    return f"{number:,.0f}"


def short(number: float) -> str:
    """Three digits and a unit: 1.23M."""
    power = 0
    while number >= 999.5 and power < len(THOUSANDS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{THOUSANDS[power]}"


def size(count: float) -> str:
    """Bytes: 1.23 MB."""
    text = short(count)
    digits = text.rstrip("".join(THOUSANDS))
    return f"{digits} {text[len(digits) :]}B"


def duration(seconds: float) -> str:
    """The two largest units: 2 d 3 h, 3 h 5 min, 5 min, 12 s."""
    if seconds >= DAYS:
        return f"{seconds // DAYS:.0f} d {seconds % DAYS // HOURS:.0f} h"
    if seconds >= HOURS:
        return f"{seconds // HOURS:.0f} h {seconds % HOURS // MINUTES:.0f} min"
    return f"{seconds / MINUTES:.0f} min" if seconds >= 10 * MINUTES else f"{seconds:.0f} s"

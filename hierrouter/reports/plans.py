"""A pool, and what a collection will take, as tables."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hierrouter.collection.estimate import Amount, Estimate, StageEstimate
from hierrouter.engines.identity import saved_folder, weight_files
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool, size_in
from hierrouter.tables import Cell, Column, Line, Table

HERE, PARTLY, ABSENT, SERVED = "here", "in part", "not here", "served"
NO_URL = "no base_url"
WINDOWS = ("max_position_embeddings", "n_positions")
POOL_COLUMNS = ("model", "parameters", "price", "max new", "window", "weights", "source")
ESTIMATE_COLUMNS = ("model", "there", "calls", "tokens in", "tokens out", "time", "cost", "disk")
UNKNOWN = "unknown"
THOUSANDS = ("", "k", "M", "G", "T")
DAYS, HOURS, MINUTES = 86_400, 3_600, 60

Show = Callable[[float], str]


@dataclass(frozen=True)
class Listed:
    """One model of a pool.

    Attributes:
        name, model: as in the pool.
        role: "model" or "reference".
        parameters: how many it has; None where neither the pool nor a name tells.
        rate_in, rate_out: cost of the pool's `per_tokens` tokens.
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

    Raises InputError: a local folder that is not there or holds no model.
    """
    roles = {"model": pool.models, "reference": pool.references}
    return [_listed(model, role) for role, models in roles.items() for model in models]


def _listed(model: ModelSpec, role: str) -> Listed:
    price = model.price()
    if model.backend == OPENAI:
        folder = None
        weights = SERVED if model.endpoint and model.endpoint.base_url else NO_URL
    else:
        folder = saved_folder(model)
        weights = _weights(folder)
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
        weights=weights,
    )


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


def pool_table(name: str, pool: Pool, models: Sequence[Listed], instructions: bool) -> Table:
    """A row a model.

    Args:
        name: of the pool.
        pool: the pool.
        models: what is known of each, see `hierrouter.reports.plans.listed`.
        instructions: whether to say what the models are told at each hop.
    """
    told = [f"hop {hop + 1}: {pool.instruction(hop) or 'nothing'}" for hop in range(pool.hops)]
    count = "token" if pool.per_tokens in (None, 1) else f"{pool.per_tokens:,} tokens"
    return Table(
        title=f"{name}: {len(pool.models)} models, {pool.hops} hops; "
        f"prices in {pool.currency} per {count}",
        columns=tuple(Column(title) for title in POOL_COLUMNS),
        rows=tuple(_row(model) for model in models),
        note="  ".join(told) if instructions else "",
    )


def _row(model: Listed) -> Line:
    rates = dict.fromkeys((model.rate_in, model.rate_out))
    cells = (
        model.name,
        "unknown" if model.parameters is None else short(model.parameters).replace("G", "B"),
        "/".join(f"{rate:g}" for rate in rates),
        model.max_new_tokens,
        model.window,
        model.weights,
        model.model,
    )
    return Line(f"{model.role}s", cells)


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

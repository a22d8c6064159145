"""A pool as a table.

In: a pool and what is known of its models. Out: a `Table`. Not covered: how it looks (`render`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.pool import Pool
from hierrouter.pool_listing import Listed
from hierrouter.report.estimate import short
from hierrouter.report.table import Column, Line, Table

COLUMNS = ("model", "parameters", "price", "max new", "window", "weights", "source")


def pool_table(name: str, pool: Pool, models: Sequence[Listed], instructions: bool) -> Table:
    """A row a model.

    Args:
        name: of the pool.
        pool: the pool.
        models: what is known of each, see `hierrouter.pool_listing.listed`.
        instructions: whether to say what the models are told at each hop.
    """
    told = [f"hop {hop + 1}: {pool.instruction(hop) or 'nothing'}" for hop in range(pool.hops)]
    return Table(
        title=f"{name}: {len(pool.models)} models, {pool.hops} hops",
        columns=tuple(Column(title) for title in COLUMNS),
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

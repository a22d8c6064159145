"""What a collection will take, as a table and as JSON.

In: an `Estimate`. Out: a `Table`, or plain values for JSON. Not covered: how a table looks
(`render`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from hierrouter.collect.amounts import Amount
from hierrouter.collect.estimate import Estimate, StageEstimate
from hierrouter.report.table import Cell, Column, Line, Table

COLUMNS = ("model", "there", "calls", "tokens in", "tokens out", "time", "cost", "disk")
UNKNOWN = "unknown"
THOUSANDS = ("", "k", "M", "G", "T")
DAYS, HOURS, MINUTES = 86_400, 3_600, 60

Show = Callable[[float], str]


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
        columns=tuple(Column(title) for title in COLUMNS),
        rows=tuple(rows),
        note="~ is expected from earlier calls, or 4 bytes a token; <= where nothing is; time is "
        "that of earlier calls; cost is tokens times the pool's rates; embeddings come on top; "
        "at most holds where the models' tokenizers count alike",
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

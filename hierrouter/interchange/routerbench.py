"""RouterBench's wide frame: one row a query, three columns a model.

In: parquet or CSV with `sample_id`, `prompt`, `eval_name` and for each model `<model>` (its score),
`<model>|model_response` and `<model>|total_cost`. Out: `Answer`s; and back. The frame has costs in
US dollars and no token counts: `tokens_out` then holds the cost in units of `cost_unit`, mostly
nano-dollars, so that C is the frame's cost. It has no reference answers either: only its own scores
can be used. Not covered: its pickles.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from hierrouter.interchange.answers import Answer
from hierrouter.interchange.direct import DirectTable
from hierrouter.interchange.files import write_frame
from hierrouter.interchange.rows import MAX_TOKENS, Row, read_rows
from hierrouter.pool import Pool
from hierrouter.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate

RESPONSE, COST = "|model_response", "|total_cost"
NANO = -9
NOBODY = "no_model_correct"  # the frame's word for a query that no model answers
LOST = (
    "hops after the first",
    "reference answers",
    "token counts (their cost travels)",
    "folds",
    "latency",
)


def read_routerbench(path: Path) -> Iterator[Answer]:
    """The answers of a frame, row by row.

    Raises:
        InputError: no model's columns, or the first bad row.
    """
    unit = cost_unit(path)
    for row in read_rows(path):
        models = [name.removesuffix(RESPONSE) for name in row.values if name.endswith(RESPONSE)]
        if not models:
            raise InputError(
                f"no column ends in {RESPONSE}: {row.where}; it has {', '.join(row.values):.120}"
            )
        query = _query(row)
        for model in models:
            yield _answer(row, query, model, unit)


def cost_unit(path: Path) -> float:
    """What one unit of `tokens_out` costs: 1e-9, or the power of ten that fits the largest cost.

    Raises:
        InputError: the first bad row.
    """
    largest = max(
        (row.number(name) or 0 for row in read_rows(path) for name in row.values if COST in name),
        default=0,
    )
    exponent = NANO
    while largest / float(f"1e{exponent}") > MAX_TOKENS:
        exponent += 1
    return float(f"1e{exponent}")


def _query(row: Row) -> Query:
    return Query(
        id=row.label("sample_id"),
        dataset=row.label("eval_name"),
        question=_unlisted(row.words("prompt")),
        answers=(),
        split="",
    )


def _answer(row: Row, query: Query, model: str, unit: float) -> Answer:
    score, cost = row.share(model), row.number(model + COST)
    if score is None or cost is None or cost < 0:
        raise InputError(f"{model} needs a score and a cost >= 0: {row.where}")
    return Answer(
        where=row.where,
        query=query,
        path=(model,),
        prompt=query.question,
        response=_unlisted(row.text(model + RESPONSE)),
        tokens_in=0,
        tokens_out=round(cost / unit),
        score=score,
    )


def _unlisted(text: str) -> str:
    """The frame writes texts as a Python list of them; a text that is none stays as it is."""
    if not text.startswith("["):
        return text
    try:
        parts = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return text
    return "\n".join(parts)


def frame_prices(path: Path, pool: Pool, given: Mapping[str, Rate]) -> dict[str, Rate]:
    """The rates that make the cost of an imported call that of the frame.

    Raises:
        InputError: prices were given as well; they would be multiplied with no token counts.
    """
    if given:
        raise InputError("a routerbench frame has costs and no token counts: no --price")
    return dict.fromkeys((model.name for model in pool.models), Rate.base(cost_unit(path)))


def write_routerbench(table: DirectTable, out: Path) -> None:
    """The direct calls as a frame, .parquet or .csv by the end of the name.

    Raises:
        InputError: another kind of file.
        WorldError: the disk is full or failed.
    """
    queries, models = table.queries, table.models
    columns: dict[str, Sequence[object]] = {
        "sample_id": [query.id for query in queries],
        "prompt": [str([query.question]) for query in queries],
        "eval_name": [query.dataset for query in queries],
    }
    columns |= {name: table.score[:, place].tolist() for place, name in enumerate(models)}
    for place, name in enumerate(models):
        columns[name + RESPONSE] = [str([row[place]]) for row in table.responses]
    columns |= {name + COST: table.cost[:, place].tolist() for place, name in enumerate(models)}
    columns["oracle_model_to_route_to"] = _oracle(table)
    write_frame(pa.table(_arrays(columns)), out)


def _arrays(columns: Mapping[str, Sequence[object]]) -> dict[str, pa.Array]:
    return {name: pa.array(values) for name, values in columns.items()}


def _oracle(table: DirectTable) -> list[str]:
    """The cheapest of the best models of each query, where any scores above 0."""
    best = table.score.max(axis=1, keepdims=True)
    cheapest = np.where(table.score == best, table.cost, np.inf).argmin(axis=1)
    return [
        table.models[place] if top > 0 else NOBODY
        for place, top in zip(cheapest.tolist(), best[:, 0].tolist(), strict=True)
    ]

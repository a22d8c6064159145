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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from hierrouter.interchange.answers import Answer
from hierrouter.interchange.direct import DirectTable
from hierrouter.interchange.files import write_frame
from hierrouter.interchange.rows import MAX_TOKENS, Row, read_rows
from hierrouter.query import Query, storable
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate

PROMPT, RESPONSE, COST = "prompt", "|model_response", "|total_cost"
NANO = -9
NOBODY = "no_model_correct"  # the frame's word for a query that no model answers


@dataclass(frozen=True)
class Frame:
    """What must be known of all rows before one of them can be read.

    Attributes:
        unit: what one unit of `tokens_out` costs, see `cost_unit`.
        listed: columns in which every text is written as a Python list of texts.
    """

    unit: float
    listed: frozenset[str]


def read_routerbench(path: Path) -> tuple[Iterator[Answer], Rate]:
    """The answers of a frame, row by row, and the rate that makes C the frame's cost.

    Raises:
        InputError: no model's columns, or the first bad row; later ones when they are reached.
    """
    frame = _survey(path)
    return _answers(path, frame), Rate.base(frame.unit)


def _survey(path: Path) -> Frame:
    largest = 0.0
    plain: set[str] = set()
    texts: set[str] = set()
    for row in read_rows(path):
        for name, value in row.values.items():
            if name.endswith(COST):
                largest = max(largest, row.number(name) or 0)
            elif (name == PROMPT or name.endswith(RESPONSE)) and isinstance(value, str):
                texts.add(name)
                if _parts(value) is None:
                    plain.add(name)
    return Frame(cost_unit(largest), frozenset(texts - plain))


def cost_unit(largest: float) -> float:
    """1e-9, or the power of ten that fits the largest cost, in dollars."""
    exponent = NANO
    while largest / float(f"1e{exponent}") > MAX_TOKENS:
        exponent += 1
    return float(f"1e{exponent}")


def _answers(path: Path, frame: Frame) -> Iterator[Answer]:
    for row in read_rows(path):
        models = [name.removesuffix(RESPONSE) for name in row.values if name.endswith(RESPONSE)]
        if not models:
            raise InputError(
                f"no column ends in {RESPONSE}: {row.where}; it has {', '.join(row.values):.120}"
            )
        query = _query(row, frame)
        for model in models:
            yield _answer(row, query, model, frame)


def _query(row: Row, frame: Frame) -> Query:
    question = _text(row, PROMPT, frame)
    if not question.strip():
        raise InputError(f"{PROMPT} is blank: {row.where}; take the row out")
    return Query(
        id=row.label("sample_id"),
        dataset=row.label("eval_name"),
        question=question,
        answers=(),
        split="",
    )


def _answer(row: Row, query: Query, model: str, frame: Frame) -> Answer:
    score, cost = row.share(model), row.number(model + COST)
    if score is None or cost is None or cost < 0:
        raise InputError(f"{model} has no score or no cost >= 0: {row.where}; give both")
    return Answer(
        where=row.where,
        query=query,
        path=(model,),
        prompt=query.question,
        response=_text(row, model + RESPONSE, frame),
        tokens_in=0,
        tokens_out=round(cost / frame.unit),
        score=score,
    )


def _text(row: Row, name: str, frame: Frame) -> str:
    """The text of a column; the parts of a list stand one below the other."""
    text = row.text(name)
    return storable("\n".join(_parts(text) or ())) if name in frame.listed else text


def _parts(text: str) -> list[str] | None:
    """The texts in a Python list of them, as the frame writes it; None where it is none."""
    if not text.startswith("["):
        return None
    try:
        parts = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return None
    return parts


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

"""Tables with one answer of one model a row.

In: parquet, CSV or JSON lines with `COLUMNS` and any of `OPTIONAL`. Out: `Answer`s. Where
`answer` does not state its result, `final_answer` is a second reference. With `hop`, a row
continues its model's own chain, or that of `path`; without it all answers are independent. Not
covered: storing (`storing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hierrouter.interchange.answers import Answer
from hierrouter.interchange.rows import Row, read_rows
from hierrouter.pool import MAX_HOPS, suggestion
from hierrouter.query import Query
from hierrouter.scoring.accuracy import with_final
from hierrouter_cache.errors import InputError
from hierrouter_cache.routes import SEPARATOR
from hierrouter_cache.tree import SPLITS

COLUMNS = ("query_id", "question", "answer", "model", "response", "tokens_in", "tokens_out")
OPTIONAL = ("dataset", "final_answer", "prompt", "split", "score", "latency_s", "hop", "path")


def read_table(path: Path) -> Iterator[Answer]:
    """The answers of a table, row by row.

    Args:
        path: a .parquet, .csv or .jsonl file; the dataset is named by it where no column does.

    Raises:
        InputError: a column is missing, or the first bad row.
    """
    base = _first_hop(path)
    for row in read_rows(path):
        if missing := [name for name in COLUMNS if name not in row.values]:
            raise InputError(
                f"column {missing[0]} is missing: {row.where}; it has {', '.join(row.values)}"
            )
        yield _answer(row, path.stem, base)


def _first_hop(path: Path) -> int:
    """The number that a table gives to the first hop: 0 or 1."""
    hops = [row.count("hop") for row in read_rows(path) if row.values.get("hop") is not None]
    if hops and min(hops) > 1:
        raise InputError(f"hop must start at 0 or 1, got {min(hops)}: {path}")
    return min(hops, default=0)


def _answer(row: Row, dataset: str, base: int) -> Answer:
    question = row.words("question")
    return Answer(
        where=row.where,
        query=Query(
            id=row.label("query_id"),
            dataset=row.label("dataset", dataset),
            question=question,
            answers=_references(row),
            split=_split(row),
        ),
        path=_path(row, row.label("model"), base),
        prompt=row.text("prompt", question),
        response=row.text("response"),
        tokens_in=row.count("tokens_in"),
        tokens_out=row.count("tokens_out"),
        latency_s=row.number("latency_s"),
        score=row.share("score"),
    )


def _references(row: Row) -> tuple[str, ...]:
    answer = row.label("answer")
    return with_final((answer,), row.label("final_answer", answer))


def _split(row: Row) -> str:
    split = row.text("split", "")
    if split and split not in SPLITS:
        raise InputError(
            f"unknown split {split!r:.40}: {row.where}; {suggestion(split, SPLITS)}".rstrip("; ")
        )
    return split


def _path(row: Row, model: str, base: int) -> tuple[str, ...]:
    length = 1 if row.values.get("hop") is None else row.count("hop") - base + 1
    if length > MAX_HOPS:
        raise InputError(f"hop {length} is beyond the limit: {row.where}; {MAX_HOPS} hops at most")
    if row.values.get("path") is None:
        return (model,) * length
    path = tuple(name.strip() for name in row.words("path").split(SEPARATOR))
    if path[-1] != model or (row.values.get("hop") is not None and len(path) != length):
        raise InputError(
            f"path {'>'.join(path)} does not end at this model and hop: {row.where}; "
            "it lists the models called, the row's own last"
        )
    return path

"""LLMRouter's routing rows: one row a query and model.

In: a .jsonl file, or a folder with `*train*.jsonl` and `*test*.jsonl`. Out: `Answer`s; and back, as
such a folder with the query embeddings. `embedding_id` numbers the queries. Not covered: reading
its embeddings, which are a pickle: they are computed again from the questions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hierrouter.collect.datasets.shape import choice_lines
from hierrouter.interchange.answers import Answer
from hierrouter.interchange.direct import DirectTable
from hierrouter.interchange.files import whole_folder, write_json_lines
from hierrouter.interchange.rows import Row, read_rows
from hierrouter.query import Query, storable
from hierrouter_cache.atomic_files import atomic_file
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import digest

TRAIN, TEST = "routing_train_data.jsonl", "routing_test_data.jsonl"
EMBEDDINGS = "query_embeddings.pt"


def read_llmrouter(path: Path) -> Iterator[Answer]:
    """The answers of a file, or of a folder's train and test files.

    Raises:
        InputError: a folder without such files, or the first bad row.
    """
    if not path.is_dir():
        yield from _read(path, "")
        return
    files = [(file, _splits(file)) for file in sorted(path.glob("*.jsonl"))]
    if not any(splits for _, splits in files):
        raise InputError(f"no *train*.jsonl and no *test*.jsonl: {path}; give their folder")
    for file, splits in files:
        if len(splits) > 1:
            raise InputError(f"train or test, the name says both: {file}; rename it")
        for split in splits:
            yield from _read(file, split)


def _splits(file: Path) -> list[str]:
    """Which of the folds a file's name begins a word with: "latest" is no test."""
    return [name for name in ("train", "test") if re.search(rf"(?<![a-z]){name}", file.stem)]


def _read(path: Path, split: str) -> Iterator[Answer]:
    for row in read_rows(path):
        query = _query(row, split)
        yield Answer(
            where=row.where,
            query=query,
            path=(row.label("model_name"),),
            prompt=query.question,
            response=row.text("response"),
            tokens_in=row.count("input_tokens"),
            tokens_out=row.count("output_tokens"),
            latency_s=row.number("response_time"),
            score=row.share("performance"),
        )


def _query(row: Row, split: str) -> Query:
    choices = _choices(row)
    query = Query(
        id="",
        dataset=row.label("task_name"),
        question=row.words("query") + choice_lines(choices),
        answers=(row.label("ground_truth"),),
        split=split,
        choices=choices,
    )
    # The rows have no name of their own for a query: it is what its content says.
    return replace(query, id=row.label("task_id", digest([query.question, query.answers])[:12]))


def _choices(row: Row) -> tuple[tuple[str, str], ...]:
    """(label, text) of each choice."""
    choices = row.values.get("choices")
    if choices is None:
        return ()
    try:
        choices = choices if isinstance(choices, dict) else json.loads(row.text("choices"))
        pairs = tuple(zip(choices["labels"], choices["text"], strict=True))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(
            f'choices must be JSON with "labels" and "text" of one length: {row.where}'
        ) from None
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise InputError(f"choices must hold texts: {row.where}")
    return tuple((storable(label), storable(text)) for label, text in pairs)


def write_llmrouter(table: DirectTable, out: Path) -> None:
    """The direct calls as a folder of routing rows and embeddings; no file for an empty fold.

    Raises:
        WorldError: the disk is full or failed.
    """
    import torch

    rows = list(_rows(table))
    vectors = {number: torch.from_numpy(row) for number, row in enumerate(table.vectors())}
    with whole_folder(out) as folder:
        for name, wanted in ((TRAIN, False), (TEST, True)):
            if fold := [row for split, row in rows if (split == "test") == wanted]:
                write_json_lines(fold, folder / name)
        with atomic_file(folder / EMBEDDINGS) as file:
            torch.save(vectors, file)


def _rows(table: DirectTable) -> Iterator[tuple[str, dict[str, Any]]]:
    """(split, row) of each direct call, the cheapest of a query first.

    Its trainers label a query with the first of its best rows: a tie is so the cheapest model's.
    """
    for number, query in enumerate(table.queries):
        for place in np.argsort(table.cost[number], kind="stable").tolist():
            tokens_in = int(table.tokens_in[number, place])
            tokens_out = int(table.tokens_out[number, place])
            yield (
                query.split,
                {
                    "task_name": query.dataset,
                    "query": query.question,
                    "ground_truth": query.answers[0] if query.answers else "",
                    "metric": table.scorer,
                    "choices": None,
                    "task_id": query.id,
                    "model_name": table.models[place],
                    "response": table.responses[number][place],
                    "token_num": tokens_in + tokens_out,
                    "input_tokens": tokens_in,
                    "output_tokens": tokens_out,
                    "response_time": None,
                    "api_key_used": "",
                    "performance": float(table.score[number, place]),
                    "embedding_id": number,
                    "user_id": None,
                    "fig_id": None,
                },
            )

"""RouteLLM's battles: one row a query and pair of models.

In: direct calls with scores. Out: a folder with `train.json` and `test.json`, lists of battles with
`idx`, `model_a`, `model_b` and `winner`, and `train.npy` and `test.npy`, whose row `idx` is the
question's embedding. Not covered: import; a battle says who won and nothing of how.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hierrouter.interchange.direct import DirectTable
from hierrouter.interchange.files import whole_folder
from hierrouter_cache.atomic_files import atomic_file


def write_routellm(table: DirectTable, out: Path) -> None:
    """The direct calls as battles of every pair of models.

    Raises:
        WorldError: the disk is full or failed.
    """
    vectors = table.vectors()
    with whole_folder(out) as folder:
        for name in ("train", "test"):
            fold = [
                number
                for number, query in enumerate(table.queries)
                if (query.split == "test") == (name == "test")
            ]
            battles = list(_battles(table, fold))
            rows = [number for number, _ in battles]
            with atomic_file(folder / f"{name}.json") as file:
                numbered = [{"idx": idx, **battle} for idx, (_, battle) in enumerate(battles)]
                file.write(json.dumps(numbered, ensure_ascii=False, indent=1).encode())
            with atomic_file(folder / f"{name}.npy") as file:
                np.save(file, vectors[np.array(rows, dtype=np.int64)])


def _battles(table: DirectTable, fold: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the query, battle) of each query and pair."""
    for number in fold:
        for a, b in combinations(range(len(table.models)), 2):
            yield (
                number,
                {
                    "question_id": table.queries[number].id,
                    "prompt": table.queries[number].question,
                    "model_a": table.models[a],
                    "model_b": table.models[b],
                    "winner": _winner(float(table.score[number, a]), float(table.score[number, b])),
                    "response_a": table.responses[number][a],
                    "response_b": table.responses[number][b],
                },
            )


def _winner(a: float, b: float) -> str:
    """In the words of the arena; its training code leaves both kinds of ties out."""
    if a == b:
        return "tie" if a > 0 else "tie (bothbad)"
    return "model_a" if a > b else "model_b"

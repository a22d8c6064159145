"""Small made-up tables, a cache from one of them, and what scripted models are asked."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hierrouter.collection.storing import Merge, pool_of, store_answers, with_prices
from hierrouter.collection.tables import Answers, gather, read_table
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import SPLITS
from tests.conftest import SOURCES

DATA = SOURCES.parent / "shared" / "data"
MODELS = ("lab/tiny 1b", "lab/large 10b")
Rows = list[dict[str, Any]]
POOL = Pool(
    models=tuple(ModelSpec(name, f"org/{name}", 1.0) for name in "abc"),
    hops=2,
    stage_prompts=("Plan.", "Solve."),
    encoder="hashed-ngrams",
)


def sums(count: int) -> list[Query]:
    """Questions for the models of `POOL`; the folds take turns."""
    return [
        Query(str(n), "sums", f"What is {n} + {n}?", (str(2 * n),), SPLITS[n % 3])
        for n in range(count)
    ]


def questions(count: int = 6) -> Rows:
    """Rows of a file of questions, without answers of models."""
    return [
        {"id": f"q{i}", "question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(count)
    ]


def single_answers(queries: int = 10) -> Rows:
    """One answer of each of two models to each sum; the first model fails at odd ones."""
    rows = [
        {
            "query_id": f"q{number}",
            "dataset": "sums",
            "question": f"What is {number} + 1?",
            "answer": f"{number} and one make {number + 1}",
            "final_answer": str(number + 1),
            "model": model,
            "wrong": model == MODELS[0] and number % 2 == 1,
            "tokens_in": 5 + number,
            "tokens_out": 7,
        }
        for number in range(queries)
        for model in MODELS
    ]
    for row in rows:
        wrong = row.pop("wrong")
        row["response"] = f"{row['model']}: the answer is {'0' * wrong or row['final_answer']}"
        row["score"] = float(not wrong)
    return rows


def chains(queries: int = 6) -> Rows:
    """Two hops of each model's own chain, numbered from 0; the second hop is always right."""
    return [
        {**row, "hop": hop, "response": row["response"] if hop == 0 else row["final_answer"]}
        for row in single_answers(queries)
        for hop in (0, 1)
    ]


def save(rows: Rows, path: Path) -> Path:
    """The rows as the end of the name says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        pa.csv.write_csv(pa.Table.from_pylist(rows), path)
    else:
        names = dict.fromkeys(key for row in rows for key in row)
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    return path


def answers_of(rows: Rows, folder: Path) -> Answers:
    """What a table of these rows holds."""
    return gather(read_table(save(rows, folder / "sums.parquet")), seed=42)


def stored(answers: Answers, root: Path, hops: int | None = None) -> Merge:
    """The answers as trees of a cache."""
    return store_answers(answers, with_prices(pool_of(answers, hops), {}), root)


def cache_of(rows: Rows, folder: Path) -> Path:
    """A cache in `folder` of a table of these rows."""
    stored(answers_of(rows, folder), folder / "cache")
    return folder / "cache"


def keys(root: Path, kind: str = "calls", name: str = "key") -> Sequence[str]:
    """One column of a cache, sorted."""
    return sorted(CacheReader(root).sql(f'SELECT "{name}" FROM {kind}')[name].to_pylist())

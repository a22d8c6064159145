"""Public answers of real models, where this machine has them."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import SOURCES

DATA = SOURCES.parent / "shared" / "data"


def answers(name: str) -> list[dict[str, Any]]:
    """Rows with `response`, `answer` and `score`, the source's own verdict."""
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip("the table of real answers is not on this machine")
    return pq.read_table(path).to_pylist()


def questions(name: str) -> list[dict[str, Any]]:
    """Rows with `question` and `answer`."""
    path = DATA / f"questions_{name}_40.jsonl"
    if not path.exists():
        pytest.skip("the questions are not on this machine")
    return [json.loads(line) for line in path.read_text().splitlines()]

"""Public questions and answers of real models, where this machine has them."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import SOURCES

DATA = SOURCES.parent / "shared" / "data"


def _here(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} is not on this machine")
    return path


def answers(name: str) -> list[dict[str, Any]]:
    """Rows with `response`, `answer` and `score`, the source's own verdict."""
    return pq.read_table(_here(DATA / f"{name}.parquet")).to_pylist()


def questions(name: str) -> list[dict[str, Any]]:
    """Rows with `question` and `answer`."""
    path = _here(DATA / f"questions_{name}_40.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]

"""Small files of questions."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]


def rows(count: int = 6) -> list[Row]:
    return [
        {"id": f"q{i}", "question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(count)
    ]


def write(path: Path, content: list[Row]) -> Path:
    """The rows as the end of the name says."""
    if path.suffix == ".parquet":
        names = dict.fromkeys(key for row in content for key in row)
        pq.write_table(pa.table({name: [row.get(name) for row in content] for name in names}), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path

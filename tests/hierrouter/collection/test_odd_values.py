"""Values that a reader of JSON, Python or Arrow stumbles over are refused, or texts like others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.files import import_jsonl
from hierrouter.collection.peers import read_llmrouter, read_routerbench
from hierrouter.collection.tables import gather, read_table
from hierrouter_cache.errors import InputError
from tests.hierrouter.collection.examples import save, single_answers
from tests.properties.test_importers import llmrouter_rows, own_lines, rekeyed, routerbench_rows


@pytest.mark.parametrize("text", ["[{[]: 1}]", "[{[1]}]", "[{{}}]"])
def test_a_list_that_python_cannot_make_is_a_text(tmp_path: Path, text: str) -> None:
    rows = [{**row, "x|model_response": text} for row in routerbench_rows()]
    answers, _ = read_routerbench(save(rows, tmp_path / "frame.jsonl"))
    assert next(answers).response == text


def test_choices_nested_without_end_are_refused(tmp_path: Path) -> None:
    rows = [{**row, "choices": "[" * 100_000} for row in llmrouter_rows()]
    with pytest.raises(InputError, match="choices must be JSON with"):
        list(read_llmrouter(save(rows, tmp_path / "rows.jsonl")))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("call", "latency_s", 10**400),
        ("call", "latency_s", 2**53 + 1),
        ("score", "value", 10**400),
    ],
)
def test_a_number_that_no_column_holds_is_refused_before_anything_is_written(
    tmp_path: Path, kind: str, name: str, value: Any
) -> None:
    lines = [{**line, name: value} if line["kind"] == kind else line for line in own_lines()]
    if kind == "score":
        lines[0] = {**lines[0], "scores": 1}
        call = next(line for line in lines if line["kind"] == "call")
        score = {"kind": "score", "call": call["key"], "references": "r", "scorer": "s@1"}
        lines = [line for line in lines if line["kind"] != "score"] + [{**score, name: value}]
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps(rekeyed(line)) + "\n" for line in lines))
    with pytest.raises(InputError, match=f"{name} must be double"):
        import_jsonl(file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_table_may_be_called_by_any_bytes(tmp_path: Path) -> None:
    """Its name is that of the dataset; half a character of it can be in no key."""
    file = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    rows = [{**row} for row in single_answers(3)]
    for row in rows:
        del row["dataset"]
    query = gather(read_table(save(rows, file)), 42).queries[0]
    assert query.dataset == "caf\N{REPLACEMENT CHARACTER}"
    assert query.key

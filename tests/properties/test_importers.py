"""Any file that is nearly one of a format is imported, or refused in one line."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierrouter.collection.files import export_jsonl, import_jsonl
from hierrouter.collection.storing import Merge
from hierrouter.collection.transfer import import_
from hierrouter_cache.chain import examine
from hierrouter_cache.errors import HierRouterError
from hierrouter_cache.keys import call_key, next_context, part_fault, plan_key, query_key
from tests.hierrouter.collection.examples import answers_of, chains, save, single_answers, stored
from tests.properties.near import damaged, edited

Rows = list[dict[str, Any]]
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def llmrouter_rows() -> Rows:
    return [
        {
            "task_name": "arc",
            "query": f"Which is {number}?",
            "ground_truth": "A",
            "choices": '{"labels": ["A", "B"], "text": ["one", "two"]}',
            "model_name": model,
            "response": "A",
            "input_tokens": 5,
            "output_tokens": 1,
            "response_time": 0.1,
            "performance": 1.0,
        }
        for number in range(3)
        for model in ("x-1b", "x-7b")
    ]


def routerbench_rows() -> Rows:
    return [
        {
            "sample_id": f"s.{number}",
            "prompt": f"['Which is {number}?']",
            "eval_name": "mmlu",
            "x": 1.0,
            "x|model_response": "['A', 'B']",
            "x|total_cost": 0.001,
            "y": 0.0,
            "y|model_response": "B",
            "y|total_cost": 0.0,
        }
        for number in range(3)
    ]


def log_rows() -> Rows:
    """Rows that name the row they follow; the second call has two draws."""
    names = (("a", None, "plan"), ("b", "a", "solve"), ("c", "a", "solve"), ("d", "c", "check"))
    return [
        {
            "query_id": f"q{number}",
            "question": f"Which is {number}?",
            "answer": "A",
            "node": f"{number}{name}",
            "parent": None if parent is None else f"{number}{parent}",
            "action": action,
            "response": name,
            "runs": 2,
            "score": 1.0,
        }
        for number in range(2)
        for name, parent, action in names
    ]


def path_rows() -> Rows:
    """Rows that name the actions before their own, and their draw."""
    paths = ((None, "plan", 0), ("plan", "solve", 0), ("plan", "solve", 1), ("plan>solve", "c", 1))
    return [
        {
            "query_id": f"q{number}",
            "question": f"Which is {number}?",
            "answer": "A",
            "path": path,
            "action": action,
            "draw": draw,
            "response": f"{path} {draw}",
            "ends_right": 1,
        }
        for number in range(2)
        for path, action, draw in paths
    ]


TABLES = {
    "log": log_rows(),
    "paths": path_rows(),
    "table": single_answers(3),
    "chains": chains(2),
    "llmrouter": llmrouter_rows(),
    "routerbench": routerbench_rows(),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, Rows | bytes]:
    """(name of a file, its rows or bytes), near one of the peers' formats."""
    rows = TABLES[draw(st.sampled_from(sorted(TABLES)))]
    suffix = draw(st.sampled_from((".jsonl", ".jsonl", ".csv", ".parquet")))
    if draw(st.booleans()):
        return f"near{suffix}", draw(edited(rows))
    return f"near{suffix}", draw(damaged(file_of(json.dumps(rows), suffix)))


@cache
def file_of(rows: str, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return save(json.loads(rows), Path(folder) / f"sound{suffix}").read_bytes()


@cache
def own_lines() -> Rows:
    """A small cache as our JSON lines; the header first."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        stored(answers_of(single_answers(3), root), root / "cache")
        export_jsonl(root / "cache", root / "x.jsonl")
        lines = [json.loads(line) for line in (root / "x.jsonl").read_text().splitlines()]
    lines[0].pop("sha256")
    for line in lines:
        if line["kind"] == "plan":
            line["pool"] = json.loads(line["pool"])
    return lines


@st.composite
def own_files(draw: st.DrawFn) -> bytes:
    """Our JSON lines with odd values, under keys that are right again; or damaged."""
    header, *lines = draw(edited(own_lines()))
    text = "".join(json.dumps(rekeyed(line)) + "\n" for line in (header, *lines))
    return draw(damaged(text.encode())) if draw(st.booleans()) else text.encode()


def rekeyed(line: Any) -> Any:
    """A line whose keys are those of its content, where it has any."""
    try:
        match line["kind"]:
            case "plan":
                pool = line["pool"] if isinstance(line["pool"], str) else json.dumps(line["pool"])
                return {**line, "pool": pool, "plan": plan_key(pool, line["queries"])}
            case "call":
                outcome = next_context(line["context"], line["response"])
                return {**line, "key": call_key(line["step"], line["context"]), "outcome": outcome}
            case "query":
                parts = ("dataset", "id", "question", "answers", "split")
                return {**line, "query": query_key(*(line[part] for part in parts))}
    except (TypeError, KeyError, ValueError, RecursionError):
        pass
    return line


def check(root: Path, taken: Merge | None) -> None:
    """What was taken is sound, and what was refused has left nothing."""
    if taken is None:
        assert not list(root.rglob("*.parquet"))
        return
    for part, fault in examine(root).faults.items():
        assert fault is None and part_fault(part) is None


def import_table(name: str, rows: Rows | bytes, root: Path) -> Merge | None:
    """The rows as a file beside `root`, imported; None where it was refused."""
    file = root.parent / name
    try:
        if isinstance(rows, bytes):
            file.write_bytes(rows)
        else:
            save(rows, file)
    except (pa.ArrowException, UnicodeEncodeError, AttributeError, OverflowError, TypeError):
        return None  # no such file can be written
    try:
        return import_(file, root).merge
    except HierRouterError as error:
        assert str(error)
        return None


@FEW
@given(tables())
def test_any_table_is_taken_or_refused(table: tuple[str, Rows | bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "cache"
        check(root, taken := import_table(*table, root))
        if taken:
            again = import_table(*table, root)
            assert again is not None and not again.added.total()


@FEW
@given(own_files())
def test_any_lines_of_ours_are_taken_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "cache"
        (Path(folder) / "x.jsonl").write_bytes(data)
        try:
            merge: Merge | None = import_jsonl(Path(folder) / "x.jsonl", root)
        except HierRouterError:
            merge = None
        if merge is None or merge.added.total():
            check(root, merge)


def test_sound_files_are_taken(tmp_path: Path) -> None:
    """Without this, a property that refuses all would pass."""
    for name, rows in TABLES.items():
        for suffix in (".jsonl", ".csv", ".parquet"):
            root = tmp_path / f"{name}{suffix}" / "cache"
            root.parent.mkdir()
            taken = import_table(f"near{suffix}", rows, root)
            assert taken and taken.added["calls"]
    text = "".join(json.dumps(rekeyed(line)) + "\n" for line in own_lines())
    (tmp_path / "x.jsonl").write_text(text)
    assert import_jsonl(tmp_path / "x.jsonl", tmp_path / "own").added["calls"] == 18

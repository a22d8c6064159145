"""Bad datasets: one line that names the place, and a cache that stays as it was.

The ids D01 to D20 are those of the catalogue of bad input that the project was planned with.
"""

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import Run

ROWS = 6
ARGUMENTS = ["collect", "--pool", "testbed", "--data", "data", "--cache", "cache"]


def rows(name: str) -> list[dict[str, Any]]:
    return [
        {"id": f"q{n}", "question": f"{name}: what is {n}+{n} ?", "answer": str(2 * n)}
        for n in range(1, ROWS + 1)
    ]


def write(path: Path, content: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """Two datasets of six questions, collected with the shipped models."""
    folder = tmp_path_factory.mktemp("collected")
    (folder / "data").mkdir()
    for name in ("gsm8k", "math"):
        write(folder / "data" / f"{name}.jsonl", rows(name))
    done = hierrouter(*ARGUMENTS, "--datasets", "gsm8k,math", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def home(collected: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(collected, tmp_path / "home"))


Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One row of the catalogue: what is done to math.jsonl, and what the line must say."""

    damage: Damage
    words: tuple[str, ...]
    datasets: str = "math"


def line(number: int, text: str) -> Damage:
    """Replace a line, counted from 1."""

    def damage(path: Path) -> None:
        lines = path.read_text().splitlines()
        lines[number - 1] = text
        path.write_text("\n".join(lines) + "\n")

    return damage


def field(number: int, key: str, value: Any) -> Damage:
    """Set a field of the row on this line."""
    return lambda path: line(number, json.dumps({**rows("math")[number - 1], key: value}))(path)


def misspelt(path: Path) -> None:
    row = rows("math")[1]
    row["anwser"] = row.pop("answer")
    line(2, json.dumps(row))(path)


def in_both_folds(path: Path) -> None:
    first, second, *rest = rows("math")
    second = {**second, "question": first["question"], "split": "test"}
    write(path, [{**first, "split": "train"}, second, *rest])


REFUSED = {
    "D01": Case(lambda path: None, ("gsm9k", "did you mean|known", "gsm8k"), "gsm9k"),
    "D02": Case(lambda path: None, ("empty dataset name",), "gsm8k,,math"),
    "D03": Case(Path.unlink, ("data/math.jsonl", "not found")),
    "D04": Case(lambda path: path.write_text(""), ("math.jsonl", "no rows|empty")),
    "D05": Case(line(3, '{"id": "q3", '), ("math.jsonl:3", "JSON")),
    "D06": Case(
        lambda path: path.write_text(json.dumps(rows("math"))),
        ("math.jsonl", "one JSON object per line|array"),
    ),
    "D06-indented": Case(
        lambda path: path.write_text(json.dumps(rows("math"), indent=1)),
        ("math.jsonl", "one JSON object per line|array"),
    ),
    "D07": Case(misspelt, ("math.jsonl:2", "answer")),
    "D08": Case(field(2, "question", "   "), ("math.jsonl:2", "question", "blank|empty")),
    "D09": Case(field(2, "answer", []), ("math.jsonl:2", "answer", "empty")),
    "D09-answers": Case(field(2, "answers", []), ("math.jsonl:2", "answers", "empty")),
    "D10": Case(field(4, "id", "q2"), ("duplicate id", "q2", "lines? 2|:2", "4")),
    "D11": Case(field(2, "answer", float("nan")), ("math.jsonl:2", "nan|answer")),
    "D13": Case(
        lambda path: path.write_bytes(path.read_bytes() + b'\xff\xfe{"id":1}\n'),
        ("math.jsonl:7", "UTF-8"),
    ),
    "D15": Case(
        field(2, "question", "x" * 10_000_000),
        ("math.jsonl:2", "10,?000,?000|too long|limit"),
    ),
    "D17": Case(
        lambda path: path.write_bytes(gzip.compress(path.read_bytes())),
        ("math.jsonl", "gzip|UTF-8|binary"),
    ),
    # Folds are fixed when a question is collected, so this is where the leak is found, not `train`.
    "D19": Case(in_both_folds, ("train|test", "overlap|both|leak")),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_before_any_call(home: Path, hierrouter: Run, case: Case) -> None:
    case.damage(home / "data" / "math.jsonl")
    assert_refused(hierrouter, home, case)


def table(**columns: Any) -> Damage:
    """The six rows as Parquet instead, with these columns replaced; None leaves one out."""

    def damage(path: Path) -> None:
        path.unlink()
        content = {name: [row[name] for row in rows("math")] for name in ("id", "question")}
        content = {**content, "answer": [row["answer"] for row in rows("math")], **columns}
        kept = {name: values for name, values in content.items() if values is not None}
        pq.write_table(pa.table(kept), path.with_suffix(".parquet"))

    return damage


def torn(path: Path) -> None:
    table()(path)
    file = path.with_suffix(".parquet")
    file.write_bytes(file.read_bytes()[:-20])


REFUSED_TABLES = {
    "column": Case(table(answer=None), ("math.parquet: row 1", "answer is missing")),
    "type": Case(table(question=list(range(ROWS))), ("math.parquet: row 1", "not a text")),
    "null": Case(table(answer=["1", None, "3", "4", "5", "6"]), ("math.parquet: row 2", "answer")),
    "twice": Case(table(id=["a", "b", "a", "c", "d", "e"]), ("duplicate id a", "row 1", "row 3")),
    "torn": Case(torn, ("math.parquet", "not readable as parquet")),
    "empty": Case(table(id=[], question=[], answer=[]), ("math.parquet", "no rows")),
}


@pytest.mark.parametrize("case", REFUSED_TABLES.values(), ids=REFUSED_TABLES)
def test_a_bad_table_is_refused_before_any_call(home: Path, hierrouter: Run, case: Case) -> None:
    case.damage(home / "data" / "math.jsonl")
    assert_refused(hierrouter, home, case)


def test_the_same_rows_as_a_table_ask_for_nothing(home: Path, hierrouter: Run) -> None:
    table()(home / "data" / "math.jsonl")
    done = hierrouter(*ARGUMENTS, "--datasets", "math", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "0 calls made" in done.stderr


def assert_refused(hierrouter: Run, home: Path, case: Case) -> None:
    before = contents(home)
    done = hierrouter(*ARGUMENTS, "--datasets", case.datasets, cwd=home)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: ")
    assert len(said.removeprefix("error: ")) <= 300
    assert "\x1b" not in said
    for word in case.words:
        assert re.search(word, said, re.IGNORECASE), (word, said)
    assert contents(home) == before


ACCEPTED = {
    "D12": Case(
        line(2, '{"id": "q2", "question": "a\\ud83d", "answer": "b"}'),
        ("1 .*replaced|U\\+FFFD|invalid unicode",),
    ),
    "D14": Case(
        lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")),
        (),
    ),
    "D16": Case(field(2, "id", "../../../tmp/evil"), ()),
}


@pytest.mark.parametrize("case", ACCEPTED.values(), ids=ACCEPTED)
def test_taken_as_meant(home: Path, hierrouter: Run, case: Case) -> None:
    case.damage(home / "data" / "math.jsonl")
    outside = contents(home.parent, but=home)
    done = hierrouter(*ARGUMENTS, "--datasets", "math", cwd=home)
    assert done.returncode == 0, done.stderr
    for word in case.words:
        assert re.search(word, done.stderr, re.IGNORECASE), (word, done.stderr)
    info = json.loads(
        hierrouter("cache", "info", "--cache", "cache", "--format", "json", cwd=home).stdout
    )
    assert (info["queries"], info["complete_queries"], info["missing_nodes"]) == (ROWS, ROWS, 0)
    assert contents(home.parent, but=home) == outside
    assert sorted(path.name for path in home.iterdir()) == ["cache", "data"]


def test_d18_an_edited_question_is_asked_and_the_old_answers_stay(
    home: Path, hierrouter: Run
) -> None:
    field(2, "question", "what is 1+1 ?")(home / "data" / "math.jsonl")
    before = stored_calls(home)
    parts = contents(home / "cache" / "parts")
    done = hierrouter(*ARGUMENTS, "--datasets", "math", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "1 query changed: math/q2" in done.stderr
    after = stored_calls(home)
    assert before.items() <= after.items()
    assert parts.items() <= contents(home / "cache" / "parts").items()
    new = [prompt for key, prompt in after.items() if key not in before]
    assert f"{len(new)} calls made" in done.stderr
    # 12 nodes and no direct calls of their own, since the testbed has no instructions; equal
    # answers at the first hop make fewer.
    assert 3 < len(new) <= 12
    assert all(prompt.startswith("what is 1+1 ?") for prompt in new)
    again = hierrouter(*ARGUMENTS, "--datasets", "math", cwd=home)
    assert "0 calls made" in again.stderr
    assert "changed" not in again.stderr


def test_d20_too_few_queries_to_split(home: Path, hierrouter: Run) -> None:
    write(home / "data" / "math.jsonl", rows("math")[:1])
    collected = hierrouter(*ARGUMENTS, "--datasets", "math", cwd=home)
    assert collected.returncode == 0, collected.stderr
    before = stored_calls(home)
    done = hierrouter("train", "--cache", "cache", "--datasets", "math", cwd=home)
    assert done.returncode in (2, 3), done.stderr
    assert re.search("at least|too few", done.stderr)
    assert "quer" in done.stderr
    assert stored_calls(home) == before
    assert not (home / "runs").exists()


def contents(folder: Path, but: Path | None = None) -> dict[str, str]:
    """Digest of every file below a folder, by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not (but and path.is_relative_to(but))
    }


def stored_calls(home: Path) -> dict[str, str]:
    """Prompt by key of every call in the cache."""
    tables = [pq.read_table(path) for path in (home / "cache" / "parts").glob("calls-*")]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["key"]: row["prompt"] for row in rows}

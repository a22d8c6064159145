"""`hierrouter collect` without flags goes on with what the cache was collected for."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.test_grow_pool import FOURTH
from tests.conftest import Run, works
from tests.holes import drop_five_leaves_of_three_queries

QUESTIONS = [
    json.dumps({"id": f"q{n}", "question": f"what is {n} + {n} ?", "answer": f"{2 * n}"})
    for n in range(12)
]


@pytest.fixture
def home(tmp_path: Path, hierrouter: Run) -> Path:
    (tmp_path / "mine.jsonl").write_text("\n".join(QUESTIONS) + "\n")
    works(
        hierrouter(
            "collect", "--datasets", "mine.jsonl", "--pool", "testbed", "--cache", "c", cwd=tmp_path
        )
    )
    return tmp_path


def info(home: Path, hierrouter: Run) -> dict[str, object]:
    found = hierrouter("cache", "info", "--cache", "c", "--format", "json", cwd=home)
    return dict(json.loads(found.stdout))


def test_only_what_is_missing_is_asked(home: Path, hierrouter: Run) -> None:
    before = info(home, hierrouter)
    drop_five_leaves_of_three_queries(home / "c")
    (home / "mine.jsonl").unlink()
    done = works(hierrouter("collect", "--cache", "c", cwd=home))
    assert "going on with what c was collected for last" in done.stderr
    assert " 5 calls made" in done.stderr
    after = info(home, hierrouter)
    for name in ("queries", "nodes", "datasets", "models", "fingerprint"):
        assert after[name] == before[name]


def test_another_pool_gets_the_same_queries(home: Path, hierrouter: Run) -> None:
    three = (resources.files("hierrouter.pools") / "testbed.toml").read_text()
    (home / "four.toml").write_text(three + FOURTH)
    done = works(hierrouter("collect", "--cache", "c", "--pool", "four.toml", cwd=home))
    found = info(home, hierrouter)
    assert (found["datasets"], found["queries"]) == (["mine"], 12)
    assert found["models"] == ["calc", "text", "facts", "brief"]
    made = re.search(r"(\d+) calls made", done.stderr)
    assert made
    assert 0 < int(made[1]) <= 12 * (8 + 1)


def test_a_wish_of_ones_own_is_not_overruled(home: Path, hierrouter: Run) -> None:
    done = works(hierrouter("collect", "--cache", "c", "--limit", "1", cwd=home))
    assert "going on" not in done.stderr
    assert "no test query" in done.stderr
    assert "riddle" in str(info(home, hierrouter)["datasets"])


def test_imported_models_are_not_called(tmp_path: Path, hierrouter: Run) -> None:
    rows = [
        {"query_id": f"q{n}", "dataset": "d", "question": f"q {n}", "answer": "1", "model": model}
        | {"response": f"{n}", "tokens_in": 3, "tokens_out": 1}
        for n in range(4)
        for model in ("a", "b")
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    works(hierrouter("cache", "import", "t.jsonl", "--cache", "c", cwd=tmp_path))
    done = hierrouter("collect", "--cache", "c", cwd=tmp_path)
    assert done.returncode == 2
    assert "imported, and its models cannot be called" in done.stderr


def test_a_stored_plan_does_not_decide_where_a_key_goes(
    tmp_path: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come with a cache of others."""
    (tmp_path / "p.toml").write_text(
        '[[models]]\nname = "a"\nmodel = "m"\nbase_rate = 1\nbackend = "openai"\n'
        '[models.endpoint]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "SOME_KEY"\n'
    )
    (tmp_path / "d.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    monkeypatch.setenv("SOME_KEY", "sk-CANARY-1234")
    asked = ["collect", "--datasets", "d.jsonl", "--pool", "p.toml"]
    first = hierrouter(*asked, cwd=tmp_path)
    assert first.returncode == 1  # nobody listens there; the plan is stored
    refused = hierrouter("collect", cwd=tmp_path)
    assert refused.returncode == 2
    assert "the stored plan would send SOME_KEY to 127.0.0.1:9" in refused.stderr
    for said in (["--pool", "p.toml"], ["--api-key-env", "SOME_KEY"]):
        assert hierrouter("collect", *said, cwd=tmp_path).returncode == 1
    assert "CANARY" not in first.stderr + refused.stderr

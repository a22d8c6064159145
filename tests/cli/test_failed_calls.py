"""`hierrouter collect` where some prompts do not fit a model's window."""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.models import save_random_model

WINDOW = 120
ARGUMENTS = ["collect", "--datasets", "mine.jsonl", "--pool", "pool.toml", "--cache", "cache"]
QUESTIONS = ["compute 12+7", "reverse the word takomi", "x" * WINDOW, "who lives in room 31 ?"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("window")
    save_random_model(folder / "small", "llama", seed=0, window=WINDOW)
    save_random_model(folder / "large", "llama", seed=1)
    pool = '[pool]\nhops = 2\nstage_prompts = ["Plan.", "Solve."]\n'
    for name in ("small", "large"):
        pool += (
            f'[[models]]\nname = "{name}"\nmodel = "{folder / name}"\nbase_rate = 1\n'
            "generation = { max_new_tokens = 8 }\n"
        )
    (folder / "pool.toml").write_text(pool)
    rows = [{"id": f"q{n}", "question": text, "answer": "a"} for n, text in enumerate(QUESTIONS)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_one_line_says_how_many_and_the_rest_is_there(home: Path, hierrouter: Run) -> None:
    done = hierrouter(*ARGUMENTS, cwd=home)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    # small: direct, first hop, and the second hop after large; nothing hangs below a second hop
    assert error.startswith("error: 3 calls failed (3 too_long), 1 of 4 queries are incomplete")
    assert "smaller max_new_tokens" in error
    info = json.loads(
        hierrouter("cache", "info", "--cache", "cache", "--format", "json", cwd=home).stdout
    )
    assert info["complete_queries"] == 3
    assert info["missing_nodes"] == 4  # small; small>small, small>large, which waited; large>small
    assert info["failed_calls"] == {"too_long": 3}
    assert info["calls"] == 3 * 8 + 3


def test_a_rerun_asks_for_just_those(home: Path, hierrouter: Run) -> None:
    hierrouter(*ARGUMENTS, cwd=home)
    again = hierrouter(*ARGUMENTS, cwd=home)
    assert again.returncode == 1
    assert re.search(r"\b0 calls made, 27 already there", again.stderr)
    assert "3 calls failed (3 too_long)" in again.stderr


def test_an_incomplete_tree_is_not_trained_on_unasked(home: Path, hierrouter: Run) -> None:
    hierrouter(*ARGUMENTS, cwd=home)
    refused = hierrouter("train", "--cache", "cache", "--dry-run", cwd=home)
    assert refused.returncode == 3
    assert "1 of 4 queries lack 4 nodes" in refused.stderr

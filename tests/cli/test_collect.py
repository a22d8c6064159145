"""`hierrouter collect --datasets gsm8k,math` with a user's own models and questions."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import SOURCES, Run, Start, as_json, works
from tests.models import ARCHITECTURES, save_random_model

REAL_QUESTIONS = SOURCES.parent / "shared" / "data"
MADE_UP = {
    "gsm8k": ("Tom has {0} apples and buys {1} more. How many apples now?", "#### {2}"),
    "math": ("Let $x = {0}$ and $y = {1}$. Find $x + y$.", "$x + y = \\boxed{{{2}}}$."),
}


def write_questions(name: str, path: Path) -> None:
    """Real questions where they lie beside the project, else some of the same kind."""
    real = REAL_QUESTIONS / f"questions_{name}_40.jsonl"
    if real.is_file():
        path.write_bytes(real.read_bytes())
        return
    question, answer = MADE_UP[name]
    rows = [
        {
            "id": str(n),
            "question": question.format(n, 2 * n),
            "answer": answer.format(n, 2 * n, 3 * n),
        }
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "data").mkdir()
    for name in MADE_UP:
        write_questions(name, folder / "data" / f"{name}.jsonl")
    pool = '[pool]\nhops = 2\nstage_prompts = ["Plan.", "Solve."]\n'
    for rate, architecture in enumerate(ARCHITECTURES, start=1):
        save_random_model(folder / "models" / architecture, architecture)
        pool += (
            f'[[models]]\nname = "{architecture}"\nmodel = "{folder / "models" / architecture}"\n'
            f"base_rate = 0.00{rate}\ngeneration = {{ max_new_tokens = 8 }}\n"
        )
    (folder / "pool.toml").write_text(pool)
    return folder


ARGUMENTS = ["collect", "--datasets", "gsm8k,math", "--pool", "pool.toml", "--limit", "10"]


def test_twelve_nodes_a_query(home: Path, hierrouter: Run) -> None:
    found = as_json(hierrouter(*ARGUMENTS, "--format", "json", cwd=home))
    assert (found["queries"], found["wanted"], found["missing"]) == (20, 20 * 15, 0)
    info = json.loads(hierrouter("cache", "info", "--format", "json", cwd=home).stdout)
    assert info["datasets"] == ["gsm8k", "math"]
    assert (info["queries"], info["nodes"], info["direct"]) == (20, 20 * 12, 20 * 3)
    assert (info["complete_queries"], info["missing_nodes"]) == (20, 0)
    # With stage instructions a direct call is no node of the tree: 15 calls, few of them alike.
    assert info["calls"] == found["calls"] + found["earlier"] > 20 * 12


def test_train_and_report_on_it(home: Path, hierrouter: Run) -> None:
    hierrouter(*ARGUMENTS, cwd=home)
    works(hierrouter("train", "--epochs", "2", cwd=home))
    report = json.loads(hierrouter("report", "--format", "json", cwd=home).stdout)
    rows = [row for row in report["rows"] if row["dataset"] == "all"]
    assert {row["policy"] for row in rows} >= {*ARCHITECTURES, "hierrouter", "oracle"}
    assert all(row["n"] == 6 for row in rows)


def test_ctrl_c_commits_and_says_how_to_go_on(
    home: Path, tmp_path: Path, hierrouter: Run, start: Start
) -> None:
    cache = str(tmp_path / "cache")
    process = start(*ARGUMENTS, "--cache", cache, cwd=home)
    while not list(Path(cache).glob("parts/calls-*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    done = process.result()
    assert done.returncode == 130, done.stderr
    assert "rerun the same command" in done.stderr
    assert list((Path(cache) / "tmp").iterdir()) == []
    again = works(hierrouter(*ARGUMENTS, "--cache", cache, cwd=home))
    found = re.search(r"[\d,]+ calls made, ([\d,]+) already there", again.stderr)
    assert found
    assert found[1] != "0"

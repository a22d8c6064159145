"""`hierrouter collect` with a user's own models and questions, here and through a server."""

import json
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.conftest import Place, over_all
from tests.conftest import SOURCES, Run, Start
from tests.models import ARCHITECTURES, save_random_model

WINDOW = 120  # tokens of a model that some prompts are too long for

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


def pool_of(folder: Path, models: Iterable[str | Path], tokens: int = 8, more: str = "") -> None:
    """A pool of two hops in `pool.toml`, of these model folders."""
    pool = '[pool]\nhops = 2\nstage_prompts = ["Plan.", "Solve."]\n'
    for model in map(Path, models):
        pool += (
            f'[[models]]\nname = "{model.name}"\nmodel = "{folder / model}"\nbase_rate = 0.01\n'
            f"{more}generation = {{ max_new_tokens = {tokens} }}\n"
        )
    (folder / "pool.toml").write_text(pool)


@pytest.fixture(scope="module")
def babbling(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Place:
    """A folder with three models of random weights and two data sets."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "data").mkdir()
    for name in MADE_UP:
        write_questions(name, folder / "data" / f"{name}.jsonl")
    models = [save_random_model(folder / name, name) for name in ARCHITECTURES]
    pool_of(folder, models)
    return Place(folder, hierrouter)


COLLECT = "collect --datasets gsm8k,math --pool pool.toml --limit 10"


def test_twelve_nodes_a_query_to_train_and_report_on(babbling: Place) -> None:
    done = babbling.does(f"{COLLECT} --format json")
    assert "nothing is embedded" in done.stderr and "--encoder hashed-ngrams" in done.stderr
    found = json.loads(done.stdout)
    assert (found["queries"], found["wanted"], found["missing"]) == (20, 20 * 15, 0)
    info = babbling.tells("cache info")
    assert info["datasets"] == ["gsm8k", "math"]
    assert (info["queries"], info["nodes"], info["direct"]) == (20, 20 * 12, 20 * 3)
    assert (info["complete_queries"], info["missing_nodes"]) == (20, 0)
    # With stage instructions a direct call is no node of the tree: 15 calls, few of them alike.
    assert info["calls"] == found["calls"] + found["earlier"] > 20 * 12
    babbling.does("train --epochs 2 --encoder hashed-ngrams")
    found = babbling.tells("report --encoder hashed-ngrams")
    [cut] = [note for note in found["notes"] if "ended at their cap" in note]
    assert all(f"% of {name}" in cut for name in ARCHITECTURES)  # they hardly end by themselves
    rows = over_all(found["rows"])
    assert {*rows} >= {*ARCHITECTURES, "hierrouter", "oracle"}
    assert all(row["n"] == 6 for row in rows.values())


def test_ctrl_c_commits_and_says_how_to_go_on(babbling: Place, start: Start) -> None:
    command = f"{COLLECT} --cache interrupted"
    process = start(*command.split(), cwd=babbling.folder)
    while not list((babbling / "interrupted").glob("parts/calls-*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    done = process.result()
    assert done.returncode == 130, done.stderr
    assert "rerun the same command" in done.stderr
    assert list((babbling / "interrupted/tmp").iterdir()) == []
    found = re.search(r"[\d,]+ calls made, ([\d,]+) already there", babbling.does(command).stderr)
    assert found
    assert found[1] != "0"


def test_prompts_that_do_not_fit_a_window_are_one_line_and_asked_again(place: Place) -> None:
    small = save_random_model(place / "small", "llama", seed=0, window=WINDOW)
    pool_of(place.folder, [small, save_random_model(place / "large", "llama", seed=1)])
    texts = ["compute 12+7", "reverse the word takomi", "x" * WINDOW, "who lives in room 31 ?"]
    rows = [{"id": f"q{n}", "question": text, "answer": "a"} for n, text in enumerate(texts)]
    (place / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    collect = "collect --datasets mine.jsonl --pool pool.toml --cache cache"
    error = place.refuses(collect, code=1)
    # small: direct, first hop, and the second hop after large; nothing hangs below a second hop
    assert error.startswith("error: 3 calls failed (3 too_long), 1 of 4 queries are incomplete")
    assert "smaller max_new_tokens" in error
    info = place.tells("cache info --cache cache")
    assert info["complete_queries"] == 3
    assert info["missing_nodes"] == 4  # small; small>small, small>large, which waited; large>small
    assert info["failed_calls"] == {"too_long": 3}
    assert info["calls"] == 3 * 8 + 3
    again = place.asks(collect)
    assert again.returncode == 1
    assert re.search(r"\b0 calls made, 27 already there", again.stderr)
    assert "3 calls failed (3 too_long)" in again.stderr
    assert "1 of 4 queries lack 4 nodes" in place.refuses("train --cache cache --dry-run", code=3)

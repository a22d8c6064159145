"""`hierrouter collect`: said before it is made; own models and questions, here and by servers."""

import json
import signal
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.conftest import Place, over_all
from tests.conftest import SOURCES, Run, Start, calls_made
from tests.hierrouter.collection.examples import save
from tests.holes import drop_five_leaves_of_three_queries
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
    numbers = [(n, 2 * n, 3 * n) for n in range(40)]
    save([{"question": question.format(*x), "answer": answer.format(*x)} for x in numbers], path)


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
    pool_of(folder, [save_random_model(folder / name, name) for name in ARCHITECTURES])
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
    assert calls_made(babbling.does(command).stderr)[1] > 0


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
    asked = "SELECT hop, model, cost, count(*) AS n FROM spend WHERE failed GROUP BY ALL ORDER BY 1"
    found = place.asks_cache("--cache cache", asked)
    assert found == [{"hop": hop, "model": "small", "cost": 0, "n": 1} for hop in (0, 1, 2)]
    again = place.asks(collect)
    assert again.returncode == 1
    assert calls_made(again.stderr) == (0, 27)
    assert "3 calls failed (3 too_long)" in again.stderr
    assert "1 of 4 queries lack 4 nodes" in place.refuses("train --cache cache --dry-run", code=3)


QUESTIONS = [
    json.dumps({"id": f"q{n}", "question": f"what is {n} + {n} ?", "answer": f"{2 * n}"})
    for n in range(12)
]
THREE = (resources.files("hierrouter.pools") / "testbed.toml").read_text()
FOURTH = """
[[models]]
name = "brief"
model = "testbed:facts"
dtype = "float32"
base_rate = 0.01
generation = { max_new_tokens = 4 }
"""


def test_only_what_is_missing_is_asked_and_another_pool_gets_the_same_queries(place: Place) -> None:
    (place / "mine.jsonl").write_text("\n".join(QUESTIONS) + "\n")
    place.does("collect --datasets mine.jsonl --pool testbed --cache c")
    before = place.tells("cache info --cache c")
    drop_five_leaves_of_three_queries(place / "c")
    (place / "mine.jsonl").unlink()
    done = place.does("collect --cache c")
    assert "going on with what c was collected for last" in done.stderr
    assert " 5 calls made" in done.stderr
    after = place.tells("cache info --cache c")
    for name in ("queries", "nodes", "datasets", "models", "fingerprint"):
        assert after[name] == before[name]

    (place / "four.toml").write_text(THREE + FOURTH)
    done = place.does("collect --cache c --pool four.toml")
    found = place.tells("cache info --cache c")
    assert (found["datasets"], found["queries"]) == (["mine"], 12)
    assert found["models"] == ["calc", "text", "facts", "brief"]
    assert 0 < calls_made(done.stderr)[0] <= 12 * (8 + 1)

    done = place.does("collect --cache c --limit 1")  # a wish of one's own is not overruled
    assert "going on" not in done.stderr
    assert "no test query" in done.stderr
    assert "riddle" in place.tells("cache info --cache c")["datasets"]


def test_the_report_of_three_models_is_the_same_after_a_fourth(place: Place) -> None:
    (place / "four.toml").write_text(THREE + FOURTH)
    questions = "--datasets riddle,story --limit 10"
    place.does(f"collect {questions}")
    ask = "report --pool testbed --format json"
    before = place.does(ask).stdout
    place.does(f"collect {questions} --pool four.toml")
    assert place.does(ask).stdout == before
    three, whole = json.loads(before)["rows"], place.tells("report")["rows"]
    assert place.tells("report --models calc,text,facts")["rows"] == three
    routes = [[row for row in rows if row["kind"] == "route"] for rows in (whole, three)]
    assert len(routes[0]) > len(routes[1])


def test_a_stored_plan_does_not_decide_where_a_key_goes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come with a cache of others."""
    (place / "p.toml").write_text(
        '[[models]]\nname = "a"\nmodel = "m"\nbase_rate = 1\nbackend = "openai"\n'
        '[models.endpoint]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "SOME_KEY"\n'
    )
    (place / "d.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    monkeypatch.setenv("SOME_KEY", "sk-CANARY-1234")
    first = place.asks("collect --datasets d.jsonl --pool p.toml")
    assert first.returncode == 1  # nobody listens there; the plan is stored
    refused = place.asks("collect")
    assert refused.returncode == 2
    assert "the stored plan would send SOME_KEY to 127.0.0.1:9" in refused.stderr
    for said in ("--pool p.toml", "--api-key-env SOME_KEY --allow-endpoint 127.0.0.1"):
        assert place.asks(f"collect {said}").returncode == 1
    local = place.refuses("collect --api-key-env SOME_KEY")
    assert "would call 127.0.0.1:9, on this machine or a private network; give --allow-end" in local
    assert "CANARY" not in first.stderr + refused.stderr


SUMS = "collect --datasets arith,mirror --cache cache"
DEEP = "[pool]\nhops = 7\n" + "".join(
    f'[[models]]\nname = "{name}"\nmodel = "testbed:{name}"\nbase_rate = 0.03\n'
    "generation = { max_new_tokens = 16 }\n"
    for name in ("calc", "text", "facts")
)


def test_nothing_is_made(place: Place) -> None:
    done = place.does(f"{SUMS} --limit 3 --dry-run")
    assert list(place.folder.iterdir()) == []
    assert "6 queries: 72 nodes and 18 direct calls" in done.stdout
    assert "hop 2" in done.stdout
    assert "unknown" in done.stdout
    assert "Expected" not in done.stdout
    assert "--limit 10" in done.stderr
    found = place.tells(f"{SUMS} --limit 3 --dry-run")
    for values in (found["bound"]["total"], *found["bound"]["models"].values()):
        assert {*values} == {"calls", "tokens_in", "tokens_out", "cost", "seconds"}
        assert values["seconds"] is None and values["tokens_out"] == 16 * values["calls"]
    assert found["bound"]["total"]["calls"] == found["total"]["most_calls"]
    assert found["estimate"]["total"]["tokens_out"] is None


def test_after_a_pilot_it_says_what_the_run_then_takes(place: Place) -> None:
    place.does(f"{SUMS} --limit 10")
    found = place.tells("collect --cache cache --dry-run")  # what was collected last
    assert found["queries"] == 20
    assert (found["total"]["calls"], found["total"]["most_calls"]) == (0, 0)
    before = place.tells(f"{SUMS} --limit 20 --dry-run")
    assert before["notes"] == []
    made, there = calls_made(place.does(f"{SUMS} --limit 20").stderr)
    total = before["total"]
    assert total["there"] == there
    assert total["calls"] == pytest.approx(made, rel=0.2)
    assert total["most_calls"] >= made
    for values in (before["estimate"]["total"], *before["estimate"]["models"].values()):
        assert {*values} == {*before["bound"]["total"]}
        assert all(value["low"] <= value["likely"] <= value["high"] for value in values.values())
    assert before["estimate"]["total"]["calls"]["likely"] == total["calls"]
    assert before["estimate"]["total"]["seconds"]["likely"] == total["seconds"]
    after = place.tells(f"{SUMS} --dry-run")  # no flags but the datasets: 300 a dataset
    assert after["total"]["there"] == made + there


def test_a_large_collection_needs_a_yes(place: Place) -> None:
    (place / "deep.toml").write_text(DEEP)
    deep = f"{SUMS} --pool deep.toml --limit 40"
    line = place.refuses(deep)
    assert line.startswith("error: at most 262,320 model calls are due for 80 queries")
    assert "--dry-run" in line and "--yes" in line
    assert list((place / "cache").rglob("*.parquet")) == []
    place.does(f"{deep} --dry-run")


def test_a_larger_collection_under_way_leaves_the_smaller_one_usable(place: Place) -> None:
    collect = "collect --datasets arith,string --limit"
    place.does(f"{collect} 12")
    place.does("train --algo exact --name small --keep-anyway")
    before = place.tells("report --split validation")
    stopped = place.asks(f"{collect} 40 --max-spend 1")  # that has been spent already
    assert stopped.returncode == 130
    for command in ("train", "report", "explain --worst 1"):
        line = place.refuses(command, code=3)
        assert "asks only for those, --limit 12 opens the smaller collection, " in line
    assert place.tells("report --split validation --limit 12") == before
    done = place.does("train --algo exact --name again --keep-anyway --limit 12")
    assert "16 queries (14 train, 2 validation)" in done.stderr
    weights = [place / f"runs/{name}/policy.safetensors" for name in ("small", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    place.does(f"{collect} 40")
    after = place.tells("report --split validation --limit 12 --checkpoint small")
    assert after["rows"] == before["rows"]

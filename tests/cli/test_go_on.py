"""`hierrouter collect` goes on with what a cache was collected for, and grows its pool."""

import json
import re
from importlib import resources

import pytest

from tests.cli.conftest import Place
from tests.holes import drop_five_leaves_of_three_queries

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


def test_only_what_is_missing_is_asked_and_another_pool_gets_the_same_queries(
    place: Place,
) -> None:
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
    made = re.search(r"(\d+) calls made", done.stderr)
    assert made
    assert 0 < int(made[1]) <= 12 * (8 + 1)

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

"""`hierrouter off-policy` on a small cache: a log played there, its texts, and bad files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.conftest import environment, works
from tests.warm import Warm

ROUTER = "off-policy --checkpoint router"
STUDY = "-m benchmarks.off_policy --checkpoint router --logged-by temperature=3 --repeats 2"
ESTIMATORS = ["SNIPS", "DR"]


@pytest.fixture(scope="module")
def place(bare: Place, warm: Warm) -> Place:
    """A folder with a cache, a router that may stop, and what the study of the estimators wrote."""
    bare.does("train --epochs 9 --allow-stop --alpha 0.1 --keep-anyway --out router")
    words = [*STUDY.split(), "--episodes", "60", "--keep", "log.jsonl"]
    done = works(warm.start(*words, cwd=bare.folder, env=environment()).result())
    (bare / "study.md").write_text(done.stdout)
    return bare


@pytest.fixture(scope="module")
def told(place: Place) -> dict[str, Any]:
    """What the log says."""
    found: dict[str, Any] = place.tells(f"{ROUTER} --log log.jsonl")
    return found


def test_a_log_of_cached_questions_has_the_exact_value(place: Place, told: dict[str, Any]) -> None:
    assert [estimate["estimator"] for estimate in told["estimates"]] == ESTIMATORS
    assert all(item["low"] < item["value"] < item["high"] for item in told["estimates"])
    assert told["truth_on"] == "the questions of the log"
    assert 0 < told["truth"] < 1
    assert told["logged_by"] == {"temperature=3": 60}
    assert told["provenance"]["log"] == "log.jsonl"
    text = place.does(f"{ROUTER} --log log.jsonl").stdout
    assert f"exactly {told['truth']:.4f} on the questions of the log" in text
    sheet = place.does(f"{ROUTER} --log log.jsonl --format csv").stdout
    assert [line.split(",")[0] for line in sheet.splitlines()] == ["estimator", *ESTIMATORS]


def test_the_study_knows_what_a_report_says(place: Place) -> None:
    rows = place.tells("report --checkpoint router --split validation")["rows"]
    [exact] = [row for row in rows if row["kind"] == "router" and row["dataset"] == "all"]
    study = (place / "study.md").read_text()
    assert f"exactly {exact['reward']:.4f} on" in study
    assert "2 logs of 60 episodes by temperature=3" in study
    assert all(f"\n| {name} | " in study for name in ESTIMATORS)


def with_texts(place: Place, folder: Path) -> str:
    """The name of the same log with the texts of the cache, under ids that no cache has."""
    columns = "dataset, id, question FROM queries", "dataset, id, route, response FROM nodes"
    questions, nodes = (
        [json.loads(line) for line in done.stdout.splitlines()]
        for done in (
            place.does("cache sql", f"SELECT {what}", "--format", "json") for what in columns
        )
    )
    question = {(row["dataset"], row["id"]): row["question"] for row in questions}
    response = {(row["dataset"], row["id"], row["route"]): row["response"] for row in nodes}
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    for line in lines:
        asked = line["dataset"], line["query"]
        called = [step["model"] for step in line["steps"]]
        for made, step in enumerate(line["steps"], start=1):
            step["response"] = response[*asked, ">".join(called[:made])]
        line |= {"question": question[asked], "query": f"request {asked}"}
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / "texts.jsonl")


def test_a_log_of_texts_needs_no_cache(place: Place, told: dict[str, Any], tmp_path: Path) -> None:
    log = with_texts(place, tmp_path)
    shutil.copytree(place / "router", tmp_path / "router")
    found = Place(tmp_path, place.run).tells(f"{ROUTER} --log texts.jsonl")
    assert found["truth"] is None
    before, snips = told["estimates"][0], found["estimates"][0]  # DR has other folds of questions
    assert before["estimator"] == snips["estimator"] == "SNIPS"
    assert snips["value"] == pytest.approx(before["value"], rel=1e-3)
    assert found["overlap"]["effective"] == pytest.approx(told["overlap"]["effective"], rel=1e-6)
    line = place.refuses(ROUTER, "--log", log, "--price", "calc=1")
    assert "prices are for a cache: --prices, --price; " in line
    assert line.endswith("priced as logged, tokens as the router was trained; leave them out")


def test_the_router_is_that_of_a_report(place: Place, tmp_path: Path) -> None:
    for name in ("caches", "router"):
        shutil.copytree(place / name, tmp_path / name)
    shutil.copy(place / "log.jsonl", tmp_path)
    other = Place(tmp_path, place.run)
    other.does("sweep-alpha --alphas 0,0.1 --out runs/sweep")
    done = other.does("off-policy --log log.jsonl --alpha 0.02")
    said = "no run of `train` for alpha 0.02 on this tree; the sweep's router is shown, seed 42"
    assert f"off-policy: {said}" in done.stderr
    assert "off-policy: checkpoint runs/sweep at alpha 0.02" in done.stderr
    done = other.does(f"{ROUTER} --log log.jsonl --alpha 0.02")
    assert "off-policy: the router was trained at alpha 0.1, shown at 0.02" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (ROUTER, "no log; give --log FILE"),
        (f"{ROUTER} --log none.jsonl", "cannot be read: none.jsonl"),
        ("off-policy --log log.jsonl", "no router was trained"),
    ],
)
def test_what_is_missing_is_said(place: Place, words: str, said: str) -> None:
    assert said in place.refuses(words)


def test_a_bad_line_is_named(place: Place, tmp_path: Path) -> None:
    lines = (place / "log.jsonl").read_text().replace('"query": "', '"query": "no-', 1)
    (tmp_path / "bad.jsonl").write_text(lines)
    line = place.refuses(ROUTER, "--log", tmp_path / "bad.jsonl")
    assert "is not in the cache" in line and "bad.jsonl:1" in line

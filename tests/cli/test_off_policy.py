"""`hierrouter off-policy` on a small cache: logs of its own, a file, and bad files."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, Start, as_json, works

ROUTER = ("--checkpoint", "router")
ESTIMATORS = ["IPS", "IPS per decision", "SNIPS", "SNIPS per decision", "FQE", "DR"]


@pytest.fixture(scope="module")
def place(bare: Path, hierrouter: Run) -> Path:
    """A folder with a collected cache, a router that may stop, and a log of 60 episodes."""
    flags = ["--algo", "exact", "--epochs", "2", "--allow-stop", "--alpha", "0.1"]
    works(hierrouter("train", *flags, "--out", "router", cwd=bare))
    flags = ["--simulate", "temperature=3", "--episodes", "60", "--keep", "log.jsonl"]
    done = works(hierrouter("off-policy", *ROUTER, *flags, "--format", "json", cwd=bare))
    (bare / "simulated.json").write_text(done.stdout)
    return bare


def simulated(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "simulated.json").read_text())
    return found


def valued(run: Run, place: Path, *flags: str | Path, cwd: Path | None = None) -> dict[str, Any]:
    return as_json(run("off-policy", "--format", "json", *flags, cwd=cwd or place))


def refused(run: Run, place: Path, *flags: str | Path) -> str:
    done = run("off-policy", *flags, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    line: str = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line


def test_logs_of_its_own_beside_the_exact_value(place: Path, hierrouter: Run) -> None:
    found = simulated(place)
    done = hierrouter("report", *ROUTER, "--split", "validation", "--format", "json", cwd=place)
    rows = json.loads(done.stdout)["rows"]
    [exact] = [row for row in rows if row["kind"] == "router" and row["dataset"] == "all"]
    assert found["truth"] == pytest.approx(exact["reward"])
    assert [estimate["estimator"] for estimate in found["estimates"]] == ESTIMATORS
    assert all(item["low"] < item["value"] < item["high"] for item in found["estimates"])
    assert found["logged_by"] == {"temperature=3": 60}
    assert found["provenance"]["split"] == "validation"
    assert found["scores"] == []


def test_a_log_that_was_kept_says_the_same_again(place: Path, hierrouter: Run) -> None:
    found = valued(hierrouter, place, *ROUTER, "--log", "log.jsonl")
    before = simulated(place)
    assert found["estimates"] == before["estimates"]
    assert found["overlap"] == before["overlap"]
    assert found["truth"] is not None
    assert found["truth_on"] == "the questions of the log"
    assert found["provenance"]["log"] == "log.jsonl"


def test_fresh_logs_tell_bias_and_coverage(place: Path, hierrouter: Run) -> None:
    flags = [*ROUTER, "--simulate", "epsilon=0.5", "--repeats", "3", "--episodes", "40"]
    shown = {}
    for format in ("json", "csv", "text"):
        done = works(hierrouter("off-policy", *flags, "--format", format, cwd=place))
        shown[format] = done.stdout
    scores = json.loads(shown["json"])["scores"]
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert [row["estimator"] for row in rows] == ESTIMATORS
    for row, score in zip(rows, scores, strict=True):
        for name in ("bias", "deviation", "rmse", "coverage", "logs"):
            assert float(row[name]) == pytest.approx(score[name])
    assert "The same on 3 fresh logs" in shown["text"]


def with_texts(run: Run, place: Path) -> list[dict[str, Any]]:
    """The lines of the log with the texts of the cache, under ids that no cache has."""
    columns = "dataset, id, question FROM queries", "dataset, id, route, response FROM nodes"
    questions, nodes = (
        [json.loads(line) for line in done.stdout.splitlines()]
        for done in (
            run("cache", "sql", f"SELECT {what}", "--format", "json", cwd=place) for what in columns
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
    return lines


def test_a_log_with_texts_needs_no_cache(place: Path, tmp_path: Path, hierrouter: Run) -> None:
    lines = with_texts(hierrouter, place)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(place / "router", tmp_path / "router")
    found = valued(hierrouter, place, *ROUTER, "--log", "log.jsonl", cwd=tmp_path)
    before = {item["estimator"]: item for item in simulated(place)["estimates"]}
    assert found["truth"] is None
    for item in found["estimates"]:
        if item["estimator"] != "DR":  # whose folds of questions are other ones
            wanted = before[item["estimator"]]["value"]
            assert item["value"] == pytest.approx(wanted, rel=1e-3)
    assert found["overlap"]["effective"] == pytest.approx(
        simulated(place)["overlap"]["effective"], rel=1e-6
    )


def test_prices_do_not_reach_a_log_with_texts(place: Path, tmp_path: Path, hierrouter: Run) -> None:
    lines = with_texts(hierrouter, place)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = refused(hierrouter, place, *ROUTER, "--log", tmp_path / "log.jsonl", "--price", "calc=1")
    assert "prices are for a cache: --prices, --price; " in line
    assert line.endswith("priced as logged, tokens as the router was trained; leave them out")


def test_the_router_is_that_of_a_report(place: Path, tmp_path: Path, hierrouter: Run) -> None:
    shutil.copytree(place / "caches", tmp_path / "caches")
    flags = ["--epochs", "2", "--out", "runs/sweep"]
    (tmp_path / "runs").mkdir()
    assert hierrouter("sweep-alpha", *flags, cwd=tmp_path).returncode == 0
    done = works(hierrouter("off-policy", "--simulate", "uniform", "--alpha", "0.02", cwd=tmp_path))
    said = "no run of `train` for alpha 0.02 on this tree; the sweep's network is shown, seed 42"
    assert f"off-policy: {said}" in done.stderr
    assert "off-policy: checkpoint runs/sweep at alpha 0.02" in done.stderr
    flags = [*ROUTER, "--simulate", "uniform", "--alpha", "0.02"]
    done = hierrouter("off-policy", *flags, cwd=place)
    assert "off-policy: the router was trained at alpha 0.1, shown at 0.02" in done.stderr


BAD = {
    "a propensity of 0": ('"propensity": 0.', '"propensity": -0.', "propensity is -0."),
    "an unknown query": ('"query": "', '"query": "no-', "is not in the cache"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_line_is_named(
    place: Path, tmp_path: Path, hierrouter: Run, bad: tuple[str, str, str]
) -> None:
    good, wrong, said = bad
    lines = (place / "log.jsonl").read_text().splitlines()
    lines[6] = lines[6].replace(good, wrong, 1)
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    line = refused(hierrouter, place, *ROUTER, "--log", tmp_path / "bad.jsonl")
    assert said in line
    assert "bad.jsonl:7" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "no log; give --log FILE or --simulate"),
        (["--log", "log.jsonl", "--simulate", "uniform"], "contradict each other"),
        (["--log", "log.jsonl", "--repeats", "2"], "--repeats is for --simulate"),
        (["--simulate", "greedy"], "unknown logging policy: 'greedy'"),
        (["--simulate", "uniform", "--keep", "log.jsonl"], "output exists: log.jsonl"),
        (["--log", "none.jsonl"], "cannot be read: none.jsonl"),
        (["--simulate", "uniform", "--cache", "caches/default"], "no router was trained"),
    ],
)
def test_flags_that_make_no_sense(
    place: Path, hierrouter: Run, flags: list[str], said: str
) -> None:
    router = () if "no router" in said else ROUTER
    assert said in refused(hierrouter, place, *router, *flags)


def test_an_interrupted_study_leaves_nothing(place: Path, start: Start) -> None:
    flags = ["--simulate", "uniform", "--repeats", "100000", "--keep", "never.jsonl"]
    process = start("off-policy", *ROUTER, *flags, cwd=place)
    before = process.wait_for(r"(?s)\A.*?off-policy: checkpoint[^\n]*\n")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    done = process.result(timeout=120)
    said = done.stderr.removeprefix(before)
    assert (done.returncode, said.count("\n")) == (130, 1)
    assert "interrupted" in said
    assert not (place / "never.jsonl").exists()

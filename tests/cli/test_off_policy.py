"""`hierrouter off-policy`: a log played on a small cache, which router it is of, and bad files."""

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


def test_a_log_has_estimates_near_the_value(place: Place, told: dict[str, Any]) -> None:
    assert [estimate["estimator"] for estimate in told["estimates"]] == ESTIMATORS
    assert all(item["low"] < item["value"] < item["high"] for item in told["estimates"])
    rows = place.tells("report --checkpoint router --split validation")["rows"]
    [exact] = [row for row in rows if row["kind"] == "router" and row["dataset"] == "all"]
    assert all(abs(item["value"] - exact["reward"]) < 0.3 for item in told["estimates"])
    assert told["logged_by"] == {"temperature=3": 60}
    assert told["provenance"]["log"] == "log.jsonl"
    assert (
        "Mean R of HierRouter at alpha 0.1 from 60"
        in place.does(f"{ROUTER} --log log.jsonl").stdout
    )
    sheet = place.does(f"{ROUTER} --log log.jsonl --format csv").stdout
    assert [line.split(",")[0] for line in sheet.splitlines()] == ["estimator", *ESTIMATORS]


def test_the_study_knows_what_a_report_says(place: Place) -> None:
    rows = place.tells("report --checkpoint router --split validation")["rows"]
    [exact] = [row for row in rows if row["kind"] == "router" and row["dataset"] == "all"]
    study = (place / "study.md").read_text()
    assert f"exactly {exact['reward']:.4f} on" in study
    assert "2 logs of 60 episodes by temperature=3" in study
    assert all(f"\n| {name} | " in study for name in ESTIMATORS)


def test_the_router_is_that_of_the_newest_train(place: Place, tmp_path: Path) -> None:
    """And no cache is needed."""
    shutil.copytree(place / "router", tmp_path / "runs" / "mine")
    shutil.copy(place / "log.jsonl", tmp_path)
    other = Place(tmp_path, place.run)
    assert "off-policy: runs/mine at alpha 0.1" in other.does("off-policy --log log.jsonl").stderr
    done = other.does("off-policy --log log.jsonl --checkpoint runs/mine --alpha 0.02")
    assert "off-policy: the router was trained at alpha 0.1, shown at 0.02" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (ROUTER, "no log; give --log FILE"),
        (f"{ROUTER} --log none.jsonl", "cannot be read: none.jsonl"),
        ("off-policy --log log.jsonl", "no trained router: runs"),
    ],
)
def test_what_is_missing_is_said(place: Place, words: str, said: str) -> None:
    assert said in place.refuses(words)


def test_a_bad_line_is_named(place: Place, tmp_path: Path) -> None:
    lines = (place / "log.jsonl").read_text().replace('"question":', '"query":', 1)
    (tmp_path / "bad.jsonl").write_text(lines)
    done = place.does(f"{ROUTER} --log {tmp_path / 'bad.jsonl'}")
    assert "1 of 60 lines are left out" in done.stderr
    assert "question is missing" in done.stderr and "bad.jsonl:1" in done.stderr

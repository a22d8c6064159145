"""`hierrouter datasets`: where questions come from, and what they look like."""

import os
import subprocess

import pytest

from hierrouter.questions.sources import PAPER_DATASETS
from hierrouter.questions.testbed import FAMILIES
from tests.cli.conftest import Place
from tests.hierrouter.questions.files import rows, write
from tests.hub import hub, repository

NEAR = "How many grey geese and brown ducks swim on the pond behind the old mill at noon ?"


@pytest.fixture
def asked(place: Place) -> Place:
    """gsm8k as a file, and a file of one's own with choices and a leak."""
    (place / "data").mkdir()
    write(place / "data" / "gsm8k.jsonl", rows(20))
    mine = [dict(row, choices=["no", row["answer"]], answer="B") for row in rows(4)]
    mine += [
        {"id": "pond", "question": NEAR, "answer": "nine", "split": "train"},
        {"id": "lake", "question": NEAR.upper(), "answer": "nine", "split": "test"},
    ]
    write(place / "mine.parquet", mine)
    return place


def test_every_name_is_listed_with_its_origin(asked: Place) -> None:
    text = asked.does("datasets").stdout
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert list(lines) == [*FAMILIES, *PAPER_DATASETS]
    assert lines["gsm8k"].split() == ["file", "20", "data/gsm8k.jsonl"]
    assert lines["mmlu"].split() == ["hub", "14,042", "cais/mmlu", "all", "test"]
    listed = asked.tells("datasets")
    assert [item["name"] for item in listed] == list(lines)
    assert listed[-1] == {
        "name": "arc-challenge",
        "origin": "hub",
        "place": "allenai/ai2_arc ARC-Challenge test",
        "questions": 1172,
    }


def test_folds_and_samples_are_shown(asked: Place) -> None:
    show = "datasets --datasets gsm8k,mine.parquet"
    first, sample, second, choices = asked.does(f"{show} --show 1").stdout.splitlines()
    assert first == "gsm8k: 11 train, 3 validation, 6 test"
    assert sample.startswith("  q0 [")
    assert sample.endswith("] 'What is 0+1?' -> '1'")
    assert second.startswith("mine: ")
    assert r"'What is 0+1?\nA. no\nB. 1' -> 'B'" in choices
    found = asked.tells(show)["datasets"]
    assert [dataset["name"] for dataset in found] == ["gsm8k", "mine"]
    assert found[0]["folds"] == {"train": 11, "validation": 3, "test": 6}
    assert found[1]["samples"][0]["choices"] == [["A", "no"], ["B", "1"]]


def test_near_questions_are_said_and_shown(asked: Place) -> None:
    done = asked.does("datasets --datasets mine.parquet --near")
    assert done.stderr == (
        "1 question of test is nearly the same as one in another fold: mine/lake ~ mine/pond "
        "(1.00); `hierrouter datasets --near` shows them\n"
    )
    assert done.stdout.splitlines()[-3:] == [
        "near 1.00: mine/lake ~ mine/pond",
        f"  {NEAR.upper()!r}",
        f"  {NEAR!r}",
    ]
    done = asked.does("datasets --datasets arith --near")
    assert done.stderr == "no question of test is nearly the same as one of another fold\n"


def from_hub(
    endpoint: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    for name, value in (
        ("HF_HUB_OFFLINE", "0"),
        ("HF_HOME", str(place / "home")),
        ("HF_ENDPOINT", endpoint),
    ):
        monkeypatch.setenv(name, value)
    return place.asks("datasets --datasets mbpp")


def test_what_came_from_the_hub_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    made = [{"task_id": n, "text": f"Make {n}.", "code": "pass"} for n in range(3)]
    with hub({"google-research-datasets/mbpp": repository({("full", "test"): made})}) as address:
        done = from_hub(address, place, monkeypatch)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ("mbpp: from the hub, google-research-datasets/mbpp@0123456789ab, test\n")
    assert done.stdout.startswith("mbpp: 2 train, 0 validation, 1 test\n")


def test_a_hub_that_is_not_there_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    done = from_hub("http://127.0.0.1:9", place, monkeypatch)
    assert (done.returncode, done.stdout) == (1, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: cannot load from the hub: google-research-datasets/mbpp: ")
    assert "put the questions into data/mbpp.jsonl" in said
    assert said.endswith("see docs/datasets.md")


def test_a_hub_that_is_switched_off_is_a_missing_file(place: Place) -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    said = place.refuses("datasets --datasets mbpp")
    assert said.startswith("error: dataset file not found: data/mbpp.jsonl; put the questions")

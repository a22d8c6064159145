"""The six datasets through the library `datasets`, from a hub on this machine.

The rows are made up, in the columns that each repository has.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hierrouter.questions.sources import HUB, PAPER_DATASETS, SUBJECTS, hub_queries
from hierrouter_cache.errors import InputError
from tests.conftest import environment
from tests.hub import COMMIT, hub, repository

pytest.importorskip("datasets")

ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "openai/gsm8k": {
        "main": [
            {"question": "Two boats carry 4 crates each. All?", "answer": "<<2*4=8>>8.\n#### 8"},
            {"question": "Two boats carry 4 crates each. All?", "answer": "Again.\n#### 8"},
        ]
    },
    "EleutherAI/hendrycks_math": {
        subject: [
            {
                "problem": f"Name a value of {subject}.",
                "level": "Level 5",
                "type": subject,
                "solution": r"It is $\boxed{}$." if subject == "geometry" else r"\boxed{1}",
            }
        ]
        for subject in SUBJECTS
    },
    "google-research-datasets/mbpp": {
        "full": [
            {
                "task_id": 11,
                "text": "Write a function that doubles.",
                "code": "def double(n):\r\n    return 2 * n",
                "test_list": ["assert double(2) == 4"],
            }
        ]
    },
    "cais/mmlu": {
        "all": [
            {
                "question": "Which weighs\u00a0more?",
                "subject": "college_physics",
                "choices": ["\ufeffa feather", "10\u00a0kg", "a leaf", ""],
                "answer": 1,
            }
        ]
    },
    "allenai/ai2_arc": {
        "ARC-Easy": [
            {
                "id": "Made_1",
                "question": "What melts?",
                "choices": {"text": ["ice", "sand", "glass"], "label": ["1", "2", "3"]},
                "answerKey": "1",
            },
            {
                "id": "Made_2",
                "question": "What burns?",
                "choices": {"text": ["ash", "rock", "ice", "wood"], "label": ["A", "B", "C", "D"]},
                "answerKey": "D",
            },
        ],
        "ARC-Challenge": [
            {
                "id": "Made_3",
                "question": "What floats?",
                "choices": {"text": ["a", "b", "c", "d", "cork"], "label": list("ABCDE")},
                "answerKey": "E",
            }
        ],
    },
}

SHOWN = """
import json, sys
from hierrouter.questions.sources import hub_queries
from hierrouter_cache.errors import WorldError
for name in sys.argv[1:]:
    try:
        queries, place = hub_queries(name, f"data/{name}.jsonl")
    except WorldError as error:
        print(error)
        continue
    for query in queries:
        print(json.dumps([name, query.id, query.question, query.answers, query.choices]))
    print(place)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    repositories = {
        name: repository({(part, "test"): rows for part, rows in parts.items()})
        for name, parts in ROWS.items()
    }
    with hub(repositories) as found:
        yield found


def loaded(*names: str, home: Path, **more: str) -> list[str]:
    """What a process of its own says of these, whose hub is named by its environment."""
    settings = {**environment(), "HF_HUB_OFFLINE": "0", "HF_HOME": str(home), **more}
    done = subprocess.run(
        [sys.executable, "-c", SHOWN, *names], env=settings, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def said(address: str, home: Path) -> list[str]:
    """Of all six, downloaded into `home`."""
    return loaded(*PAPER_DATASETS, home=home, HF_ENDPOINT=address)


def test_every_dataset_comes_in_our_shape(said: list[str]) -> None:
    rows = [json.loads(line) for line in said if line.startswith("[")]
    found = {(dataset, name): row for dataset, name, *row in rows}
    assert found["gsm8k", "test-0"][1] == ["8.\n#### 8"]  # without <<2*4=8>>
    assert found["gsm8k", "test-1"][0] == found["gsm8k", "test-0"][0]
    assert [name for dataset, name in found if dataset == "math"] == [
        f"test-{subject}-0" for subject in SUBJECTS
    ]
    assert found["math", "test-geometry-0"][1] == [r"It is $\boxed{}$."]
    assert found["mbpp", "11"][:2] == [
        "Write a function that doubles.",
        ["def double(n):\r\n    return 2 * n"],
    ]
    assert found["mmlu", "test-college_physics-0"] == [
        "Which weighs\u00a0more?\nA. \ufeffa feather\nB. 10\u00a0kg\nC. a leaf\nD. ",
        ["B"],
        [["A", "\ufeffa feather"], ["B", "10\u00a0kg"], ["C", "a leaf"], ["D", ""]],
    ]
    assert found["arc-easy", "Made_1"] == [
        "What melts?\nA. ice\nB. sand\nC. glass",
        ["A"],
        [["A", "ice"], ["B", "sand"], ["C", "glass"]],
    ]
    assert found["arc-easy", "Made_2"][1] == ["D"]
    assert found["arc-challenge", "Made_3"][1] == ["E"]
    places = [line for line in said if "@" in line]
    assert places == [f"{HUB[name].repository}@{COMMIT[:12]}, test" for name in PAPER_DATASETS]


def test_what_was_downloaded_is_used_where_the_hub_is_off(said: list[str], home: Path) -> None:
    off = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert loaded(*PAPER_DATASETS, home=home, **off) == said


def test_another_repository_than_expected_is_named(tmp_path: Path) -> None:
    wrong = {
        "openai/gsm8k": repository({("main", "test"): [{"question": "q", "reply": "r"}]}),
        "google-research-datasets/mbpp": repository({("sane", "test"): [{"text": "t"}]}),
    }
    with hub(wrong) as address:
        found = loaded("gsm8k", "mbpp", "mmlu", home=tmp_path, HF_ENDPOINT=address)
    for line, name, word in zip(
        found, ("gsm8k", "mbpp", "mmlu"), ("answer", "full", "404"), strict=True
    ):
        assert line.startswith(f"cannot load from the hub: {HUB[name].repository}: ")
        assert word in line
        assert f"put the questions into data/{name}.jsonl, one JSON object a line" in line


def test_a_hub_of_no_address_is_one_line(tmp_path: Path) -> None:
    [line] = loaded("gsm8k", home=tmp_path, HF_ENDPOINT="no address")
    assert line.startswith("cannot load from the hub: openai/gsm8k: ")
    assert line.endswith("see docs/datasets.md")


def test_without_the_extra_the_local_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'data/math.jsonl; .*pip install "hierrouter\[hub\]"'):
        hub_queries("math", "data/math.jsonl")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert tuple(HUB) == PAPER_DATASETS

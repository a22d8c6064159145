"""`hierrouter pools` and `datasets`, a person's own pool, and models that cannot be run."""

import subprocess
import sys
from pathlib import Path

import pytest

from hierrouter.engines.listing import model_details
from hierrouter.pools.files import load_pool
from hierrouter.questions.shipped import GROUP_BY_FAMILY
from hierrouter.questions.sources import PAPER_DATASETS
from tests.cli.conftest import Place
from tests.conftest import spawned, works
from tests.hierrouter.collection.examples import questions, save
from tests.hub import hub, repository

POOL = """
[pool]
hops = 1
stage_prompts = ["Solve it."]
[[models]]
name = "near"
model = "testbed:calc"
base_rate = 0.5
[[models]]
name = "far"
model = "org/far-7B"
rate_in = 0.1
rate_out = 0.3
[[references]]
name = "big"
model = "org/big"
parameters = "70B"
"""
CONFIG = '{"max_position_embeddings": 4096}'


def test_the_shipped_pools_are_listed(place: Place) -> None:
    found = place.tells("pools")
    assert list(found) == ["cpu", "graded", "paper", "testbed"]
    assert [model["weights"] for model in found["testbed"]["listing"]] == ["here"] * 3
    assert len(found["paper"]["listing"]) == len(found["paper"]["models"]) + 2
    sizes = [model["parameters"] for model in found["cpu"]["listing"]]
    assert 4 * sum(sizes) < 6e9  # bytes in float32: 8 GB of memory hold them and their batches
    text = place.does("pools").stdout
    for pool in found.values():
        for model in pool["models"]:
            assert model["model"] in text


@pytest.mark.parametrize(
    ("files", "weights", "window"),
    [
        ({}, "not here", None),
        ({"config.json": CONFIG}, "in part", 4096),
        ({"config.json": CONFIG, "model.safetensors": ""}, "here", 4096),
        ({"config.json": CONFIG, "model.safetensors": "", "tokenizer.json": ""}, "here", 4096),
        (
            {
                "config.json": '{"text_config": {"max_position_embeddings": 8192}}',
                "model.safetensors.index.json": '{"weight_map": {"a": "1.safetensors", '
                '"b": "2.safetensors"}}',
                "1.safetensors": "",
            },
            "in part",
            8192,
        ),
    ],
)
def test_what_of_a_hub_model_is_here(
    tmp_path: Path,
    files: dict[str, str],
    weights: str,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = tmp_path / "hub/models--org--far-7B"
    snapshot = saved / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (saved / "refs").mkdir()
    (saved / "refs" / "main").write_text("abc")
    for name, text in files.items():
        (snapshot / name).write_text(text)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "p.toml").write_text(POOL)
    far = model_details(load_pool(str(tmp_path / "p.toml")).models[1])
    assert far == {
        "name": "far",
        "parameters": 7e9,
        "window": window,
        "weights": weights,
        "tokenizer": "here" if "tokenizer.json" in files else "not here",
        "commit": "abc" if files else None,
    }


def test_a_pool_of_yours_is_shown_with_its_instructions(place: Place) -> None:
    (place / "p.toml").write_text(POOL)
    shown = place.does("pools --pool p.toml").stdout
    for word in ("near", "0.1/0.3", "70B", "hop 1: Solve it.", "references"):
        assert word in shown


def test_a_pool_of_yours_is_checked(place: Place) -> None:
    (place / "p.toml").write_text(POOL.replace("base_rate", "base_rat", 1))
    assert "did you mean base_rate" in place.refuses("pools --pool p.toml")


def test_no_network_is_asked(tmp_path: Path) -> None:
    """Every socket is refused, and the hub is not set to offline."""
    (tmp_path / "p.toml").write_text(POOL)
    code = (
        "import sys\n"
        "def refuse(event, args):\n"
        "    if event.startswith('socket.connect') or event == 'socket.getaddrinfo':\n"
        "        raise SystemExit('network: ' + str(args))\n"
        "sys.addaudithook(refuse)\n"
        "sys.argv = ['hierrouter', 'pools', '--pool', 'p.toml']\n"
        "from hierrouter_cli.app import main\nmain()\n"
    )
    online = {"HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = spawned(sys.executable, "-c", code, cwd=tmp_path, **online)
    assert "not here" in works(done).stdout


NEAR = "How many grey geese and brown ducks swim on the pond behind the old mill at noon ?"


@pytest.fixture
def asked(place: Place) -> Place:
    """Two of the paper's data sets as files, and a file of one's own with choices and a leak."""
    (place / "data").mkdir()
    save(questions(20), place / "data" / "gsm8k.jsonl")
    save(questions(3000), place / "data" / "arc-easy.parquet")
    mine = [dict(row, choices=["no", row["answer"]], answer="B") for row in questions(4)]
    mine += [
        {"id": "pond", "question": NEAR, "answer": "nine", "split": "train"},
        {"id": "lake", "question": NEAR.upper(), "answer": "nine", "split": "test"},
    ]
    save(mine, place / "mine.parquet")
    return place


def test_every_name_is_listed_with_its_origin(asked: Place) -> None:
    lines = dict(line.split(maxsplit=1) for line in asked.does("datasets").stdout.splitlines())
    assert list(lines) == [*GROUP_BY_FAMILY, *PAPER_DATASETS]
    assert lines["gsm8k"].split() == ["file", "20", "data/gsm8k.jsonl"]
    assert lines["arc-easy"].split() == ["file", "3,000", "data/arc-easy.parquet"]
    assert lines["riddle"].split()[0] == "testbed"
    assert lines["mmlu"].split() == ["hub", "14,042", "cais/mmlu", "all", "test"]
    listing = asked.tells("datasets")
    assert [item["name"] for item in listing] == list(lines)
    assert listing[-1] == {
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


def test_near_duplicates_across_folds_are_noted(asked: Place) -> None:
    done = asked.does("datasets --datasets mine.parquet")
    assert done.stderr == (
        "near-duplicates across folds: 1 query repeats one of another fold up to case, punctuation "
        "and spaces, e.g. mine/lake (test) and mine/pond (validation); remove one of each pair, or "
        "give both the same split\n"
    )


def from_hub(
    endpoint: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(place / "home"))
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
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

"""What bad input gets: one line, the right exit code, nothing on stdout, nothing lost."""

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.hub import hub

CASES = [
    # arguments, exit code, what the line must say
    (["trian"], 2, ["train"]),
    (["train", "--alhpa", "1"], 2, ["--alhpa", "--alpha"]),
    (["train", "--alpha", "abc"], 2, ["alpha", "abc", "number"]),
    (["train", "--alpha", "nan"], 2, ["alpha", "finite"]),
    (["train", "--alpha", "1e309"], 2, ["alpha", "finite"]),
    (["train", "--alpha=-0.1"], 2, ["alpha", "negative"]),
    (["train", "--alpha", "0,005"], 2, ["alpha", "0,005", "number"]),
    (["train", "--seed", "-1"], 2, ["seed"]),
    (["train", "--preset", "papr"], 2, ["preset", "papr", "paper"]),
    (["train", "--algo", "pppo"], 2, ["algorithm", "pppo", "exact, ppo"]),
    (["train", "--algo", "exact", "--preset", "paper"], 2, ["preset", "paper", "exact: default"]),
    (["train", "--epochs", "0"], 2, ["--epochs", "greater than or equal to 1"]),
    (["train", "--epochs", "many"], 2, ["--epochs", "integer"]),
    (["report", "--defer-share", "0.1"], 2, ["--defer-share 0.1", "--defer-to MODEL"]),
    (["report", "--defer-to", "a", "--defer-share", "many"], 2, ["number", "many"]),
    (["report", "--defer-to", "a", "--defer-share", "10"], 2, ["from 0 to 1", "10"]),
    (["report", "--defer-to", "a", "--defer-share", "nan"], 2, ["from 0 to 1", "nan"]),
    (["train", "--budget", "cheap"], 2, ["number", "--budget cheap"]),
    (["train", "--budget", "0"], 2, ["above 0", "--budget 0"]),
    (["train", "--budget", "nan"], 2, ["finite", "--budget nan"]),
    (["train", "--budget", "1", "--algo", "ppo"], 2, ["--budget with --algo ppo"]),
    (["train", "--budget", "1", "--max-cost", "1"], 2, ["--budget and --max-cost"]),
    (["train", "--budget", "1", "--alpha", "1"], 2, ["--budget and --alpha"]),
    (["train", "--max-cost", "0,8"], 2, ["number", "--max-cost 0,8"]),
    (["train", "--max-cost=-1"], 2, ["above 0", "--max-cost -1"]),
    (["train", "--max-cost", "inf"], 2, ["finite", "--max-cost inf"]),
    (["train", "--state", "qeury"], 2, ["state view", "qeury", "did you mean query"]),
    (["sweep-alpha", "--algo", "dqn"], 2, ["algorithm", "dqn", "exact, ppo"]),
    (["sweep-alpha", "--preset", "papr"], 2, ["preset", "papr", "default"]),
    (["sweep-alpha", "--seeds", "0"], 2, ["--seeds", "greater than or equal to 1"]),
    (["sweep-alpha", "--epochs", "0"], 2, ["--epochs", "greater than or equal to 1"]),
    (["report", "--checkpoint", "nope.safetensors"], 2, ["nope.safetensors", "not found"]),
    (["report", "--checkpoint", "file"], 2, ["file", "not a safetensors file"]),
    (["sweep-alpha", "--alphas", "0.1,,0.2"], 2, ["alphas", "empty"]),
    (["sweep-alpha", "--alphas", ""], 2, ["alphas", "empty"]),
    (["report", "--format", "jsn"], 2, ["jsn", "did you mean json"]),
    (["collect", "--datasets", "gsm9k"], 2, ["gsm9k", "did you mean gsm8k"]),
    (["collect", "--datasets", "gsm8k,,math"], 2, ["empty dataset name"]),
    (["collect", "--datasets", "math"], 2, ["data/math.jsonl", "not found"]),
    (["collect", "--datasets", "mine.jsonl"], 2, ["mine.jsonl", "not found"]),
    (["collect", "--pool", "testbd"], 2, ["testbd", "did you mean testbed"]),
    (["collect", "--pool", "nope.toml"], 2, ["nope.toml", "not found"]),
    (["collect", "--limit", "0"], 2, ["limit"]),
    (["collect", "--cache", "file"], 2, ["file", "not a directory"]),
    (["quickstart", "--out", "no/such/dir"], 2, ["no/such", "does not exist"]),
    (["train", "--cache", "nowhere"], 3, ["no cache", "nowhere", "hierrouter collect"]),
    (["sweep-alpha", "--cache", "nowhere"], 3, ["no cache", "nowhere", "hierrouter collect"]),
    (["report", "--cache", "nowhere"], 3, ["no cache", "nowhere", "hierrouter collect"]),
    (["cache", "info", "--cache", "nowhere"], 3, ["no cache", "hierrouter collect"]),
    (["cache", "repair", "--cache", "nowhere"], 3, ["no cache", "hierrouter collect"]),
    (["cache", "verify", "--cache", "nowhere"], 3, ["no cache", "hierrouter collect"]),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=lambda case: str(case)[:60])
def test_one_line_and_the_right_code(
    tmp_path: Path, hierrouter: Run, arguments: list[str], code: int, words: list[str]
) -> None:
    (tmp_path / "file").write_text("x")
    done = hierrouter(*arguments, cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert len(lines[-1]) <= 307
    assert all(word in lines[-1] for word in words), lines[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_models_are_not_loaded_for_a_bad_dataset(tmp_path: Path, hierrouter: Run) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "math.jsonl").write_text('{"id": "1", "question": "q"}\n')
    done = hierrouter("collect", "--datasets", "math", "--cache", "c", cwd=tmp_path)
    assert done.returncode == 2
    assert "math.jsonl:1" in done.stderr
    assert not (tmp_path / "c").exists()


def test_a_model_that_is_not_there(tmp_path: Path, hierrouter: Run) -> None:
    pool = '[[models]]\nname = "a"\nmodel = "nobody/nothing"\nbase_rate = 1\n'
    (tmp_path / "p.toml").write_text(pool)
    (tmp_path / "d.jsonl").write_text(json.dumps({"question": "q", "answer": "a"}) + "\n")
    done = hierrouter("collect", "--datasets", "d.jsonl", "--pool", "p.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert "nobody/nothing not found on this machine" in done.stderr
    assert not (tmp_path / "caches").exists()


def test_debug_shows_the_trace(tmp_path: Path, hierrouter: Run) -> None:
    done = hierrouter("train", "--cache", "nowhere", "--debug", cwd=tmp_path)
    assert done.returncode == 3
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("hashed-ngram", "no such encoder: hashed-ngram; did you mean hashed-ngrams?"),
        ("/nope/encoder", "encoder folder not found: /nope/encoder"),
        ("no model", "no such encoder: no model; take hashed-ngrams, paper, "),
    ],
)
def test_a_wrong_encoder_is_found_before_the_first_call(
    tmp_path: Path, hierrouter: Run, encoder: str, message: str
) -> None:
    done = hierrouter("collect", "--limit", "1", "--encoder", encoder, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "caches").exists()


@pytest.mark.parametrize("there", [True, False], ids=["no-such-model", "no-hub"])
def test_an_encoder_is_wrong_only_where_the_hub_says_so(
    tmp_path: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    asked = ["collect", "--limit", "1", "--encoder", "nope"]
    with hub({}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address if there else "http://127.0.0.1:9")
        done = hierrouter(*asked, cwd=tmp_path)
    assert done.returncode == (2 if there else 1)
    words = "no such encoder: nope; " if there else "encoder nope not found on this machine and"
    assert words in done.stderr
    assert not (tmp_path / "caches").exists()


def test_what_was_done_as_json(tmp_path: Path, hierrouter: Run) -> None:
    asked = ["collect", "--datasets", "arith", "--limit", "2", "--format", "json"]
    done = hierrouter(*asked, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["queries"], found["wanted"], found["missing"]) == (2, 30, 0)
    assert 0 < found["calls"] <= 30
    assert json.loads(hierrouter(*asked, cwd=tmp_path).stdout)["earlier"] == found["calls"]

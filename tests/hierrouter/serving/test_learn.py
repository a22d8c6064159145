"""The loop: traffic drifts, its log teaches a router, which is compared, tried out and deployed."""

import json
from pathlib import Path
from typing import Any

import pytest

import hierrouter as hr
from hierrouter.learning.config import Objective
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.open_tree import OpenTree
from hierrouter.serving import learn
from hierrouter.serving.learn_from import LearnFrom
from hierrouter.serving.router import Router
from hierrouter_cache.errors import InputError
from tests.conftest import Run, as_json, refused, works
from tests.hierrouter.serving.serving import ask, lines_of, run_in, served, user

BEFORE = ("arith", "string")
NOW = ("fact", "census", "backcap", "room")


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def drifted(testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a run that learned from other questions than its server got, and its log."""
    folder = tmp_path_factory.mktemp("drifted")
    tree = OpenTree(cache=testbed_cache, datasets=BEFORE).run()
    for name, alpha in (("old", 0.1), ("worse", 40.0)):
        run_in(folder / name, tree, Objective(alpha, allow_stop=True))
    queries = load_queries(NOW, 40, 7, Path())
    with served(Router(folder / "old"), log=folder / "log.jsonl") as url:
        for query in [*queries, *queries[:20]]:
            assert ask(url, messages=user(query.question)).status_code == 200
    rows = [{"question": query.question, "answers": query.answers} for query in queries]
    (folder / "right.jsonl").write_text(lines(*rows))
    return folder


@pytest.fixture(scope="module")
def learned(drifted: Path, hierrouter: Run) -> dict[str, Any]:
    """What `learn-from` says of it."""
    flags = ("--checkpoint", "old", "--judge", "right.jsonl", "--out", "new", "--format", "json")
    result: dict[str, Any] = as_json(hierrouter("learn-from", "log.jsonl", *flags, cwd=drifted))
    return result


def test_a_router_learned_from_the_log_is_better_and_can_be_deployed(
    drifted: Path, learned: dict[str, Any], hierrouter: Run
) -> None:
    assert (learned["lines"], learned["distinct"]) == (180, 160)
    assert learned["better"]
    assert learned["new"] > learned["old"] + 0.1
    for flags in (["--shadow"], ["--share", "0.1"], []):
        stdout = works(hierrouter("deploy", "new", *flags, cwd=drifted)).stdout
    assert stdout == "in service: new\nbefore:     old\n"


def test_an_output_that_cannot_be_made_is_refused_before_the_calls(
    drifted: Path, hierrouter: Run
) -> None:
    for out, said in (
        ("right.jsonl", "output exists"),
        ("log.jsonl/new", "log.jsonl is no folder"),
    ):
        flags = ("--checkpoint", "old", "--judge", "right.jsonl", "--out", out, "--cache", "none")
        assert said in refused(hierrouter("learn-from", "log.jsonl", *flags, cwd=drifted))
    assert not (drifted / "none").exists()


def test_python_learns_as_the_command_does(
    drifted: Path, learned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls and the router are there, so that only the comparison is made again."""
    monkeypatch.chdir(drifted)
    notes: list[str] = []
    result = hr.learn_from(
        "log.jsonl", run="old", judge="right.jsonl", candidate="new", on_note=notes.append
    )
    assert result.as_object() == learned
    assert notes == ["180 lines, 160 questions, 160 taken, as old is in service"]


def test_a_worse_router_is_refused_with_the_reason(
    drifted: Path, learned: dict[str, Any], hierrouter: Run
) -> None:
    """It is planted; the calls that it needs are there, so it takes no time."""
    flags = ("--checkpoint", "new", "--judge", "right.jsonl", "--candidate", "worse")
    done = works(hierrouter("learn-from", "log.jsonl", *flags, cwd=drifted))
    assert done.stdout.startswith("worse: not shown to be better on 48 questions of the test fold")
    assert "not shown to be better" in refused(hierrouter("deploy", "worse", cwd=drifted))
    works(hierrouter("deploy", "worse", "--shadow", cwd=drifted))
    works(hierrouter("deploy", "worse", "--anyway", cwd=drifted))


def test_what_is_deployed_while_it_learns_stays(
    drifted: Path, learned: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was never compared with the one in service by then is not let into service."""
    for name in ("old", "new", "worse", "log.jsonl", "right.jsonl", "caches"):
        (tmp_path / name).symlink_to(drifted / name)
    monkeypatch.chdir(tmp_path)
    hr.deploy("old")
    hr.deploy("worse", shadow=True)

    def deploy_meanwhile(plan: object) -> None:
        hr.deploy("worse")

    job = LearnFrom(log=Path("log.jsonl"), judge="right.jsonl", candidate=Path("new"))
    notes: list[str] = []
    result = job.run(deploy_meanwhile, notes.append)
    assert result.verdict.is_better
    assert (hr.deploy().run, hr.deploy().candidate, hr.deploy().before) == ("worse", None, ("old",))
    assert "worse was deployed meanwhile, and stays in service" in notes[-1]
    with pytest.raises(InputError, match=r"new is compared with old alone, and worse is in"):
        hr.deploy("new")
    hr.deploy("new", shadow=True)
    # The same run under another name is no other run.
    hr.deploy("old")
    notes.clear()
    job.run(lambda plan: hr.deploy(drifted / "old"), notes.append)
    assert len(notes) == 1
    hr.deploy("new")


@pytest.mark.parametrize("judge", ["thumbs", "consensus"])
def test_without_references_the_pool_or_people_judge(
    drifted: Path, learned: dict[str, Any], tmp_path: Path, judge: str, hierrouter: Run
) -> None:
    right = learn.read_references(drifted / "right.jsonl")
    rows = lines_of(drifted / "log.jsonl")
    for number, row in enumerate(rows):  # every third answer was wrong
        row["quality"] = float(number % 3 > 0)
        row["answer"] = right[row["question"]][0] if number % 3 else "wrong"
    (tmp_path / "log").write_text(lines(*rows))
    traffic = learn.read_traffic(tmp_path / "log", 500, 42)
    queries = learn.judge_queries(traffic, judge, drifted / "caches/traffic")
    good = sum(query.answers[0] in right[query.question] for query in queries)
    liked = {row["question"] for row in rows if row["quality"]}
    assert len(queries) == (len(liked) if judge == "thumbs" else 160)
    # Each of the testbed's models knows something else, so what most of them say is mostly wrong.
    assert good / len(queries) > (0.99 if judge == "thumbs" else 0.15)
    assert not {answer for query in queries for answer in query.answers} & {
        *learn.DECLINING_ANSWERS
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines({"log": 1, "question": "x"}, {"log": 2, "question": "y"}), r"version 2.*log:2; "),
        (lines({"otherwise": "facts", "status": 200}), "no questions"),
        ("", "no questions"),
        ("{", "not JSON"),
    ],
)
def test_files_that_are_no_logs_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(InputError, match=message):
        learn.read_traffic(tmp_path / "log", 10, 0)


def test_failed_questions_are_included_and_each_question_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        lines(
            {"question": "a", "status": 502},
            {"question": "b", "status": 200, "answer": "1", "quality": 1.0},
            {"question": "b", "status": 200, "answer": "2", "quality": 0.0},
        )
    )
    traffic = learn.read_traffic(tmp_path / "log", 10, 0)
    assert (traffic.lines, traffic.distinct) == (3, 2)
    assert traffic.liked == {"a": (), "b": ("1",)}
    with pytest.raises(InputError, match="thumbs judges 1 of 2 questions"):
        learn.judge_queries(traffic, "thumbs", tmp_path)


def test_collect_refuses_a_log_as_a_dataset(drifted: Path, hierrouter: Run) -> None:
    message = refused(hierrouter("collect", "--datasets", "log.jsonl", cwd=drifted))
    assert "is the log of a server, and its answers are nobody's references" in message
    assert "`hierrouter learn-from" in message

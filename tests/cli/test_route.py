"""`hierrouter route` and `serve`: answers from the models themselves."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from hierrouter.learning.bundle import bundle_of, save_bundle
from hierrouter.learning.checkpoint import save_checkpoint
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.training import train
from hierrouter.replay.opening import open_tree
from tests.cli.pages import blocks, run_python
from tests.conftest import SOURCES, Run, Start, works

QUESTION = "compute 12+7"
TRAIN, SWEEP = "runs/quickstart-train", "runs/quickstart-sweep-alpha/seed-42"


def refused(home: Path, hierrouter: Run, *arguments: str, code: int = 2) -> str:
    """The one line of a command that must fail."""
    done = hierrouter(*arguments, cwd=home)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_an_answer_and_its_way(home: Path, hierrouter: Run) -> None:
    done = works(hierrouter("route", QUESTION, cwd=home))
    assert done.stdout == "19\n"
    assert re.search(r"route: \w+>\w+ at alpha 0.005, \d+ \+ \d+ tokens, C ", done.stderr)
    whole = hierrouter("route", QUESTION, "--format", "json", cwd=home)
    found = json.loads(whole.stdout)
    assert found["answer"] == "19"
    assert found["route"] in done.stderr


def test_what_it_would_do_first(home: Path, hierrouter: Run) -> None:
    done = hierrouter("route", QUESTION, "--dry-run", cwd=home)
    chances = [line.split() for line in done.stdout.splitlines()]
    assert sorted(name for _, name in chances) == ["calc", "facts", "text"]
    assert sum(float(chance) for chance, _ in chances) == pytest.approx(1, abs=1e-3)
    found = json.loads(
        hierrouter("route", QUESTION, "--dry-run", "--format", "json", cwd=home).stdout
    )
    assert found["first"] == chances[0][1]


def test_what_it_would_do_first_within_the_limit_that_it_was_trained_with(
    testbed_cache: Path, tmp_path: Path, hierrouter: Run
) -> None:
    tree, config = open_tree(testbed_cache), training_config("default", "exact", 2)
    save_checkpoint(train(tree, Objective(0.1, max_cost=5.0), config, seed=1), tmp_path / "run")
    save_bundle(bundle_of(testbed_cache, tree), tmp_path / "run")
    flags = ["--dry-run", "--checkpoint", "run"]
    done = works(hierrouter("route", QUESTION, *flags, cwd=tmp_path))
    assert len(done.stdout.splitlines()) == 3


def test_lines_in_lines_out(home: Path, hierrouter: Run) -> None:
    rows = [{"id": n, "question": f"compute {n}+{n}"} for n in range(1, 25)]
    rows.append({"messages": [{"role": "user", "content": QUESTION}]})
    (home / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = works(hierrouter("route", "--file", "asked.jsonl", cwd=home))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("id") for line in found] == [*range(1, 25), None]
    assert [line["question"] for line in found[:24]] == [row["question"] for row in rows[:24]]
    assert found[-1]["answer"] == "19"


def test_lines_from_stdin_end_at_a_bad_one(home: Path, start: Start) -> None:
    lines = f'{{"question": "{QUESTION}"}}\n{{"quest": 1}}\n{{"question": "never"}}\n'
    done = start("route", "--file", "-", cwd=home, stdin=lines).result()
    assert done.returncode == 2
    assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == ["19"]
    assert "stdin:2" in done.stderr.splitlines()[-1]


def test_a_question_that_no_model_takes_costs_the_others_nothing(
    home: Path, hierrouter: Run
) -> None:
    rows = [{"question": QUESTION}, {"question": "word " * 600}, {"question": "compute 3+4"}]
    (home / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = hierrouter("route", "--file", "long.jsonl", cwd=home)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [line.get("answer") for line in found] == ["19", None, "7"]
    assert "exceed the window" in found[1]["error"]
    assert found[1]["status"] == "too_long"
    assert "1 question has no answer" in done.stderr.splitlines()[-1]


def test_a_sweeps_policy_takes_any_alpha(home: Path, hierrouter: Run) -> None:
    for alpha in ("0.0123", "3"):
        flags = ["--checkpoint", SWEEP, "--alpha", alpha, "--format", "json"]
        done = works(hierrouter("route", QUESTION, *flags, cwd=home))
        assert json.loads(done.stdout)["alpha"] == float(alpha)
    # Of the runs, the one that can be asked for it is found.
    done = works(hierrouter("route", QUESTION, "--alpha", "0.0123", cwd=home))
    assert "sweep" in done.stderr


def test_a_limit_on_cost(home: Path, hierrouter: Run) -> None:
    flags = ["--format", "json", "--max-cost"]
    wide = json.loads(hierrouter("route", QUESTION, *flags, "100", cwd=home).stdout)
    tight = json.loads(hierrouter("route", QUESTION, *flags, "0.01", cwd=home).stdout)
    assert tight["cost"] <= wide["cost"] <= 100
    said = hierrouter("route", QUESTION, "--max-cost", "0.01", cwd=home).stderr
    assert "above the limit of 0.01" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no question; give QUESTION or --file"),
        ([QUESTION, "--file", "x.jsonl"], "contradict"),
        (["--file", "x.jsonl"], "no such file: x.jsonl"),
        (["--file", "/dev/null"], "no such file: /dev/null"),
        (["--file", "x.jsonl", "--dry-run"], "--dry-run is for one question"),
        ([""], "empty question"),
        ([QUESTION, "--alpha", "x"], "alpha"),
        ([QUESTION, "--max-cost", "-1"], "--max-cost"),
        ([QUESTION, "--format", "xml"], "format"),
        ([QUESTION, "--checkpoint", "nowhere"], "nowhere"),
        ([QUESTION, "--checkpoint", TRAIN, "--alpha", "0.7"], "alpha 0.005 alone"),
        ([QUESTION, "--pool", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_cannot_be_asked(home: Path, hierrouter: Run, arguments: list[str], said: str) -> None:
    assert said in refused(home, hierrouter, "route", *arguments)


def test_there_is_no_router_yet(tmp_path: Path, hierrouter: Run) -> None:
    assert "no trained router: runs; `hierrouter train`" in refused(
        tmp_path, hierrouter, "route", QUESTION
    )


@contextmanager
def serving(home: Path, start: Start, *flags: str) -> Iterator[str]:
    """The command, and the address that it says."""
    process = start("serve", "--port", "0", *flags, cwd=home)
    try:
        yield process.wait_for(r"(http://127.0.0.1:\d+)/v1")
    finally:
        process.send_signal(signal.SIGINT)
        done = process.result(timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (130, False)


def test_the_server_answers_as_route_does(home: Path, start: Start) -> None:
    with serving(home, start, "--checkpoint", SWEEP, "--name", "fast=0.5") as url:
        names = [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]
        assert names == [
            "hierrouter",
            "hierrouter:best",
            "hierrouter:balanced",
            "hierrouter:cheap",
            "hierrouter:fast",
        ]
        for name, alpha in (("hierrouter:fast", 0.5), ("hierrouter@0.07", 0.07)):
            body = {"model": name, "messages": [{"role": "user", "content": QUESTION}]}
            found = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
            assert found["model"] == name
            assert found["hierrouter"]["alpha"] == alpha


def test_the_examples_of_the_page_run(home: Path, start: Start) -> None:
    client, api = blocks("python", SOURCES / "docs" / "live.md")
    with serving(home, start) as url:
        assert run_python(client.replace("http://127.0.0.1:8100", url), home).startswith("19 ")
    assert run_python(api, home).startswith("19 ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "everybody could connect: --host 0.0.0.0; give --api-key-env"),
        (["--api-key-env", "HR_NO_SUCH"], "HR_NO_SUCH is not set"),
        (["--name", "fast"], "not NAME=ALPHA: --name fast"),
        (["--name", "fast=1", "--name", "fast=2"], "name given twice: --name fast=2"),
        (["--name", "fast=-1"], "not negative: --name fast -1"),
        (["--alpha", "0.7", "--checkpoint", TRAIN], "alpha 0.005 alone"),
        (["--checkpoint", "nowhere"], "nowhere"),
    ],
)
def test_a_server_that_cannot_start(
    home: Path, hierrouter: Run, flags: list[str], said: str
) -> None:
    assert said in refused(home, hierrouter, "serve", "--port", "0", *flags)


def test_a_server_that_is_ended_says_so_in_one_line(live_run: Path, start: Start) -> None:
    process = start("serve", "--port", "0", "--checkpoint", live_run, cwd=live_run)
    before = process.wait_for(r"(?s)\A.*?http://127.0.0.1:\d+/v1 as hierrouter\n")
    process.send_signal(signal.SIGINT)
    done = process.result(timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.removeprefix(before) == "serve: ended\n"


def test_an_address_taken_meanwhile_is_said_without_the_names(
    live_run: Path, tmp_path: Path, start: Start
) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{rival.getsockname()[1]}"
        flags = ["--port", address.split(":")[1], "--checkpoint", live_run, "--log", "log"]
        process = start("serve", *flags, cwd=tmp_path)
        while not (tmp_path / "log").exists():  # opened after the address is taken
            assert process.poll() is None, process.said()
            time.sleep(0.005)
        rival.listen()
        done = process.result(timeout=60)
    assert done.returncode == 1
    said = f"error: cannot listen: http://{address}/v1: Address already in use; "
    assert done.stderr.splitlines()[-1] == f"{said}give another --port"


def test_a_taken_address_is_said_before_anything_is_loaded(home: Path, hierrouter: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(home, hierrouter, "serve", "--port", port, code=1)
    assert f"cannot listen on 127.0.0.1:{port}" in said

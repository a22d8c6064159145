"""`hierrouter route` and `serve`: answers from the models themselves."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest

from hierrouter.serving.messages import piped_lines
from hierrouter_cache.errors import InputError
from tests.cli.conftest import Place, serving
from tests.cli.pages import blocks
from tests.conftest import COMMAND, SOURCES, Start, spawned
from tests.security.world import served_pool
from tests.servers import Server, good, late
from tests.servers import serving as serving_models
from tests.warm import Running

QUESTION = "compute 12+7"
ASK = f"route '{QUESTION}'"
TRAIN, SWEEP = "runs/quickstart-train", "runs/quickstart-sweep-alpha/seed-42"
MANY = 300


def test_an_answer_and_its_way(home: Place) -> None:
    done = home.does(ASK)
    assert done.stdout == "19\n"
    assert re.search(r"route: \w*>\w+ at alpha 0.4, \d+ \+ \d+ tokens, C ", done.stderr)
    found = home.tells(ASK)
    assert found["answer"] == "19"
    assert found["route"] in done.stderr


def test_what_it_would_do_first(home: Place) -> None:
    chances = [line.split() for line in home.does(f"{ASK} --dry-run").stdout.splitlines()]
    models = ("calc", "facts", "text")
    assert sorted(name for _, name in chances) == sorted(
        [*models, *(f"{name}>stop" for name in models)]
    )
    assert sum(float(chance) for chance, _ in chances) == pytest.approx(1, abs=1e-3)
    assert home.tells(f"{ASK} --dry-run")["first"] == chances[0][1]


def asked(place: Place, rows: list[dict[str, object]]) -> str:
    """A file of questions; its name."""
    (place / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "asked.jsonl"


def test_lines_in_lines_out(work: Place) -> None:
    rows: list[dict[str, object]] = [{"id": n, "question": f"compute {n}+{n}"} for n in range(24)]
    messages = [{"role": "user", "content": QUESTION}]
    done = work.does("route --file", asked(work, [*rows, {"messages": messages}]))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("id") for line in found] == [*range(24), None]
    assert [line["question"] for line in found[:24]] == [row["question"] for row in rows]
    assert found[-1]["answer"] == "19"


def test_a_question_that_no_model_takes_costs_the_others_nothing(work: Place) -> None:
    rows: list[dict[str, object]] = [
        {"question": text} for text in (QUESTION, "word " * 600, "compute 3+4")
    ]
    done = work.asks("route --file", asked(work, rows))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [line.get("answer") for line in found] == ["19", None, "7"]
    assert "exceed the window" in found[1]["error"]
    assert found[1]["status"] == "too_long"
    assert "1 question has no answer" in done.stderr.splitlines()[-1]


def test_a_sweeps_policy_takes_any_alpha(home: Place) -> None:
    done = home.does(f"{ASK} --checkpoint {SWEEP} --alpha 3")
    assert "at alpha 3, " in done.stderr
    # Of the runs, the one that can be asked for it is found.
    done = home.does(f"{ASK} --alpha 0.0123")
    assert "sweep" in done.stderr and "at alpha 0.0123, " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("route", "no question; give QUESTION or --file"),
        (f"{ASK} --file x.jsonl", "contradict"),
        ("route --file /dev/null", "no such file: /dev/null"),
        ("route --file x.jsonl --dry-run", "--dry-run is for one question"),
        ("route ''", "empty question"),
        (f"{ASK} --checkpoint nowhere", "nowhere"),
        (f"{ASK} --checkpoint {TRAIN} --alpha 0.7", "alpha 0.4 alone"),
        ("serve --host 0.0.0.0", "everybody could connect: --host 0.0.0.0; give --api-key-env"),
        ("serve --api-key-env HR_NO_SUCH", "HR_NO_SUCH is not set"),
        (f"serve --port 0 --alpha 0.7 --checkpoint {TRAIN}", "alpha 0.4 alone"),
        ("serve --port 0 --checkpoint nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_asked_or_served(home: Place, words: str, said: str) -> None:
    assert said in home.refuses(words)


def test_there_is_no_router_yet(place: Place) -> None:
    assert "no trained router: runs; `hierrouter train`" in place.refuses(ASK)


def test_the_server_answers_as_route_does(home: Place, start: Start) -> None:
    with serving(home, start, "--checkpoint", SWEEP) as url:
        names = [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]
        named = ("best", "balanced", "cheap")
        assert names == ["hierrouter", *(f"hierrouter:{name}" for name in named)]
        for name, alpha in (("hierrouter@0.5", 0.5), ("hierrouter@0.07", 0.07)):
            body = {"model": name, "messages": [{"role": "user", "content": QUESTION}]}
            found = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
            assert found["model"] == name
            assert found["hierrouter"]["alpha"] == alpha


def test_the_examples_of_the_page_run(
    home: Place, start: Start, python: Callable[[str, Place], str]
) -> None:
    client, _, api = blocks("python", SOURCES / "docs" / "live.md")
    with serving(home, start) as url:
        both = f"{client.replace('http://127.0.0.1:8100', url)}\n{api}"
        answers = [line.split()[0] for line in python(both, home).splitlines()]
    assert answers == ["19", "19"]


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


def test_a_taken_address_is_said_before_anything_is_loaded(home: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = home.refuses(f"serve --port {port}", code=1)
    assert f"cannot listen on 127.0.0.1:{port}" in said


@contextmanager
def piped(run: Path, start: Start, cwd: Path, *flags: str) -> Iterator[tuple[Any, Any, Running]]:
    """`route --file` between pipes: one to write questions into, one to read answers from."""
    given, asking = os.pipe()
    answers, said = os.pipe()
    words = ("route", "--checkpoint", run, "--file", *flags)
    process = start(*words, cwd=cwd, stdin=given, stdout=said)
    for taken in (given, said):
        os.close(taken)
    with os.fdopen(asking, "w", 1) as questions, os.fdopen(answers) as lines:
        try:
            yield questions, lines, process
        finally:
            process.send_signal(signal.SIGKILL)


def test_ctrl_c_ends_it_while_a_pipe_is_idle(live_run: Path, tmp_path: Path, start: Start) -> None:
    with piped(live_run, start, tmp_path, "-") as (questions, lines, process):
        questions.write(json.dumps({"question": QUESTION}) + "\n")
        assert json.loads(lines.readline())["question"] == QUESTION
        process.send_signal(signal.SIGINT)
        done = process.result(60)  # with the pipe still open
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].startswith("error: interrupted")


def test_lines_from_stdin_end_at_a_bad_one(live_run: Path, tmp_path: Path, start: Start) -> None:
    with piped(live_run, start, tmp_path, "-") as (questions, lines, process):
        for row in ({"question": QUESTION}, {"quest": 1}, {"question": "never"}):
            questions.write(json.dumps(row) + "\n")
        done = process.result(60)
        assert [json.loads(line)["question"] for line in lines] == [QUESTION]
    assert done.returncode == 2
    assert "stdin:2" in done.stderr.splitlines()[-1]


def test_nothing_is_asked_that_nobody_reads(live_run: Path, tmp_path: Path, start: Start) -> None:
    rows = [json.dumps({"question": f"compute {n}+1"}) for n in range(MANY)]
    (tmp_path / "asked.jsonl").write_text("\n".join(rows))
    with serving_models(Server(lambda prompt, before: late(good(prompt), 0.05))) as server:
        (tmp_path / "pool.toml").write_text(served_pool(server.url))
        flags = ("asked.jsonl", "--pool", "pool.toml")
        with piped(live_run, start, tmp_path, *flags) as (_, lines, process):
            assert "answer" in json.loads(lines.readline())
            lines.close()
            done = process.result(60)
    assert done.returncode == 0, done.stderr
    assert 0 < sum(server.asked.values()) < MANY


def test_a_stdin_that_is_closed_is_said(tmp_path: Path) -> None:
    closed = ("sh", "-c", 'exec "$@" <&-', "sh")
    done = spawned(*closed, *COMMAND, "route", "--file", "-", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: stdin is closed: --file -")


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n\ntwo\n", [b"one", b"", b"two"]),
        (b"x" * 200_000 + b"\ny", [b"x" * 200_000, b"y"]),
    ],
)
def test_the_lines_of_a_pipe(tmp_path: Path, written: bytes, lines: list[bytes]) -> None:
    (tmp_path / "lines").write_bytes(written)
    with subprocess.Popen(["cat", tmp_path / "lines"], stdout=subprocess.PIPE) as cat:
        assert cat.stdout
        found = list(piped_lines(cat.stdout.fileno(), Event(), "stdin"))
    assert found == list(enumerate(lines, start=1))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(InputError, match="cannot be read: stdin: Is a directory"):
        next(piped_lines(folder, Event(), "stdin"))
    os.close(folder)

"""Hostile texts through every door: nothing but a result or a refusal, and no door is forgotten."""

import ast
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from hierrouter.questions.duplicates import near_duplicates_note
from hierrouter.questions.query import Query
from tests.cli.test_help import COMMANDS, context
from tests.conftest import SOURCES, spawned
from tests.doors import DOORS, World, hostile_texts

TEXTS = hostile_texts()
MAX_SECONDS = 20.0  # of one text at one door
# Each of these doors takes seconds for all texts; in the short test one in so many goes through.
SLOW_DOORS = ("table", "model server", "embeddings server", "log", "chat", "data set", "run")
SHARE = 6


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("doors"))
    with world.exits:
        yield world


def test_there_are_200_texts() -> None:
    assert len(set(TEXTS.values())) >= 200


def send_all(name: str, world: World, texts: Mapping[str, str]) -> None:
    """Send texts through one door; none may end in more than a result or a refusal, nor stall."""
    for kind, text in texts.items():
        started = time.monotonic()
        try:
            DOORS[name].send(world, text)
        except Exception as error:
            raise AssertionError(f"{name}: {kind}: {text[:60]!r}") from error
        assert time.monotonic() - started < MAX_SECONDS, f"{name}: {kind} stalls"


def is_always_sent(text: str) -> bool:
    """Whether a text is in the short test of every door: the half of a pair, and NUL."""
    return "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text[:20])


@pytest.mark.parametrize("name", DOORS)
def test_no_text_breaks_a_door(name: str, world: World) -> None:
    """Slow doors get one text in six, each door others; all of them every night."""
    texts = TEXTS
    if name in SLOW_DOORS:
        first = SLOW_DOORS.index(name)
        kinds = [
            kind
            for number, (kind, text) in enumerate(TEXTS.items())
            if number % SHARE == first % SHARE or is_always_sent(text)
        ]
        texts = {kind: TEXTS[kind] for kind in kinds}
    send_all(name, world, texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_DOORS)
def test_no_text_at_all_breaks_a_slow_door(name: str, world: World) -> None:
    send_all(name, world, TEXTS)


HUGE = 10**400


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens_in": HUGE},
        {"tokens_out": HUGE},
        {"tokens_out": 2**63},
        {"logprobs": [HUGE]},
        {"logprobs": [-1e308, -1e308]},
        {"logprobs": [float("nan")]},
    ],
    ids=str,
)
def test_no_number_breaks_a_decision(changed: dict[str, object], world: World) -> None:
    answer = {"model": "calc", "content": "3", "tokens_in": 1, "tokens_out": 1, **changed}
    messages = [{"role": "user", "content": "compute 1+2"}]
    world.ask("POST", "/v1/decide", {"messages": messages, "answers": [answer]})
    for name in ("seed", "max_tokens", "max_completion_tokens", "temperature", "n"):
        body = {"messages": messages, name: HUGE}
        assert world.ask("POST", "/v1/chat/completions", body)[0] == 400


@pytest.mark.parametrize("length", ["9" * 5000, "\xb2", "-1", "1e3", "", " ", "\u0663"])
def test_no_content_length_breaks_the_server(length: str, world: World) -> None:
    headers = ((b"host", b"localhost"), (b"content-length", length.encode("utf-8")))
    assert world.ask("GET", "/live", headers=headers)[0] in (200, 413)


def test_marks_are_folded_in_a_time_that_grows_with_their_number() -> None:
    """Python's own way takes a minute for these."""
    text = "a" + "\u0301" * 40_000 + "\u0327" * 40_000
    queries = [
        Query(f"{number}", "d", f"{number} {text}", ("1",), fold)
        for number, fold in enumerate(("train", "test"))
    ]
    started = time.process_time()
    near_duplicates_note(queries)
    assert time.process_time() - started < 10


def test_every_route_has_a_door(world: World) -> None:
    routes = {
        f"{method} {route.path}"
        for route in world.app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert routes == {route for door in DOORS.values() for route in door.routes}


# Flags with a folder of ours: its parts are hashed, and read by the doors of `tests/acceptance`.
OWN_FLAGS = {"--cache", "--out"}
FILE_WORDS = ("FILE", "DIR", "LOG", "PATH", "SERVER")


def test_every_flag_that_takes_a_file_has_a_door() -> None:
    flags = {
        next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
        for command in COMMANDS
        for parameter in context(command).command.params
        if any(word in (parameter.metavar or "").upper() for word in FILE_WORDS)
    }
    assert flags - OWN_FLAGS == {flag for door in DOORS.values() for flag in door.flags}


# What reads bytes or texts that a program of others may have written.
READERS = {
    *("loads", "sound_json", "validate_json", "json_lines", "raw_lines", "parquet_rows"),
    *("parse_object", "parse_json", "piped_lines", "open_csv", "read_csv", "DictReader"),
    *("read_small", "read_bytes", "read_text", "ParquetFile", "environ", "getenv", "stdin", "argv"),
}
# Modules whose readers get only what this project wrote, or what a person installed.
OWN_READERS = {
    "collection.cluster": "sets variables for the processes that it starts",
    "engines.identity": "files of a local model, whose digests are compared",
    "engines.listing": "config.json of a local model",
    "hub.repository": "names of commits in the hub's own cache",
    "questions.confinement": "pipe to a process of ours",
    "questions.own_code": "the user's own Python file, by its digest",
    "questions.programs": "pipe to a process of ours",
    "reports.page": "templates of this package",
    "serving.application": "sets a variable",
    "serving.monitoring": "the variable that the application sets",
}


def readers() -> set[str]:
    """The modules of the package that read text of others."""
    package = SOURCES / "hierrouter"
    modules = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            function = node.func if isinstance(node, ast.Call) else node
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            is_used = isinstance(node, ast.Call) or name in ("environ", "stdin", "argv")
            if is_used and name in READERS:
                modules.add(".".join(path.relative_to(package).with_suffix("").parts))
    return modules


def test_every_module_that_reads_has_a_door() -> None:
    covered = {module for door in DOORS.values() for module in door.readers}
    assert not covered & set(OWN_READERS)
    unknown = readers() - covered - set(OWN_READERS)
    assert not unknown, "new readers: give each a door in tests/doors.py, or say why it needs none"
    assert set(OWN_READERS) <= readers()


def test_the_suite_notices_a_reader_without_a_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard can fail."""
    (tmp_path / "hierrouter").mkdir()
    (tmp_path / "hierrouter/new.py").write_text("import json\nvalue = json.loads('1')\n")
    monkeypatch.setattr("tests.security.test_doors.SOURCES", tmp_path)
    assert readers() == {"new"}


SLOW_FAULTS = ("", "memory", "native")


@pytest.mark.parametrize(
    "fault", ["text", *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW_FAULTS)]
)
def test_the_fuzz_finds_planted_faults_alone(fault: str) -> None:
    command = (sys.executable, SOURCES / "benchmarks/fuzz.py", "surface", "--requests", "800")
    flags = ("--files", "40", "--watch", "50", *(("--plant", fault) if fault else ()))
    done = spawned(*command, *flags)
    findings = {
        "": "",
        "text": "FOUND POST /v1/",
        "memory": "FOUND memory: grows",
        "native": "FOUND crash: the process was ended by signal 11",
    }
    assert done.returncode == bool(fault), done.stdout[-2000:] + done.stderr[-1000:]
    assert findings[fault] in done.stdout

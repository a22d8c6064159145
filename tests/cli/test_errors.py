"""How commands begin, with nothing heavy imported, and how they fail."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import hierrouter as hr
from hierrouter_cache.errors import WorldError, is_out_of_files
from tests.cli.conftest import Place
from tests.conftest import environment, run_cold, spawned, works
from tests.hub import hub
from tests.warm import Warm


def test_debug_shows_the_trace(place: Place) -> None:
    done = place.asks("train --cache nowhere --debug")
    assert (done.returncode, "Traceback" in done.stderr) == (3, True)


@pytest.mark.parametrize("there", [True, False], ids=["no-such-model", "no-hub"])
def test_an_encoder_is_wrong_only_where_the_hub_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(place / "home"))
    with hub({}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address if there else "http://127.0.0.1:9")
        line = place.refuses("collect --limit 1 --encoder nope", code=2 if there else 1)
    words = (
        "no such encoder: nope; "
        if there
        else "encoder nope is not on this machine: the hub cannot be reached; "
    )
    assert words in line
    assert not (place / "caches").exists()


def test_ctrl_c_after_the_last_word_leaves_no_trace(tmp_path: Path, warm: Warm) -> None:
    """While libraries clean up, the work is done and its exit code is not yet given."""
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['hierrouter', 'pools']\n"
        "from hierrouter_cli.app import main\nmain()\n"
    )
    done = warm.start("-c", code, cwd=tmp_path, env=environment()).result()
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert "testbed" in done.stdout


def test_a_stdout_that_takes_nothing_is_one_line(home: Place) -> None:
    """Cold: the streams are looked at while Python starts."""
    command = f"{sys.executable} -m hierrouter_cli cache info"
    for stream, said in (("> /dev/full", "No space left"), (">&-", "Bad file descriptor")):
        done = spawned("sh", "-c", f"{command} {stream}", cwd=home.folder)
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert line.startswith(f"error: cannot print: {said}")


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-", "2>/dev/full"])
def test_results_stay_alone_where_messages_have_no_place(home: Place, closed: str) -> None:
    """As in a cron job; a note or an error that nobody can read changes neither result nor code."""
    command = f"{sys.executable} -m hierrouter_cli"
    done = spawned("sh", "-c", f"{command} cache info --format json {closed}", cwd=home.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)
    failed = spawned("sh", "-c", f"{command} cache info --cache nowhere {closed}", cwd=home.folder)
    assert (failed.returncode, failed.stdout) == (3, "")


def test_nothing_is_open_and_the_code_still_says_what_became_of_it(home: Place) -> None:
    """Else the first file that the command opens gets the number of stdout, and its text."""
    command = f"{sys.executable} -m hierrouter_cli"
    for words, code in (("cache info", 1), ("cache info --cache nowhere", 3), ("verify", 1)):
        done = spawned("sh", "-c", f"{command} {words} <&- >&- 2>&-", cwd=home.folder)
        assert done.returncode == code, words
    assert works(run_cold("verify", cwd=home.folder))  # nothing was written into a file


@pytest.mark.parametrize("step", [12, pytest.param(4, marks=pytest.mark.slow)])
def test_a_limit_of_open_files_is_not_blamed_on_the_cache(step: int, home: Place) -> None:
    """Every limit from one at which nothing can be imported to one at which all is well."""
    command = f"{sys.executable} -m hierrouter_cli"
    statement = "cache sql 'SELECT count(*) AS n FROM nodes' --format json"
    codes = []
    for limit in range(8, 69, step):
        done = spawned("sh", "-c", f"ulimit -n {limit}; {command} {statement}", cwd=home.folder)
        codes.append(done.returncode)
        if done.returncode:
            [line] = done.stderr.splitlines()
            assert line.startswith(f"error: too many open files: this process may have {limit};")
        else:
            assert json.loads(done.stdout)
    assert set(codes) == {0, 1}
    assert codes == sorted(codes, reverse=True)


def test_a_server_that_is_out_of_files_is_not_this_machine() -> None:
    words = "127.0.0.1:80 answered 500: Too many open files"
    assert not is_out_of_files(WorldError(words))
    limit = WorldError("cannot read")
    limit.__context__ = OSError(errno.EMFILE, "Too many open files")
    assert is_out_of_files(limit)
    assert is_out_of_files(duckdb.IOException('Cannot open file "x": Too many open files'))


HEAVY = {
    *("torch", "transformers", "tianshou", "sklearn", "matplotlib"),
    *("duckdb", "pyarrow", "numpy", "pydantic"),
}


def imported_by(statement: str) -> set[str]:
    done = spawned(sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)")
    return {name.split(".")[0] for name in works(done).stdout.split()}


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("hierrouter_cli.app", HEAVY),
        ("hierrouter.reports.explore", {"matplotlib"}),
        ("hierrouter.replay.opening", {"pydantic"}),  # it checks files that users write
        ("hierrouter.engines.endpoint, hierrouter.collection.collect", {"torch", "transformers"}),
        (
            "hierrouter.runs.freshness as runs; runs.list_runs()",
            {"torch", "pandas", "scipy", "tianshou"},
        ),
    ],
)
def test_nothing_is_imported_that_is_not_needed(code: str, unwanted: set[str]) -> None:
    assert imported_by(f"import {code}") & unwanted == set()


def test_this_guard_can_fail() -> None:
    assert imported_by("import numpy") & HEAVY == {"numpy"}


@pytest.mark.parametrize("command", ["", "verify"])
def test_help_answers(tmp_path: Path, command: str) -> None:
    done = works(run_cold(*command.split(), "--help", cwd=tmp_path))
    assert f"Usage: hierrouter {command}".rstrip() in done.stdout
    assert run_cold("--version", cwd=tmp_path).stdout == f"hierrouter {hr.__version__}\n"


def test_ctrl_c_while_it_starts_gives_one_line(tmp_path: Path) -> None:
    starting = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "hierrouter_cli", "pools"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert starting.stderr
    with starting.stderr as said:
        for line in said:  # each module as it has been imported
            if line.endswith(" typer.core\n"):
                break
        starting.send_signal(signal.SIGINT)
        lines = [line for line in said if not line.startswith("import time:")]
    assert starting.wait(60) == 130
    assert lines == ["error: interrupted; nothing was begun\n"]

"""Nothing heavy is imported before a command's body runs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hierrouter as hr
from tests.conftest import Run, environment, works

HEAVY = {
    *("torch", "transformers", "tianshou", "sklearn", "matplotlib"),
    *("duckdb", "pyarrow", "numpy", "pydantic"),
}


def imported_by(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("hierrouter_cli.app", HEAVY),
        ("hierrouter.reports.explore", {"matplotlib"}),
        ("hierrouter.replay.opening", {"pydantic"}),  # it checks files that users write
        ("hierrouter.engines.endpoint, hierrouter.collection.collect", {"torch", "transformers"}),
    ],
)
def test_nothing_is_imported_that_is_not_needed(module: str, unwanted: set[str]) -> None:
    assert imported_by(f"import {module}") & unwanted == set()


def test_this_guard_can_fail() -> None:
    assert imported_by("import numpy") & HEAVY == {"numpy"}


@pytest.mark.parametrize("command", ["", "cache verify"])
def test_help_answers(tmp_path: Path, cold: Run, command: str) -> None:
    done = works(cold(*command.split(), "--help", cwd=tmp_path))
    assert f"Usage: hierrouter {command}".rstrip() in done.stdout
    assert cold("--version", cwd=tmp_path).stdout == f"hierrouter {hr.__version__}\n"


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

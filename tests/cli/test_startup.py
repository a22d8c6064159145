"""Nothing heavy is imported before a command's body runs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Run, environment

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


def test_the_command_line_imports_nothing_heavy() -> None:
    assert imported_by("import hierrouter_cli.app") & HEAVY == set()


def test_the_page_to_explore_needs_no_figures() -> None:
    assert "matplotlib" not in imported_by("import hierrouter.reports.explore")


def test_a_cache_is_opened_without_what_checks_files() -> None:
    assert "pydantic" not in imported_by("import hierrouter.replay.opening")


def test_this_guard_can_fail() -> None:
    assert imported_by("import numpy") & HEAVY == {"numpy"}


@pytest.mark.parametrize("command", ["", "collect", "cache verify", "serve"])
def test_help_answers(tmp_path: Path, cold: Run, command: str) -> None:
    done = cold(*command.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"Usage: hierrouter {command}".rstrip() in done.stdout


def test_version(tmp_path: Path, cold: Run) -> None:
    import hierrouter as package

    done = cold("--version", cwd=tmp_path)
    assert done.stdout == f"hierrouter {package.__version__}\n"


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

"""Folders in which a test runs the command: empty, with a cache, or as a quickstart leaves one."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, Start, as_json, environment, once, refused, works
from tests.warm import Warm

LIMIT = "30"
# Trainings of a few epochs, for all that says nothing of how well they end.
BRIEF = """
from dataclasses import replace
from hierrouter.learning import config
for name, full in config.PRESET_CONFIGS.items():
    if isinstance(full, config.NetworkConfig):
        config.PRESET_CONFIGS[name] = replace(full, epochs=max(2, full.epochs // 6))
"""
COMMAND = "from hierrouter_cli.__main__ import main\nmain()\n"


@dataclass(frozen=True)
class Place:
    """A folder to run the command in; its words are split as a shell splits them."""

    folder: Path
    run: Run

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def asks(self, words: str, *more: str | Path) -> subprocess.CompletedProcess[str]:
        """Whatever comes of it; `more` is not split."""
        return self.run(*shlex.split(words), *more, cwd=self.folder)

    def does(self, words: str, *more: str | Path) -> subprocess.CompletedProcess[str]:
        """What must not fail."""
        return works(self.asks(words, *more))

    def tells(self, words: str, *more: str | Path) -> Any:
        """What it prints with `--format json`."""
        return as_json(self.asks(words, *more, "--format", "json"))

    def asks_cache(self, words: str, question: str) -> list[dict[str, Any]]:
        """The rows that `cache sql` gives, with `words` beside the question."""
        done = self.does(f"cache sql --format json {words}", question)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refuses(self, words: str, *more: str | Path, code: int = 2) -> str:
        """The one line of an error."""
        return refused(self.asks(words, *more), code)

    def copy(self, folder: Path) -> "Place":
        """The same somewhere else, to train and to write in."""
        return Place(shutil.copytree(self.folder, folder), self.run)


@contextmanager
def serving(place: Place, start: Start, *flags: str) -> Iterator[str]:
    """The command `serve`, and the address that it says."""
    process = start("serve", "--port", "0", *flags, cwd=place.folder)
    try:
        address = process.wait_for(r"(http://127.0.0.1:\d+)/v1 as [^\n]*\n")
        before = process.said()
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        done = process.result(timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.removeprefix(before) == "serve: ended\n"


def over_all(rows: Iterable[dict[str, Any]], name: str = "policy") -> dict[str, dict[str, Any]]:
    """Of the rows of a report those over all queries, by policy."""
    return {row[name]: row for row in rows if row.get("dataset", "all") == "all"}


@pytest.fixture(scope="session")
def brief(warm: Warm) -> Run:
    """The command with trainings as in `BRIEF`; `cwd` says where."""

    def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        done = warm.start("-c", BRIEF + COMMAND, *words, cwd=cwd, env=environment()).result()
        done.args = words
        return done

    return run


@pytest.fixture(scope="session")
def python(warm: Warm) -> Callable[[str, Place], str]:
    """Run some Python in a place, in a process of its own, trainings as in `BRIEF`; its stdout."""

    def run(code: str, place: Place) -> str:
        process = warm.start("-c", BRIEF + code, cwd=place.folder, env=environment())
        return works(process.result()).stdout

    return run


@pytest.fixture
def place(tmp_path: Path, hierrouter: Run) -> Place:
    """An empty folder."""
    return Place(tmp_path, hierrouter)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, testbed_cache: Path, hierrouter: Run) -> Place:
    """A folder of this module with a collected cache, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(testbed_cache, folder / "caches" / "default")
    return Place(folder, hierrouter)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, brief: Run) -> Place:
    """What a quickstart left, to be read only; the quickstart itself is checked on the way."""

    def build(folder: Path) -> None:
        done = Place(folder, brief).does(f"quickstart --limit {LIMIT}")
        assert [f"{stage}/4" in done.stderr for stage in (1, 2, 3, 4)] == [True] * 4
        page = re.search(r"page: (\S+)", done.stdout)
        assert page
        assert (folder / page[1]).read_text().startswith("<!doctype html>")
        assert "\x1b" not in done.stdout + done.stderr

    return Place(once(tmp_path_factory, "home", build), brief)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, home: Place) -> Place:
    """A copy of `home` for the tests of a module, which may train and write in it."""
    return home.copy(tmp_path_factory.mktemp("work") / "home")


@pytest.fixture
def own(tmp_path: Path, home: Place) -> Place:
    """A copy of `home` for one test alone."""
    return home.copy(tmp_path / "home")

"""No text of others steers a terminal or a spreadsheet, whatever command shows it."""

import csv
import io
import json
import logging
from pathlib import Path

import pytest

from hierrouter_cli.console import SafeFormatter, progress_bars
from tests.conftest import Run
from tests.security import world

RUN = ("--checkpoint", "runs/router")
SELECT = "SELECT * FROM nodes JOIN queries USING (query, id, dataset, split)"
# What the others need.
FIRST_COMMANDS = (
    ("train", "--algo", "exact", "--epochs", "2", "--out", "runs/router"),
    ("sweep-alpha", "--alphas", "0,0.1", "--out", "runs/sweep"),
    ("cache", "export", "--out", "cache.jsonl"),
    ("cache", "export", "--format", "routerbench", "--out", "frame.csv"),
)
# Each with its exit code.
COMMANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "report": (0, ("report", *RUN, "--all")),
    "explain": (0, ("explain", world.FIRST, *RUN)),
    "explore": (0, ("explore", *RUN)),
    "compare as CSV": (0, ("compare", *RUN, "--baselines", "random", "--format", "csv")),
    "off-policy": (0, ("off-policy", *RUN, "--log", "log.jsonl")),
    "info": (0, ("cache", "info", "--incomplete")),
    "sql": (0, ("cache", "sql", SELECT)),
    "sql as CSV": (0, ("cache", "sql", SELECT, "--format", "csv")),
    "a column": (0, ("cache", "sql", 'SELECT 1 AS "\x9b31m"')),
    "import": (0, ("cache", "import", "cache.jsonl", "--cache", "caches/other")),
    "verify": (0, ("verify",)),
    "repair": (0, ("cache", "repair")),
    "compact": (0, ("cache", "compact")),
    "push": (0, ("cache", "push", "mirror")),
    "datasets": (0, ("datasets", "--datasets", "questions.jsonl", "--show", "99")),
    "dry run": (0, ("collect", "--datasets", "questions.jsonl", "--cache", "new", "--dry-run")),
    "a pool": (2, ("pools", "--pool", "pool.toml")),
    "no dataset": (2, ("train", "--datasets", world.FAMILIES["link"])),
    "no run": (2, ("route", "--checkpoint", world.FAMILIES["device"], "a question")),
    "no SQL": (2, ("cache", "sql", f"SELECT {world.FAMILIES['colour']}")),
    "no flag": (2, (f"--{world.FAMILIES['eight bits']}",)),
    "a trace": (2, ("--debug", "explain", world.FAMILIES["clipboard"])),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """A folder with a cache, a dataset and a pool file of somebody else."""
    folder = tmp_path_factory.mktemp("steering")
    world.collect_steering(folder / "caches" / "default")
    world.write_questions(folder / "questions.jsonl")
    world.write_log(folder / "log.jsonl")
    name = json.dumps(world.FAMILIES["colour"])
    (folder / "pool.toml").write_text(f'[[models]]\nname = {name}\nmodel = "m"\nbase_rate = 1\n')
    for arguments in FIRST_COMMANDS:
        done = hierrouter(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert not world.STEERING.search(done.stdout + done.stderr)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_a_family_through(name: str, work: Path, hierrouter: Run) -> None:
    code, arguments = COMMANDS[name]
    done = hierrouter(*arguments, cwd=work)
    assert done.returncode == code, done.stderr
    for shown in (done.stdout, done.stderr):
        assert not world.STEERING.search(shown)
    if "csv" in arguments:
        require_inert(done.stdout)


def test_no_file_that_a_command_wrote_steers(work: Path) -> None:
    """They are looked at with `cat`, and with a spreadsheet."""
    written = list((work / "runs").rglob("*.json"))
    assert len(written) > 3
    for file in written:
        assert not world.STEERING.search(file.read_text("utf-8")), file
    require_inert((work / "frame.csv").read_text("utf-8"))


def require_inert(text: str) -> None:
    """No cell of a CSV file is a formula."""
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert len(cells) > 20
    assert not [
        cell for cell in cells if world.FORMULA.match(cell) and not world.NUMBER.fullmatch(cell)
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with progress_bars() as bars:
        bars.add_task("m\x1b[31m\x9b1m\u202e [/INST] [red]", total=3, note=world.DATASET)
        bars.refresh()
    shown = terminal.getvalue()
    assert "m\\x1b[31m\\x9b1m\\u202e [/INST] [red]" in shown
    assert "data\\x1b]0;x\\x07\\u2066[/b]" in shown
    assert not {"\x9b", "\u202e", "\x07"} & set(shown)


def test_a_trace_in_the_log_of_the_server_steers_nothing() -> None:
    record = logging.makeLogRecord({"msg": world.FAMILIES["title"], "levelname": "ERROR"})
    try:
        raise ValueError(world.FAMILIES["clipboard"])
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    shown = SafeFormatter("%(levelname)s: %(message)s").format(record)
    assert "ValueError: \\x1b]52" in shown
    assert not world.STEERING.search(shown)

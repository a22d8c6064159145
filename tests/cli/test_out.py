"""`--out a/b`: every command that writes makes the folders above what it writes."""

import pytest

from tests.cli.commands import commands
from tests.cli.conftest import Place

WRITERS = {
    "quickstart": "--limit 12 --out made/first/it",
    "train": "--algo value --out made/first/it",
    "sweep-alpha": "--out made/first/it",
    "report": "--out made/first/it",
    "compare": "--baselines random --out made/first/it",
    "explore": "--texts 0 --out made/first/it.html",
    "cache export": "--out made/first/it.jsonl",
}
# Its test needs a log: tests/hierrouter/serving/test_learn.py.
ELSEWHERE = {"learn-from"}


def test_no_command_that_writes_is_left_out() -> None:
    writers = {
        path
        for path, command in commands()
        if any("--out" in parameter.opts for parameter in command.params)
    }
    assert writers == {*WRITERS, *ELSEWHERE}


@pytest.mark.parametrize("command", WRITERS)
def test_folders_above_the_output_are_made(own: Place, command: str) -> None:
    own.does(f"{command} {WRITERS[command]}")
    [made] = (own / "made/first").iterdir()
    assert made.name.startswith("it")
    size = sum(file.stat().st_size for file in [made, *made.rglob("*")] if file.is_file())
    assert size > 0


@pytest.mark.parametrize("command", WRITERS)
def test_a_file_in_the_way_is_named_before_any_work(own: Place, command: str) -> None:
    (own / "made").write_text("a file")
    line = own.refuses(f"{command} {WRITERS[command]}")
    assert line == "error: output cannot be made: made is no folder; choose another --out"
    assert (own / "made").read_text() == "a file"

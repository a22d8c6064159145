"""The help of every command: laid out, complete, with examples that can be typed."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from hierrouter_cli.app import root_command
from hierrouter_cli.help import EXAMPLES
from tests.conftest import SOURCES

ROOT: Any = root_command()


def context(path: str, arguments: list[str] | None = None) -> Any:
    """Of a command that is given arguments; None asks for nothing."""
    found = ROOT.make_context("hierrouter", ["pools"])
    for name in path.split():
        settings = {"resilient_parsing": True} if arguments is None else {}
        command = found.command.commands[name]
        given = [] if arguments is None or hasattr(command, "commands") else arguments
        found = command.make_context(name, [*given], parent=found, **settings)
    return found


def commands(group: Any = ROOT, above: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        yield from commands(command, path) if hasattr(command, "commands") else (path,)


COMMANDS = sorted(commands())


def page(path: str) -> str:
    found = context(path)
    return str(found.command.get_help(found))


def test_each_command_has_examples_and_no_other_has() -> None:
    assert sorted(EXAMPLES) == COMMANDS


@pytest.mark.parametrize("path", COMMANDS)
def test_a_page_fits_its_terminal_and_tells_flags_and_examples(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [each.name for each in context(path).command.params if not each.help] == []
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = page(path)
        assert max(map(len, shown.splitlines())) <= columns
        assert shown.rstrip().splitlines()[-1].strip() == EXAMPLES[path][-1]


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_parses(example: str) -> None:
    program, *words = shlex.split(example)
    path = next(path for path, lines in EXAMPLES.items() if example in lines)
    assert program == "hierrouter" and words[: len(path.split())] == path.split()
    context(path, words[len(path.split()) :])


def test_an_example_can_be_wrong() -> None:
    with pytest.raises(typer.TyperException, match="No such option"):
        context("train", ["--alfa", "1"])


def test_long_pages_are_grouped_and_short_ones_are_not() -> None:
    assert "\nWhat it works on:\n  --cache" in page("train")
    assert "\nHow models are called:\n" in page("collect")
    assert "What it works on" not in page("cache info")


def test_the_first_page_and_the_docs_tell_every_command() -> None:
    docs = (SOURCES / "docs" / "cli.md").read_text()
    assert [path for path in COMMANDS if f"`hierrouter {path}" not in docs] == []
    shown = page("")
    assert "Exit codes:\n  0    done\n  1    the world failed" in shown
    for path in COMMANDS:
        assert f"\n  {path.split()[0]} " in shown

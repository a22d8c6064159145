"""Help, laid out and complete with examples that can be typed, and what a shell offers."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from hierrouter.declarations import flags
from hierrouter.learning.baselines.registry import BASELINES_BY_NAME
from hierrouter.learning.config import PRESET_CONFIGS
from hierrouter.pools.files import CALLABLE_BACKENDS, pool_names
from hierrouter.questions.datasets import dataset_names
from hierrouter.questions.scoring import SCORERS_BY_NAME
from hierrouter.replay.states import STATE_VIEWS
from hierrouter.reports import jobs
from hierrouter.reports.figures import FIGURE_FORMATS
from hierrouter_cache.tree import SPLITS
from hierrouter_cli.app import root_command
from hierrouter_cli.declared import EXAMPLES
from tests.cli.commands import commands
from tests.conftest import SOURCES, spawned

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


COMMANDS = sorted(path for path, _ in commands())


def page(path: str) -> str:
    found = context(path)
    return str(found.command.get_help(found))


def test_each_command_has_an_example_and_no_other_has() -> None:
    assert sorted(EXAMPLES) == COMMANDS


@pytest.mark.parametrize("path", COMMANDS)
def test_pages_fit_a_terminal_and_have_an_example(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [each.name for each in context(path).command.params if not each.help] == []
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = page(path)
        assert max(map(len, shown.splitlines())) <= columns
        assert shown.rstrip().splitlines()[-1].strip() == EXAMPLES[path]


@pytest.mark.parametrize("path", COMMANDS)
def test_an_example_parses(path: str) -> None:
    program, *words = shlex.split(EXAMPLES[path])
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


TYPED = {
    "hierrouter ver": ["verify"],
    "hierrouter train --pool ": ["cpu", "graded", "paper", "testbed"],
    "hierrouter report --format j": ["json"],
    "hierrouter collect --datasets arith,fa": ["arith,fact"],
    "hierrouter train --checkp": ["--checkpoint-every"],
}

# Runs the program as a shell does, and its own script as a person pastes it.
SCRIPT = """
hierrouter() { "$PYTHON" -m hierrouter_cli "$@"; }
eval "$(hierrouter --show-completion)"
complete -p hierrouter >&2
for typed in "$@"; do
    COMP_WORDS=($typed); [[ "$typed" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=($(COMP_WORDS="$typed" COMP_CWORD=$COMP_CWORD \\
        _HIERROUTER_COMPLETE=complete_bash hierrouter))
    echo "$typed|${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_flags_and_names(tmp_path: Path) -> None:
    done = spawned("bash", "-c", SCRIPT, "bash", *TYPED, cwd=tmp_path, PYTHON=sys.executable)
    assert "complete -o default -F _hierrouter_completion hierrouter" in done.stderr
    offered = dict(line.split("|") for line in done.stdout.splitlines())
    assert {typed: names.split() for typed, names in offered.items()} == TYPED


def test_the_offered_words_are_those_there_are() -> None:
    assert sorted(flags.POOLS) == sorted(pool_names())
    assert sorted(flags.BASELINES) == sorted(BASELINES_BY_NAME)
    assert sorted(flags.DATASETS) == sorted(dataset_names())
    assert sorted(flags.SCORERS) == sorted([*SCORERS_BY_NAME, "given"])
    assert sorted(flags.BACKENDS) == sorted(CALLABLE_BACKENDS)
    assert sorted(jobs.FIGURE_FORMATS) == sorted(FIGURE_FORMATS)
    assert tuple(SPLITS) == flags.FOLDS
    assert tuple(STATE_VIEWS) == flags.STATES
    assert {*flags.PRESETS} == {name for name, _ in PRESET_CONFIGS}
    assert {*flags.ALGORITHMS} == {algo for _, algo in PRESET_CONFIGS}

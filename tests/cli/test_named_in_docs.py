"""The modules, files and flags that the pages name are there."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hierrouter as hr
from tests.cli.pages import PAGES
from tests.cli.test_help import COMMANDS, ROOT, context
from tests.conftest import SOURCES
from tests.test_floors import FLOOR

CHANGELOG = SOURCES / "CHANGELOG.md"
PROSE = [*PAGES, SOURCES / "CONTRIBUTING.md", SOURCES / "SECURITY.md", CHANGELOG]
DOTTED_NAME = re.compile(r"(?<![\w/.@-])(?:hierrouter(?:_cache|_cli)?|hr)(?:\.[A-Za-z_]\w*)+")
FILE_OF_THE_REPOSITORY = re.compile(
    r"(?<![\w/.-])(?:hierrouter|cache|cli|tests|docs|benchmarks|\.ci|\.github)/[\w./-]*\w"
)
# Names with a slash that are no files here: an environment of Gymnasium, files of an installation.
NO_FILES = {"hierrouter/Replay-v0"}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Flags of other programs, which the pages show beside ours.
FLAGS_OF_OTHERS = {
    *("--array", "--gres"),  # Slurm
    *("--branch", "--source"),  # coverage
    *("--cov", "--dist", "--durations"),  # pytest
    *("--install-completion", "--show-completion"),  # typer
    *("--resolution", "--strict"),  # uv, zensical
    "--logdir",  # tensorboard
    "--repo-type",  # the client of the hub
    "--generation-config",  # vLLM
}
# Flags that are not there any more; only the page of decisions and the changelog name them.
FLAGS_TAKEN_OUT = {"--all-alphas", "--max-cost", "--signals"}
RENAMED = re.compile(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", re.M)
HISTORY = ("decisions.md", "CHANGELOG.md")


def short(page: Path) -> str:
    return str(page.relative_to(SOURCES))


@cache
def flags_of_commands() -> set[str]:
    """Each flag of each command, and of the program itself."""
    commands = [context(path).command for path in COMMANDS] + [ROOT]
    parameters = [parameter for command in commands for parameter in command.params]
    flags = {"--help"}
    for parameter in parameters:
        flags |= {*parameter.opts, *parameter.secondary_opts}
    return flags


@cache
def flags_of_benchmarks() -> set[str]:
    """Each flag of each program for measurements."""
    programs = (SOURCES / "benchmarks").glob("*.py")
    return {flag for path in programs for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something within one."""
    first, *rest = name.split(".")
    value: Any = hr if first == "hr" else import_module(first)
    module = value.__name__
    for part in rest:
        if not hasattr(value, part):
            try:
                import_module(f"{module}.{part}")
            except ImportError:
                return False
        value = getattr(value, part)
        module = f"{module}.{part}"
    return True


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert is_there("hierrouter.replay.env.ReplayEnv")
    assert is_there("hr.Run.load")
    assert not is_there("hierrouter.replay.env.PlayedEnv")
    assert not is_there("hierrouter.learning.run")


@pytest.mark.parametrize("page", PROSE, ids=short)
def test_every_module_and_name_that_a_page_gives_is_there(page: Path) -> None:
    names = set(DOTTED_NAME.findall(without_old_names(page)))
    assert [name for name in sorted(names) if not is_there(name)] == []


@pytest.mark.parametrize("page", PROSE, ids=short)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    files = set(FILE_OF_THE_REPOSITORY.findall(without_old_names(page))) - NO_FILES
    assert [name for name in sorted(files) if not (SOURCES / name).exists()] == []


@pytest.mark.parametrize("page", PROSE, ids=short)
def test_every_flag_that_a_page_names_is_there(page: Path) -> None:
    flags = set(FLAG.findall(without_old_names(page))) - FLAGS_OF_OTHERS
    if page.name in HISTORY:
        flags -= FLAGS_TAKEN_OUT
    assert sorted(flags - flags_of_commands() - flags_of_benchmarks()) == []


ARCHITECTURE = SOURCES / "docs/architecture.md"
FOR_DEVELOPERS = [ARCHITECTURE, SOURCES / "CONTRIBUTING.md"]


def test_the_page_of_the_code_shows_the_floors_that_are_checked() -> None:
    rows = re.findall(r"^\| (\d) \| `(.+?)/?` \| .+ \| (.+) \|$", ARCHITECTURE.read_text(), re.M)
    floors = {}
    for floor, folder, files in rows:
        path = SOURCES / folder if "/" in folder else SOURCES / "hierrouter" / folder
        floors[path.name.removeprefix("hierrouter_")] = int(floor)
        assert path.is_dir(), folder
        assert all((path / name).exists() for name in re.findall(r"`(.+?)`", files)), files
    single_files = re.findall(r"`(\w+)\.py`[^`]+?\((\d)\)", ARCHITECTURE.read_text())
    assert floors | {name: int(floor) for name, floor in single_files} == FLOOR


def test_the_page_of_the_code_lists_all_declarations() -> None:
    _, _, table = ARCHITECTURE.read_text().partition("\n| file | jobs |\n")
    documented: dict[str, str] = {}
    for line in table.partition("\n\n")[0].splitlines()[1:]:
        files, jobs = (re.findall(r"`(.+?)`", cell) for cell in line.split("|")[1:3])
        for number, job in enumerate(jobs):
            documented[job] = files[min(number, len(files) - 1)]
    declared = {}
    for path in (SOURCES / "hierrouter").rglob("*.py"):
        for job in re.findall(r"^@declaration\nclass (\w+)", path.read_text(), re.M):
            declared[job] = str(path.relative_to(SOURCES / "hierrouter"))
    assert documented == declared


@pytest.mark.parametrize("page", FOR_DEVELOPERS, ids=short)
def test_every_class_and_constant_that_developers_are_told_of_is_there(page: Path) -> None:
    """Also functions that end in `()`, and files that are named without their package."""
    code = "".join(path.read_text() for path in SOURCES.glob("[bcht]*/**/*.py"))
    text = page.read_text()
    names = re.findall(r"`@?([A-Z]\w*[a-z]\w*|[A-Z]+_[A-Z_]+|STATES|SCORERS|\w+(?=\(\)`))", text)
    assert len(names) > 5
    missing = [name for name in names if not re.search(rf"\b{name}\b", code)]
    assert missing == []
    files = re.findall(r"`([a-z]+/[\w/]+\.(?:py|json|toml))`", text)
    homes = (SOURCES, SOURCES / "hierrouter", SOURCES / "tests")
    assert [name for name in files if not any((home / name).exists() for home in homes)] == []


def test_flags_that_were_taken_out_are_gone() -> None:
    assert FLAGS_TAKEN_OUT & (flags_of_commands() | flags_of_benchmarks()) == set()


def without_old_names(page: Path) -> str:
    """The text of a page; of the table of renamed names only the new ones."""
    return RENAMED.sub(r"\2", page.read_text()) if page == CHANGELOG else page.read_text()


def test_names_that_were_renamed_are_gone() -> None:
    old_names = [old for old, _ in RENAMED.findall(CHANGELOG.read_text())]
    assert len(old_names) > 50
    assert [name for name in old_names if is_there(name)] == []


def test_the_changelog_names_every_command_and_every_name_of_the_package() -> None:
    text = CHANGELOG.read_text()
    names = [f"hr.{name}" for name in hr.__all__ if name != "__version__"]
    names += [f"hierrouter {command}" for command in COMMANDS]
    assert [name for name in names if f"`{name}`" not in text] == []

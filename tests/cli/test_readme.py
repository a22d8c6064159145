"""What the README shows, runs."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hierrouter.collect.datasets import PAPER_DATASETS
from hierrouter_cli import options
from tests.conftest import SOURCES, Run, environment

README = (SOURCES / "README.md").read_text()


def blocks(language: str, page: Path = SOURCES / "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def test_the_two_marked_commands_are_there() -> None:
    for marker, command in [
        ("main", "hierrouter quickstart"),
        ("test", "pytest -n auto --dist loadfile"),
    ]:
        found = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", README, re.S)
        assert found
        assert found[1].splitlines()[-1] == command


def test_the_commands_after_the_quickstart_run(home: Path, tmp_path: Path, hierrouter: Run) -> None:
    work = shutil.copytree(home, tmp_path / "work")
    shown = [block for block in blocks("bash") if "pip install" not in block]
    commands = "".join(shown).splitlines()
    assert len(commands) == 10
    for command in commands:
        name, *arguments = shlex.split(command, comments=True)
        assert name == "hierrouter"
        done = hierrouter(*arguments, cwd=work)
        assert done.returncode == 0, done.stderr


PAGES = sorted((SOURCES / "docs").glob("*.md"))
FILE = re.compile(r"# (\w+\.\w+)\b")  # how a block begins that is a file of its own


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(
    page: Path, home: Path, tmp_path: Path, hierrouter: Run
) -> None:
    """A block that begins with a comment that names a file is that file."""
    work = shutil.copytree(home, tmp_path / "work")
    for language in ("toml", "python", "json"):
        for block in blocks(language, page):
            if named := FILE.match(block):
                (work / named[1]).write_text(block)
    for command in "".join(blocks("bash", page)).splitlines():
        name, *arguments = shlex.split(command, comments=True)
        assert name == "hierrouter"
        done = hierrouter(*arguments, cwd=work)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def run_python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_runs(home: Path) -> None:
    (example,) = blocks("python")
    assert ">" in run_python(example, home)


def test_the_examples_of_the_environment_run_from_top_to_bottom(home: Path) -> None:
    page = SOURCES / "docs" / "env.md"
    told = run_python("".join(blocks("python", page)), home)
    exact = {name: float(value) for value, name in re.findall(r"exact, test: (\S+) (.+)", told)}
    fixed, learned, best = exact.values()
    assert list(exact)[1:] == ["own loop", "oracle"]
    assert fixed < learned < best


def test_the_examples_beyond_the_pool_run_from_top_to_bottom(home: Path) -> None:
    page = SOURCES / "docs" / "beyond.md"
    told = run_python("".join(blocks("python", page)), home)
    helped = re.search(r"test: alone (\S+), helped (\S+)", told)
    joined = re.search(r"without facts (\S+), with (\S+)", told)
    assert helped
    assert joined
    assert float(helped[2]) > float(helped[1]) + 0.03
    assert float(joined[2]) > float(joined[1]) + 0.3


def test_the_documented_defaults_are_the_real_ones() -> None:
    table = (SOURCES / "docs" / "cli.md").read_text()
    assert f"| `--cache DIR` | `{options.DEFAULT_CACHE}` |" in table
    assert f"| `--alpha X` | {options.DEFAULT_ALPHA} |" in table
    assert "gsm8k" in PAPER_DATASETS


def test_links_lead_somewhere() -> None:
    for page in [SOURCES / "README.md", *(SOURCES / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"

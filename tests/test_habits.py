"""The files that GitHub reads: each parses, and names only what exists."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import SOURCES

GITHUB = SOURCES / ".github"
FILES = sorted(GITHUB.rglob("*.yml"))
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = [path for path in sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml")) if path.stem != "config"]
PROJECT = tomllib.loads((SOURCES / "pyproject.toml").read_text())

# The source distribution has the tests, but not these files.
pytestmark = pytest.mark.skipif(not GITHUB.is_dir(), reason="no checkout of the repository")


def named(path: Path) -> str:
    return path.relative_to(GITHUB).as_posix()


def steps_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_file_parses(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=named)
def test_workflows_run_what_exists_with_few_permissions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML 1.1 reads the key `on` so
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps_of(workflow):
        assert ("run" in step) != ("uses" in step)
        action = step.get("uses", "")
        if action.startswith("./"):
            assert (SOURCES / action / "action.yml").is_file()
        else:
            assert not action or re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", action)
        for script in re.findall(r"\.ci/\w+", step.get("run", "")):
            assert list((SOURCES / ".ci").glob(f"{Path(script).name}*"))


def test_ci_checks_what_the_local_run_checks() -> None:
    local = (SOURCES / ".ci" / "run").read_text()
    workflow = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())
    commands = [step.get("run", "") for step in steps_of(workflow)]
    for check in ("ruff format --check .", "ruff check .", "mypy", "pyright", ".ci/audit"):
        assert check in commands
        assert f"\n{check}\n" in local


def test_a_release_is_checked_and_published_without_a_token() -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "twine check --strict dist/*" in [step.get("run") for step in jobs["build"]["steps"]]
    assert "secrets." not in text


@pytest.mark.parametrize("path", FORMS, ids=named)
def test_issue_forms_have_fields_with_labels(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    for field in fields:
        assert field["type"] in ("input", "textarea", "dropdown", "checkboxes")
        assert field["attributes"]["label"]


def test_dependabot_looks_at_python_and_at_actions() -> None:
    updates = yaml.safe_load((GITHUB / "dependabot.yml").read_text())["updates"]
    assert [update["package-ecosystem"] for update in updates] == ["pip", "github-actions"]
    for update in updates:
        for folder in update.get("directories") or [update["directory"]]:
            assert (SOURCES / folder.lstrip("/")).is_dir()


def test_coverage_measures_every_package_of_the_wheel() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert PROJECT["tool"]["coverage"]["run"]["source"] == packages


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"])
def test_pages_for_contributors_link_to_what_exists(name: str) -> None:
    text = (SOURCES / name).read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (SOURCES / link).exists(), link

"""Every look at the test fold is logged in the run it was a look at, and counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hierrouter.learning.selection import LOG
from tests.conftest import Run, works

SHORT = ("--algo", "exact", "--epochs", "2", "--out")
JSON = ("--format", "json")


@pytest.fixture(scope="module")
def trained(bare: Path, hierrouter: Run) -> Path:
    """A folder with a cache, two routers and a sweep."""
    for command, out in (("train", "old"), ("train", "router"), ("sweep-alpha", "sweep")):
        works(hierrouter(command, *SHORT, f"runs/{out}", cwd=bare))
    return bare


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """The same, not looked at yet."""
    return Path(shutil.copytree(trained, tmp_path / "place"))


def asked(run: Run, place: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """What a command says, as JSON and on stderr."""
    done = works(run(*flags, *JSON, cwd=place))
    return json.loads(done.stdout), done.stderr


def looks(place: Path, run: str = "router") -> list[dict[str, Any]]:
    log = place / "runs" / run / LOG
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_the_same_report_twice_is_one_look_and_the_same_bytes(place: Path, hierrouter: Run) -> None:
    first, said = asked(hierrouter, place, "report")
    assert first["provenance"]["test_looks"] == {"this_router": 1, "all_routers": 1}
    assert "was looked at" not in said
    assert asked(hierrouter, place, "report")[0] == first
    [look] = looks(place)
    assert looks(place, "sweep") == [look] and not looks(place, "old")
    assert (look["command"], look["alpha"]) == ("report", 0.005)
    assert [name.split()[0] for name in look["routers"]] == ["router", "sweep"]
    assert look["tree"] == first["provenance"]["tree"]


def test_looks_add_up_over_alphas_and_routers(place: Path, hierrouter: Run) -> None:
    asked(hierrouter, place, "report", "--checkpoint", "runs/old")
    _, said = asked(hierrouter, place, "report", "--checkpoint", "runs/router")
    assert "report: the test fold was looked at 2 times, 1 of them for this router" in said
    found, said = asked(hierrouter, place, "report", "--price", "calc=1")
    counts = found["provenance"]["test_looks"]
    assert counts == {"this_router": 2, "all_routers": 3}
    assert "report: the test fold was looked at 3 times, 2 of them for this router" in said


def test_the_page_says_how_often(place: Path, hierrouter: Run) -> None:
    works(hierrouter("report", "--out", "page", cwd=place))
    assert "test_looks" in (place / "page" / "report.html").read_text("utf-8")


def test_other_folds_are_no_look(place: Path, hierrouter: Run) -> None:
    for command in (
        ["report", "--split", "validation"],
        ["explain", "--worst", "1"],
        ["off-policy", "--simulate", "uniform"],
    ):
        _, said = asked(hierrouter, place, *command)
        assert "test fold" not in said
    assert not list(place.rglob(LOG))


@pytest.mark.parametrize(
    "flags",
    [
        ["explain", "--worst", "2", "--split", "test"],
        ["explain"],
        ["off-policy", "--simulate", "uniform", "--split", "test"],
    ],
    ids=["worst", "a query", "off-policy"],
)
def test_single_queries_and_logs_of_the_test_fold_are_looks(
    flags: list[str], place: Path, hierrouter: Run
) -> None:
    if flags == ["explain"]:
        what = "SELECT dataset || '/' || id AS name FROM queries WHERE split = 'test' LIMIT 1"
        found = hierrouter("cache", "sql", what, *JSON, cwd=place).stdout
        flags = ["explain", json.loads(found)["name"]]
    _, said = asked(hierrouter, place, *flags)
    warned = f"{flags[0]}: the test fold; what is changed after a look at it is tuned on it"
    assert warned in said
    [look] = looks(place)
    assert look["command"] == flags[0]
    assert [name.split()[0] for name in look["routers"]] == ["router"]
    _, said = asked(hierrouter, place, *flags)
    assert looks(place) == [look] and warned in said


def test_a_log_of_test_questions_is_a_look(place: Path, hierrouter: Run) -> None:
    for split, count in (("validation", 0), ("test", 1)):
        name = f"{split}.jsonl"
        flags = ["--simulate", "uniform", "--split", split, "--keep", name]
        asked(hierrouter, place, "off-policy", *flags)
        (place / "runs" / "router" / LOG).unlink(missing_ok=True)
        asked(hierrouter, place, "off-policy", "--log", name)
        assert [look["log"] for look in looks(place)] == [name] * count


def test_a_log_that_cannot_be_written_is_a_warning(place: Path, hierrouter: Run) -> None:
    (place / "runs" / "router" / LOG).mkdir()
    found, said = asked(hierrouter, place, "report")
    told = "report: this look at the test fold is not logged: runs/router/test_looks.jsonl: "
    [line] = [line for line in said.splitlines() if "not logged" in line]
    assert line.startswith(told)
    assert found["provenance"]["test_looks"]["this_router"] == 0


def test_without_a_router_nothing_is_logged(place: Path, hierrouter: Run) -> None:
    shutil.rmtree(place / "runs")
    found, _ = asked(hierrouter, place, "report")
    assert found["provenance"]["test_looks"] == {"this_router": 0, "all_routers": 0}
    assert not list(place.rglob(LOG))


def test_a_look_at_a_copy_is_the_same_look(place: Path, hierrouter: Run) -> None:
    flags = ["--worst", "2", "--split", "test", "--checkpoint"]
    asked(hierrouter, place, "explain", *flags, "runs/router")
    copy = shutil.copytree(place / "runs" / "router", place / "elsewhere" / "router")
    before = (copy / LOG).read_bytes()
    asked(hierrouter, place, "explain", *flags, "elsewhere/router")
    assert (copy / LOG).read_bytes() == before

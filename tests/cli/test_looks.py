"""Every look at the test fold is logged in the run it was a look at, and counted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hierrouter.runs.look_log import LOOKS_FILE
from tests.cli.conftest import Place


@pytest.fixture(scope="module")
def trained(bare: Place) -> Place:
    """A folder with a cache, two routers and a sweep."""
    for command, out in (
        ("train --epochs 2", "old"),
        ("train --epochs 2", "router"),
        ("sweep-alpha", "sweep"),
    ):
        bare.does(f"{command} --out runs/{out}")
    return bare


@pytest.fixture
def unseen(trained: Place, tmp_path: Path) -> Place:
    """The same, not looked at yet."""
    return trained.copy(tmp_path / "unseen")


def asked(place: Place, words: str) -> tuple[dict[str, Any], str]:
    """What a command says, as JSON and on stderr."""
    done = place.does(f"{words} --format json")
    return json.loads(done.stdout), done.stderr


def looks(place: Place, run: str = "router") -> list[dict[str, Any]]:
    log = place / "runs" / run / LOOKS_FILE
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_the_same_report_twice_is_one_look_and_the_same_bytes(unseen: Place) -> None:
    first, said = asked(unseen, "report")
    assert first["provenance"]["test_looks"] == {"this_router": 1, "all_routers": 1}
    assert "was looked at" not in said
    assert asked(unseen, "report --out page")[0] == first
    assert "test_looks" in (unseen / "page/report.html").read_text("utf-8")
    [look] = looks(unseen)
    assert looks(unseen, "sweep") == [look] and not looks(unseen, "old")
    assert (look["command"], look["alpha"]) == ("report", 0.005)
    assert [name.split()[0] for name in look["routers"]] == ["router", "sweep"]
    assert look["tree"] == first["provenance"]["tree"]


def test_looks_add_up_over_alphas_and_routers(unseen: Place) -> None:
    asked(unseen, "report --checkpoint runs/old")
    _, said = asked(unseen, "report --checkpoint runs/router")
    assert "report: the test fold was looked at 2 times, 1 of them for this router" in said
    found, said = asked(unseen, "report --price calc=1")
    assert found["provenance"]["test_looks"] == {"this_router": 2, "all_routers": 3}
    assert "report: the test fold was looked at 3 times, 2 of them for this router" in said


def test_other_folds_and_what_has_no_router_are_no_look(unseen: Place) -> None:
    for command in ("report --split validation", "explain --worst 1"):
        assert "test fold" not in asked(unseen, command)[1]
    shutil.rmtree(unseen / "runs")
    found, _ = asked(unseen, "report")
    assert found["provenance"]["test_looks"] == {"this_router": 0, "all_routers": 0}
    assert not list(unseen.folder.rglob(LOOKS_FILE))


def test_single_queries_of_the_test_fold_are_looks(unseen: Place) -> None:
    what = "SELECT dataset || '/' || id AS name FROM queries WHERE split = 'test' LIMIT 1"
    query = unseen.tells("cache sql", what)["name"]
    for count, flags in ((1, "--worst 2 --split test"), (2, query)):
        for _ in range(2):
            _, said = asked(unseen, f"explain {flags}")
            assert "explain: the test fold; what is changed after a look at it is tuned" in said
            assert len(looks(unseen)) == count
        look = looks(unseen)[-1]
        assert look["command"] == "explain"
        assert [name.split()[0] for name in look["routers"]] == ["router"]

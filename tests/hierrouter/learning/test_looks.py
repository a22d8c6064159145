"""The log of looks at the test fold: what counts, and what it stands."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hierrouter.learning.selection import LOG, count_test_looks, log_test_look, read_test_looks
from hierrouter_cache.tree import Rate, repriced
from tests.conftest import environment
from tests.hierrouter.learning.runs import EXACT_GLIMPSE, finished, glimpse, small_tree
from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("place")
LOOK = {"tree": "t", "alpha": 0.5}


def folder(name: str = "runs/a") -> Path:
    made = Path(name)
    made.mkdir(parents=True)
    return made


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / LOG).read_text().splitlines()]


def test_a_look_says_when_and_at_what_and_the_same_again_is_no_new_one() -> None:
    run = folder()
    assert log_test_look([run], "report", LOOK) == []
    [line] = lines(run)
    assert line.keys() == {"alpha", "command", "routers", "sum", "time", "tree", "version"}
    assert (line["command"], line["routers"], line["tree"]) == ("report", ["a"], "t")
    assert line["time"].endswith("+00:00")
    before = (run / LOG).read_bytes()
    log_test_look([run], "report", LOOK)
    assert (run / LOG).read_bytes() == before
    log_test_look([run], "report", {**LOOK, "alpha": 1.0})
    log_test_look([run], "compare", LOOK)
    assert len(lines(run)) == 3


def test_one_look_at_two_runs_is_one_look() -> None:
    tree = small_tree()
    runs = [Path("runs") / name for name in "ab"]
    for run in runs:
        finished(glimpse(tree, config=EXACT_GLIMPSE), run)
    log_test_look(runs, "report", LOOK)
    assert lines(runs[0]) == lines(runs[1])
    assert count_test_looks(tree, runs[0]) == {"this_router": 1, "all_routers": 1}
    log_test_look(runs[1:], "report", LOOK)
    assert count_test_looks(tree, runs[0]) == {"this_router": 1, "all_routers": 2}
    assert count_test_looks(tree, None) == {"this_router": 0, "all_routers": 2}


def test_looks_on_other_data_are_not_counted_and_under_other_prices_are() -> None:
    tree = small_tree()
    other = Path("runs/other")
    finished(glimpse(small_tree(seed=1), config=EXACT_GLIMPSE), other)
    log_test_look([other], "report", LOOK)
    assert count_test_looks(tree, None)["all_routers"] == 0
    rates = {name: Rate(1.0, 2.0) for name in tree.direct.models}
    dear = Path("runs/dear")
    finished(glimpse(repriced(tree, rates), config=EXACT_GLIMPSE), dear)
    log_test_look([dear], "report", LOOK)
    assert count_test_looks(tree, None)["all_routers"] == 1


def test_looks_at_a_checkpoint_elsewhere_are_counted() -> None:
    tree, away = small_tree(), folder("away")
    (away / "policy.safetensors").touch()
    log_test_look([away / "policy.safetensors"], "report", LOOK)
    assert count_test_looks(tree, away) == {"this_router": 1, "all_routers": 1}


@pytest.mark.parametrize("torn", ['{"command": "rep', "[1]\n", "null\n", "\xff", "[" * 9999])
def test_what_a_kill_left_is_ignored_and_the_next_line_is_whole(torn: str) -> None:
    run = folder()
    log_test_look([run], "report", LOOK)
    with (run / LOG).open("ab") as log:
        log.write(torn.encode("latin-1"))
    assert len(read_test_looks(run)) == 1
    log_test_look([run], "compare", LOOK)
    assert len(read_test_looks(run)) == 2


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_log_that_cannot_be_written_is_told_and_stops_nothing(kind: str, place: Path) -> None:
    run, other = folder(), folder("runs/b")
    if kind == "folder":
        (run / LOG).mkdir()
    elif kind == "pipe":
        os.mkfifo(run / LOG)
    else:
        (place / "precious").write_text("kept\n")
        (run / LOG).symlink_to(place / "precious")
    [told] = log_test_look([run, other], "report", LOOK)
    assert told.startswith("this look at the test fold is not logged: runs/a/test_looks.jsonl: ")
    assert len(lines(other)) == 1 and read_test_looks(run) == set()
    assert kind != "link" or (place / "precious").read_text() == "kept\n"


def test_processes_that_log_at_once_lose_nothing(place: Path, warm: Warm) -> None:
    run = folder()
    code = (
        "import sys; from pathlib import Path\n"
        "from hierrouter.learning.selection import log_test_look\n"
        "for n in range(50): log_test_look([Path('runs/a')], sys.argv[1], {'n': n})"
    )
    started = [warm.start("-c", code, name, cwd=place, env=environment()) for name in "xy"]
    assert [process.result().returncode for process in started] == [0, 0]
    assert len(lines(run)) == len(read_test_looks(run)) == 100

"""`hierrouter explore`: the page it writes, what it says, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, refused, works

SHORT = ("--algo", "exact", "--epochs", "2", "--out")
MOST_BYTES = 6_000_000


@pytest.fixture(scope="module")
def work(bare: Path, tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """The same with a router and a sweep."""
    folder = shutil.copytree(bare, tmp_path_factory.mktemp("explore") / "work")
    for command in ("train", "sweep-alpha"):
        works(hierrouter(command, *SHORT, f"runs/{command}", cwd=folder))
    return folder


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text("utf-8")
    found: dict[str, Any] = json.loads(text.split('id="data">')[1].split("</script>")[0])
    return found


def test_the_page_is_written_where_runs_are(work: Path, hierrouter: Run) -> None:
    done = hierrouter("explore", cwd=work)
    assert (done.returncode, done.stdout) == (0, "")
    page = re.search(r"page (runs/\S+-explore/explore\.html), 0\.\d MB", done.stderr)
    assert page and (work / page[1]).stat().st_size < MOST_BYTES
    data = data_of(work / page[1])
    assert [router["name"] for router in data["routers"]] == [
        "HierRouter, sweep",
        "HierRouter, one alpha",
    ]
    assert data["split"] == "test" and len(data["texts"]) == len(data["queries"]["id"])


def test_a_page_of_the_test_fold_is_a_look_at_it(work: Path, hierrouter: Run) -> None:
    done = hierrouter("explore", "--texts", "3", "--out", "look.html", cwd=work)
    assert "explore: the test fold; what is changed after a look at it is tuned" in done.stderr
    looks = (work / "runs" / "train" / "test_looks.jsonl").read_text().splitlines()
    last = json.loads(looks[-1])
    assert (last["command"], last["texts"]) == ("explore", 3)
    before = len(looks)
    done = hierrouter("explore", "--split", "validation", "--out", "quiet.html", cwd=work)
    assert "test fold" not in done.stderr and "test fold" not in _visible(work / "quiet.html")
    assert len((work / "runs" / "train" / "test_looks.jsonl").read_text().splitlines()) == before
    assert "test fold" in _visible(work / "look.html")


def _visible(page: Path) -> str:
    return page.read_text("utf-8").split('id="data">')[0]


def test_a_checkpoint_that_is_named_is_shown_alone(work: Path, hierrouter: Run) -> None:
    flags = ("--split", "validation", "--checkpoint", "runs/train", "--out", "one.html")
    assert hierrouter("explore", *flags, cwd=work).returncode == 0
    assert [one["name"] for one in data_of(work / "one.html")["routers"]] == [
        "HierRouter, one alpha"
    ]


def test_without_a_router_the_page_has_bounds(bare: Path, hierrouter: Run) -> None:
    flags = ("--split", "validation", "--texts", "0", "--out", "bounds.html")
    done = hierrouter("explore", *flags, cwd=bare)
    assert done.returncode == 0 and "baselines only" in done.stderr
    data = data_of(bare / "bounds.html")
    assert data["routers"] == [] and data["texts"] == {} and len(data["alphas"]) > 90


def test_models_and_hops_can_be_chosen(bare: Path, hierrouter: Run) -> None:
    flags = ("--models", "calc,text", "--hops", "1", "--price", "calc=0.5", "--out", "part.html")
    assert hierrouter("explore", *flags, cwd=bare).returncode == 0
    data = data_of(bare / "part.html")
    assert (data["models"], data["hops"]) == (["calc", "text"], 1)
    assert data["nodes"]["rate"][0] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--out", "caches"), "output exists: caches"),
        (("--out", "nowhere/page.html"), "output folder does not exist: nowhere"),
        (("--split", "tests"), "unknown split: tests"),
        (("--texts", "-1"), "--texts"),
        (("--texts", "many"), "--texts"),
        (("--sweep", "caches"), "no finished sweep: caches"),
        (("--checkpoint", "caches"), "caches"),
    ],
)
def test_bad_input_is_refused(
    flags: tuple[str, ...], said: str, bare: Path, hierrouter: Run
) -> None:
    before = sorted(bare.rglob("*.html"))
    assert said in refused(hierrouter("explore", *flags, cwd=bare))
    assert sorted(bare.rglob("*.html")) == before


def test_without_a_cache_the_cache_is_at_fault(tmp_path: Path, hierrouter: Run) -> None:
    done = hierrouter("explore", cwd=tmp_path)
    assert done.returncode == 3 and done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []

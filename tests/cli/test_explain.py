"""`hierrouter explain`: one query on stdout, the largest regrets, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Run, refused, works
from tests.hostile import HARM, collect_hostile

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SHORT = ("--algo", "exact", "--epochs", "2", "--out")


@pytest.fixture(scope="module")
def work(bare: Path, tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """The same with a router."""
    folder = shutil.copytree(bare, tmp_path_factory.mktemp("explain") / "work")
    works(hierrouter("train", *SHORT, "runs/router", cwd=folder))
    return folder


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of hostile texts."""
    folder = tmp_path_factory.mktemp("nasty")
    collect_hostile(folder / "caches" / "default")
    return folder


def test_the_worst_of_validation_are_listed_and_can_be_shown(work: Path, hierrouter: Run) -> None:
    done = works(hierrouter("explain", "--worst", "3", "--format", "json", cwd=work))
    told = json.loads(done.stdout)
    assert told["split"] == "validation" and len(told["queries"]) == 3
    first = told["queries"][0]
    assert first["split"] == "validation"
    assert "explain: checkpoint runs/router" in done.stderr and "test fold" not in done.stderr

    listed = hierrouter("explain", "--worst", "3", cwd=work).stdout
    name = f"{first['dataset']}/{first['id']}"
    assert f"{name}  " in listed and f"{first['regret']:.4f}" in listed

    shown = hierrouter("explain", name, "--format", "json", cwd=work)
    assert json.loads(shown.stdout) == first
    text = hierrouter("explain", first["id"], "--checkpoint", "runs/router", cwd=work).stdout
    for node in first["nodes"]:
        assert f"{node['model']}  Q {node['quality']:.3f}, " in text
    assert "< HierRouter" in text and f"{first['regret']:.4f}" in text


def test_the_test_fold_is_shown_where_it_is_asked_for(work: Path, hierrouter: Run) -> None:
    done = works(
        hierrouter("explain", "--worst", "1", "--split", "test", "--format", "md", cwd=work)
    )
    assert "### The largest regrets of HierRouter on the test fold" in done.stdout
    assert (
        "explain: the test fold; what is changed after a look at it is tuned on it" in done.stderr
    )


def test_another_alpha_than_that_of_the_training_is_said(work: Path, hierrouter: Run) -> None:
    flags = ["--worst", "1", "--alpha", "0.02", "--format", "md"]
    done = works(hierrouter("explain", *flags, cwd=work))
    assert "explain: the router was trained at alpha 0.005, shown at 0.02" in done.stderr


def test_alpha_and_a_part_of_the_pool_are_those_asked_for(bare: Path, hierrouter: Run) -> None:
    flags = ["--alpha", "0.1", "--models", "facts,calc", "--hops", "1", "--format", "json"]
    done = works(hierrouter("explain", "arith/arith-0000", *flags, cwd=bare))
    found = json.loads(done.stdout)
    assert [node["model"] for node in found["nodes"]] == ["facts", "calc"]
    for node in found["nodes"]:
        assert node["reward"] == pytest.approx(node["quality"] - 0.1 * node["cost"])
    assert found["router"] is None and "no router trained on this tree" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["airth-0000"], "no such query in this tree: airth-0000; did you mean arith-0000?"),
        (["--worst", "3"], "no router, so no regret: --worst; run `hierrouter train` first"),
        ([], "no query; give QUERY_ID or --worst N"),
        (["x", "--worst", "3"], "a query and --worst contradict each other; give QUERY_ID or "),
        (["x", "--split", "test"], "--split test is for --worst; a query is looked for in all "),
        (["--worst", "3", "--split", "tset"], "unknown split: tset; did you mean test?"),
        (["x", "--format", "latex"], "unknown format: latex; did you mean text?"),
        (["x", "--checkpoint", "nope"], "nope"),
    ],
)
def test_what_cannot_be_shown_is_named(
    asked: list[str], said: str, bare: Path, hierrouter: Run
) -> None:
    line = refused(hierrouter("explain", *asked, cwd=bare))
    assert line.startswith("error: ") and said in line


@pytest.mark.parametrize("format", ["text", "json", "md"])
def test_hostile_texts_are_inert_in_every_format(format: str, nasty: Path, hierrouter: Run) -> None:
    done = works(hierrouter("explain", f"9-{HARM[9]}", "--format", format, cwd=nasty))
    assert not STEERING.search(done.stdout + done.stderr)
    if format == "md":
        assert "<" not in done.stdout.replace("\\<", "")


def test_hostile_names_are_inert_in_errors(nasty: Path, hierrouter: Run) -> None:
    line = refused(hierrouter("explain", f"8{HARM[9]}", cwd=nasty))
    assert line.startswith("error: no such query in this tree: 8\\x1b]52;c;")
    assert not STEERING.search(line) and len(line) <= 307


def test_the_page_of_a_report_has_the_trees(work: Path, hierrouter: Run) -> None:
    works(hierrouter("report", "--out", "page", cwd=work))
    page = (work / "page" / "report.html").read_text("utf-8")
    told = hierrouter("explain", "--worst", "10", "--split", "test", "--format", "json", cwd=work)
    queries = json.loads(told.stdout)["queries"]
    assert page.count("<details>") == len(queries) > 0
    for query in queries:
        assert f"<b>{query['dataset']}/{query['id']}</b>" in page

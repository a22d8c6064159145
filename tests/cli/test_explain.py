"""`hierrouter explain` and `explore`: one query, the largest regrets, a page to play with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.hierrouter.reports.test_explore import data_of

MOST_BYTES = 6_000_000
TEST_SAID = "the test fold; what is changed after a look at it is tuned on it"


@pytest.fixture(scope="module")
def work(bare: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """`bare` with a router and a sweep."""
    place = bare.copy(tmp_path_factory.mktemp("explain") / "work")
    place.does("train --algo exact --epochs 2 --out runs/train")
    place.does("sweep-alpha --out runs/sweep-alpha")
    return place


def test_the_worst_of_validation_are_listed_and_can_be_shown(work: Place) -> None:
    done = work.does("explain --worst 3 --format json")
    told = json.loads(done.stdout)
    assert told["split"] == "validation" and len(told["queries"]) == 3
    first = told["queries"][0]
    assert first["split"] == "validation"
    assert "explain: checkpoint runs/train" in done.stderr and "test fold" not in done.stderr

    listed = work.does("explain --worst 3").stdout
    name = f"{first['dataset']}/{first['id']}"
    assert f"{name}  " in listed and f"{first['regret']:.4f}" in listed

    assert work.tells(f"explain {name}") == first
    text = work.does(f"explain {first['id']} --checkpoint runs/train").stdout
    for node in first["nodes"]:
        assert f"{node['model']}  Q {node['quality']:.3f}, " in text
    assert "< HierRouter" in text and f"{first['regret']:.4f}" in text


def test_the_routes_of_a_table_are_listed(work: Place, tmp_path: Path) -> None:
    here = work.copy(tmp_path / "here")  # where its run may be the latest
    here.does("train --algo groups --alpha 0.4 --keep-anyway --out runs/table")
    told = here.tells("explain --routes --checkpoint runs/table")
    assert {*told} == {"alpha", "routes"}
    text = here.does("explain --routes --checkpoint runs/table").stdout
    for route in told["routes"]:
        assert route["route"] in text and f"{route['reward']:.4f}" in text
    said = here.refuses("explain --routes --checkpoint runs/train")
    assert "--algo exact decides question by question" in said


def test_the_test_fold_and_another_alpha_are_said(work: Place) -> None:
    done = work.does("explain --worst 1 --split test --alpha 0.02 --checkpoint runs/train")
    assert "The largest regrets of HierRouter on the test fold" in done.stdout
    assert f"explain: {TEST_SAID}" in done.stderr
    assert "explain: the router was trained at alpha 0.005, shown at 0.02" in done.stderr


def test_alpha_and_a_part_of_the_pool_are_those_asked_for(bare: Place) -> None:
    flags = "--alpha 0.1 --models facts,calc --hops 1 --format json"
    done = bare.does(f"explain arith/arith-0000 {flags}")
    found = json.loads(done.stdout)
    assert [node["model"] for node in found["nodes"]] == ["facts", "calc"]
    for node in found["nodes"]:
        assert node["reward"] == pytest.approx(node["quality"] - 0.1 * node["cost"])
    assert found["router"] is None and "no router trained on this tree" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("airth-0000", "no such query in this tree: airth-0000; did you mean arith-0000?"),
        ("--worst 3", "no router, so no regret: --worst; run `hierrouter train` first"),
        ("", "no query; give QUERY_ID or --worst N"),
        ("x --worst 3", "a query and --worst contradict each other; give QUERY_ID or "),
        ("x --routes", "--routes is of the router and not of queries; give it alone"),
        ("--routes", "no router, so no routes: --routes; run `hierrouter train` first"),
        ("x --split test", "--split test is for --worst; a query is looked for in all "),
    ],
)
def test_what_cannot_be_shown_is_named(asked: str, said: str, bare: Place) -> None:
    assert said in bare.refuses(f"explain {asked}")


def parts_of(page: Path) -> tuple[str, dict[str, Any]]:
    """What a page shows before anything is done, and its data."""
    text = page.read_text("utf-8")
    return text.split('id="data">')[0], data_of(text)


def test_a_page_is_written_where_runs_are_and_is_a_look_at_the_test_fold(work: Place) -> None:
    done = work.does("explore --texts 3")
    assert done.stdout == ""
    page = re.search(r"page (runs/\S+-explore/explore\.html), 0\.\d MB", done.stderr)
    assert page and (work / page[1]).stat().st_size < MOST_BYTES
    shown, data = parts_of(work / page[1])
    names = [router["name"] for router in data["routers"]]
    assert names == ["HierRouter, sweep", "HierRouter, one alpha"]
    assert data["split"] == "test" and len(data["texts"]) == 3
    assert f"explore: {TEST_SAID}" in done.stderr and "test fold" in shown
    last = json.loads((work / "runs/train/test_looks.jsonl").read_text().splitlines()[-1])
    assert (last["command"], last["texts"]) == ("explore", 3)


def test_of_another_fold_a_named_checkpoint_is_shown_alone(work: Place) -> None:
    log = work / "runs/train/test_looks.jsonl"
    before = log.exists() and log.read_text()
    done = work.does("explore --split validation --checkpoint runs/train --out quiet.html")
    shown, data = parts_of(work / "quiet.html")
    assert "test fold" not in done.stderr and "test fold" not in shown
    assert [one["name"] for one in data["routers"]] == ["HierRouter, one alpha"]
    assert len(data["texts"]) == len(data["queries"]["id"])
    assert (log.exists() and log.read_text()) == before


def test_without_a_router_the_page_has_bounds_of_a_part_of_the_pool(bare: Place) -> None:
    flags = "--models calc,text --hops 1 --price calc=0.5 --texts 0 --out bounds.html"
    assert "baselines only" in bare.does(f"explore --split validation {flags}").stderr
    _, data = parts_of(bare / "bounds.html")
    assert data["routers"] == [] and data["texts"] == {} and len(data["alphas"]) > 90
    assert (data["models"], data["hops"]) == (["calc", "text"], 1)
    assert data["nodes"]["rate"][0] == [0.5, 0.5]


RULES = """
print("not a result")


def thrifty(observation):
    return "text" if observation["alpha"] > 1 else "calc"
"""


def test_policies_and_baselines_are_on_the_page_and_part_of_the_look(work: Place) -> None:
    (work / "rules.py").write_text(RULES)
    done = work.does("explore --texts 0 --policy rules:thrifty --baselines knn --out own.html")
    assert done.stdout == "" and "not a result" in done.stderr
    _, data = parts_of(work / "own.html")
    assert [one["name"] for one in data["brought"]] == ["rules:thrifty", "kNN (A)", "kNN (B)"]
    last = json.loads((work / "runs/train/test_looks.jsonl").read_text().splitlines()[-1])
    assert last["baselines"] == ["kNN"] and list(last["policies"]) == ["rules:thrifty"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--baselines nobody", "unknown baseline: nobody"),
        ("--policy rules:nobody", "policy cannot be made: rules:nobody"),
        ("--out caches", "output exists: caches"),
        ("--out /dev/null/page.html", "output cannot be made: /dev/null is no folder"),
        ("--texts -1", "--texts"),
        ("--sweep caches", "no finished sweep: caches"),
        ("--checkpoint caches", "caches"),
    ],
)
def test_no_page_is_written_from_bad_input(flags: str, said: str, bare: Place) -> None:
    before = sorted(bare.folder.rglob("*.html"))
    assert said in bare.refuses(f"explore {flags}")
    assert sorted(bare.folder.rglob("*.html")) == before

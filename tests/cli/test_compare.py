"""`hierrouter compare`: the usual routers beside the learned one."""

import csv
import io
import json
import re
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Place, over_all
from tests.conftest import SOURCES, Start
from tests.hierrouter.collection.examples import save

FEW = "random,best-static,knn"
FOLDS = ("train",) * 20 + ("validation",) * 6 + ("test",) * 8
SLOW = """
import sys, time
from hierrouter.learning.baselines.simple import BestStatic
class Slow(BestStatic):
    name = "slow"
    def fit(self, *folds):
        print("fitting", file=sys.stderr, flush=True)
        time.sleep(100)
class Loud(BestStatic):
    name = "loud"
    def fit(self, *folds):
        print("not a result")
        return super().fit(*folds)
"""


@pytest.fixture(scope="module")
def told(work: Place) -> dict:
    (work / "mine.py").write_text(SLOW)
    return work.tells(f"compare --baselines {FEW}")


def row(told: dict, router: str, arms: str = "") -> dict:
    (found,) = [r for r in told["rows"] if (r["router"], r["arms"]) == (router, arms)]
    return found


def unvarying(told: dict) -> dict:
    """Without CPU times, and without the looks that other commands had meanwhile."""
    rows = [{**found, "fit_cpu_seconds": None} for found in told["rows"]]
    return {**told, "rows": rows, "provenance": {**told["provenance"], "test_looks": None}}


def keys(told: object) -> set[str]:
    """Names of all keys, at any depth, but those that are names of models or of settings."""
    if isinstance(told, list):
        return set().union(*map(keys, told))
    if not isinstance(told, dict):
        return set()
    named = {
        name: list(inner.values()) if name == "prices" else inner
        for name, inner in told.items()
        if name != "settings"
    }
    return set(told).union(*map(keys, named.values()))


def table(folder: Path, splits: tuple[str, ...]) -> Path:
    """A file with the answers of two models, which take turns in being right."""
    rows = [
        {
            "query_id": f"q{number}",
            "question": f"What comes after {number % 2 * 'the word '}{number}?",
            "answer": str(number + 1),
            "model": model,
            "response": str(number + (1 if number % 2 == at else 0)),
            "tokens_in": 8,
            "tokens_out": 2,
            "split": split,
        }
        for number, split in enumerate(splits)
        for at, model in enumerate(("even", "odd"))
    ]
    return save(rows, folder / "table.jsonl")


def imported(place: Place, splits: tuple[str, ...], flags: str = "") -> None:
    place.does(f"cache import --format table {flags}", table(place.folder, splits))


def test_the_router_is_the_one_that_report_shows(work: Place, told: dict) -> None:
    reported = work.tells("report")
    router, mine = over_all(reported["rows"])["hierrouter"], row(told, "hierrouter")
    for name in ("accuracy", "quality", "cost", "reward"):
        for end in ("", "_low", "_high"):
            assert mine[name + end] == router[name + end]
    assert told["bootstrap"] == reported["bootstrap"]
    assert told["provenance"]["checkpoint"] == reported["provenance"]["checkpoint"]
    assert told["alpha"] == reported["alpha"]
    assert told["split"] == "test"


def test_every_baseline_stands_on_both_sets(told: dict) -> None:
    for name in ("random", "best static", "kNN"):
        for arms in "AB":
            found = row(told, name, arms)
            assert found["reward_low"] <= found["reward"] <= found["reward_high"]
            assert found["difference"] == pytest.approx(
                row(told, "hierrouter")["reward"] - found["reward"]
            )
    assert {value["value"] for value in told["values"]} == {"second hop", "adaptivity", "lead"}
    assert row(told, "tree oracle")["reward"] >= row(told, "kNN", "B")["reward"]


def test_the_docs_name_every_key_and_no_other(told: dict) -> None:
    page = (SOURCES / "docs" / "reference" / "json.md").read_text()
    section = page.partition("\n## Compare")[2].partition("\n## ")[0]
    found = keys(told)
    assert found - set(re.findall(r"`(\w+)`", section)) == set()
    first_cells = "".join(re.findall(r"^\| (`.*?) \|", section, re.M))
    assert set(re.findall(r"`(\w+)`", first_cells)) - found == set()
    assert told["format"] == 1


def test_a_look_at_the_test_fold_is_logged(work: Place, told: dict) -> None:
    run = work / told["provenance"]["checkpoint"]
    looks = [json.loads(line) for line in (run / "test_looks.jsonl").read_text().splitlines()]
    mine = [look for look in looks if look["command"] == "compare" and look["sets"] == ["A", "B"]]
    assert [look["alpha"] for look in mine] == [told["alpha"]]
    assert mine[0]["baselines"] == ["random", "best static", "kNN"]


def test_other_prices_are_said_where_the_figures_are(work: Place) -> None:
    (work / "dear.toml").write_text("[prices]\ncalc = 0.2\ntext = 0.3\nfacts = 0.1\n")
    flags = "--prices dear.toml --baselines random --out dear"
    done = work.does(f"compare --split validation {flags}")
    said = "The router was trained under other prices than shown here."
    assert said in " ".join(done.stdout.split())
    assert said in json.loads((work / "dear/compare.json").read_text())["notes"]
    assert said in (work / "dear/compare.md").read_text()


def test_text_shows_tables_and_leaves_in_a_run_the_same_numbers(work: Place, told: dict) -> None:
    before = set(work.folder.glob("runs/*-compare"))
    done = work.does(f"compare --baselines {FEW}")
    assert [f"Table {n}." in done.stdout for n in (1, 2, 3, 4)] == [True] * 4
    (run,) = set(work.folder.glob("runs/*-compare")) - before
    assert {file.name for file in run.iterdir()} == {"compare.json", "compare.md", "contents.json"}
    assert unvarying(json.loads((run / "compare.json").read_text())) == unvarying(told)


def test_a_sweep_is_compared_where_it_is_named(work: Place) -> None:
    [sweep] = work.folder.glob("runs/*-sweep-alpha")
    flags = f"--alpha 0.6 --sweep {sweep.relative_to(work.folder)} --split validation"
    done = work.does(f"compare --baselines random --format json {flags}")
    found = json.loads(done.stdout)
    assert found["provenance"]["checkpoint"] == str(sweep.relative_to(work.folder))
    assert "compare: the sweep's router is shown, seed " in done.stderr


def test_csv_and_out(work: Place, told: dict) -> None:
    done = work.does(f"compare --format csv --sets B --baselines {FEW} --out out")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {r["arms"] for r in rows if r["kind"] == "baseline"} == {"B"}
    (knn,) = [r for r in rows if r["router"] == "kNN"]
    assert float(knn["reward"]) == pytest.approx(row(told, "kNN", "B")["reward"])
    assert (work / "out/compare.json").exists()


def test_what_ones_own_baseline_prints_is_no_result(work: Place, told: dict) -> None:
    done = work.does("compare --split validation --baselines mine:Loud --format json")
    found = json.loads(done.stdout)
    assert row(found, "loud", "A")
    assert any("fold that chose the settings" in note for note in found["notes"])
    assert "not a result" in done.stderr


def test_ctrl_c_while_fitting_leaves_nothing(work: Place, told: dict, start: Start) -> None:
    process = start("compare", "--baselines", "mine:Slow", "--out", "never", cwd=work.folder)
    before = process.wait_for(r"(?sm)\A.*?^fitting[^\n]*\n")
    process.send_signal(signal.SIGINT)
    done = process.result(timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    said = done.stderr.removeprefix(before)
    assert said.splitlines() == ["error: interrupted; what was committed or saved is safe"]
    assert not (work / "never").exists()


def test_without_a_router_the_baselines_are_alone(place: Place) -> None:
    imported(place, FOLDS)
    done = place.does("compare --baselines knn,random --encoder hashed-ngrams --format json")
    assert "compare: no router trained on this tree" in done.stderr
    found = json.loads(done.stdout)
    assert "hierrouter" not in {r["router"] for r in found["rows"]}
    assert any("independent answers" in note for note in found["notes"])
    assert row(found, "random", "A")["quality"] == pytest.approx(0.5)
    assert {value["value"] for value in found["values"]} == {"second hop"}


def test_a_table_of_one_hop_is_one_set(place: Place) -> None:
    imported(place, FOLDS, "--hops 1")
    shown = " ".join(
        place.does("compare --baselines knn,random --encoder hashed-ngrams").stdout.split()
    )
    assert "Set B is left out: its routes are the direct calls of set A." in shown
    assert ["second hop" in shown, "Table 3. Settings" in shown] == [False, True]


def test_without_a_train_fold_there_is_nothing_to_fit(place: Place) -> None:
    imported(place, ("test",) * 4)
    line = place.refuses("compare --baselines random")
    assert "no query to fit baselines on: the train fold is empty" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--baselines knn,,random", "unknown baseline: ;"),
        ("--baselines nowhere:Thing", "nowhere:Thing.*ModuleNotFoundError"),
        ("--sets A,C", "unknown set of arms: 'C'.*known: A, B"),
        ("--split tets", "did you mean test"),
        ("--checkpoint nope", "nope.*not found|not found.*nope"),
        ("--out /dev/null/x", "output cannot be made: /dev/null is no folder"),
    ],
)
def test_wrong_words_are_refused_before_any_work(place: Place, flags: str, said: str) -> None:
    assert re.search(said, place.refuses(f"compare --cache nowhere {flags}"))
    assert list(place.folder.iterdir()) == []

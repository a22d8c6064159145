"""`hierrouter compare`: the usual routers beside the learned one."""

import csv
import io
import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import SOURCES, Run, Start, as_json, works

FEW = "random,best-static,knn"
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
def work(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A copy of what a quickstart left, with baselines of its own."""
    folder = shutil.copytree(home, tmp_path_factory.mktemp("compare") / "work")
    (folder / "mine.py").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
def told(work: Path, hierrouter: Run) -> dict:
    return as_json(hierrouter("compare", "--format", "json", "--baselines", FEW, cwd=work))


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
    file = folder / "table.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def imported(folder: Path, hierrouter: Run, splits: tuple[str, ...]) -> None:
    file = table(folder, splits)
    works(hierrouter("cache", "import", file, "--format", "table", cwd=folder))


def test_the_router_is_the_one_that_report_shows(work: Path, told: dict, hierrouter: Run) -> None:
    done = hierrouter("report", "--format", "json", cwd=work)
    reported = json.loads(done.stdout)
    (router,) = [
        r for r in reported["rows"] if (r["policy"], r["dataset"]) == ("hierrouter", "all")
    ]
    mine = row(told, "hierrouter")
    figures = [
        name + end
        for name in ("accuracy", "quality", "cost", "reward")
        for end in ("", "_low", "_high")
    ]
    assert {name: mine[name] for name in figures} == {name: router[name] for name in figures}
    assert told["bootstrap"] == reported["bootstrap"]
    assert told["provenance"]["checkpoint"] == reported["provenance"]["checkpoint"]
    assert told["alpha"] == reported["alpha"]
    assert told["split"] == "test"


def test_every_baseline_stands_on_both_sets(told: dict) -> None:
    for name in FEW.split(","):
        for arms in "AB":
            found = row(told, {"best-static": "best static", "knn": "kNN"}.get(name, name), arms)
            assert found["reward_low"] <= found["reward"] <= found["reward_high"]
            assert found["difference"] == pytest.approx(
                row(told, "hierrouter")["reward"] - found["reward"]
            )
    assert {value["value"] for value in told["values"]} == {"second hop", "adaptivity", "lead"}
    assert row(told, "tree oracle")["reward"] >= row(told, "kNN", "B")["reward"]


def test_the_docs_name_every_key_and_no_other(told: dict) -> None:
    _, _, section = (SOURCES / "docs" / "compare.md").read_text().partition("## JSON")
    found = keys(told)
    assert found - set(re.findall(r"`(\w+)`", section)) == set()
    first_cells = "".join(re.findall(r"^\| (`.*?) \|", section, re.M))
    assert set(re.findall(r"`(\w+)`", first_cells)) - found == set()
    assert told["format"] == 1


def test_a_look_at_the_test_fold_is_logged(work: Path, told: dict) -> None:
    run = work / told["provenance"]["checkpoint"]
    looks = [json.loads(line) for line in (run / "test_looks.jsonl").read_text().splitlines()]
    mine = [look for look in looks if look["command"] == "compare" and look["sets"] == ["A", "B"]]
    assert [look["alpha"] for look in mine] == [told["alpha"]]
    assert mine[0]["baselines"] == ["random", "best static", "kNN"]


def test_other_prices_are_said_where_the_figures_are(
    work: Path, tmp_path: Path, hierrouter: Run
) -> None:
    out = tmp_path / "out"
    (tmp_path / "dear.toml").write_text("[prices]\ncalc = 0.2\ntext = 0.3\nfacts = 0.1\n")
    arguments = ("--prices", tmp_path / "dear.toml", "--baselines", "random", "--out", out)
    done = works(hierrouter("compare", "--split", "validation", *arguments, cwd=work))
    said = "The router was trained under other prices than shown here."
    assert said in " ".join(done.stdout.split())
    assert said in json.loads((out / "compare.json").read_text())["notes"]
    assert said in (out / "compare.md").read_text()


def test_the_same_command_gives_the_same_numbers(work: Path, told: dict, hierrouter: Run) -> None:
    done = hierrouter("compare", "--format", "json", "--baselines", FEW, cwd=work)
    again = json.loads(done.stdout)
    assert unvarying(again) == unvarying(told)


def test_text_shows_tables_and_leaves_the_rest_in_a_run(work: Path, hierrouter: Run) -> None:
    before = set(work.glob("runs/*-compare"))
    done = works(hierrouter("compare", "--baselines", FEW, "--split", "validation", cwd=work))
    assert [f"Table {n}." in done.stdout for n in (1, 2, 3, 4)] == [True] * 4
    assert "Shown on the fold that chose the settings" in " ".join(done.stdout.split())
    (run,) = set(work.glob("runs/*-compare")) - before
    assert {file.name for file in run.iterdir()} == {"compare.json", "compare.md"}
    assert json.loads((run / "compare.json").read_text())["split"] == "validation"


def test_csv_and_out(work: Path, told: dict, hierrouter: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = hierrouter(
        *("compare", "--format", "csv", "--sets", "B", "--baselines", FEW, "--out", out), cwd=work
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {r["arms"] for r in rows if r["kind"] == "baseline"} == {"B"}
    (knn,) = [r for r in rows if r["router"] == "kNN"]
    assert float(knn["reward"]) == pytest.approx(row(told, "kNN", "B")["reward"])
    assert (out / "compare.json").exists()


def test_what_ones_own_baseline_prints_is_no_result(work: Path, hierrouter: Run) -> None:
    done = works(hierrouter("compare", "--format", "json", "--baselines", "mine:Loud", cwd=work))
    assert row(json.loads(done.stdout), "loud", "A")
    assert "not a result" in done.stderr


def test_ctrl_c_while_fitting_leaves_nothing(work: Path, tmp_path: Path, start: Start) -> None:
    out = tmp_path / "out"
    process = start("compare", "--baselines", "mine:Slow", "--out", out, cwd=work)
    before = process.wait_for(r"(?sm)\A.*?^fitting[^\n]*\n")
    process.send_signal(signal.SIGINT)
    done = process.result(timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    said = done.stderr.removeprefix(before)
    assert said.splitlines() == ["error: interrupted; what was committed or saved is safe"]
    assert not out.exists()


def test_without_a_router_the_baselines_are_alone(tmp_path: Path, hierrouter: Run) -> None:
    imported(tmp_path, hierrouter, ("train",) * 20 + ("validation",) * 6 + ("test",) * 8)
    done = works(
        hierrouter("compare", "--format", "json", "--baselines", "knn,random", cwd=tmp_path)
    )
    assert "compare: no router trained on this tree" in done.stderr
    found = json.loads(done.stdout)
    assert "hierrouter" not in {r["router"] for r in found["rows"]}
    assert any("independent answers" in note for note in found["notes"])
    assert row(found, "random", "A")["quality"] == pytest.approx(0.5)
    assert {value["value"] for value in found["values"]} == {"second hop"}


def test_a_table_of_one_hop_is_one_set(tmp_path: Path, hierrouter: Run) -> None:
    file = table(tmp_path, ("train",) * 20 + ("validation",) * 6 + ("test",) * 8)
    works(hierrouter("cache", "import", file, "--format", "table", "--hops", "1", cwd=tmp_path))
    done = works(hierrouter("compare", "--baselines", "knn,random", cwd=tmp_path))
    shown = " ".join(done.stdout.split())
    assert "Set B is left out: its routes are the direct calls of set A." in shown
    assert ["second hop" in shown, "Table 3. Settings" in shown] == [False, True]


def test_without_a_train_fold_there_is_nothing_to_fit(tmp_path: Path, hierrouter: Run) -> None:
    imported(tmp_path, hierrouter, ("test",) * 4)
    done = hierrouter("compare", "--baselines", "random", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no query to fit baselines on: the train fold is empty" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--baselines", "ridg"], ["unknown baseline: ridg", "did you mean ridge"]),
        (["--baselines", "knn,,random"], ["unknown baseline: ;"]),
        (["--baselines", "knn,knn"], ["given twice: knn"]),
        (["--baselines", "nowhere:Thing"], ["nowhere:Thing", "ModuleNotFoundError"]),
        (["--sets", "A,C"], ["unknown set of arms: 'C'", "known: A, B"]),
        (["--sets", "A,A"], ["given twice: A"]),
        (["--alpha", "abc"], ["alpha", "number"]),
        (["--split", "tets"], ["did you mean test"]),
        (["--format", "jsn"], ["did you mean json"]),
        (["--checkpoint", "nope"], ["nope", "not found"]),
        (["--out", "no/such"], ["no", "does not exist"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_words_are_refused_before_any_work(
    tmp_path: Path, hierrouter: Run, arguments: list[str], words: list[str]
) -> None:
    done = hierrouter("compare", "--cache", "nowhere", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in words), line
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []

"""The flags of `train`, `sweep-alpha` and `report`, on a collected cache."""

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierrouter.runs.checkpoint import load_checkpoint, read_tensors, save_checkpoint
from hierrouter.runs.folders import read_record
from tests.cli.conftest import Place, over_all
from tests.conftest import SOURCES, Run
from tests.hierrouter.collection.examples import save, single_answers

EXACT = "train --algo exact --epochs 2"


def described(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_tensors(run / "policy.safetensors")[1])
    return found


@pytest.fixture(scope="module")
def question_only(bare: Place) -> str:
    """A run of a router that sees the question alone."""
    bare.does("train --epochs 2 --state query --out question")
    assert described(bare / "question")["view"] == "query"
    return "question"


def test_enumeration_and_stop_are_in_the_checkpoint_and_the_report(bare: Place) -> None:
    done = bare.does(f"{EXACT} --allow-stop --alpha 0.1 --out stopping")
    assert done.stdout == "stopping\n"
    assert json.loads((bare / "stopping/run.json").read_text())["command"] == "train"
    found = described(bare / "stopping")
    objective = {"alpha": 0.1, "allow_stop": True}
    assert (found["algo"], found["objective"]) == ("exact", objective)
    assert found["config"]["epochs"] == 2
    shown = bare.tells("report --checkpoint stopping")
    assert shown["alpha"] == 0.1
    told = ("algo", "allow_stop", "view")
    assert [shown["provenance"][name] for name in told] == ["exact", True, "context"]
    routes = {row["policy"] for row in shown["rows"] if row["kind"] == "route"}
    assert routes >= {">calc", "text>calc"}  # of one call and of two


def test_a_report_opens_the_view_of_its_checkpoint(bare: Place, question_only: str) -> None:
    shown = bare.tells(f"report --checkpoint {question_only}")
    assert shown["provenance"]["view"] == "query"
    assert "hierrouter" in over_all(shown["rows"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--state context", "state: query, opened was context; open it with --state query"),
        ("--models calc,text", "for other models: 3 models (calc, text, facts), the cache has 2 ("),
        ("--hops 1", "for 2 hops, the cache has 1"),
        ("--encoder hashed-ngrams", "another encoder: elsewhere, opened was hashed-ngrams"),
    ],
)
def test_another_tree_than_that_of_the_training_is_refused(
    bare: Place, question_only: str, tmp_path: Path, flags: str, said: str
) -> None:
    run = bare / question_only
    if "encoder" in flags:
        loaded = load_checkpoint(run)
        strange = replace(loaded, origin=replace(loaded.origin, encoder="elsewhere"))
        save_checkpoint(strange, run := tmp_path / "strange")
    assert said in bare.refuses(f"report --checkpoint {run} {flags}")


def test_a_budget_finds_its_alpha(bare: Place) -> None:
    done = bare.does("train --budget 1.1 --out budget")
    found = described(bare / "budget")
    assert found["algo"] == "value"
    line = next(line for line in done.stderr.splitlines() if line.startswith("budget 1.1: "))
    assert f"alpha {found['objective']['alpha']:.4g};" in line
    assert found["budget"] == 1.1
    shown = bare.tells("report --checkpoint budget --split validation")
    cost = over_all(shown["rows"])["hierrouter"]["cost"]
    told = re.search(r"at C (\S+) on (\d+) held-out questions;", line)
    assert told and float(told[1]) <= 1.1
    assert told[2] == "150"
    assert shown["provenance"]["budget"] == 1.1
    [note] = [note for note in shown["notes"] if "mean cost of 1.1 a query" in note]
    shown_cost = re.search(r"it costs (\S+), ", note)
    assert shown_cost and float(shown_cost[1]) == pytest.approx(cost, abs=0.0051)


def test_an_impossible_budget_is_refused_before_the_training(bare: Place) -> None:
    line = bare.refuses("train --budget 0.001 --out poor")
    assert "no policy is that cheap: a mean cost of 0.001" in line
    assert not list((bare / "poor").rglob("*.safetensors"))


def test_a_sweep_answers_every_alpha(bare: Place) -> None:
    words = "sweep-alpha --alphas 0,0.1 --seed 7 --out sweep"
    done = bare.does(words)
    assert "2 alphas (0, 0.1), best, seed 7:" in done.stderr
    [taken] = re.findall(r"cross-fitted: (\w+) is taken; gains ", done.stderr)
    assert done.stdout.splitlines()[-1] == "sweep"
    assert "(150 held-out questions)" in done.stdout.splitlines()[0]
    before = sorted(bare.folder.rglob("*.safetensors"))
    assert [file for file in before if bare / "sweep" in file.parents] == [
        bare / "sweep/seed-7/policy.safetensors"
    ]
    done = bare.does("report --sweep sweep --alpha 0.02 --format json")
    assert "no run of `train` for alpha 0.02 on this tree; the sweep's router" in done.stderr
    shown = json.loads(done.stdout)
    told = (shown["alpha"], shown["provenance"]["trained_alpha"], shown["provenance"]["algo"])
    assert told == (0.02, 0.02, taken)
    assert "hierrouter" in over_all(shown["rows"])
    assert [row["alpha"] for row in shown["frontier"] if row["kind"] == "router"] == [0, 0.1]
    # The same again is not fitted anew, and another grid is another run.
    assert "cross-fit: already there, sweep/seed-7" in bare.does(words).stderr
    assert "another run was begun in sweep: alphas" in bare.refuses(words.replace("0.1", "0.3"))
    assert sorted(bare.folder.rglob("*.safetensors")) == before


def test_a_run_that_was_named_is_taken_by_its_name(
    bare: Place, tmp_path: Path, python: Callable[[str, Place], str]
) -> None:
    here, words = bare.copy(tmp_path / "here"), f"{EXACT} --name cheap"
    assert here.does(words).stdout == "runs/cheap\n"
    assert "already there, runs/cheap" in here.does(words).stderr
    begun = here.refuses(f"{words} --alpha 0.1")
    assert "another run was begun in runs/cheap: alpha differ; give the same" in begun
    here.does("sweep-alpha --alphas 0,0.1 --name every")
    (here / "cheap").mkdir()  # which is no run
    for asked in (
        "report --sweep every --split validation",
        "explain --worst 1",
        "explore --out page.html",
        "compare --sets A --baselines random",
    ):
        assert "checkpoint runs/cheap" in here.does(f"{asked} --checkpoint cheap").stderr
    assert (
        "route: runs/cheap (the latest), "
        in here.does("route hi --dry-run --checkpoint cheap").stderr
    )
    assert here.does("deploy cheap").stdout == "in service: runs/cheap\n"
    assert "checkpoint not found: runs/dear" in here.refuses("report --checkpoint runs/dear")
    told = python(
        "import hierrouter as hr\n"
        "tree = hr.open('caches/default')\n"
        "run = hr.train(tree, alpha=0.1, algo='value', name='dear')\n"
        "print(run.folder, hr.Run.load('dear').alpha, hr.SweepRun.load('every').alphas)\n"
        "print(hr.evaluate(tree, 'dear').alpha, hr.Router('dear', load=False).policy.origin.view)\n"
        "print(hr.report(tree, 'cheap', sweep='every', split='validation').result.alpha)\n",
        here,
    )
    assert told.splitlines() == ["runs/dear 0.1 (0.0, 0.1)", "0.1 context", "0.005"]


def collected_anew(here: Place, base_rate: str) -> None:
    """The same answers under other prices, without a call."""
    pool = (SOURCES / "hierrouter/pools/testbed.toml").read_text()
    (here / "dear.toml").write_text(pool.replace("base_rate = 0.03", f"base_rate = {base_rate}"))
    done = here.does("collect --pool dear.toml --datasets testbed --limit 20")
    assert "0 calls made" in done.stdout + done.stderr


def test_runs_are_listed_with_what_fits_and_what_is_damaged(bare: Place, tmp_path: Path) -> None:
    here = bare.copy(tmp_path / "here")
    assert here.tells("runs") == {"runs": []}
    said = here.does(f"{EXACT} --alpha 0.1 --name first").stderr
    here.does("sweep-alpha --alphas 0,0.1 --name every")
    (here / "runs/a-report").mkdir()
    every, first = here.tells("runs")["runs"]
    told = {"name": "first", "command": "train", "algo": "exact", "alphas": [0.1], "fits": "yes"}
    told |= {"cache": "caches/default", "questions": 150}
    assert {name: first[name] for name in told} == told
    assert first["low"] <= first["gain"] <= first["high"] and first["age_s"] >= 0
    assert f"trained: R {first['reward']:.3f} on validation" in said
    assert (every["name"], every["alphas"], every["reward"]) == ("every", [0, 0.1], None)
    assert {"yes", "0, 0.1", "150"} <= {*map(str.strip, here.does("runs").stdout.split("  "))}
    collected_anew(here, "0.3")
    assert {run["fits"] for run in here.tells("runs")["runs"]} == {"other prices"}
    (here / "runs/every/run.json").write_text("{}")
    (here / "runs/first/live.json").unlink()
    done = here.asks("runs")
    assert done.returncode == 2 and "damaged: run.json is damaged: runs/every" in done.stdout
    assert "damaged: live.json is gone" in done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("error: damaged runs: every, first; ")


def test_what_fits_is_taken_and_what_does_not_is_trained_again(bare: Place, tmp_path: Path) -> None:
    """One line says which run is taken and why; `--retrain` keeps its settings."""
    here = bare.copy(tmp_path / "here")
    here.does(f"{EXACT} --alpha 0.1 --name fits")
    here.does("train --algo value --alpha 0.1 --price facts=2 --allow-stop --name dear")
    here.does("sweep-alpha --alphas 0,0.1 --name every")
    shown = "report --split validation --format json"
    why = "(the latest that fits this cache; newer: 1 trained under other prices)"
    assert f"checkpoint runs/fits {why}, sweep runs/every" in here.does(shown).stderr
    assert "again" not in here.does(f"{shown} --retrain").stderr
    collected_anew(here, "0.3")
    done = here.does(shown)
    assert "report --retrain`, with the same flags, trains it again" in done.stderr
    assert "checkpoint runs/dear (the latest under other prices)" in done.stderr
    again = "report --retrain --cache caches/default --checkpoint runs/dear"
    lines = here.does("route hi --dry-run").stderr.splitlines()
    known = (
        f"the latest; trained with other prices than caches/default has now; `hierrouter {again}`"
    )
    assert lines[-1].startswith(f"route: runs/dear ({known} trains it again), calc")
    before = {run["name"] for run in here.tells("runs")["runs"]}
    here.does(f"{again} --split validation")
    new = [run for run in here.tells("runs")["runs"] if run["name"] not in before]
    assert [(run["alphas"], run["fits"]) for run in new] == [([0, 0.1], "yes"), ([0.1], "yes")]
    assert new[1]["algo"] == "value"
    asked = [read_record(here / f"runs/{name}") for name in ("dear", new[1]["name"])]
    dear, taken = ({**run.asked, "fingerprint": ""} for run in asked if run)
    assert dear == taken
    assert f"route: runs/{new[1]['name']} (the latest), " in here.does("route hi --dry-run").stderr
    fewer = f"{shown} --models calc,text --checkpoint fits"
    assert "`hierrouter report --retrain` trains it on this cache" in here.refuses(fewer)
    assert here.tells(f"{fewer} --retrain")["provenance"]["trained_alpha"] == 0.1


def test_a_value_model_of_one_alpha_is_a_run_like_any_other(bare: Place) -> None:
    """Held-out questions judge it; `report`, `explain` and `route` take it."""
    words = "train --algo value --alpha 0.1 --allow-stop --out runs/value"
    done = bare.does(words)
    assert done.stdout == "runs/value\n"
    told = re.search(r"trained: R (\S+) on 150 held-out questions", done.stderr)
    assert told and "they choose the weights" not in done.stderr
    found = described(bare / "runs/value")
    assert (found["algo"], found["objective"]["alpha"], found["history"]) == ("value", 0.1, [])
    shown = bare.tells("report --checkpoint runs/value")
    assert (shown["alpha"], shown["provenance"]["algo"]) == (0.1, "value")
    rows = over_all(shown["rows"])
    assert rows["hierrouter"]["reward"] > max(
        row["reward"] for row in rows.values() if row["kind"] == "route"
    )
    assert shown["analysis"]["reliability"][-1]["n"] >= rows["hierrouter"]["n"] / 2
    worst = bare.tells("explain --worst 1 --checkpoint runs/value")["queries"][0]
    assert worst["alpha"] == 0.1 and worst["router"]["choices"]
    done = bare.does("route --checkpoint runs/value 'compute 12+7'")
    assert done.stdout == "19\n" and "at alpha 0.1, " in done.stderr
    assert "already there" in bare.does(words).stderr


@pytest.mark.parametrize(
    ("words", "flags"),
    [*itertools.product(("train --algo value", "train --budget 1.1"), ("--epochs 2", "--seeds 2"))],
)
def test_what_a_fit_has_no_use_for_is_refused(bare: Place, words: str, flags: str) -> None:
    flag = flags.partition(" ")[0]
    line = bare.refuses(f"{words} {flags} --out refused")
    assert line == (
        f"error: {flag} with --algo value: it is one fit, with nothing random in it; "
        f"leave {flag} out"
    )
    assert not (bare / "refused").exists()


def test_of_several_seeds_the_best_on_validation_is_the_latest_run(bare: Place) -> None:
    """Whichever it is; the folders stay, and the same command trains nothing again."""
    words = f"{EXACT} --alpha 0.1 --seed 3 --seeds 3 --out runs/several"
    done = bare.does(words)
    lines = re.findall(r"seed (\d): R (\S+) on validation, (\S+) of the gap, in (\S+)", done.stderr)
    assert [(seed, folder) for seed, _, _, folder in lines] == [
        (seed, f"runs/several-seed-{seed}") for seed in "345"
    ]
    best = max(lines, key=lambda line: float(line[1]))
    assert f"trained: seed {best[0]}, the best of 3: R " in done.stderr
    assert done.stdout == f"{best[3]}\n"
    assert bare.tells("report")["provenance"]["seed"] == int(best[0])
    bare.does(f"{EXACT} --alpha 0.1 --seed {best[0]} --out alone")
    weights = "policy.safetensors"
    assert (bare / "alone" / weights).read_bytes() == (bare / best[3] / weights).read_bytes()
    assert bare.does(words).stderr.count("already there") == 3
    assert "another run was begun in runs/several-seed-3" in bare.refuses(
        words.replace("--alpha 0.1", "--alpha 0.2")
    )


def test_a_dry_run_trains_nothing(bare: Place) -> None:
    done = bare.does("train --allow-stop --algo exact --dry-run --out none")
    told = "train: alpha 0.005, may stop early, exact, preset default, seed 42: "
    assert done.stdout.startswith(told) and done.stdout.count("\n") == 1
    assert (done.stderr, (bare / "none").exists()) == ("", False)


def test_a_scorer_in_this_folder_is_found(bare: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as the installed command starts
    (bare / "mine.py").write_text("def half(response, references):\n    return 0.5\n")
    bare.does("train --dry-run --scorer mine:half")


def imported(place: Place, test_score: float) -> Place:
    """A cache of sums with scores as given; those of the test fold are all the same."""
    rows = [
        {**row, "split": ("train", "train", "validation", "test")[number // 2 % 4]}
        for number, row in enumerate(single_answers(40))
    ]
    place.folder.mkdir()
    given = [{**row, "score": test_score} if row["split"] == "test" else row for row in rows]
    save(given, place / "sums.parquet")
    place.does("cache import sums.parquet")
    return place


TRAININGS = {
    "ppo": "train --epochs 2",
    "exact": "train --algo exact --epochs 2",
    "value": "train --algo value",
    "budget": "train --budget 30",
    "sweep": "sweep-alpha",
}


@pytest.fixture(scope="module")
def two_worlds(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> list[Place]:
    """The same cache twice, but for the scores of the test fold."""
    folder = tmp_path_factory.mktemp("worlds")
    return [imported(Place(folder / f"all-{score:g}", hierrouter), score) for score in (0.0, 1.0)]


@pytest.mark.parametrize("name", TRAININGS)
def test_other_test_scores_change_no_byte_of_a_policy(name: str, two_worlds: list[Place]) -> None:
    made = []
    for place in two_worlds:
        out = place / name
        done = place.does(f"{TRAININGS[name]} --scorer given --encoder hashed-ngrams --out", out)
        assert "10 validation)" in done.stderr and "test" not in done.stderr
        record = read_record(out)
        assert record
        tree = record.asked["fingerprint"]
        learned = {name: it for name, it in record.result.items() if name not in ("cache", "state")}
        found = [json.dumps([record.asked, learned])]
        for path in sorted(out.rglob("policy.safetensors")):
            tensors, text = read_tensors(path)
            found += [text, str({key: value.tolist() for key, value in tensors.items()})]
        # The fingerprint and the state name the whole tree, and are all that differs.
        made.append((tree, [text.replace(tree, "the tree") for text in found]))
    assert made[0][0] != made[1][0]
    assert made[0][1] == made[1][1]

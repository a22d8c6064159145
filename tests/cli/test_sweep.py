"""`sweep-alpha --algo ppo`: from the training to every command that takes a sweep."""

import json
import re
from pathlib import Path

import pytest

from hierrouter.learning.sweep import TrainedSweep
from hierrouter.runs.checkpoint import load_checkpoint
from hierrouter.runs.folders import read_record
from tests.cli.conftest import Place

GRID = "0,0.1,3"
PPO = f"sweep-alpha --algo ppo --alphas {GRID} --epochs 2 --keep-anyway"


@pytest.fixture(scope="module")
def swept(bare: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with a sweep of three seeds of PPO, one of `exact`, and one value model."""
    place = bare.copy(tmp_path_factory.mktemp("swept") / "place")
    place.does(f"sweep-alpha --alphas {GRID} --keep-anyway --out runs/value")
    place.does(f"{PPO.replace('ppo', 'exact')} --out runs/exact")
    place.does(f"{PPO} --seeds 3 --seed 7 --out runs/ppo")
    return place


def test_each_seed_has_a_checkpoint_and_the_best_comes_first(swept: Place) -> None:
    files = sorted((swept / "runs/ppo").rglob("*.safetensors"))
    assert [file.parent.name for file in files] == ["seed-7", "seed-8", "seed-9"]
    record = read_record(swept / "runs/ppo")
    assert record and record.is_finished
    assert sorted(record.result["seeds"]) == [7, 8, 9]
    assert record.asked["seeds"] == [7, 8, 9]
    assert record.result["algo"] == "ppo"
    for file in files:
        sweep = load_checkpoint(file)
        assert isinstance(sweep, TrainedSweep)
        assert sweep.alphas == (0.0, 0.1, 3.0)


def test_the_same_command_trains_nothing_again_and_shows_the_spread(swept: Place) -> None:
    done = swept.does(f"{PPO} --seeds 3 --seed 7 --out runs/ppo")
    notes = [line for line in done.stderr.splitlines() if "already there" in line]
    assert notes == [
        f"sweep ppo, seed {seed}: already there, runs/ppo/seed-{seed}" for seed in (7, 8, 9)
    ]
    heading, *lines, folder = done.stdout.splitlines()
    record = read_record(swept / "runs/ppo")
    assert record
    best = record.result["seeds"][0]
    assert heading.endswith(f"(validation)  R of 3 seeds; seed {best} is shown")
    assert [line.split()[0] for line in lines] == ["0", "0.1", "3"]
    for line in lines:
        assert re.search(r"-?\d\.\d{3} \+- \d\.\d{3}", line)
    assert folder == "runs/ppo"
    fewer = swept.refuses(f"{PPO} --seeds 2 --seed 7 --out runs/ppo")
    assert "another run was begun in runs/ppo: seeds differ" in fewer


def test_a_report_shows_the_frontiers_of_all_algorithms(swept: Place) -> None:
    done = swept.does("report --split validation --alpha 0.1 --format json")
    beside = "sweep runs/ppo, beside it exact of runs/exact, beside it value of runs/value"
    assert beside in done.stderr
    shown = json.loads(done.stdout)
    assert shown["provenance"]["sweep_algo"] == "ppo"
    alphas: dict[str, list[float]] = {}
    for row in shown["frontier"]:
        if row["kind"] == "router":
            alphas.setdefault(row["policy"], []).append(row["alpha"])
    record = read_record(swept / "runs/ppo")
    assert record
    _, *others = record.result["seeds"]
    assert list(alphas) == [
        "hierrouter",
        *(f"hierrouter, ppo, seed {seed}" for seed in others),
        "hierrouter, exact",
        "hierrouter, value",
    ]
    assert all(grid == [0, 0.1, 3] for grid in alphas.values())
    assert any("Over the 3 seeds of the sweep" in note for note in shown["notes"])
    named = swept.tells("report --split validation --alpha 0.1 --sweep runs/value")
    routers = {row["policy"] for row in named["frontier"] if row["kind"] == "router"}
    assert routers == {"hierrouter"}


def test_a_figure_names_the_algorithms(swept: Place) -> None:
    swept.does("report --split validation --figures svg --out shown")
    figure = (swept / "shown/frontier.svg").read_text()
    for name in ("HierRouter, ppo", "HierRouter, exact", "HierRouter, value"):
        assert name in figure


@pytest.mark.parametrize("alpha", ["0.1", "0.02", "50"])
def test_any_alpha_is_routed_reported_and_explained(swept: Place, alpha: str) -> None:
    found = swept.tells(f"route 'compute 12+7' --checkpoint runs/ppo/seed-8 --alpha {alpha}")
    assert found["alpha"] == float(alpha)
    done = swept.does(f"report --split validation --sweep runs/ppo --alpha {alpha} --format json")
    shown = json.loads(done.stdout)
    told = (shown["alpha"], shown["provenance"]["trained_alpha"], shown["provenance"]["algo"])
    assert told == (float(alpha), float(alpha), "ppo")
    assert "the sweep's router" in done.stderr
    assert "Regret" in swept.does(f"explain --worst 1 --alpha {alpha}").stdout


def test_the_explorer_has_a_curve_for_each_algorithm(swept: Place) -> None:
    swept.does("explore --split validation --out page.html")
    page = (swept / "page.html").read_text()
    for name in ("HierRouter, exact", "HierRouter, value"):
        assert name in page


def test_files_of_all_seeds_are_verified(swept: Place, tmp_path: Path) -> None:
    here = swept.copy(tmp_path / "here")
    assert "damaged" not in here.does("verify").stderr
    file = here / "runs/ppo/seed-8/policy.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    done = here.asks("verify")
    assert done.returncode == 3
    assert f"damaged: {file.relative_to(here.folder)}" in done.stderr
    assert "damaged or missing: 1 files" in done.stderr


def test_a_sweep_is_trained_again_with_its_seeds(swept: Place, tmp_path: Path) -> None:
    here = swept.copy(tmp_path / "here")
    here.does("report --split validation --price facts=2 --sweep runs/ppo --retrain")
    again = here.tells("runs")["runs"][0]
    assert again["name"] != "ppo"
    record = read_record(here / f"runs/{again['name']}")
    assert record
    assert (record.result["algo"], sorted(record.result["seeds"])) == ("ppo", [7, 8, 9])

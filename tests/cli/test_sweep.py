"""`sweep-alpha --algo ppo`: from the training to every command that takes a sweep."""

import csv
import json
import re
from pathlib import Path

import httpx2
import pytest

from hierrouter.learning.sweep import TrainedSweep
from hierrouter.runs.checkpoint import load_checkpoint
from hierrouter.runs.folders import file_digest, read_record
from tests.cli.conftest import Place, serving
from tests.conftest import Start

GRID = "0,0.1,3"
PPO = f"sweep-alpha --algo ppo --alphas {GRID} --epochs 2 --keep-anyway"


@pytest.fixture(scope="module")
def swept(bare: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with a sweep of three seeds of PPO, one of `exact`, and one value model."""
    place = bare.copy(tmp_path_factory.mktemp("swept") / "place")
    place.does(f"sweep-alpha --algo value --alphas {GRID} --keep-anyway --out runs/value")
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


@pytest.mark.parametrize("checkpoint", ["runs/ppo/seed-8", "runs/exact/seed-42"])
def test_a_server_answers_at_any_alpha_as_route_does(
    checkpoint: str, swept: Place, start: Start
) -> None:
    question = "compute 12+7"
    with serving(swept, start, "--checkpoint", checkpoint) as url:
        names = [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]
        assert names[0] == "hierrouter"
        for alpha in (0.02, 50.0):
            name = f"hierrouter@{alpha:g}"
            body = {"model": name, "messages": [{"role": "user", "content": question}]}
            reply = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
            routed = swept.tells(f"route '{question}' --checkpoint {checkpoint} --alpha {alpha}")
            assert reply["model"] == name
            assert reply["hierrouter"]["alpha"] == routed["alpha"] == alpha
            assert reply["hierrouter"]["route"] == routed["route"]
            assert reply["choices"][0]["message"]["content"] == routed["answer"]


WATCHED = f"{PPO} --seed 7 --log-to csv,tensorboard --checkpoint-every 1"


@pytest.fixture(scope="module")
def watched(swept: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with a sweep that has logs and checkpoints."""
    place = swept.copy(tmp_path_factory.mktemp("watched") / "place")
    done = place.does(f"{WATCHED} --out runs/watched")
    assert "log to csv: runs/watched/seed-7/history.csv" in done.stderr
    assert done.stdout.splitlines()[-1] == "runs/watched"
    return place


def test_logs_of_a_sweep_have_r_at_each_alpha(watched: Place) -> None:
    folder = watched / "runs/watched/seed-7"
    plain = watched / "runs/ppo/seed-7/policy.safetensors"
    assert file_digest(folder / "policy.safetensors") == file_digest(plain)
    with (folder / "history.csv").open(newline="") as stream:
        [row] = csv.DictReader(stream)  # an evaluation is one of every two epochs
    sweep = load_checkpoint(folder)
    assert isinstance(sweep, TrainedSweep)
    reached = [router.history[0] for router in sweep.routers]
    names = ["validation/0", "validation/0.1", "validation/3"]
    assert [*row] == ["epoch", "validation", *names]
    assert (row["epoch"], [float(row[name]) for name in names]) == ("2", reached)
    assert float(row["validation"]) == pytest.approx(sum(reached) / 3, rel=1e-12)
    assert any((folder / "tensorboard").iterdir())
    # The same command trains nothing, and writes the same log again.
    content = (folder / "history.csv").read_bytes()
    (folder / "history.csv").unlink()
    assert "already there" in watched.does(f"{WATCHED} --out runs/watched").stderr
    assert (folder / "history.csv").read_bytes() == content


def test_checkpoints_of_a_sweep_are_listed_routed_verified_and_gone_on_from(watched: Place) -> None:
    listed = {run["name"]: run["checkpoints"] for run in watched.tells("runs")["runs"]}
    assert (listed["watched"], listed["ppo"]) == ([1, 2], [])
    epoch = "runs/watched/seed-7/checkpoints/epoch-1"
    routed = watched.tells(f"route 'compute 12+7' --checkpoint {epoch} --alpha 0.02")
    assert routed["alpha"] == 0.02
    assert re.search(r"training state +\d+  sound", watched.does("verify").stdout)
    expected = file_digest(watched / "runs/watched/seed-7/policy.safetensors")
    for start, is_done in ((epoch, False), ("watched", True)):
        name = f"from-{is_done}"
        done = watched.does(f"{PPO} --seed 7 --from-checkpoint {start} --name {name}")
        assert ("sweep ppo, seed 7: goes on at epoch 2 of 2" in done.stderr) != is_done
        assert file_digest(watched / f"runs/{name}/seed-7/policy.safetensors") == expected
    other = watched.refuses(f"{PPO} --seed 8 --from-checkpoint {epoch} --name other")
    assert "the checkpoint is of another training" in other and "seed differ" in other
    several = watched.refuses(f"{PPO} --seeds 2 --from-checkpoint {epoch} --name several")
    assert several == (
        "error: a checkpoint is of one seed: --from-checkpoint with --seeds 2; leave --seeds out"
    )


def test_a_sweep_without_epochs_has_nothing_to_log_or_to_keep(bare: Place) -> None:
    for flag in ("--checkpoint-every 2", "--log-to csv", "--from-checkpoint runs"):
        name = flag.partition(" ")[0]
        assert bare.refuses(f"sweep-alpha {flag}") == (
            f"error: {name} with --algo best: it has no epochs; "
            f"leave {name} out, or give --algo ppo"
        )

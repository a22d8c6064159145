"""Checkpoints, logs and algorithms of the user, from the command line to the report."""

import json
import re
from pathlib import Path

import pytest

from hierrouter.runs.folders import file_digest, read_record
from tests.cli.conftest import Place, over_all

EXACT = "train --algo exact --epochs 4 --alpha 0.1 --keep-anyway"
WEIGHTS = "policy.safetensors"
OWN = """
print("made by me")

from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy


def dqn(parts):
    policy = DiscreteQLearningPolicy(
        model=parts.actor, action_space=parts.action_space, eps_training=0.2
    )
    return DQN(policy=policy, optim=parts.optim, gamma=1.0)
"""
BY_DQN = "train --algo mine:dqn --epochs 2 --alpha 0.1 --keep-anyway"


@pytest.fixture(scope="module")
def kept(bare: Place) -> Place:
    """A run with a checkpoint of every epoch but the last, and one without."""
    bare.does(f"{EXACT} --checkpoint-every 2 --log-to csv --name kept")
    return bare


@pytest.fixture(scope="module")
def own(kept: Place) -> Place:
    """The same place, with a run of an algorithm of the user, whose module is gone again."""
    (kept / "mine.py").write_text(OWN)
    done = kept.does(f"{BY_DQN} --log-to csv --name dqn")
    assert (done.stdout, "made by me" in done.stderr) == ("runs/dqn\n", True)
    (kept / "mine.py").rename(kept / "gone.txt")
    return kept


def test_a_training_goes_on_from_a_checkpoint_to_the_same_bytes(kept: Place) -> None:
    done = kept.does(f"{EXACT} --from-checkpoint runs/kept/checkpoints/epoch-2 --name on")
    assert "train 0.1: goes on at epoch 3 of 4" in done.stderr
    assert file_digest(kept / "runs/on" / WEIGHTS) == file_digest(kept / "runs/kept" / WEIGHTS)
    other = kept.refuses(
        f"{EXACT} --seed 7 --from-checkpoint runs/kept/checkpoints/epoch-2 --name other"
    )
    assert other == (
        "error: the checkpoint is of another training: runs/kept/checkpoints/epoch-2: seed differ; "
        "give the flags of that training"
    )
    again = kept.does(f"{EXACT} --from-checkpoint kept --name last").stderr
    assert "goes on" not in again  # all epochs are done
    assert file_digest(kept / "runs/last" / WEIGHTS) == file_digest(kept / "runs/kept" / WEIGHTS)


def test_checkpoints_are_listed_reported_routed_and_verified(kept: Place) -> None:
    listed = {run["name"]: run["checkpoints"] for run in kept.tells("runs")["runs"]}
    assert listed["kept"] == [2, 4]
    assert "2, 4" in kept.does("runs").stdout
    record = read_record(kept / "runs/kept")
    assert record
    assert {name for name in record.files if "epoch-" in name} == {
        f"checkpoints/epoch-{epoch}/{name}.safetensors"
        for epoch in (2, 4)
        for name in ("policy", "state")
    }
    epoch = "runs/kept/checkpoints/epoch-2"
    shown = kept.tells(f"report --split validation --checkpoint {epoch}")
    assert shown["provenance"]["checkpoint"] == epoch
    assert shown["history"]["epoch"] == [1, 2]
    reward = over_all(shown["rows"])["hierrouter"]["reward"]
    assert shown["history"]["validation"][-1] == pytest.approx(reward, abs=1e-9)
    assert f"route: {epoch}" in kept.does(f"route hi --dry-run --checkpoint {epoch}").stderr
    assert re.search(r"training state +\d+  sound", kept.does("verify").stdout)


def test_the_log_and_the_report_have_the_same_curve(kept: Place, tmp_path: Path) -> None:
    header, *rows = (kept / "runs/kept/history.csv").read_text().splitlines()
    assert header == "epoch,train,validation,loss"
    shown = kept.tells("report --split validation --checkpoint kept")["history"]
    cells = [row.split(",") for row in rows]
    assert [int(epoch) for epoch, *_ in cells] == shown["epoch"] == [1, 2, 3, 4]
    for place, name in ((1, "train"), (2, "validation")):
        assert [float(row[place]) for row in cells] == pytest.approx(shown[name], rel=1e-11)
    figures = tmp_path / "figures"
    kept.does(f"report --split validation --checkpoint kept --figures svg --out {figures}")
    assert "<svg" in (figures / "learning-curve.svg").read_text()
    page = (figures / "report.html").read_text()
    assert "How did it learn?" in page and "The training of the router" in page


def test_a_value_model_has_no_epochs_to_keep_or_to_log(bare: Place) -> None:
    for flag in ("--checkpoint-every 2", "--log-to csv", "--from-checkpoint kept"):
        name = flag.partition(" ")[0]
        assert bare.refuses(f"train --algo value {flag}") == (
            f"error: {name} with --algo value: it has no epochs; leave {name} out"
        )


def test_an_algorithm_of_the_user_is_a_run_like_others_without_its_module(own: Place) -> None:
    listed = {run["name"]: run for run in own.tells("runs")["runs"]}
    assert (listed["dqn"]["algo"], listed["dqn"]["fits"]) == ("mine:dqn", "yes")
    shown = own.tells("report --split validation --checkpoint dqn")
    assert shown["provenance"]["algo"] == "mine:dqn"
    assert "hierrouter" in over_all(shown["rows"])
    assert shown["history"]["epoch"] == [1, 2]
    assert own.tells("explain --worst 1 --checkpoint dqn")["queries"][0]["router"]["choices"]
    done = own.does("route --checkpoint dqn 'compute 12+7'")
    assert done.stdout.strip()
    assert "damaged" not in own.does("verify").stdout
    header = (own / "runs/dqn/history.csv").read_text().splitlines()[0]
    assert header == "epoch,train,validation,episode_length,episode_reward,loss"


def test_no_file_brings_code_to_run(own: Place) -> None:
    again = own.refuses(f"{BY_DQN} --name again")
    assert again.startswith("error: algorithm cannot be imported: mine:dqn: ModuleNotFoundError: ")
    # Even with the module beside the run, the run alone does not import it.
    (own / "mine.py").write_text("raise SystemExit('run')\n")
    own.does("report --split validation --checkpoint dqn")
    line = own.refuses("report --retrain --split validation --price facts=3 --checkpoint dqn")
    (own / "mine.py").unlink()
    assert line == (
        "error: the router was trained with an algorithm of its user's own: mine:dqn; no file may "
        "name code to run, so give it again: `hierrouter train --algo mine:dqn`"
    )


def test_the_curve_from_python(kept: Place) -> None:
    import hierrouter as hr

    run = hr.Run.load(kept / "runs/kept")
    assert run.history.column_names == ["epoch", "train", "validation", "loss"]
    assert list(run.checkpoints) == [2, 4]
    assert json.loads(json.dumps(run.history.to_pylist()))[0]["epoch"] == 1

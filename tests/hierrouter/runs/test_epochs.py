"""Checkpoints of single epochs: routers like others, listed, checked, and a place to go on from."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierrouter.learning.config import NetworkConfig, TrainConfig, preset
from hierrouter.learning.forward import NetworkGrid, sweep_rows
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.runs.checkpoint import load_checkpoint, member_folder, read_tensors
from hierrouter.runs.folders import (
    CHECKPOINTS,
    STATE,
    WEIGHTS,
    Record,
    file_digest,
    finish_run,
    read_record,
    require_listed,
)
from hierrouter.runs.integrity import inspect_files
from hierrouter.runs.run import Run, history_table
from hierrouter.runs.saved_states import (
    epoch_folders,
    epochs_in_words,
    find_checkpoint,
    remove_epochs,
    state_to_go_on_from,
)
from hierrouter.runs.train import Train
from hierrouter.runs.training import Byproducts, RunCallbacks, Training, load_or_train
from hierrouter_cache.errors import InputError
from tests.hierrouter.learning import trainings
from tests.hierrouter.learning.trainings import OBJECTIVE, digest_of_shipped, small_tree

SEED = 3
PPO = replace(trainings.GLIMPSE, epochs=7, evaluate_every=2, entropy_end=0.0)
EXACT = replace(trainings.EXACT_GLIMPSE, epochs=7, evaluate_every=2, queries=4)
# The length changes nothing but the end, as in the preset "paper".
UNSCHEDULED = replace(PPO, decay=False, entropy_end=PPO.entropy_coefficient, evaluate_every=3)
EVERY_TWO = Byproducts(checkpoint_every=2)


def kept(config: NetworkConfig, folder: Path, byproducts: Byproducts = EVERY_TWO) -> Training:
    """A training in a folder that keeps checkpoints."""
    training = Training(OBJECTIVE, config, SEED)
    load_or_train(training, small_tree(), folder, RunCallbacks(), byproducts)
    return training


def finish(folder: Path) -> Record:
    Record(folder, "train", {}).write()
    return finish_run(folder, {})


@pytest.mark.parametrize("config", [PPO, EXACT], ids=["ppo", "exact"])
def test_from_every_checkpoint_to_the_same_bytes(config: NetworkConfig, tmp_path: Path) -> None:
    expected = digest_of_shipped(Training(OBJECTIVE, config, SEED), tmp_path / "without")
    kept(config, tmp_path / "run")
    assert file_digest(tmp_path / "run" / WEIGHTS) == expected
    checkpoints = epoch_folders(tmp_path / "run")
    assert list(checkpoints) == [2, 4, 6]
    for epoch, folder in checkpoints.items():
        notes: list[str] = []
        training = Training(OBJECTIVE, config, SEED)
        start = find_checkpoint(folder, "from_checkpoint=")
        went_on = tmp_path / f"from-{epoch}"
        callbacks = replace(RunCallbacks(), on_note=notes.append)
        byproducts = Byproducts(checkpoint_every=2, start=start)
        load_or_train(training, small_tree(), went_on, callbacks, byproducts)
        assert notes == [f"train 0.005: goes on at epoch {epoch + 1} of 7"]
        assert file_digest(went_on / WEIGHTS) == expected
        # Later checkpoints are the same again, too.
        for later, again in epoch_folders(went_on).items():
            assert later > epoch
            for name in (WEIGHTS, STATE):
                assert file_digest(again / name) == file_digest(checkpoints[later] / name)


def test_a_checkpoint_is_the_router_of_its_epoch(tmp_path: Path) -> None:
    """With the weights of then, not the best ones up to then."""
    tree = small_tree()
    kept(replace(PPO, evaluate_every=1), tmp_path)
    finished = load_checkpoint(tmp_path)
    assert isinstance(finished, TrainedRouter)
    for epoch, folder in epoch_folders(tmp_path).items():
        router = load_checkpoint(folder)
        assert isinstance(router, TrainedRouter)
        assert router.history == finished.history[:epoch]
        reached = router.outcome(tree.split("validation")).reward(OBJECTIVE.alpha).mean()
        assert reached == router.history[-1]
        assert history_table(router).column("epoch").to_pylist() == list(range(1, epoch + 1))


def test_the_last_epoch_has_a_checkpoint_from_which_a_longer_training_goes_on(
    tmp_path: Path,
) -> None:
    """Epoch 4 is evaluated in the short training, because it is the last, and not in the long."""
    long = replace(UNSCHEDULED, epochs=9)
    kept(replace(UNSCHEDULED, epochs=4), tmp_path / "short")
    kept(long, tmp_path / "long", Byproducts())
    last = epoch_folders(tmp_path / "short")[4]
    kept(long, tmp_path / "on", Byproducts(start=last / STATE))
    assert file_digest(tmp_path / "on" / WEIGHTS) == file_digest(tmp_path / "long" / WEIGHTS)
    short = load_checkpoint(tmp_path / "short")
    assert isinstance(short, TrainedRouter)
    assert history_table(short).column("epoch").to_pylist() == [3, 4]


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"epochs": 9}, "epochs"),  # the learning rate decays with the length
        ({"clip": 0.3, "rollouts": 32}, "clip, rollouts"),
        ({"preset": "paper"}, "preset"),
    ],
)
def test_the_checkpoint_of_another_training_is_refused(
    changes: dict[str, Any], differing: str, tmp_path: Path
) -> None:
    kept(PPO, tmp_path / "run")
    folder = epoch_folders(tmp_path / "run")[4]
    other = Training(OBJECTIVE, replace(PPO, **changes), SEED).identity(small_tree())
    with pytest.raises(InputError) as caught:
        state_to_go_on_from(folder / STATE, other, is_scheduled=True)
    assert str(caught.value) == (
        f"the checkpoint is of another training: {folder}: {differing} differ; "
        "give the flags of that training"
    )


def test_no_training_goes_on_for_fewer_epochs_than_were_done(tmp_path: Path) -> None:
    kept(UNSCHEDULED, tmp_path)
    other = Training(OBJECTIVE, replace(UNSCHEDULED, epochs=3), SEED).identity(small_tree())
    with pytest.raises(InputError, match="epochs differ"):
        state_to_go_on_from(epoch_folders(tmp_path)[4] / STATE, other, is_scheduled=False)


def test_an_interrupted_training_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    class Interruption(Exception):
        pass

    def stop(label: str, done: int, *_: float) -> None:
        if done == 6:
            raise Interruption

    training = Training(OBJECTIVE, PPO, SEED)
    expected = digest_of_shipped(training, tmp_path / "whole")
    with pytest.raises(Interruption):
        load_or_train(training, small_tree(), tmp_path / "run", RunCallbacks.of(stop), EVERY_TWO)
    assert list(epoch_folders(tmp_path / "run")) == [2, 4]
    notes: list[str] = []
    callbacks = replace(RunCallbacks(), on_note=notes.append)
    load_or_train(training, small_tree(), tmp_path / "run", callbacks, EVERY_TWO)
    assert notes == ["train 0.005: goes on at epoch 5 of 7"]
    assert file_digest(tmp_path / "run" / WEIGHTS) == expected


def test_a_new_training_in_a_folder_keeps_no_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    kept(PPO, tmp_path)
    note = tmp_path / CHECKPOINTS / "epoch-2/mine.txt"
    note.touch()
    kept(replace(PPO, clip=0.3), tmp_path, Byproducts(checkpoint_every=3))
    assert list(epoch_folders(tmp_path)) == [3, 6]
    assert note.exists()
    remove_epochs(tmp_path)
    assert not [*tmp_path.rglob(STATE)]


def test_a_finished_run_lists_its_checkpoints_and_every_one_is_checked(tmp_path: Path) -> None:
    run = tmp_path / "runs/run"
    kept(PPO, run)
    assert set(finish(run).files) == {
        WEIGHTS,
        *(
            f"{CHECKPOINTS}/epoch-{epoch}/{name}"
            for epoch in (2, 4, 6)
            for name in (WEIGHTS, STATE)
        ),
    }
    sound = inspect_files(tmp_path / "cache", tmp_path / "runs")
    assert (sound.faults, sound.files["checkpoint"], sound.files["training state"]) == ([], 4, 3)
    file = run / CHECKPOINTS / "epoch-4" / STATE
    content = file.read_bytes()
    other = run / CHECKPOINTS / "epoch-2" / STATE
    for damaged in (content[:-1], other.read_bytes(), None):
        if damaged is None:
            file.unlink()
        else:
            file.write_bytes(damaged)
        [(kind, path, _)] = inspect_files(tmp_path / "cache", tmp_path / "runs").faults
        assert (kind, path) == ("training state", file)
        with pytest.raises(InputError, match="damaged run: "):
            state_to_go_on_from(file, {}, is_scheduled=True)


def test_a_damaged_checkpoint_of_an_unfinished_run_is_named(tmp_path: Path) -> None:
    kept(PPO, tmp_path)
    file = epoch_folders(tmp_path)[4] / STATE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError) as caught:
        state_to_go_on_from(file, {}, is_scheduled=True)
    assert str(caught.value) == (
        f"the saved state of a checkpoint is damaged: {file}; train from another one, or from the "
        "start"
    )


def test_the_last_checkpoint_of_a_run_is_found_and_none_is_said(tmp_path: Path) -> None:
    kept(PPO, tmp_path)
    assert find_checkpoint(tmp_path, "x") == epoch_folders(tmp_path)[6] / STATE
    with pytest.raises(InputError) as caught:
        find_checkpoint(tmp_path / "nothing", "--from-checkpoint")
    assert str(caught.value) == (
        f"no checkpoint to go on from: --from-checkpoint {tmp_path / 'nothing'}; give the folder "
        f"of one, {tmp_path / 'nothing/checkpoints/epoch-N'}, which --checkpoint-every makes"
    )


def test_epochs_in_words() -> None:
    assert [epochs_in_words(epochs) for epochs in ([], [5], [5, 10], [5, 10, 15])] == [
        "",
        "5",
        "5, 10",
        "3: 5 to 15",
    ]


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({}, 0),
        ({"preset": "paper"}, 5),
        ({"preset": "paper", "checkpoint_every": 0}, 0),
        ({"algo": "exact", "checkpoint_every": 4}, 4),
        ({"algo": "value"}, 0),
    ],
)
def test_the_paper_keeps_one_every_five_epochs(settings: dict[str, Any], every: int) -> None:
    assert Train(**settings).byproducts.checkpoint_every == every


@pytest.mark.parametrize(
    ("config", "scheduled"),
    [(preset("paper"), False), (preset("default"), True), (preset("default", "exact"), True)],
    ids=["paper", "default", "exact"],
)
def test_the_schedules_of_the_paper_do_not_depend_on_the_length(
    config: TrainConfig, scheduled: bool
) -> None:
    assert isinstance(config, NetworkConfig)
    assert config.is_scheduled == scheduled


def test_the_history_is_a_table_of_the_curve(tmp_path: Path) -> None:
    kept(PPO, tmp_path)
    finish(tmp_path)
    table = Run.load(tmp_path).history
    assert table.column_names == [
        *("epoch", "train", "validation", "actor_loss", "ent_loss"),
        *("episode_length", "episode_reward", "loss", "vf_loss"),
    ]
    assert table.column("epoch").to_pylist() == [2, 4, 6, 7]
    assert table.column("episode_length").to_pylist() == [2.0] * 4
    assert np.isfinite([column.to_numpy() for column in table.columns]).all()
    assert Run.load(tmp_path).checkpoints == epoch_folders(tmp_path)
    entropy = table.column("ent_loss").to_pylist()
    assert all(0 < value < np.log(3) + 1e-6 for value in entropy)


def test_a_checkpoint_without_statistics_has_a_history_all_the_same(tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    kept(PPO, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    early = history_table(replace(loaded, statistics={}))
    assert early.column("validation").to_pylist() == list(loaded.history)
    assert early.column("train").null_count == 4


def test_statistics_are_part_of_the_weights_file(tmp_path: Path) -> None:
    kept(PPO, tmp_path)
    tensors, _ = read_tensors(tmp_path / WEIGHTS)
    assert {name for name in tensors if tensors[name].dtype == np.float64} == {
        f"statistics.{name}"
        for name in history_table(Run.load(tmp_path).trained).column_names
        if name not in ("epoch", "validation")
    }
    assert read_record(tmp_path) is None


SWEEP_CONFIGS = {
    "ppo": replace(trainings.GLIMPSE, epochs=5, evaluate_every=2, rollouts=40),
    "exact": replace(trainings.EXACT_GLIMPSE, epochs=5, evaluate_every=2),
}


def kept_sweep(algo: str, folder: Path, byproducts: Byproducts = EVERY_TWO) -> list[str]:
    """A sweep of networks in a folder that keeps checkpoints; its notes."""
    notes: list[str] = []
    training = Training(OBJECTIVE, SWEEP_CONFIGS[algo], SEED, trainings.GRID)
    callbacks = replace(RunCallbacks(), on_note=notes.append)
    load_or_train(training, small_tree(), folder, callbacks, byproducts)
    return notes


@pytest.mark.parametrize("algo", SWEEP_CONFIGS)
def test_a_sweep_goes_on_from_every_checkpoint_to_the_same_bytes(algo: str, tmp_path: Path) -> None:
    config = SWEEP_CONFIGS[algo]
    training = Training(OBJECTIVE, config, SEED, trainings.GRID)
    expected = digest_of_shipped(training, tmp_path / "without")
    assert kept_sweep(algo, tmp_path / "run") == []
    assert file_digest(tmp_path / "run" / WEIGHTS) == expected
    checkpoints = epoch_folders(tmp_path / "run")
    assert list(checkpoints) == [2, 4]
    for epoch, folder in checkpoints.items():
        went_on = tmp_path / f"from-{epoch}"
        start = find_checkpoint(folder, "from_checkpoint=")
        notes = kept_sweep(algo, went_on, Byproducts(checkpoint_every=2, start=start))
        assert notes == [f"sweep {algo}, seed 3: goes on at epoch {epoch + 1} of 5"]
        assert file_digest(went_on / WEIGHTS) == expected
        for later, again in epoch_folders(went_on).items():
            assert later > epoch
            for name in (WEIGHTS, STATE):
                assert file_digest(again / name) == file_digest(checkpoints[later] / name)


def test_a_checkpoint_of_a_sweep_has_the_networks_of_its_epoch(tmp_path: Path) -> None:
    """With the weights of then at each alpha, also after an epoch that is not evaluated."""
    tree = small_tree().split("validation")
    kept_sweep("ppo", tmp_path, Byproducts(checkpoint_every=1))
    finished = load_checkpoint(tmp_path)
    assert isinstance(finished, TrainedSweep)
    weights = []
    for epoch, folder in epoch_folders(tmp_path).items():
        sweep = load_checkpoint(folder)
        assert isinstance(sweep, TrainedSweep) and isinstance(sweep.model, NetworkGrid)
        assert sweep.alphas == trainings.GRID
        reached = [router.outcome(tree).reward(router.alpha).mean() for router in sweep.routers]
        told = [sweep.model.reward(number, alpha) for number, alpha in enumerate(sweep.alphas)]
        assert told == pytest.approx(reached, abs=1e-9)
        curve = history_table(sweep).to_pylist()
        assert curve == history_table(finished).to_pylist()[: len(curve)]
        assert len(curve) == epoch // 2
        weights.append(sweep.model.networks[0].weights["second.weight"])
    assert len(weights) == 5
    assert all(np.abs(left - right).max() > 0 for left, right in pairwise(weights))


def test_the_last_epoch_of_a_sweep_has_a_checkpoint_too(tmp_path: Path) -> None:
    kept_sweep("exact", tmp_path / "run", Byproducts(checkpoint_every=5))
    last = find_checkpoint(tmp_path / "run", "x")
    assert last.parent.name == "epoch-5"
    assert kept_sweep("exact", tmp_path / "on", Byproducts(start=last)) == []
    assert file_digest(tmp_path / "on" / WEIGHTS) == file_digest(tmp_path / "run" / WEIGHTS)


def test_files_of_a_finished_sweep_are_checked_in_the_folder_of_their_seed(tmp_path: Path) -> None:
    run = tmp_path / "runs/run"
    kept_sweep("exact", member_folder(run, SEED))
    Record(run, "sweep-alpha", {}).write()
    names = {
        f"seed-3/{CHECKPOINTS}/epoch-{epoch}/{name}"
        for epoch in (2, 4)
        for name in (WEIGHTS, STATE)
    }
    assert set(finish_run(run, {}).files) == {*names, f"seed-3/{WEIGHTS}"}
    for name in sorted(names):
        file = run / name
        content = file.read_bytes()
        require_listed(file)
        file.write_bytes(content[:-1])
        with pytest.raises(InputError, match="damaged run: "):
            require_listed(file)
        file.write_bytes(content)


def test_the_curve_of_a_sweep_names_each_alpha(tmp_path: Path) -> None:
    kept_sweep("ppo", tmp_path)
    sweep = load_checkpoint(tmp_path)
    assert isinstance(sweep, TrainedSweep) and isinstance(sweep.model, NetworkGrid)
    table = history_table(sweep)
    own = ["validation/0", "validation/0.005", "validation/0.05"]
    assert table.column_names == ["epoch", "validation", *own]
    assert table.column("epoch").to_pylist() == [2, 4, 5]
    for name, history in zip(own, sweep.model.histories, strict=True):
        assert table.column(name).to_pylist() == list(history)
    mean = np.mean([table.column(name).to_numpy() for name in own], axis=0)
    np.testing.assert_allclose(table.column("validation").to_numpy(), mean, rtol=1e-12)
    value = trainings.sweep_glimpse(small_tree())
    assert history_table(value).num_rows == 0


@pytest.mark.parametrize(
    ("alpha", "name"),
    [(0.0, "0"), (3.0, "3"), (1e22, "1e22"), (0.1 + 0.2, "0.30000000000000004"), (5e-07, "5e-07")],
)
def test_names_of_alphas_have_every_digit_and_no_letter_that_a_client_refuses(
    alpha: float, name: str
) -> None:
    assert sweep_rows([alpha], [(0.5,)]) == [{"validation": 0.5, f"validation/{name}": 0.5}]

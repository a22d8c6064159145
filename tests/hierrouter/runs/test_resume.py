"""An interrupted training goes on, what is finished is not trained again, and folders of runs."""

import json
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from hierrouter.learning.config import NetworkConfig, Objective, TrainConfig
from hierrouter.learning.resumption import Resumption, TrainingState
from hierrouter.learning.router import Origin, TrainedRouter
from hierrouter.learning.training import train
from hierrouter.runs import saved_states
from hierrouter.runs.checkpoint import load_finished, read_tensors, training_identity, write_tensors
from hierrouter.runs.folders import (
    PROGRESS,
    WEIGHTS,
    Record,
    file_digest,
    finish_run,
    make_newest,
    new_run,
    remove_drafts,
)
from hierrouter.runs.integrity import inspect_files
from hierrouter.runs.saved_states import TrainingProgress
from hierrouter.runs.training import RunCallbacks, Training, load_or_train
from hierrouter_cache.errors import InputError, WorldError
from tests.conftest import SOURCES, environment
from tests.hierrouter.learning import trainings
from tests.hierrouter.learning.trainings import OBJECTIVE, digest, digest_of_shipped, small_tree
from tests.warm import Warm

SEED = 3
# 20 episodes an iteration on 15 queries: the rest of an order waits for the next iteration.
PPO = replace(
    trainings.GLIMPSE, epochs=5, evaluate_every=2, iterations=2, rollouts=20, entropy_end=0.0
)
EXACT = replace(trainings.EXACT_GLIMPSE, epochs=5, evaluate_every=2, queries=4)
TRAININGS: dict[str, tuple[NetworkConfig, Objective]] = {
    "ppo": (PPO, OBJECTIVE),
    "ppo, warm-up and no noise": (
        replace(PPO, warmup_steps=40, decay=False, embedding_noise=0.0),
        OBJECTIVE,
    ),
    "ppo with exact advantages": (replace(PPO, advantages="exact"), OBJECTIVE),
    "ppo with a warm start": (replace(PPO, warm_start=2), OBJECTIVE),
    "ppo with stop": (PPO, Objective(0.05, allow_stop=True)),
    "ppo out of patience": (
        replace(PPO, epochs=9, evaluate_every=1, patience=3, learning_rate=0.0),
        OBJECTIVE,
    ),
    "exact": (EXACT, OBJECTIVE),
}
# Dies when the bytes are written, and before the file has its name.
KILLED_IN_A_SAVE = """
import os, signal, sys
from pathlib import Path
from hierrouter.runs.checkpoint import write_tensors
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
write_tensors(Path(sys.argv[1]), {}, "")
"""


def identity(
    config: TrainConfig = trainings.GLIMPSE, seed: int = SEED, alphas: tuple[float, ...] = ()
) -> dict[str, Any]:
    return training_identity(Origin.of(small_tree(), config, seed), OBJECTIVE, alphas)


@cache
def states_of(config: NetworkConfig, objective: Objective = OBJECTIVE) -> list[TrainingState]:
    """The state after each epoch of a training that is not interrupted."""
    states: list[TrainingState] = []
    resumption = Resumption(on_state=lambda make_state: states.append(make_state()))
    train(small_tree(), objective, config, SEED, resumption=resumption)
    return states


@pytest.mark.parametrize("name", TRAININGS)
def test_from_every_epoch_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    config, objective = TRAININGS[name]
    expected = digest(train(small_tree(), objective, config, SEED), tmp_path / "whole")
    states = states_of(config, objective)
    assert [state.epoch for state in states] == list(range(1, len(states) + 1))
    assert len(states) >= 3
    file = TrainingProgress(tmp_path, identity(config))
    for state in states:
        file.save(state)
        epochs: list[int] = []
        resumed = train(
            small_tree(),
            objective,
            config,
            SEED,
            lambda done, *_, epochs=epochs: epochs.append(done),
            Resumption(file.load()),
        )
        assert digest(resumed, tmp_path / "resumed") == expected
        # Nothing was done twice. The last epoch is evaluated after its state was saved, if its turn
        # has not come.
        last = config.epochs if config.epochs % config.evaluate_every else 0
        assert all(epoch > state.epoch or epoch == last for epoch in epochs)


def test_a_state_stays_as_it_was_and_each_generator_matters(tmp_path: Path) -> None:
    expected = digest(train(small_tree(), OBJECTIVE, PPO, SEED), tmp_path)
    state = states_of(PPO)[1]

    def end(arrays: dict[str, Any], values: dict[str, Any]) -> str:
        changed = replace(
            state, arrays={**state.arrays, **arrays}, values={**state.values, **values}
        )
        return digest(
            train(small_tree(), OBJECTIVE, PPO, SEED, resumption=Resumption(changed)), tmp_path
        )

    assert end({}, {}) == end({}, {}) == expected
    other_words = state.arrays["generators.numpy"][::-1].copy()
    other_torch = states_of(PPO)[0].arrays["generators.torch"]
    assert end({"generators.numpy": other_words}, {}) != expected  # mini-batches
    assert end({"generators.torch": other_torch}, {}) != expected  # actions
    other_learner = {**state.values["learner"], "generator": np.random.PCG64(1).state}
    assert end({}, {"learner": other_learner}) != expected  # queries and noise
    order = state.arrays["learner.waiting_queries"]
    assert len(order) > 1
    assert end({"learner.waiting_queries": order[::-1].copy()}, {}) != expected


class Interruption(Exception):
    """Ends a training early."""


def interrupting(epoch: int, notes: list[str], epochs: list[int]) -> RunCallbacks:
    """Callbacks that end a training at an evaluation; 0 ends none."""

    def on_epoch(label: str, done: int, *_: float) -> None:
        if "judged" not in label:
            epochs.append(done)
        if done == epoch:
            raise Interruption

    return replace(RunCallbacks.of(on_epoch), on_note=notes.append)


@pytest.fixture
def saves_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_states, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(saved_states, "MAX_SAVING_SHARE", float("inf"))


@pytest.mark.usefixtures("saves_often")
@pytest.mark.parametrize("config", [PPO, EXACT], ids=["ppo", "exact"])
def test_a_training_interrupted_twice_ends_as_one_that_was_not(
    config: NetworkConfig, tmp_path: Path
) -> None:
    training = Training(OBJECTIVE, replace(config, epochs=7, evaluate_every=1), SEED)
    expected = digest_of_shipped(training, tmp_path / "whole")
    run = tmp_path / "run"
    notes: list[str] = []
    epochs: list[int] = []
    # The state after an epoch is saved once it is evaluated: the interrupted epoch is done again.
    for interrupted in (3, 5):
        with pytest.raises(Interruption):
            load_or_train(training, small_tree(), run, interrupting(interrupted, notes, epochs))
    load_or_train(training, small_tree(), run, interrupting(0, notes, epochs))
    assert epochs == [1, 2, 3, 3, 4, 5, 5, 6, 7]
    assert notes == [f"train 0.005: goes on at epoch {epoch} of 7" for epoch in (3, 5)]
    assert file_digest(run / WEIGHTS) == expected
    Record(run, "train", {}).write()
    finish_run(run, {})
    assert not (run / PROGRESS).exists()


def test_a_short_training_saves_nothing(tmp_path: Path) -> None:
    training = Training(OBJECTIVE, PPO, SEED)
    with pytest.raises(Interruption):
        load_or_train(training, small_tree(), tmp_path, interrupting(4, [], []))
    assert list(tmp_path.iterdir()) == []


def test_states_are_saved_seldom_and_more_seldom_on_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    saved: list[float] = []
    seconds_for_a_save = 0.0

    def save(file: Path, arrays: object, text: str) -> None:
        nonlocal now
        saved.append(now)
        now += seconds_for_a_save

    monkeypatch.setattr(saved_states.time, "monotonic", lambda: now)
    monkeypatch.setattr(saved_states, "write_tensors", save)
    file = TrainingProgress(tmp_path, {})
    for _ in range(12):
        now += 1.0
        file.save_now_and_then(lambda: TrainingState(1, {}, {}))
    assert saved == [5.0, 10.0]
    seconds_for_a_save = 0.25
    for _ in range(30):
        now += 1.0
        file.save_now_and_then(lambda: TrainingState(1, {}, {}))
    assert saved[2:] == [15.0, 40.25]  # 1 % of the time at most


@pytest.mark.usefixtures("saves_often")
def test_a_full_disk_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(OBJECTIVE, PPO, SEED)
    expected = digest_of_shipped(training, tmp_path / "whole")
    saves = 0

    def save(file: Path, arrays: Any, text: str) -> None:
        nonlocal saves
        saves += 1
        if saves == 3:
            raise WorldError("no space left")
        write_tensors(file, arrays, text)

    monkeypatch.setattr(saved_states, "write_tensors", save)
    notes: list[str] = []
    with pytest.raises(WorldError):
        load_or_train(training, small_tree(), tmp_path, RunCallbacks())
    load_or_train(training, small_tree(), tmp_path, interrupting(0, notes, []))
    assert notes == ["train 0.005: goes on at epoch 3 of 5"]
    assert file_digest(tmp_path / WEIGHTS) == expected


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A folder with the state of a training after its second epoch."""
    TrainingProgress(tmp_path, identity(PPO)).save(states_of(PPO)[1])
    return tmp_path


@pytest.mark.parametrize(
    "other",
    [
        identity(PPO, seed=4),
        identity(replace(PPO, epochs=9)),
        identity(EXACT),
        {**identity(PPO), "fingerprint": "0" * 32},
        {**identity(PPO), "view": "query"},
    ],
    ids=["seed", "epochs", "algorithm", "data", "view"],
)
def test_the_state_of_another_training_is_not_used(
    interrupted: Path, other: dict[str, Any]
) -> None:
    assert TrainingProgress(interrupted, other).load() is None
    assert TrainingProgress(interrupted / "elsewhere", identity(PPO)).load() is None
    assert TrainingProgress(interrupted, identity(PPO)).load() is not None


def test_a_training_ignores_the_state_of_another_one(interrupted: Path, tmp_path: Path) -> None:
    training = Training(OBJECTIVE, EXACT, SEED)
    notes: list[str] = []
    load_or_train(training, small_tree(), interrupted, interrupting(0, notes, []))
    assert notes == []
    expected = digest_of_shipped(training, tmp_path / "whole")
    assert file_digest(interrupted / WEIGHTS) == expected


def test_a_damaged_state_is_named_with_the_remedy(interrupted: Path) -> None:
    file = interrupted / PROGRESS
    sound = file.read_bytes()
    rng = random.Random(0)
    damaged: list[bytes] = [b"", sound[: len(sound) // 2], sound[:-1]]
    for _ in range(60):
        flipped = bytearray(sound)
        flipped[rng.randrange(len(sound))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for data in damaged:
        file.write_bytes(data)
        with pytest.raises(InputError) as caught:
            TrainingProgress(interrupted, identity(PPO)).load()
        assert str(caught.value) == (
            f"the saved state of an interrupted training is damaged: {file}; remove the file, and "
            "the same command trains from the start"
        )
    run = interrupted / "runs/run"
    run.mkdir(parents=True)
    file.rename(run / PROGRESS)
    inspection = inspect_files(interrupted / "cache", interrupted / "runs")
    [(kind, path, fault)] = inspection.faults
    assert (kind, path) == ("training state", run / PROGRESS)
    assert "is damaged" in fault
    (run / PROGRESS).write_bytes(sound)
    assert inspect_files(interrupted / "cache", interrupted / "runs").faults == []


def test_a_state_of_another_version_is_refused(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = saved_states.__version__
    monkeypatch.setattr(saved_states, "__version__", "99.0")
    with pytest.raises(InputError, match=f"hierrouter {current}, now 99.0; install those to go on"):
        TrainingProgress(interrupted, identity(PPO)).load()


def changing(name: str, change: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def apply(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        arrays[name] = change(arrays[name])

    return apply


def setting(value: Any, *path: str) -> Callable[[Any, Any], None]:
    def apply(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        for key in path[:-1]:
            description = description[key]
        description[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    "change",
    [
        setting(0, "epoch"),
        setting(6, "epoch"),
        setting({}, "values"),
        setting("x", "values", "best", "history"),
        setting([0.5], "values", "statistics"),
        changing("statistics.train", lambda column: column[:0]),
        setting({}, "values", "learner", "generator"),
        setting(-1, "values", "generators", "numpy_position"),
        setting(10**9, "values", "generators", "numpy_position"),
        lambda arrays, _: arrays.pop("learner.waiting_queries"),
        lambda arrays, _: arrays.pop("best.second.weight"),
        changing("learner.waiting_queries", lambda positions: positions + 1000),
        changing("learner.adam.0.exp_avg", lambda moment: moment[:1]),
        changing("learner.adam.0.step", lambda step: step * np.float32("nan")),
        changing("present.second.weight", lambda weight: weight[:1]),
        changing("generators.torch", lambda words: words[:9]),
        changing("generators.numpy", lambda words: words[:9]),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    interrupted: Path, change: Callable[[Any, Any], None]
) -> None:
    """Of a file with a right checksum, as other people could send it."""
    file = interrupted / PROGRESS
    arrays, text = read_tensors(file)
    description = json.loads(text)
    change(arrays, description)
    write_tensors(file, arrays, json.dumps(description))
    state = TrainingProgress(interrupted, identity(PPO)).load()
    message = (
        f"the saved state does not fit the training: {file}; remove the file, and the same command "
        "trains from the start"
    )
    with pytest.raises(InputError, match=message):
        train(small_tree(), OBJECTIVE, PPO, SEED, resumption=Resumption(state))


def test_a_finished_training_is_known_as_itself_only(tmp_path: Path) -> None:
    assert load_finished(tmp_path, identity()) is None
    digest(trainings.glimpse(small_tree(), 3), tmp_path)
    assert isinstance(load_finished(tmp_path, identity()), TrainedRouter)
    for other in (
        identity(seed=4),
        identity(replace(trainings.GLIMPSE, clip=0.3)),
        identity(alphas=trainings.GRID),
    ):
        assert load_finished(tmp_path, other) is None
    digest(trainings.sweep_glimpse(small_tree(), 3), tmp_path)
    assert load_finished(tmp_path, identity()) is None
    assert load_finished(tmp_path, identity(trainings.VALUE, alphas=trainings.GRID)) is not None
    assert load_finished(tmp_path, identity(trainings.VALUE, alphas=trainings.GRID[1:])) is None


@pytest.mark.parametrize("name", [WEIGHTS, PROGRESS])
def test_the_draft_of_a_killed_save_is_removed_and_nothing_else(
    name: str, tmp_path: Path, warm: Warm
) -> None:
    member = tmp_path / "seed-0"
    digest(trainings.glimpse(small_tree()), member)
    whole = set(tmp_path.rglob("*"))
    command = ("-c", KILLED_IN_A_SAVE, str(member / name))
    killed = warm.start(*command, cwd=SOURCES, env=environment()).result()
    assert killed.returncode == -signal.SIGKILL
    [draft] = set(tmp_path.rglob("*")) - whole
    assert draft.name.startswith(f".{name}.")
    others = [tmp_path / other for other in (".mine.tmp", "mine.0123abcd.tmp")]
    for other in others:
        other.touch()
    remove_drafts(tmp_path)
    assert set(tmp_path.rglob("*")) == whole.union(others)


def test_runs_that_begin_in_one_second_have_folders_of_their_own(place: Path) -> None:
    found = [new_run("report", None) for _ in range(5)]
    assert len(set(found)) == 5
    assert all(run.is_dir() for run in found)


def test_of_runs_that_finish_at_once_one_is_the_newer(place: Path) -> None:
    records = [Record(new_run(name, None), "train", {}).write() for name in ("one", "other")]
    both = Barrier(2)
    with ThreadPoolExecutor() as threads:
        for _ in range(20):
            seqs = threads.map(lambda run: (both.wait(), make_newest(run).seq)[1], records)
            assert len({*seqs}) == 2

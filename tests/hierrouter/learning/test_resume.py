"""A training taken up again is the training that was never interrupted; folders of runs."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from hierrouter.learning import checkpoint
from hierrouter.learning.checkpoint import finished, load_snapshot, save_snapshot, training_named
from hierrouter.learning.config import Objective, PPOConfig, TrainConfig
from hierrouter.learning.loop import Snapshot, Watch
from hierrouter.learning.run_folders import Record, make_newest, new_run, remove_drafts
from hierrouter.learning.training import Origin, TrainedRouter, train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.conftest import SOURCES, environment
from tests.hierrouter.learning import runs
from tests.hierrouter.learning.runs import OBJECTIVE, digest, small_tree
from tests.warm import Warm

Start = Callable[[Watch, Snapshot | None], TrainedRouter]

OFTEN = {"epochs": 5, "evaluate_every": 2, "checkpoint_every": 1}
# 20 episodes an iteration on 15 queries: what is left of a shuffle waits for the next iteration.
SAMPLED: PPOConfig = replace(runs.GLIMPSE, **OFTEN, iterations=2, rollouts=20, entropy_end=0.0)
PAPERS: PPOConfig = replace(SAMPLED, warmup_steps=40, decay=False, embedding_noise=0.0)
ENUMERATED = replace(runs.EXACT_GLIMPSE, **OFTEN, queries=4)


def one_alpha(config: TrainConfig, objective: Objective = OBJECTIVE) -> Start:
    return lambda watch, resumed: train(small_tree(), objective, config, 3, watch, resumed)


STARTS: dict[str, Start] = {
    "ppo": one_alpha(SAMPLED),
    "ppo, warm-up and no noise": one_alpha(PAPERS),
    "ppo with stop": one_alpha(SAMPLED, Objective(0.05, allow_stop=True)),
    "ppo that gives up": one_alpha(
        replace(SAMPLED, epochs=9, evaluate_every=1, patience=3, learning_rate=0.0)
    ),
    "exact": one_alpha(ENUMERATED),
}
# Dies when the bytes are written, and before the file has its name.
KILLED_IN_A_SAVE = """
import os, signal, sys
from pathlib import Path
from hierrouter.learning.loop import Snapshot
from hierrouter.learning.checkpoint import save_snapshot
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
save_snapshot(Snapshot(1, {}, {}), {}, Path(sys.argv[1]))
"""
NAMED = training_named(Origin.of(small_tree(), SAMPLED, 3), OBJECTIVE)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_from_every_moment_to_the_same_bytes(start: Start, tmp_path: Path) -> None:
    offered: list[Snapshot] = []
    whole = digest(start(Watch(on_snapshot=offered.append), None), tmp_path / "whole")
    assert [snapshot.epoch for snapshot in offered] == list(range(1, len(offered) + 1))
    assert len(offered) >= 3
    for snapshot in offered:
        save_snapshot(snapshot, NAMED, tmp_path)
        told: list[int] = []
        watch = Watch(on_epoch=lambda done, *_, told=told: told.append(done))
        assert digest(start(watch, load_snapshot(tmp_path, NAMED)), tmp_path / "again") == whole
        assert all(epoch > snapshot.epoch for epoch in told)  # nothing was done twice


def test_going_on_leaves_the_moment_as_it_was(tmp_path: Path) -> None:
    offered: list[Snapshot] = []
    start = STARTS["ppo"]
    whole = digest(start(Watch(on_snapshot=offered.append), None), tmp_path)
    for _ in range(2):
        assert digest(start(Watch(), offered[2]), tmp_path) == whole
    # Actions are drawn from torch's generator: from another state they are others.
    other = {**offered[2].tensors, "learner.random.torch": torch.Generator().get_state()}
    assert digest(start(Watch(), replace(offered[2], tensors=other)), tmp_path) != whole


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A folder in which a training was interrupted after its third epoch."""
    offered: list[Snapshot] = []
    STARTS["ppo"](Watch(on_snapshot=offered.append), None)
    save_snapshot(offered[2], NAMED, tmp_path)
    return tmp_path


def test_where_nothing_was_interrupted_there_is_nothing(interrupted: Path) -> None:
    found = load_snapshot(interrupted, NAMED)
    assert found and found.epoch == 3
    for _ in range(2):
        checkpoint.forget_snapshot(interrupted)
        assert load_snapshot(interrupted, NAMED) is None


def named(
    tree: RouteTree | None = None,
    objective: Objective = OBJECTIVE,
    config: TrainConfig = SAMPLED,
    seed: int = 3,
    alphas: tuple[float, ...] = (),
) -> dict[str, Any]:
    return training_named(Origin.of(tree or small_tree(), config, seed), objective, alphas)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (named(seed=4), "seed differ"),
        (named(objective=Objective(0.1, True)), "allow_stop, alpha differ"),
        (named(config=replace(SAMPLED, epochs=9, clip=0.3)), "clip, epochs differ"),
        (named(tree=replace(small_tree(), view="query")), "view differ"),
        (named(tree=replace(small_tree(), encoder="paper")), "encoder differ"),
        (named(tree=replace(small_tree(), content="0" * 32)), "fingerprint differ"),
        (named(alphas=runs.GRID), "alphas differ"),
        (named(config=ENUMERATED), "algo differ"),
    ],
)
def test_another_training_is_refused_with_what_differs(
    interrupted: Path, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=f"interrupted in .*: {words}; give the same flags"):
        load_snapshot(interrupted, asked)


def test_a_file_of_before_or_a_damaged_one_is_named(interrupted: Path) -> None:
    file = interrupted / checkpoint.UNFINISHED
    tensors, text = checkpoint.read_tensors(file)
    checkpoint.write_tensors(file, tensors, text.replace('"format": 4', '"format": 2'))
    with pytest.raises(InputError, match=r"has format 2, this .* 4: .*; remove it"):
        load_snapshot(interrupted, NAMED)
    for held in (file.read_bytes()[:-9], b"", b"version https://git-lfs.github.com/spec/v1\n"):
        file.write_bytes(held)
        with pytest.raises(InputError, match=r"training is truncated or damaged.*; remove it"):
            load_snapshot(interrupted, NAMED)


def test_a_finished_training_is_known_as_itself_only(tmp_path: Path) -> None:
    assert finished(tmp_path, NAMED) is None
    digest(STARTS["ppo"](Watch(), None), tmp_path)
    assert isinstance(finished(tmp_path, NAMED), TrainedRouter)
    assert finished(tmp_path, named(seed=4)) is None
    digest(runs.sweep_glimpse(small_tree(), 3), tmp_path)
    assert finished(tmp_path, NAMED) is None
    assert finished(tmp_path, named(config=runs.VALUE, alphas=runs.GRID)) is not None
    assert finished(tmp_path, named(config=runs.VALUE, alphas=runs.GRID[1:])) is None


def test_the_draft_of_a_killed_save_is_removed_and_nothing_else(tmp_path: Path, warm: Warm) -> None:
    member = tmp_path / "seed-0"
    digest(STARTS["ppo"](Watch(), None), member)
    whole = set(tmp_path.rglob("*"))
    command = ("-c", KILLED_IN_A_SAVE, str(member))
    killed = warm.start(*command, cwd=SOURCES, env=environment()).result()
    assert killed.returncode == -signal.SIGKILL
    [draft] = set(tmp_path.rglob("*")) - whole
    assert draft.name.startswith(f".{checkpoint.UNFINISHED}.")
    others = [tmp_path / name for name in (".mine.tmp", "mine.0123abcd.tmp")]
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

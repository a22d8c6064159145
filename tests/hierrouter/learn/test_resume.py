"""A training taken up again is the training that was never interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierrouter.learn.conditioned import TrainedSweep
from hierrouter.learn.config import PPOConfig, TrainConfig
from hierrouter.learn.objective import Objective
from hierrouter.learn.resume import (
    UNFINISHED,
    finished,
    forget_halfway,
    load_halfway,
    save_halfway,
    training_named,
)
from hierrouter.learn.trained import Origin, TrainedRouter
from hierrouter.learn.training import Halfway, Watch, train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learn.runs import (
    EXACT_GLIMPSE,
    GLIMPSE,
    GRID,
    OBJECTIVE,
    digest,
    small_tree,
    sweep_glimpse,
)

Start = Callable[[Watch, Halfway | None], TrainedRouter | TrainedSweep]

OFTEN = {"epochs": 5, "evaluate_every": 2, "checkpoint_every": 1}
# 20 episodes an iteration on 15 queries: what is left of a shuffle waits for the next iteration.
SAMPLED: PPOConfig = replace(GLIMPSE, **OFTEN, iterations=2, rollouts=20, entropy_end=0.0)
PAPERS: PPOConfig = replace(SAMPLED, warmup_steps=40, decay=False, embedding_noise=0.0)
ENUMERATED = replace(EXACT_GLIMPSE, **OFTEN, queries=4)


def one_alpha(config: TrainConfig, objective: Objective = OBJECTIVE) -> Start:
    return lambda watch, resumed: train(small_tree(), objective, config, 3, watch, resumed)


STARTS: dict[str, Start] = {
    "ppo": one_alpha(SAMPLED),
    "ppo, warm-up and no noise": one_alpha(PAPERS),
    "ppo with stop": one_alpha(SAMPLED, Objective(0.05, allow_stop=True)),
    "ppo with a limit": one_alpha(SAMPLED, Objective(0.05, max_cost=1.2)),
    "ppo that gives up": one_alpha(
        replace(SAMPLED, epochs=9, evaluate_every=1, patience=3, learning_rate=0.0)
    ),
    "exact": one_alpha(ENUMERATED),
    "every alpha": lambda watch, resumed: sweep_glimpse(
        small_tree(), 3, ENUMERATED, watch, resumed
    ),
}
NAMED = training_named(Origin.of(small_tree(), SAMPLED, 3), OBJECTIVE)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_from_every_moment_to_the_same_bytes(start: Start, tmp_path: Path) -> None:
    offered: list[Halfway] = []
    whole = digest(start(Watch(on_halfway=offered.append), None), tmp_path / "whole")
    assert [halfway.epoch for halfway in offered] == list(range(1, len(offered) + 1))
    assert len(offered) >= 3
    for halfway in offered:
        save_halfway(halfway, NAMED, tmp_path)
        told: list[int] = []
        watch = Watch(on_epoch=lambda done, *_, told=told: told.append(done))
        again = start(watch, load_halfway(tmp_path, NAMED))
        assert digest(again, tmp_path / "again") == whole
        assert all(epoch > halfway.epoch for epoch in told)  # nothing was done twice


def test_going_on_leaves_the_moment_as_it_was(tmp_path: Path) -> None:
    offered: list[Halfway] = []
    start = STARTS["ppo"]
    whole = digest(start(Watch(on_halfway=offered.append), None), tmp_path)
    for _ in range(2):
        assert digest(start(Watch(), offered[2]), tmp_path) == whole


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A folder in which a training was interrupted after its third epoch."""
    offered: list[Halfway] = []
    STARTS["ppo"](Watch(on_halfway=offered.append), None)
    save_halfway(offered[2], NAMED, tmp_path)
    return tmp_path


def test_where_nothing_was_interrupted_there_is_nothing(interrupted: Path) -> None:
    found = load_halfway(interrupted, NAMED)
    assert found and found.epoch == 3
    forget_halfway(interrupted)
    assert load_halfway(interrupted, NAMED) is None
    forget_halfway(interrupted)


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
        (named(objective=Objective(0.1)), "alpha differ"),
        (named(objective=replace(OBJECTIVE, allow_stop=True)), "allow_stop differ"),
        (named(objective=replace(OBJECTIVE, max_cost=2.0)), "max_cost differ"),
        (named(config=replace(SAMPLED, epochs=9, clip=0.3)), "clip, epochs differ"),
        (named(tree=replace(small_tree(), view="query")), "view differ"),
        (named(tree=replace(small_tree(), encoder="paper")), "encoder differ"),
        (named(tree=replace(small_tree(), content="0" * 32)), "fingerprint differ"),
        (named(alphas=GRID), "alphas differ"),
        (named(config=ENUMERATED), "algo differ"),
    ],
)
def test_another_training_is_refused_with_what_differs(
    interrupted: Path, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=f"interrupted in .*: {words}; give the same flags"):
        load_halfway(interrupted, asked)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes) -> bytes:
    return b""


def replaced(data: bytes) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize("damage", [cut, emptied, replaced])
def test_a_damaged_file_is_named(interrupted: Path, damage: Callable[[bytes], bytes]) -> None:
    file = interrupted / UNFINISHED
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match="interrupted training is truncated or damaged") as caught:
        load_halfway(interrupted, NAMED)
    assert f"{file}; remove it" in str(caught.value)


def test_a_finished_training_is_known_as_itself_only(tmp_path: Path) -> None:
    assert finished(tmp_path, NAMED) is None
    digest(STARTS["ppo"](Watch(), None), tmp_path)
    found = finished(tmp_path, NAMED)
    assert isinstance(found, TrainedRouter)
    assert finished(tmp_path, named(seed=4)) is None
    digest(STARTS["every alpha"](Watch(), None), tmp_path)
    assert finished(tmp_path, NAMED) is None
    assert finished(tmp_path, named(config=ENUMERATED, alphas=GRID)) is not None

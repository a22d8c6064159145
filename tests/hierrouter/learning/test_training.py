"""Trainings are reproducible, watched and chosen on validation; enumeration and Adam by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hierrouter.evaluation.calls import measurable_optimum, observations
from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective, TrainConfig, preset, training_config
from hierrouter.learning.featured import train_featured
from hierrouter.learning.loop import (
    TrainingFold,
    Watch,
    adam_tensors,
    best_iterate,
    fold_pair,
    make_adam,
    restore_adam,
    steps_made,
    training_folds,
)
from hierrouter.learning.network import NEVER, Router, shape_for
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import ExactLearner, improvement_loss, train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.conftest import SOURCES, environment
from tests.hierrouter.learning.runs import (
    ALPHA,
    EXACT_GLIMPSE,
    GLIMPSE,
    OBJECTIVE,
    digest,
    glimpse,
    small_tree,
    sweep_glimpse,
)
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree

Training = Callable[[RouteTree, int], TrainedRouter | TrainedSweep]

TRAININGS: dict[str, Training] = {
    "ppo": lambda tree, seed: glimpse(tree, seed),
    "exact": lambda tree, seed: glimpse(tree, seed, config=EXACT_GLIMPSE),
    "every alpha": lambda tree, seed: sweep_glimpse(tree, seed),
}
PRINT_DIGESTS = """
import sys
from pathlib import Path
from tests.hierrouter.learning.test_training import TRAININGS
from tests.hierrouter.learning.runs import digest
from tests.hierrouter.learning.runs import small_tree
for name, training in TRAININGS.items():
    print(digest(training(small_tree(), 0), Path(sys.argv[1]) / name))
"""
every_training = pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())


@every_training
def test_the_same_seed_gives_the_same_bytes(training: Training, tmp_path: Path) -> None:
    tree = small_tree()
    first = digest(training(tree, 0), tmp_path / "first")
    torch.manual_seed(99)
    np.random.seed(99)
    assert digest(training(tree, 0), tmp_path / "second") == first
    assert digest(training(tree, 1), tmp_path / "other") != first


@every_training
def test_threads_change_no_bit(training: Training, tmp_path: Path) -> None:
    before, found = torch.get_num_threads(), set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.add(digest(training(small_tree(), 0), tmp_path / str(threads)))
    torch.set_num_threads(before)
    assert len(found) == 1


def test_another_process_with_other_threads_gives_the_same_bytes(tmp_path: Path) -> None:
    threads = 1 if torch.get_num_threads() > 1 else 2
    here = [digest(made(small_tree(), 0), tmp_path / name) for name, made in TRAININGS.items()]
    there = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS, str(tmp_path / "there")],
        cwd=SOURCES,
        env={**environment(), "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here


@every_training
def test_global_generators_and_threads_are_left_alone(training: Training) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(1).item(), np.random.random()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(5)
    np.random.seed(5)
    training(small_tree(), 0)
    assert (torch.rand(1).item(), np.random.random()) == expected
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


@pytest.mark.parametrize("config", [GLIMPSE, EXACT_GLIMPSE], ids=["ppo", "exact"])
def test_no_global_generator_is_drawn_from_after_the_start(
    config: TrainConfig, tmp_path: Path
) -> None:
    def disturb(*_: float) -> None:
        torch.manual_seed(99)
        np.random.seed(99)

    disturbed = train(small_tree(), OBJECTIVE, config, 0, Watch(on_epoch=disturb))
    expected = digest(glimpse(small_tree(), config=config), tmp_path / "alone")
    assert digest(disturbed, tmp_path / "disturbed") == expected


@every_training
def test_the_test_fold_has_no_influence(training: Training, tmp_path: Path) -> None:
    tree = small_tree()
    hidden = np.array(tree.splits) == "test"
    [part] = tree.parts
    unseen = np.repeat(hidden, tree.routes.states)[:, None]
    spoilt = replace(
        tree,
        score=np.where(hidden[:, None], np.nan, tree.score),
        parts=(replace(part, vectors=np.where(unseen, np.float32(np.nan), part.vectors)),),
    )
    with_it, without_it = tmp_path / "with", tmp_path / "without"
    assert digest(training(tree, 0), with_it) == digest(training(spoilt, 0), without_it)


@pytest.mark.parametrize("config", [GLIMPSE, EXACT_GLIMPSE], ids=["ppo", "exact"])
def test_the_best_iterate_on_validation_is_kept(config: TrainConfig) -> None:
    tree = planted_tree(per_family=(12, 6, 3), dim=16)
    trained = train(tree, OBJECTIVE, replace(config, epochs=8), seed=0)
    reached = trained.outcome(tree.split("validation")).reward(ALPHA).mean()
    assert len(trained.history) == 8
    assert reached == max(trained.history)


def test_progress_reports_exact_values() -> None:
    tree, seen = small_tree(), []
    watch = Watch(on_epoch=lambda *values: seen.append(values))
    trained = train(tree, OBJECTIVE, GLIMPSE, 0, watch)
    assert [(done, total) for done, total, _, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert tuple(validation for *_, validation in seen) == trained.history


def test_checkpoints_and_evaluations_come_when_planned() -> None:
    config = replace(GLIMPSE, epochs=8, iterations=2, evaluate_every=3, checkpoint_every=2)
    evaluated: list[int] = []
    saved: list[tuple[int, int]] = []
    watch = Watch(
        on_epoch=lambda done, *_: evaluated.append(done),
        on_snapshot=lambda half: saved.append((half.epoch, len(half.counters["best"]["history"]))),
    )
    train(small_tree(), OBJECTIVE, config, 0, watch)
    assert evaluated == [3, 6, 8]  # the last epoch always counts
    assert saved == [(2, 0), (4, 1), (6, 2)]  # with the evaluations so far; at the end no more


def test_patience_ends_a_training_that_gets_no_better() -> None:
    config = replace(GLIMPSE, epochs=50, patience=2, learning_rate=0.0)
    assert len(train(small_tree(), OBJECTIVE, config, 0).history) == 3


def test_without_a_validation_fold_the_train_fold_chooses() -> None:
    tree = small_tree().split("train")
    trained = glimpse(tree)
    assert trained.outcome(tree).reward(ALPHA).mean() == max(trained.history)


def test_one_fold_that_does_both_is_valued_once() -> None:
    folds, valued = fold_pair(training_folds(small_tree().split("train")), OBJECTIVE), []

    def value(router: Router, fold: TrainingFold) -> float:
        valued.append(fold)
        return fold.value(router, ALPHA)

    def start() -> ExactLearner:
        router = Router(shape_for(folds[0].tree, folds[0].actions, EXACT_GLIMPSE))
        return ExactLearner(router, folds[0], ALPHA, EXACT_GLIMPSE, np.random.default_rng(0))

    _, best = best_iterate(start, value, folds, EXACT_GLIMPSE, seed=0)
    assert len(valued) == len(best.history) == EXACT_GLIMPSE.epochs
    assert best.train == best.validation


FAR: dict[str, float] = {"learning_rate": 1e38, "checkpoint_every": 1}
FAR_SAMPLED = replace(GLIMPSE, **FAR)
FAR_EXACT = replace(EXACT_GLIMPSE, **FAR)
DIVERGING: dict[str, Callable[[Watch], object]] = {
    "ppo": lambda watch: train(small_tree(), OBJECTIVE, FAR_SAMPLED, 0, watch),
    "ppo between two rollouts": lambda watch: train(
        small_tree(), OBJECTIVE, replace(FAR_SAMPLED, iterations=2), 0, watch
    ),
    "exact": lambda watch: train(small_tree(), OBJECTIVE, FAR_EXACT, 0, watch),
    "every alpha": lambda watch: sweep_glimpse(small_tree(), 0, FAR_EXACT, watch),
    "features of models": lambda watch: train_featured(
        small_tree(), OBJECTIVE, FAR_EXACT, 0, watch
    ),
}


@pytest.mark.parametrize("training", DIVERGING.values(), ids=DIVERGING.keys())
def test_a_network_that_is_lost_is_neither_valued_nor_kept(
    training: Callable[[Watch], object],
) -> None:
    told: list[object] = []
    watch = Watch(on_epoch=lambda *values: told.append(values), on_snapshot=told.append)
    with pytest.raises(InputError, match=r"training diverged in epoch 1: .*; lower learning_rate"):
        training(watch)
    assert told == []


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_an_objective_has_finite_numbers(value: float) -> None:
    with pytest.raises(InputError, match="alpha must be a finite number >= 0"):
        Objective(value)
    with pytest.raises(InputError, match="max_cost must be a finite number >= 0"):
        Objective(ALPHA, max_cost=value)


@every_training
def test_there_must_be_something_to_train_on(training: Training) -> None:
    with pytest.raises(InputError, match="train fold is empty"):
        training(small_tree().split("test"), 0)


PAYS = 0.05  # alpha on random trees
TEMPERATURE = 0.2
some_actions = [Actions(Routes(3, 2)), Actions(Routes(2, 3)), Actions(Routes(2, 3), True)]
each_actions = pytest.mark.parametrize("actions", some_actions, ids=["3x2", "2x3", "2x3 stop"])


def settled(actions: Actions, legal: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """The policy that is softmax(Q / temperature) of its own Q, state by state from the leaves."""
    routes = actions.routes
    policy = np.zeros((len(reward), routes.states, actions.count))
    value = reward.copy()  # of a node that is gone on from, its policy's
    for state in reversed(range(routes.states)):
        models = actions.model(np.arange(actions.count))
        child = routes.child(state, models)
        ends = actions.stops(np.arange(actions.count))
        worth = np.where(ends, reward[:, child], value[:, child]) / TEMPERATURE
        weight = np.where(legal[state], np.exp(worth - worth.max(axis=1, keepdims=True)), 0)
        policy[:, state] = weight / weight.sum(axis=1, keepdims=True)
        value[:, state] = (policy[:, state] * worth).sum(axis=1) * TEMPERATURE
    return policy


def problem(actions: Actions) -> tuple[Tensor, Tensor, np.ndarray]:
    """Mask and rewards of four queries, and the policy that improvement leads to."""
    reward = random_tree(actions.routes, 4, seed=1).node_reward(PAYS)
    legal = actions.legal()
    mask = torch.from_numpy(np.broadcast_to(legal, (4, *legal.shape)).copy())
    return mask, torch.from_numpy(reward), settled(actions, legal, reward)


@each_actions
def test_the_loss_of_a_table_falls_to_that_of_the_settled_policy(actions: Actions) -> None:
    legal, reward, policy = problem(actions)
    free = torch.zeros(legal.shape, dtype=torch.float64, requires_grad=True)
    adam, losses = torch.optim.Adam([free], lr=0.05), []
    for _ in range(400):
        logged = torch.log_softmax(free.masked_fill(~legal, NEVER), dim=2)
        loss = improvement_loss(actions, logged, legal, reward, TEMPERATURE)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    found = torch.softmax(free.masked_fill(~legal, NEVER), dim=2).detach().numpy()
    np.testing.assert_allclose(found, policy, atol=2e-3)
    chances = policy[policy > 0]
    entropy = -(chances * np.log(chances)).sum() / np.prod(policy.shape[:2])
    assert losses[0] > losses[100] > losses[-1] == pytest.approx(entropy, abs=1e-3)


@each_actions
def test_the_settled_policy_does_not_move(actions: Actions) -> None:
    legal, reward, policy = problem(actions)
    logits = torch.from_numpy(np.where(legal, np.log(np.where(policy > 0, policy, 1)), NEVER))
    logits.requires_grad_()
    logged = torch.log_softmax(logits, dim=2)
    improvement_loss(actions, logged, legal, reward, TEMPERATURE).backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-12, rtol=0)


def test_enumeration_reaches_what_sampling_reaches(planted: RouteTree) -> None:
    fold = planted.split("test")
    exact, sampled = (
        train(planted, OBJECTIVE, training_config("default", algo, 12), seed=0).outcome(fold)
        for algo in ("exact", "ppo")
    )
    one_query = 1 / len(fold)  # what another processor's rounding may decide
    assert exact.reward(ALPHA).mean() >= sampled.reward(ALPHA).mean() - one_query


def test_where_queries_look_alike_the_mean_decides() -> None:
    """One first model is right in 40 % of queries, the other always by 0.3; nothing tells which."""
    tree = two_step_tree(view="stage", models=2)
    right = np.arange(len(tree)) % 5 < 2
    score = np.full_like(tree.score, 0.3)
    score[:, [1, 3, 4]] = right[:, None]
    tree = replace(tree, score=score)
    trained = train(tree, Objective(0.0), preset("default", "exact"), seed=0)
    reached = trained.outcome(tree).reward(0.0).mean()
    best = measurable_optimum(tree, observations(tree), 0.0).reward(0.0).mean()
    assert best == pytest.approx(0.4)
    assert reached == pytest.approx(best)


STEPS = 200


def some_layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def step(layer: nn.Linear, adam: torch.optim.Adam) -> float:
    """One gradient step; returns the learning rate it was made with."""
    adam.zero_grad()
    layer(torch.ones(1, 3)).square().sum().backward()
    adam.step()
    return float(adam.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("name", "made", "factor"),
    [
        ("default", 0, 1.0),
        ("default", STEPS // 2, 0.5),
        ("default", STEPS - 1, 1 / STEPS),
        ("default", STEPS + 5, 0.0),
        ("paper", 0, 0.01),
        ("paper", 99, 1.0),
        ("paper", STEPS + 5, 1.0),
    ],
)
def test_the_learning_rate_rises_and_falls(name: str, made: int, factor: float) -> None:
    config: TrainConfig = preset(name)
    layer = some_layer()
    adam = make_adam(layer.parameters(), config, STEPS)
    rates = [step(layer, adam) for _ in range(made + 1)]
    assert rates[-1] == pytest.approx(config.learning_rate * factor)
    assert steps_made(adam) == made + 1


def test_adam_taken_up_again_makes_the_same_steps() -> None:
    config = preset("default")
    layer = some_layer()
    adam = make_adam(layer.parameters(), config, 8)
    assert adam_tensors(adam) == {}
    for _ in range(3):
        step(layer, adam)
    other = some_layer()
    other.load_state_dict({name: value.clone() for name, value in layer.state_dict().items()})
    again = make_adam(other.parameters(), config, 8)
    restore_adam(again, {name: value.clone() for name, value in adam_tensors(adam).items()})
    assert [step(layer, adam) for _ in range(5)] == [step(other, again) for _ in range(5)]
    assert torch.equal(layer.weight, other.weight)

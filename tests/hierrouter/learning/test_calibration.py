"""Probabilities that are corrected, and those of choices on a tree where all of them are known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logit

from hierrouter.evaluation.bounds import greedy_decisions
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import Objective, RidgeConfig, TrainConfig
from hierrouter.learning.regression import LEAST_PROBABILITY, Calibration
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.learning.value import ValueRouter
from hierrouter.runs.checkpoint import load_checkpoint, read_tensors, save_checkpoint, write_tensors
from hierrouter.runs.folders import WEIGHTS
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import VALUE
from tests.hierrouter.trees import one_part, random_tree

Floats = NDArray[np.float64]
ALPHA = 0.2
# Of two kinds of questions, the probability that the cheap and the dear model are right. The dear
# one costs 1 more. Where only it is right it is the best at ALPHA, else the cheap one is.
CHEAP_IS_RIGHT = np.array([0.45, 0.9])
DEAR_IS_RIGHT = np.array([0.75, 0.6])


def known_tree(questions: int, seed: int) -> tuple[RouteTree, NDArray[np.int64]]:
    """A tree of one call to a cheap or a dear model, half of it for tests; and each kind."""
    rng = np.random.default_rng(seed)
    noise = random_tree(Layout.full(2, 1), questions, seed)
    kind = rng.integers(0, 2, questions)
    right = np.stack([CHEAP_IS_RIGHT[kind], DEAR_IS_RIGHT[kind]], axis=1)
    score = np.zeros((questions, 3))
    score[:, 1:] = rng.random((questions, 2)) < right
    vectors = np.eye(2)[kind][:, None] + 0.05 * rng.standard_normal((questions, 1, 2))
    tree = replace(
        noise,
        score=score,
        accuracy=score,
        tokens_in=np.zeros_like(noise.tokens_in),
        tokens_out=np.tile([0, 1, 1], (questions, 1)),
        rate=np.array([[1.0, 1.0], [2.0, 2.0]]),
        parts=one_part(vectors),
        splits=tuple(np.where(np.arange(questions) % 2 == 0, "train", "test").tolist()),
    )
    return tree, kind


def choices(trained: TrainedRouter, fold: RouteTree) -> tuple[NDArray[np.int64], Floats]:
    """The action at each state, and how probable it is said to be that it is the best."""
    policy = trained.probabilities(fold)
    choice = greedy(policy, fold.base_rate, trained.actions.returns).argmax(axis=2)
    probability = trained.choice_probability(fold, choice)
    assert probability is not None
    return choice, probability


@pytest.mark.parametrize("config", [VALUE, RidgeConfig()], ids=["value", "ridge"])
def test_choices_are_the_best_as_often_as_is_said(config: TrainConfig) -> None:
    """Also where the choice with the highest expected R is seldom the best."""
    tree, kind = known_tree(3_000, 0)
    trained = train(tree, Objective(ALPHA), config, 0)
    fold = tree.split("test")
    kind = kind[tree.rows("test")]
    choice, probability = choices(trained, fold)
    only_dear_is_right = (1 - CHEAP_IS_RIGHT) * DEAR_IS_RIGHT
    known = np.where(choice[:, 0] == 1, only_dear_is_right[kind], 1 - only_dear_is_right[kind])
    assert choice[kind == 0, 0].mean() > 0.9  # dear: worth .3 - .2 more, the best for .41 of them
    assert choice[kind == 1, 0].mean() < 0.1  # cheap: worth .3 + .2 more, the best for .94
    np.testing.assert_allclose(probability[:, 0], known, atol=0.1)
    assert np.abs(probability[:, 0] - known).mean() < 0.04
    query, said, is_best, _ = greedy_decisions(fold, trained.actions, choice, probability, ALPHA)
    np.testing.assert_array_equal(said, probability[query, 0])
    for number in (0, 1):
        of_kind = kind[query] == number
        assert said[of_kind].mean() == pytest.approx(is_best[of_kind].mean(), abs=0.06)


def test_equally_good_actions_are_both_the_best() -> None:
    """At alpha 0 a choice is the best unless it is wrong and the other one right."""
    tree, kind = known_tree(3_000, 1)
    trained = train(tree, Objective(0.0), VALUE, 0)
    choice, probability = choices(trained, tree.split("test"))
    kind = kind[tree.rows("test")]
    only_cheap_is_right = CHEAP_IS_RIGHT * (1 - DEAR_IS_RIGHT)
    only_dear_is_right = (1 - CHEAP_IS_RIGHT) * DEAR_IS_RIGHT
    known = 1 - np.where(choice[:, 0] == 1, only_cheap_is_right[kind], only_dear_is_right[kind])
    assert set(choice[:, 0].tolist()) == {0, 1}
    np.testing.assert_allclose(probability[:, 0], known, atol=0.1)


def test_a_live_state_has_the_probability_of_the_fold() -> None:
    tree, _ = known_tree(200, 2)
    trained = train(tree, Objective(ALPHA), VALUE, 0)
    fold = tree.split("test")
    choice, probability = choices(trained, fold)
    rows = np.arange(len(fold))
    embedding = fold.embedding_at(rows, np.zeros_like(rows))
    states = trained.live_states(embedding, [()] * len(fold), [0.0] * len(fold))
    live = trained.choice_probability_each(states, choice[:, 0])
    assert live is not None
    np.testing.assert_allclose(live, probability[:, 0], atol=1e-5)


def test_a_stored_model_says_the_same_and_one_of_before_nothing(tmp_path: Path) -> None:
    tree, _ = known_tree(200, 3)
    trained = train(tree, Objective(ALPHA), VALUE, 0)
    fold = tree.split("test")
    save_checkpoint(trained, tmp_path)
    stored = load_checkpoint(tmp_path)
    assert isinstance(stored, TrainedRouter) and isinstance(stored.router, ValueRouter)
    assert stored.router.model.calibration != Calibration()
    np.testing.assert_array_equal(choices(stored, fold)[1], choices(trained, fold)[1])

    file = tmp_path / WEIGHTS
    tensors, text = read_tensors(file)
    description = json.loads(text)
    del description["calibration"]
    knots = len(description["knots"])
    for name in ("state0.weight", "state0.added"):
        values = tensors[name].reshape(*tensors[name].shape[:-1], 2, knots, 3)
        tensors[name] = values[..., :2].reshape(*tensors[name].shape[:-1], -1).copy()
    write_tensors(file, tensors, json.dumps(description))
    before = load_checkpoint(tmp_path)
    assert isinstance(before, TrainedRouter)
    np.testing.assert_array_equal(before.probabilities(tree), trained.probabilities(tree))
    assert before.choice_probability(fold, choices(trained, fold)[0]) is None
    save_checkpoint(before, tmp_path)  # as a resumed training does with what it has
    again = load_checkpoint(tmp_path)
    assert isinstance(again, TrainedRouter)
    np.testing.assert_array_equal(again.probabilities(tree), trained.probabilities(tree))
    assert again.choice_probability(fold, choices(trained, fold)[0]) is None


@pytest.mark.parametrize(("intercept", "slope"), [(0.0, 1.0), (0.8, 0.6), (-1.0, 1.2)])
def test_what_was_said_too_high_or_too_surely_is_corrected(intercept: float, slope: float) -> None:
    rng = np.random.default_rng(0)
    said = rng.uniform(0.05, 0.95, 20_000)
    true = expit(intercept + slope * logit(said))
    found = Calibration.of(said, rng.random(len(said)) < true, np.ones(len(said)))
    np.testing.assert_allclose(found(said), true, atol=0.02)


def test_few_questions_change_little() -> None:
    """Three choices that all failed are no proof that .8 means 0."""
    few = Calibration.of(np.full(3, 0.8), np.zeros(3, np.bool_), np.ones(3))
    many = Calibration.of(np.full(300, 0.8), np.zeros(300, np.bool_), np.ones(300))
    assert 0.4 < few(np.array([0.8]))[0] < 0.8
    assert many(np.array([0.8]))[0] < 0.1
    nothing = Calibration.of(np.empty(0), np.empty(0, np.bool_), np.empty(0))
    assert nothing == Calibration()


def test_a_regression_may_leave_the_range_and_what_is_unknown_stays_so() -> None:
    outside = np.array([-0.2, 0.0, 1.0, 1.3, np.nan])
    least = LEAST_PROBABILITY
    expected = [least, least, 1 - least, 1 - least, np.nan]
    np.testing.assert_allclose(Calibration()(outside), expected)

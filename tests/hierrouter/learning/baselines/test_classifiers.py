"""Routers that read the question find what is planted there; others take what is best of all."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.svm import SVC

from hierrouter.learning.baselines import classifiers, simple
from hierrouter.learning.baselines.arms import mean_reward
from tests.hierrouter.learning.baselines import known
from tests.hierrouter.learning.baselines.known import (
    EMPTY,
    arms_with,
    choices,
    fitted,
    planted_arms,
)

ALPHA = 0.1
LEARNED = [
    classifiers.NearestNeighbours(),
    classifiers.Clusters(),
    classifiers.RidgePerArm(),
    classifiers.Mlp(steps=(300,), penalties=(0.01,), hidden=16),
    classifiers.Svm(),
    classifiers.Factorisation(("all",), (100,), learning_rate=0.1),
]
each = pytest.mark.parametrize("baseline", LEARNED, ids=lambda baseline: baseline.name)


@each
def test_it_finds_the_right_arm_of_each_group(baseline):
    train, validation, held_out = (planted_arms(90, seed=seed) for seed in range(3))
    tuned = fitted(baseline, train, validation)
    assert (choices(held_out, tuned.play) == known.group_of(90, 3)).mean() > 0.97


@each
def test_where_cost_is_all_and_of_equals_it_takes_the_cheapest(baseline):
    train = planted_arms(30)
    assert (choices(train, fitted(baseline, train, alpha=100.0).play) == 0).all()
    equal = arms_with(np.ones((30, 3)), np.tile([3.0, 1.0, 2.0], (30, 1)), train.seen.question)
    assert (choices(equal, fitted(baseline, equal, alpha=0.0).play) == 1).all()


@pytest.mark.parametrize(
    ("baseline", "setting", "good"),
    [
        (classifiers.NearestNeighbours((1, 90), ("uniform",)), "neighbours", 1),
        (classifiers.RidgePerArm((1e6, 0.1)), "penalty", 0.1),
        (classifiers.Mlp((300,), (1e6, 0.01), 16), "penalty", 0.01),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_validation_fold_chooses_the_setting(baseline, setting, good):
    train, validation = planted_arms(90), planted_arms(60, seed=1)
    assert fitted(baseline, train, validation).settings[setting] == good
    first = fitted(baseline, train, validation.select(EMPTY)).settings[setting]
    assert first == {"neighbours": 1}.get(setting, max(first, 1e-9))
    assert first != good or setting == "neighbours"


def test_a_machine_with_a_kernel_is_taken_where_no_line_parts_the_questions():
    rng = np.random.default_rng(0)
    sides = rng.choice([-1.0, 1.0], (120, 2))
    right = np.eye(2)[(sides.prod(axis=1) > 0).astype(int)]
    questions = (sides + rng.normal(0, 0.2, sides.shape)).astype(np.float32)
    arms = arms_with(right, np.ones((120, 2)), questions)
    train, held_out = arms.select(np.arange(80)), arms.select(np.arange(80, 120))
    tuned = fitted(classifiers.Svm(("linear", "rbf"), (1.0,)), train, held_out)
    assert tuned.settings["kernel"] == "rbf"
    assert mean_reward(tuned.play, held_out, 0.0) == 1.0


def test_a_tie_of_votes_goes_to_the_cheapest_arm():
    rng = np.random.default_rng(0)
    label, questions = rng.integers(0, 3, 60), rng.normal(size=(60, 3)).astype(np.float32)
    train = arms_with(np.eye(3)[label], np.tile([3.0, 1.0, 2.0], (60, 1)), questions)
    tuned = fitted(classifiers.Svm(("linear",), (1.0,)), train, alpha=0.0)
    asked = rng.normal(size=(5000, 3)).astype(np.float32)
    pairs = make_pipeline(Normalizer(), SVC(kernel="linear", decision_function_shape="ovo"))
    first_wins = pairs.fit(questions, label).decision_function(asked) > 0
    winner = np.where(first_wins, [0, 0, 1], [1, 2, 2])
    votes = np.stack([(winner == arm).sum(axis=1) for arm in range(3)], axis=1)
    tied = asked[votes.max(axis=1) == 1]  # each of three classes has one
    assert len(tied) > 5
    at_ties = arms_with(np.ones((len(tied), 3)), np.ones((len(tied), 3)), tied)
    assert set(choices(at_ties, tuned.play).tolist()) == {1}


# --- routers that do not read the question, and what battles teach

QUALITY = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]])
COST = np.tile([2.0, 1.0, 3.0], (4, 1))


def fold(quality=QUALITY, cost=COST, datasets=("one", "one", "two", "two")):
    arms = arms_with(quality, cost, np.zeros((len(quality), 2), np.float32))
    return replace(arms, seen=replace(arms.seen, datasets=datasets))


def arm_of(baseline, train, alpha=0.0):
    return choices(train, fitted(baseline, train, alpha=alpha).play).tolist()


def test_chance_is_the_mean_over_arms():
    outcome = fitted(simple.Random(), fold()).play(fold().seen).outcome(fold(), "random")
    assert outcome.quality == pytest.approx(QUALITY.mean(axis=1))
    assert outcome.cost == pytest.approx(2.0)


def test_the_best_has_the_highest_reward():
    # Of equally good arms the cheapest is the best.
    assert arm_of(simple.BestStatic(), fold()) == [1] * 4
    assert arm_of(simple.BestStatic(), fold(np.ones((4, 3)))) == [1] * 4
    dear = fold(np.tile([0.5, 0.9, 1.0], (4, 1)), np.tile([0.0, 1.0, 3.0], (4, 1)))
    assert [arm_of(simple.BestStatic(), dear, alpha)[0] for alpha in (0, 0.2, 1)] == [2, 1, 0]


def test_the_best_of_each_dataset_and_over_all_for_an_unknown_one():
    train = fold(np.array([[1.0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1]]))
    assert arm_of(simple.DatasetOracle(), train) == [0, 0, 2, 2]
    tuned = fitted(simple.DatasetOracle(), train, alpha=0.0)
    unknown = replace(train, seen=replace(train.seen, datasets=("one", "two", "three", "three")))
    assert choices(unknown, tuned.play).tolist() == [0, 2, 0, 0]
    assert tuned.settings == {"arms": {"one": "arm-0", "two": "arm-2"}}


def test_which_arm_wins_most_depends_on_weights_and_on_the_battles():
    # One arm wins twice by little, the other once by much.
    quality = np.array([[0.6, 0.5], [0.6, 0.5], [0.0, 1.0]])
    assert (_only_choice(quality, weighed=False), _only_choice(quality)) == (0, 1)
    # The second best everywhere wins battles of all, but none of the best.
    quality = np.array([[1.0, 0.9, 0.0], [0.0, 0.9, 1.0]])
    assert _only_choice(quality, battles=("all",)) == 1
    assert _only_choice(quality, battles=("best",)) != 1


def _only_choice(quality, **settings):
    """The arm taken where all questions look the same."""
    train = arms_with(quality, np.ones_like(quality), np.zeros((len(quality), 4), np.float32))
    subject = classifiers.Factorisation(**{"steps": (100,), "learning_rate": 0.1, **settings})
    tuned = fitted(subject, train, train.select(EMPTY), alpha=0.0)
    (choice,) = set(choices(train, tuned.play).tolist())
    return choice


@each
def test_where_the_best_static_choice_is_better_on_validation_it_is_taken(baseline):
    """What was learned is wrong there: the groups of validation have other right arms."""
    train, validation = planted_arms(90), planted_arms(90, seed=1)
    quality = np.tile([0.0, 0.0, 1.0], (90, 1))
    quality[np.arange(90) % 2 == 0] = [0.0, 0.0, 0.9]
    train = replace(train, quality=np.maximum(train.quality, quality * 0.5))
    validation = replace(validation, quality=quality)
    result = fitted(baseline, train, validation, alpha=0.0)
    if baseline.name in ("MLP", "SVM", "clusters"):  # others have a setting that is as good
        assert result.settings == {"arm": "arm-2"}
    assert (choices(validation, result.play) == 2).all()
    alone = fitted(baseline, train, validation.select(EMPTY), alpha=0.0)
    assert "arm" not in alone.settings


def test_clusters_of_equal_questions_are_one_choice():
    train = planted_arms(30)
    same = replace(train, seen=replace(train.seen, question=np.ones_like(train.seen.question)))
    result = fitted(classifiers.Clusters(), same, same)
    assert len(set(choices(same, result.play).tolist())) == 1

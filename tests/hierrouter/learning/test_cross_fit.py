"""Cross-fitting: each question is judged by a training without it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import best_fixed_route
from hierrouter.evaluation.outcome import Actions
from hierrouter.learning import cross_fit
from hierrouter.learning.config import BestConfig, OnEpoch
from hierrouter.learning.cross_fit import (
    TEST_RATE,
    Repetition,
    policies_out_of_fold,
    question_folds,
    routes_out_of_fold,
    shown_gains,
    sweep_best,
    train_best,
    with_fallback,
)
from hierrouter.learning.router import Constant, TrainedRouter, training_queries
from hierrouter.learning.training import train
from hierrouter.runs.checkpoint import load_checkpoint, load_finished, save_checkpoint
from hierrouter.runs.training import RunCallbacks, Training, load_or_train
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE, OBJECTIVE, VALUE, small_tree
from tests.hierrouter.trees import planted_tree, ragged_tree, random_tree


def split(tree: RouteTree) -> RouteTree:
    """Four questions of five to train on, one to choose on, of two datasets."""
    numbers = np.arange(len(tree))
    return replace(
        tree,
        splits=tuple(np.where(numbers % 5 == 4, "validation", "train").tolist()),
        datasets=tuple(np.where(numbers % 3 == 0, "rare", "common").tolist()),
        encoder="planted",
    )


@given(queries=st.integers(2, 60), count=st.integers(2, 5), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_folds_are_equal_shares_and_do_not_depend_on_rows(
    queries: int, count: int, seed: int
) -> None:
    tree = split(random_tree(Layout.full(2, 1), queries, seed))
    folds = question_folds(tree, count, seed)
    sizes = np.bincount(folds, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    strata = list(zip(tree.splits, tree.datasets, strict=True))
    for name in set(strata):
        rows = [row for row, stratum in enumerate(strata) if stratum == name]
        shares = np.bincount(folds[rows], minlength=count)
        assert shares.max() - shares.min() <= 1
    order = np.random.default_rng(seed).permutation(queries)
    moved = question_folds(tree.select(order), count, seed)
    assert moved.tolist() == folds[order].tolist()


def test_each_question_is_judged_without_it() -> None:
    """Nothing of a question reaches the training that judges it."""
    tree = training_queries(small_tree())
    folds = question_folds(tree, 3, 0)
    trained_on: dict[int, set[str]] = {}

    def fit(fold: int, learned: RouteTree) -> Callable[[float], TrainedRouter]:
        trained_on[fold] = {*learned.query_ids}
        router = train(learned, OBJECTIVE, VALUE, 0)
        return lambda alpha: router

    judged = policies_out_of_fold(tree, (ALPHA,), folds, fit)
    for row, query in enumerate(tree.query_ids):
        assert query not in trained_on[int(folds[row])]
        assert sum(query in names for names in trained_on.values()) == 2
    for fold in range(3):
        rows = np.flatnonzero(folds == fold)
        router = train(tree.select(np.flatnonzero(folds != fold)), OBJECTIVE, VALUE, 0)
        expected = router.outcome(tree.select(rows))
        np.testing.assert_array_equal(judged.quality[0, rows], expected.quality)
        np.testing.assert_array_equal(judged.cost[0, rows], expected.cost)


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_routes_are_those_that_are_best_on_the_other_folds(
    stop: bool, ragged: bool, alone: bool
) -> None:
    layout = Layout.full(3, 2)
    tree = split(ragged_tree(layout, 24, 1) if ragged else random_tree(layout, 24, 1))
    # No two routes are equally good, whose order rounding would decide.
    jitter = np.random.default_rng(0).normal(0, 0.01, tree.score.shape)
    tree = replace(tree, score=np.where(tree.score > 0, tree.score + jitter, 0.0))
    folds = np.arange(24) if alone else question_folds(tree, 3, 0)
    alphas = (0.0, 0.1, 5.0)
    judged = routes_out_of_fold(tree, alphas, folds, stop)
    for number, alpha in enumerate(alphas):
        for fold in np.unique(folds):
            rows = np.flatnonzero(folds == fold)
            others = tree.select(np.flatnonzero(folds != fold))
            expected = best_fixed_route(others, alpha, tree.select(rows), stop).reward(alpha)
            np.testing.assert_allclose(judged.reward[number, rows], expected, atol=1e-12)


def test_gains_of_many_alphas_are_one_test() -> None:
    """Without a gain at any of twenty, one of them shows a gain no more often than the rate."""
    wrong = 0
    for seed in range(60):
        gains = np.random.default_rng(seed).normal(0, 0.3, (20, 80))
        low, _ = shown_gains(gains, TEST_RATE)
        wrong += bool((low > 0).any())
    assert wrong <= 8  # of 60 at a rate of .05: 3 on average, more than 8 once in 400


def test_shown_gains_step_down() -> None:
    """What is shown by itself makes it no harder to show the rest."""
    rng = np.random.default_rng(0)
    gains = np.concatenate([rng.normal(1, 0.1, (30, 50)), rng.normal(0.06, 0.2, (1, 50))])
    low, _ = shown_gains(gains, TEST_RATE)
    alone, _ = shown_gains(gains[-1:], TEST_RATE)
    assert (low[:-1] > 0.7).all()
    assert low[-1] == pytest.approx(alone[0])


@pytest.mark.parametrize("queries", [1, 2, 4])
def test_a_few_questions_show_nothing(queries: int) -> None:
    low, high = shown_gains(np.ones((2, queries)), TEST_RATE)
    assert (low == -np.inf).all() and (high == np.inf).all()


def test_two_questions_give_a_constant_and_a_sentence() -> None:
    tree = split(random_tree(Layout.full(2, 1), 5, 0)).select(np.array([0, 4]))
    router = with_fallback(train(tree, OBJECTIVE, EXACT_GLIMPSE, 0), tree, Repetition())
    assert router.constant and "no gain is shown" in router.why_constant
    assert np.isfinite([router.constant.low, router.constant.high]).all()


def test_a_network_without_a_validation_fold_is_judged_by_other_questions() -> None:
    """The fold that it learned from shows a gain where there is none."""
    tree = random_tree(Layout.full(2, 1), 30, 1)
    assert {*tree.splits} == {"train"}
    router = train(replace(tree, encoder="planted"), OBJECTIVE, EXACT_GLIMPSE, 0)
    found = with_fallback(router, tree, Repetition())
    assert found.constant and found.constant.cross_fitted and found.constant.judged == 30


def test_the_best_of_several_seeds_needs_to_show_more() -> None:
    """Each seed has its part of the rate."""
    gains = np.random.default_rng(1).normal(0.05, 0.2, (1, 60))
    ends = [shown_gains(gains, TEST_RATE / count)[0][0] for count in (1, 5)]
    assert ends[0] > ends[1]


def test_a_stricter_test_needs_more_questions() -> None:
    """What a constant says would show a gain is of the test that was made."""
    noise = split(random_tree(Layout.full(2, 1), 40, 3))
    router = train(noise, OBJECTIVE, VALUE, 0)
    shipped = [with_fallback(router, noise, Repetition(candidates=count)) for count in (1, 5)]
    alone, of_five = (each.constant.needed for each in shipped if each.constant)
    assert 1.4 < of_five / alone < 1.7  # (2.59 + .84)^2 / (1.98 + .84)^2 = 1.48 for a normal mean


def test_the_sentence_counts_the_questions_to_add() -> None:
    constant = Constant(4, -0.002, -0.004, 0.001, 787, 90, cross_fitted=True)
    actions = Actions(Layout.full(3, 2))
    sentence = constant.sentence(ALPHA, actions, ("a", "b", "c"))
    assert sentence.endswith(
        "about 697 more train and validation questions (about 996 to collect) could show a gain of "
        "0.01"
    )


def test_trainings_are_repeated_only_if_the_first_look_shows_nothing() -> None:
    calls = []

    def count(number: int, folds: int) -> AbstractContextManager[OnEpoch]:
        calls.append((number, folds))
        return Repetition().context(number, folds)

    noise = split(random_tree(Layout.full(2, 1), 40, 2))
    router = train(noise, OBJECTIVE, EXACT_GLIMPSE, 0)
    assert isinstance(with_fallback(router, noise, Repetition(context=count)), TrainedRouter)
    assert calls == [(1, 3), (2, 3), (3, 3)]


LADDER = BestConfig(classes="groups,clusters,value")


def test_the_best_class_is_that_of_the_highest_cross_fitted_gain(tmp_path: Path) -> None:
    tree = replace(planted_tree(per_family=(12, 4, 4), dim=16), encoder="planted")
    router = train_best(tree, OBJECTIVE, LADDER, 0)
    gains = dict(router.ladder)
    assert list(gains) == LADDER.names
    assert router.origin.config == LADDER.configs[max(gains, key=lambda name: gains[name])]
    assert router.constant is None
    questions = training_queries(tree)
    folds = question_folds(questions, 3, 0)
    routes = routes_out_of_fold(questions, (ALPHA,), folds, False)

    def fit(fold: int, learned: RouteTree) -> Callable[[float], TrainedRouter]:
        router = train(learned, OBJECTIVE, LADDER.configs["value"], 0)
        return lambda alpha: router

    policies = policies_out_of_fold(questions, (ALPHA,), folds, fit)
    assert gains["value"] == pytest.approx((policies.reward - routes.reward).mean())
    save_checkpoint(router, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert (loaded.ladder, loaded.origin) == (router.ladder, router.origin)
    test = tree.split("test")
    np.testing.assert_array_equal(loaded.probabilities(test), router.probabilities(test))


def test_the_best_class_is_compared_with_the_best_route_of_the_same_questions() -> None:
    """Both are chosen by what judges them; a gain over the routes of other folds counts less."""
    shipped = {}
    for seed in range(12):
        tree = split(random_tree(Layout.full(3, 2), 90, seed))
        # On every third question another route is right than on the rest, as its dataset shows.
        better = np.array(tree.datasets) == "rare"
        score = tree.score.copy()
        rng = np.random.default_rng(seed)
        score[:, 12] = rng.random(90) < np.where(better, 0.85, 0.3)
        score[:, 5] = rng.random(90) < np.where(better, 0.3, 0.75)
        tree = replace(tree, score=score)
        router = train_best(tree, OBJECTIVE, BestConfig(classes="groups"), 0)
        folds = question_folds(tree, 3, 0)
        routes = routes_out_of_fold(tree, (ALPHA,), folds, False).reward[0]
        best = best_fixed_route(tree, ALPHA, tree).reward(ALPHA)
        policy = np.empty(90)
        for fold in range(3):
            rows = np.flatnonzero(folds == fold)
            learned = tree.select(np.flatnonzero(folds != fold))
            table = train(learned, OBJECTIVE, LADDER.configs["groups"], 0)
            policy[rows] = table.outcome(tree.select(rows)).reward(ALPHA)
        assert router.ladder == (("groups", pytest.approx((policy - routes).mean())),)
        gains = policy - best
        is_shown = bool(shown_gains(gains[None], TEST_RATE, strata=tree.datasets)[0][0] > 0)
        assert (router.constant is None) == is_shown
        shipped[seed] = is_shown
        if router.constant:
            assert router.constant.gain == pytest.approx(gains.mean())
            assert router.constant.low <= 0 < router.constant.high
    assert {*shipped.values()} == {False, True}


def test_where_two_routes_are_equal_the_best_class_is_rarely_shipped() -> None:
    """The worst case: each of many groups takes the one or the other by chance."""
    wrong = 0
    for seed in range(40):
        tree = split(random_tree(Layout.full(2, 1), 60, seed))
        labels = np.random.default_rng(seed).integers(0, 4, 60).astype(str)
        tree = replace(tree, datasets=tuple(labels.tolist()))
        wrong += train_best(tree, OBJECTIVE, BestConfig(classes="groups"), 0).constant is None
    assert wrong <= 5  # at a rate of .05 2 on average, more than 5 once in 70


def test_of_very_many_questions_a_part_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_fit, "MAX_CONTEST_QUESTIONS", 30)
    tree = split(random_tree(Layout.full(3, 2), 60, 4))
    routers = [
        train_best(rows, OBJECTIVE, LADDER, 0) for rows in (tree, tree.select(np.arange(60)[::-1]))
    ]
    assert [router.constant and router.constant.judged for router in routers] == [30, 30]
    gains = [[gain for _, gain in router.ladder] for router in routers]
    assert gains[0] == pytest.approx(gains[1])  # the same questions, whatever their order


def test_a_mean_takes_the_models_that_are_there() -> None:
    """In a ladder it is the same as by itself."""
    tree = replace(planted_tree(per_family=(6, 3, 3), dim=8), encoder="planted")
    ladder = BestConfig(classes="groups,ridge,value,mean")
    router = train_best(tree, OBJECTIVE, ladder, 0)
    alone = train_best(tree, OBJECTIVE, BestConfig(classes="mean"), 0)
    assert dict(router.ladder)["mean"] == dict(alone.ladder)["mean"]


def test_a_ladder_is_found_again_by_what_was_asked_for(tmp_path: Path) -> None:
    tree = replace(planted_tree(per_family=(6, 3, 3), dim=8), encoder="planted")
    for alphas in ((), (0.0, ALPHA)):
        training = Training(OBJECTIVE, LADDER, 0, alphas)
        notes: list[str] = []
        callbacks = RunCallbacks(on_note=notes.append)
        folder = tmp_path / str(len(alphas))
        first = load_or_train(training, tree, folder, callbacks)
        assert [note for note in notes if "cross-fitted" in note and "is taken" in note]
        again = load_or_train(training, tree, folder, callbacks)
        assert "already there" in notes[-1]
        assert again.ladder == first.ladder
        other = replace(training, config=LADDER.configs[first.origin.config.algo])
        assert load_finished(folder, other.identity(tree)) is None


def test_where_nothing_can_be_learned_the_best_class_is_a_constant() -> None:
    noise = split(random_tree(Layout.full(3, 2), 60, 3))
    router = train_best(noise, OBJECTIVE, LADDER, 0)
    assert router.constant and router.constant.judged == 60
    sweep = sweep_best(noise, (0.0, ALPHA, 9.0), OBJECTIVE, LADDER, 0)
    assert all(sweep.constants) and sweep.fixed
    kept = train_best(noise, OBJECTIVE, replace(LADDER, keep_anyway=True), 0)
    assert kept.constant is None and kept.origin.config.keep_anyway


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_the_best_of_a_few_questions_is_a_constant(queries: int) -> None:
    tree = replace(random_tree(Layout.full(2, 1), queries, 0), encoder="planted")
    assert train_best(tree, OBJECTIVE, LADDER, 0).why_constant
    assert all(sweep_best(tree, (0.0, 1.0), OBJECTIVE, LADDER, 0).constants)

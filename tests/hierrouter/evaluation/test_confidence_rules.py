"""What a look at the first answer is worth, and whether choices are as good as was said."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hierrouter as hr
from hierrouter.evaluation import bounds, confidence_rules
from hierrouter.evaluation.intervals import SHARES, interval, share_interval
from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective
from hierrouter.learning.router import Constant
from hierrouter.learning.training import train
from hierrouter.replay.tree import first_call_confidence
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.report import as_object
from hierrouter.reports.tables import looks_table, named_tables
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import Path as Hops
from tests.hierrouter.evaluation.enumeration import alphas, node, seeds, small_trees, unhurried
from tests.hierrouter.evaluation.test_return import table_for, worth
from tests.hierrouter.learning.trainings import EXACT_GLIMPSE, VALUE
from tests.hierrouter.trees import random_tree, returning, two_step_tree

shapes = st.sampled_from(
    [Layout.full(1, 2), Layout.full(2, 1), Layout.full(3, 2), Layout.full(2, 3)]
)


@unhurried
@given(shapes, st.integers(2, 24), seeds, alphas, st.booleans(), st.booleans())
def test_no_rule_of_one_look_is_better_on_the_fold_it_is_fitted_on(
    routes: Layout, queries: int, seed: int, alpha: float, stop: bool, coarse: bool
) -> None:
    tree, rng = random_tree(routes, queries, seed), np.random.default_rng(seed)
    sure = (
        rng.integers(0, 4, (queries, routes.call_actions)) / 4
        if coarse
        else rng.random((queries, 1))
    )
    sure = np.broadcast_to(sure, (queries, routes.call_actions)).copy()
    sure[rng.random(sure.shape) < 0.1] = np.nan
    reward, rows = tree.node_reward(alpha), np.arange(queries)
    rule = confidence_rules.fit_rule(tree, sure, alpha, stop)
    found = reward[rows, rule.nodes(sure)].sum()
    endings = range(routes.nodes)[Actions(routes, stop).endings]
    best = max(reward[:, node].sum() for node in endings)
    for first in range(routes.call_actions):
        under = [node for node in endings if routes.path(node)[0] == first]
        for least in np.unique(sure[~np.isnan(sure[:, first]), first]):
            is_sure = sure[:, first] >= least
            if min(is_sure.sum(), (~is_sure).sum()) < confidence_rules.MIN_QUERIES_PER_SIDE:
                continue
            sides = (reward[side][:, under].sum(axis=0).max() for side in (is_sure, ~is_sure))
            best = max(best, sum(sides))
    assert found == pytest.approx(best)


def test_a_dataset_without_train_questions_follows_the_rule_of_all() -> None:
    tree = replace(random_tree(Layout.full(2, 2), 40, 1), datasets=("a",) * 20 + ("b",) * 20)
    sure = np.random.default_rng(0).random((40, 2))
    train, shown = ((tree.select(at), sure[at]) for at in (np.arange(20), np.arange(20, 40)))
    rules, looked = confidence_rules.apply_rules_per_dataset(train, shown, 0.1)
    assert list(rules) == ["b"]
    assert rules["b"] == confidence_rules.fit_rule(*train, 0.1)
    expected = tree.score[np.arange(20, 40), rules["b"].nodes(shown[1])]
    assert np.array_equal(looked.quality, expected)


def test_a_report_says_what_a_look_is_worth_and_costs(testbed_cache: Path) -> None:
    tree = hr.open(testbed_cache, state="query")
    report = report_on_fold(tree, 1.0, None, None, {}, bootstrap=Bootstrap(n=50))
    sure, fold = first_call_confidence(tree), tree.split("test")
    assert ((sure > 0) & (sure <= 1)).all()
    train = tree.split("train"), sure[tree.rows("train")]
    rules, looked = confidence_rules.apply_rules_per_dataset(
        train, (fold, sure[tree.rows("test")]), 1.0
    )
    more = looked.reward(1.0) - bounds.best_route_per_dataset(train[0], 1.0, fold).reward(1.0)
    [whole] = [row for row in report.looks if row.dataset == "all"]
    assert whole.reward == pytest.approx(more.mean())
    assert whole.reward == pytest.approx(whole.quality - whole.cost)
    assert [row.policy for row in report.looks][:-1] == [
        rule.name(tree.models, tree.layout) for rule in rules.values()
    ]
    table = looks_table(report)
    result = table.note.partition(". A rule calls one model")[0]
    above = [row.dataset for row in report.looks[:-1] if row.reward_low > 0]
    shown = f"The interval of R is above 0 in {', '.join(above)}"
    assert result == (shown if above else "Nowhere is the interval of R above 0")
    assert len(as_object(report)["analysis"]["looks"]) == len(rules) + 1


def test_without_probabilities_a_shorter_answer_counts_as_more_confident() -> None:
    routes = Layout.full(2, 2)
    by_probability = confidence_rules.ConfidenceRule(1, 0.834, 2, 5)
    assert by_probability.name(("nano", "calc"), routes).startswith("calc 0.83 sure: ")
    by_length = confidence_rules.ConfidenceRule(1, -12.0, 2, 5)
    assert by_length.name(("a", "b"), routes).startswith("b up to 12 tokens: ")
    fixed = confidence_rules.ConfidenceRule(None, -np.inf, 3, 3)
    assert fixed.name(("a", "b"), routes) == routes.name(3, ("a", "b"))
    tree = random_tree(routes, 30, 3)
    blind = confidence_rules.fit_rule(tree, np.full((30, 2), np.nan), 0.1)
    assert blind.first is None
    assert blind.confident_node == bounds.best_ending(tree, 0.1)


# --- whether choices are the best as often as was said: plain loops, and a tree where it is known


@unhurried
@given(small_trees, alphas, st.booleans(), st.booleans(), seeds)
def test_decisions_are_those_that_playing_every_choice_gives(
    tree: RouteTree, alpha: float, stop: bool, returns: bool, seed: int
) -> None:
    tree = returning(tree, returns)
    models = len(tree.models)
    table = table_for(tree, Actions(tree.layout, stop), seed)
    calls = 2 * models if stop else models

    def follow(query: int, path: Hops, action: int) -> tuple[float, Hops | None]:
        """R of the episode if one goes on greedily, and the state after the action."""
        if action >= calls:
            return worth(tree, query, path, action - calls + 1, alpha), None
        longer = (*path, action % models)
        if action >= models or (len(longer) == tree.hops and not returns):
            return worth(tree, query, longer, len(longer), alpha), None
        return follow(query, longer, int(table[query, node(tree, longer)].argmax()))[0], longer

    expected = []
    for query in range(len(tree)):
        path: Hops | None = ()
        while path is not None:
            row = table[query, node(tree, path)]
            played = {int(at): follow(query, path, int(at)) for at in np.flatnonzero(row)}
            reward, after = played[int(row.argmax())]
            if len(played) > 1:
                is_best = max(one for one, _ in played.values()) <= reward + bounds.REWARD_ROUNDING
                expected.append((query, row.max(), is_best))
            path = after
    actions = Actions(tree.layout, stop)
    choice = table.argmax(axis=2)
    *columns, weight = bounds.greedy_decisions(tree, actions, choice, table.max(axis=2), alpha)
    found = zip(*columns, strict=True)
    assert (weight == 1).all()
    assert sorted(found) == sorted(expected)


def test_all_decisions_of_a_query_are_drawn_with_it() -> None:
    best = np.random.default_rng(0).random(40) < 0.7
    draws = np.random.default_rng(1)
    single = interval(best.astype(float), 500, rng=draws, within=SHARES)
    for times in (1, 2):  # said twice it is no surer
        query, rng = np.repeat(np.arange(7, 47), times), np.random.default_rng(1)
        found = share_interval(query, best.repeat(times), 500, 0.95, rng)
        assert found == pytest.approx(single, abs=2e-3)


def test_a_decision_counts_by_its_weight() -> None:
    """A decision that is due half as often counts as half of one."""
    best = np.random.default_rng(0).random(40) < 0.7
    query = np.arange(40).repeat(2)
    draws = [np.random.default_rng(1) for _ in range(2)]
    # In each query one decision of weight 3 and one of weight 1, or four of which three are equal.
    both = np.stack([best, ~best], axis=1).ravel()
    weighted = share_interval(query, both, 500, 0.95, draws[0], np.tile([0.75, 0.25], 40))
    listed = np.stack([best, best, best, ~best], axis=1).ravel()
    assert weighted == pytest.approx(
        share_interval(np.arange(40).repeat(4), listed, 500, 0.95, draws[1])
    )


def test_a_report_shows_how_right_a_value_model_is_and_of_no_other_router() -> None:
    """Two questions: what comes first is certain, the second choice is right twice in three."""
    tree, free = two_step_tree(models=2, view="query"), Objective(0.0)
    trained, exact = (train(tree, free, config, 0) for config in (VALUE, EXACT_GLIMPSE))
    report = report_on_fold(tree, 0.0, trained, None, {}, bootstrap=Bootstrap(n=500))
    second, first = report.reliability
    assert [(row.least, row.below, row.n) for row in (second, first)] == [
        (0.5, 0.7, 30),
        (0.9, None, 30),
    ]
    assert (second.said, second.best) == (pytest.approx(2 / 3, abs=0.06), pytest.approx(2 / 3))
    assert second.best_low < 0.55 and second.best_high > 0.75
    assert first.best == 1
    assert 0.85 < first.best_low < 1  # 30 decisions do not show that a question is never missed
    table = named_tables(report)["reliability"]
    assert (
        table.cell_texts()[0][:2] == ["0.5 to 0.7", "30"] and table.cell_texts()[1][0] == "0.9 to 1"
    )
    assert len(as_object(report)["analysis"]["reliability"]) == 2
    fixed = replace(trained, constant=Constant(3, 0.0, 0.0, 0.0, 0))
    for other, alpha in ((exact, 0.0), (fixed, 0.0), (trained, 0.1)):
        report = report_on_fold(tree, alpha, other, None, {}, bootstrap=Bootstrap(n=50))
        assert report.reliability == () and "reliability" not in named_tables(report)
        assert as_object(report)["analysis"]["reliability"] == []

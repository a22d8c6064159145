"""What a look at the first answer is worth."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hierrouter as hr
from hierrouter.evaluation import bounds, looks
from hierrouter.evaluation.outcome import Actions
from hierrouter.replay.tree import first_sureness
from hierrouter.reports.evaluated import report_on
from hierrouter.reports.report import as_object
from hierrouter.reports.tables import looks_table
from hierrouter.reports.values import Bootstrap
from hierrouter_cache.tree import Routes
from tests.hierrouter.evaluation.enumeration import alphas, seeds, unhurried
from tests.hierrouter.trees import random_tree

shapes = st.sampled_from([Routes(1, 2), Routes(2, 1), Routes(3, 2), Routes(2, 3)])


@unhurried
@given(shapes, st.integers(2, 24), seeds, alphas, st.booleans(), st.booleans())
def test_no_rule_of_one_look_is_better_on_the_fold_it_is_fitted_on(
    routes: Routes, queries: int, seed: int, alpha: float, stop: bool, coarse: bool
) -> None:
    tree, rng = random_tree(routes, queries, seed), np.random.default_rng(seed)
    sure = rng.integers(0, 4, (queries, routes.models)) / 4 if coarse else rng.random((queries, 1))
    sure = np.broadcast_to(sure, (queries, routes.models)).copy()
    sure[rng.random(sure.shape) < 0.1] = np.nan
    reward, rows = tree.node_reward(alpha), np.arange(queries)
    rule = looks.fit(tree, sure, alpha, stop)
    found = reward[rows, rule.nodes(sure)].sum()
    endings = range(routes.nodes)[Actions(routes, stop).endings]
    best = max(reward[:, node].sum() for node in endings)
    for first in range(routes.models):
        under = [node for node in endings if routes.path(node)[0] == first]
        for least in np.unique(sure[~np.isnan(sure[:, first]), first]):
            is_sure = sure[:, first] >= least
            if min(is_sure.sum(), (~is_sure).sum()) < looks.SMALLEST_SIDE:
                continue
            sides = (reward[side][:, under].sum(axis=0).max() for side in (is_sure, ~is_sure))
            best = max(best, sum(sides))
    assert found == pytest.approx(best)


def test_a_dataset_without_train_questions_follows_the_rule_of_all() -> None:
    tree = replace(random_tree(Routes(2, 2), 40, 1), datasets=("a",) * 20 + ("b",) * 20)
    sure = np.random.default_rng(0).random((40, 2))
    train, shown = ((tree.select(at), sure[at]) for at in (np.arange(20), np.arange(20, 40)))
    rules, looked = looks.looks_per_dataset(train, shown, 0.1)
    assert list(rules) == ["b"]
    assert rules["b"] == looks.fit(*train, 0.1)
    expected = tree.score[np.arange(20, 40), rules["b"].nodes(shown[1])]
    assert np.array_equal(looked.quality, expected)


def test_a_report_says_what_a_look_is_worth_and_costs(testbed_cache: Path) -> None:
    tree = hr.open(testbed_cache, state="query")
    report = report_on(tree, 1.0, None, None, {}, bootstrap=Bootstrap(n=50))
    sure, fold = first_sureness(tree), tree.split("test")
    assert ((sure > 0) & (sure <= 1)).all()
    train = tree.split("train"), sure[tree.rows("train")]
    rules, looked = looks.looks_per_dataset(train, (fold, sure[tree.rows("test")]), 1.0)
    more = looked.reward(1.0) - bounds.best_route_per_dataset(train[0], 1.0, fold).reward(1.0)
    [whole] = [row for row in report.looks if row.dataset == "all"]
    assert whole.reward == pytest.approx(more.mean())
    assert whole.reward == pytest.approx(whole.quality - whole.cost)
    assert [row.policy for row in report.looks][:-1] == [
        rule.name(tree.models, tree.routes) for rule in rules.values()
    ]
    table = looks_table(report)
    assert table.note.startswith("It pays ")
    pays = table.note.partition(", with an interval")[0].removeprefix("It pays in ").split(", ")
    above = [row.dataset for row in report.looks[:-1] if row.reward_low > 0]
    assert pays == (above or ["It pays nowhere here"])
    assert len(as_object(report)["analysis"]["looks"]) == len(rules) + 1


def test_where_no_engine_told_the_length_of_an_answer_stands_for_it() -> None:
    routes = Routes(2, 2)
    assert looks.Look(1, 0.834, 2, 5).name(("nano", "calc"), routes).startswith("calc 0.83 sure: ")
    assert looks.Look(1, -12.0, 2, 5).name(("a", "b"), routes).startswith("b up to 12 tokens: ")
    assert looks.Look(None, -np.inf, 3, 3).name(("a", "b"), routes) == routes.name(3, ("a", "b"))
    tree = random_tree(routes, 30, 3)
    blind = looks.fit(tree, np.full((30, 2), np.nan), 0.1)
    assert blind.first is None
    assert blind.sure == bounds.best_ending(tree, 0.1)

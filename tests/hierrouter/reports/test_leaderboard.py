"""Everybody at several alphas: what is trained, chosen and shown."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.leaderboard import (
    Leaderboard,
    Learner,
    as_json,
    leaderboard,
    leaderboard_tables,
    mean_outcome,
    middle_alpha,
)
from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.outcome import Outcome
from hierrouter.evaluation.policies import own_policies
from hierrouter.learning.baselines.registry import baselines
from hierrouter.learning.config import Objective, ValueConfig, training_config
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.replay.opening import Selection, open_tree, training_tree
from hierrouter.replay.tree import Tree
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes
from tests.hierrouter.evaluation.enumeration import oracle_break_points
from tests.hierrouter.trees import random_tree

SEEING = Learner("exact", "query+signals", allow_return=True)
FITTED = Learner("value", "query", allow_return=False)
TRIED = (Learner("exact", "query", allow_return=False), SEEING, FITTED)
ALPHAS = (0.2, 0.05)


@pytest.fixture(scope="module")
def found(testbed_cache: Path) -> Leaderboard:
    def opens(view: str, allow_return: bool) -> Tree:
        return open_tree(testbed_cache, Selection(view=view, allow_return=allow_return))

    return leaderboard(
        opens,
        baselines(["best-static", "cascade"]),
        ("A",),
        own_policies([lambda seen: 0]),
        alphas=ALPHAS,
        seeds=1,
        learners=TRIED,
    )


def test_everybody_is_there_and_worth_what_it_is_worth_alone(
    found: Leaderboard, testbed_cache: Path
) -> None:
    names = [place.name for place in found.places]
    assert names[:5] == [*(one.name for one in TRIED), "best static on A", "cascade on A"]
    assert [place.is_blind for place in found.places[:5]] == [True, False, True, True, False]
    assert (found.alphas, found.reward.shape[:2]) == ((0.05, 0.2), (2, len(names)))
    tree = open_tree(testbed_cache, Selection(view=SEEING.view, allow_return=True))
    fold = tree.split("test")
    config = training_config("default", "exact")
    router = train(training_tree(tree), Objective(0.2, True, True), config, 42)
    assert np.array_equal(found.reward[1, 1], router.outcome(fold).reward(0.2))
    asked = open_tree(testbed_cache, Selection(view=FITTED.view))
    may, fitted = Objective(0.0, allow_stop=True), ValueConfig()
    swept = train_sweep(training_tree(asked), found.alphas, may, fitted, 42)
    reached = swept.at(0.2).outcome(asked.split("test"))
    assert np.array_equal(found.reward[1, 2], reached.reward(0.2))
    for at, alpha in enumerate(found.alphas):
        best = found.reward[at, found.find("anytime oracle")]
        assert np.array_equal(best, oracle(fold, alpha, True).reward(alpha))
        assert (found.reward[at] <= best + 1e-9)[[0, 1, 2, 5]].all()  # direct calls are no routes
        fixed = best_fixed_route(tree.split("train"), alpha, fold, True)
        assert np.array_equal(found.reward[at, found.find("best fixed route")], fixed.reward(alpha))


def test_who_is_compared_was_chosen_on_validation(found: Leaderboard) -> None:
    for at in range(2):
        for is_blind, members in ((True, (0, 2, 3)), (False, (1, 4, 5))):
            tried = {place: found.places[place].validation[at] for place in members}
            assert found.chosen(at, is_blind) == max(tried, key=tried.__getitem__)
    same = found.difference(0, 1, 1)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    nobody = Leaderboard(ALPHAS, (), found.reward, found.bootstrap, "test", 1, "")
    with pytest.raises(InputError, match="nobody to compare"):
        nobody.chosen(0, True)


def test_tables_and_json_hold_the_same(found: Leaderboard) -> None:
    ranks, looks = leaderboard_tables(found)
    means = found.reward.mean(axis=(0, 2))
    assert [line.cells[0] for line in ranks.rows] == [
        found.places[place].name for place in np.argsort(-means, kind="stable")
    ]
    assert [line.cells[0] for line in looks.rows] == [0.05, 0.2]
    told = json.loads(as_json(found))
    assert len(told["rows"]) == 2 * len(found.places)
    [row] = [r for r in told["rows"] if r["policy"] == SEEING.name and r["alpha"] == 0.2]
    assert row["reward"] == pytest.approx(found.reward[1, 1].mean())
    assert row["reward"] == pytest.approx(row["quality"] - 0.2 * row["cost"])


def test_the_middle_alpha_is_where_routing_matters_most(testbed_cache: Path) -> None:
    tree = open_tree(testbed_cache)
    train_fold, middle = tree.split("train"), middle_alpha(tree)

    def gap(alpha: float) -> float:
        best = oracle(train_fold, alpha, True).reward(alpha)
        return float(
            np.mean(best - best_fixed_route(train_fold, alpha, train_fold, True).reward(alpha))
        )

    assert gap(middle) > max(gap(middle / 10), gap(middle * 10))


def test_an_alpha_at_which_nothing_is_earned_is_no_middle_one() -> None:
    tree = random_tree(Routes(2, 2), 30, 1)
    train_fold, middle = tree.split("train"), middle_alpha(tree)
    highest = oracle_break_points(train_fold, allow_stop=True)[-1]

    def worth(alpha: float) -> tuple[float, float]:
        fixed = best_fixed_route(train_fold, alpha, train_fold, True).reward(alpha).mean()
        return float(fixed), float(oracle(train_fold, alpha, True).reward(alpha).mean() - fixed)

    assert worth(highest)[0] < 0 < worth(middle)[0]
    assert worth(highest)[1] > worth(middle)[1]


def test_the_mean_of_policies_is_that_of_each_query() -> None:
    one = Outcome("one", "router", np.array([1.0, 0.0, 0.5]), np.array([1.0, 0, 0]), np.arange(3.0))
    other = Outcome("two", "route", np.array([0.0, 0.0, 1.0]), np.ones(3), np.array([2.0, 5, 0]))
    mean = mean_outcome([one, other])
    assert (mean.name, mean.kind) == ("one", "router")
    assert mean.quality.tolist() == [0.5, 0.0, 0.75]
    assert mean.accuracy.tolist() == [1.0, 0.5, 0.5]
    assert mean.cost.tolist() == [1.0, 3.0, 1.0]

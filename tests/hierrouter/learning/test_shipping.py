"""A run that shows no gain is a constant choice, says so, and does no harm."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.evaluation.outcome import Actions, fixed_route
from hierrouter.learning.config import ExactConfig, Objective, TrainConfig
from hierrouter.learning.sweep import TrainedSweep, train_sweep
from hierrouter.learning.training import Constant, TrainedRouter, train
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.learning.test_value import odd
from tests.hierrouter.learning.trainings import ALPHA, GRID, OBJECTIVE, VALUE, decided, digest
from tests.hierrouter.trees import planted_tree, random_tree

QUICK = ExactConfig(epochs=3, queries=8, steps=10, hidden=16)
each_way = pytest.mark.parametrize("config", [QUICK, VALUE], ids=["exact", "value"])
ANY = Constant(1, 0.0, 0.0, 0.0, 0)


def split(tree: RouteTree) -> RouteTree:
    """Three queries of five to train on, one to choose on, one to test."""
    folds = np.array(["train", "train", "train", "validation", "test"])
    return replace(tree, splits=tuple(folds[np.arange(len(tree)) % 5].tolist()), encoder="planted")


@pytest.fixture(scope="module")
def noise() -> RouteTree:
    """Nothing that is seen tells anything."""
    return split(random_tree(Routes(3, 2), 100, seed=3))


@pytest.mark.parametrize(("stop", "give"), [(True, False), (False, True), (True, True)])
def test_a_constant_choice_is_the_fixed_route(noise: RouteTree, stop: bool, give: bool) -> None:
    trained = train(noise, replace(OBJECTIVE, allow_stop=stop), replace(QUICK, epochs=1), 0)
    trained = replace(trained, objective=Objective(ALPHA, stop, allow_return=give))
    for node in range(1, noise.routes.nodes):
        found = replace(trained, constant=replace(ANY, node=node)).outcome(noise)
        expected = fixed_route(noise, node)
        np.testing.assert_array_equal(found.quality, expected.quality)
        np.testing.assert_array_equal(found.cost, expected.cost)
        table = replace(ANY, node=node).policy(trained.actions)
        assert (table.astype(bool) <= trained.actions.legal()).all()


def test_without_stop_it_ends_at_a_leaf(noise: RouteTree) -> None:
    actions = Actions(noise.routes)
    assert replace(ANY, node=5).policy(actions)[[0, 1]].argmax(axis=1).tolist() == [0, 1]


@each_way
def test_where_there_is_nothing_to_learn_it_is_a_constant(
    noise: RouteTree, config: TrainConfig
) -> None:
    learned = train(noise, OBJECTIVE, config, 0)
    found = learned.with_fallback(noise)
    assert found.constant and found.constant.low <= 0
    assert replace(found, constant=None) == learned
    table = found.probabilities(noise.split("test"))
    assert (table == table[0]).all() and set(np.unique(table)) == {0, 1}
    live = np.zeros(noise.dim, dtype=np.float32)
    np.testing.assert_array_equal(decided(found, live, (), 0.0), table[0, 0])
    said = found.why_constant
    route = noise.routes.name(found.constant.node, noise.models)
    assert said.startswith(f"nothing learnable here at alpha {ALPHA}: always {route}; the best")
    assert learned.why_constant == ""
    assert found.constant.judged == len(learned.judging_fold(noise))


@pytest.mark.parametrize(("needed", "judged"), [(2, 600), (600, 600), (601, 600), (787, 90)])
def test_no_fewer_questions_are_named_than_were_judged(
    noise: RouteTree, needed: int, judged: int
) -> None:
    constant = Constant(4, -0.002, -0.004, 0.001, needed, judged)
    said = constant.sentence(ALPHA, Actions(noise.routes), noise.models)
    [named] = re.findall(r"(\d+) questions could show a gain of 0.01$", said)
    assert int(named) == max(needed, judged)
    assert (" about " in said) == (needed > judged)


@pytest.mark.parametrize(
    "config", [ExactConfig(epochs=24, hidden=32), VALUE], ids=["exact", "value"]
)
def test_where_there_is_something_it_is_the_router(config: TrainConfig) -> None:
    tree = replace(planted_tree(per_family=(30, 15, 5), dim=32), encoder="planted")
    learned = train(tree, OBJECTIVE, config, 0)
    assert learned.with_fallback(tree) is learned


def test_who_wants_it_keeps_it(noise: RouteTree) -> None:
    kept = train(noise, OBJECTIVE, replace(QUICK, keep_anyway=True), 0)
    assert kept.with_fallback(noise) is kept


ODD = (
    *("one query", "fewer queries than positions", "constant scores", "free", "one model"),
    "prices apart by a million",
)


@each_way
@pytest.mark.parametrize("name", ODD)
def test_odd_trees_give_a_constant_choice_or_a_router_and_no_error(
    noise: RouteTree, name: str, config: TrainConfig
) -> None:
    tree = odd(noise)[name]
    found = train(tree, OBJECTIVE, config, 0).with_fallback(tree)
    assert np.isfinite(found.outcome(tree).reward(ALPHA)).all()
    if name in ("one query", "constant scores", "one model"):
        assert found.constant and found.why_constant


def test_a_sweep_decides_for_each_alpha_and_for_those_between(noise: RouteTree) -> None:
    swept = train_sweep(noise, GRID, OBJECTIVE, VALUE, 0).with_fallback(noise)
    assert len(swept.constants) == len(GRID)
    told = replace(swept, constants=(replace(ANY, node=4), None, replace(ANY, node=6)))
    nodes = [
        one.constant and one.constant.node for one in map(told.at, (0, ALPHA, 0.05, 0.04, 9.0))
    ]
    assert nodes == [4, None, 6, 6, 6]
    assert [each.constant for each in (told.at(0.0), told.at(ALPHA * 1.5))] == [
        told.constants[0],
        None,
    ]


@each_way
def test_a_checkpoint_keeps_it(noise: RouteTree, config: TrainConfig, tmp_path: Path) -> None:
    found = train(noise, OBJECTIVE, config, 0).with_fallback(noise)
    save_checkpoint(found, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter) and loaded.constant == found.constant
    assert digest(loaded, tmp_path / "a") == digest(found, tmp_path / "b")
    swept = train_sweep(noise, GRID, OBJECTIVE, VALUE, 0).with_fallback(noise)
    save_checkpoint(swept, tmp_path)
    again = load_checkpoint(tmp_path)
    assert isinstance(again, TrainedSweep) and again.constants == swept.constants

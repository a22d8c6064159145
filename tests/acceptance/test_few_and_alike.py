"""Questions that teach nothing: few, all alike, or in groups of one, for every way to learn.

Each ends in a sentence and a constant, or in a router with figures; never in a crash, and never in
an interval of no width.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierrouter.learning.baselines.contest import contest
from hierrouter.learning.baselines.registry import baselines
from hierrouter.learning.config import (
    CONFIG_CLASSES,
    BestConfig,
    ExactConfig,
    Objective,
    PPOConfig,
    TrainConfig,
    ignore_epoch,
    preset,
)
from hierrouter.learning.cross_fit import Repetition
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.reports import comparison
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.explain import list_routes
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.report import as_object
from hierrouter.reports.sentences import message
from hierrouter.reports.tables import named_tables
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter.runs.training import Training
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import one_part, planted_tree, random_tree

ALPHA = 0.05
QUICK = Bootstrap(n=100)
SMALL: dict[str, Any] = {"epochs": 2, "hidden": 8}
CONFIGS: dict[str, TrainConfig] = {
    **{algo: preset("default", algo) for algo in CONFIG_CLASSES},
    "ppo": PPOConfig(rollouts=32, minibatches=2, **SMALL),
    "exact": ExactConfig(queries=8, steps=2, **SMALL),
    "best": BestConfig(classes="groups,clusters,ridge,value,mean"),
}


def _families() -> RouteTree:
    """Three families of twelve questions, each with its route."""
    return planted_tree(families=3, per_family=(6, 2, 4), dim=8, noise=0.3)


def _alone() -> RouteTree:
    tree = _families()
    row = tree.splits.index("train")
    return replace(tree, datasets=(*tree.datasets[:row], "alone", *tree.datasets[row + 1 :]))


def _all_equal() -> RouteTree:
    """Every route is as good and as dear on each question, in every group."""
    tree = random_tree(Layout.full(2, 2), 24, seed=3)
    ones = np.ones_like(tree.tokens_in)
    return replace(
        tree,
        score=np.full_like(tree.score, 0.5),
        tokens_in=ones,
        tokens_out=ones,
        rate=np.full_like(tree.rate, 0.25),
        splits=("train", "validation", "test", "test") * 6,
        datasets=("left", "right", "middle") * 8,
    )


def _few(count: int) -> RouteTree:
    splits = ("train", "test", "validation")[:count]
    tree = random_tree(Layout.full(3, 2), count, seed=4)
    return replace(
        tree, splits=splits, datasets=tuple(f"group-{number}" for number in range(count))
    )


WORLDS: dict[str, Callable[[], RouteTree]] = {
    "a group with one question": _alone,
    "each question its own group": lambda: replace(
        _families(), datasets=tuple(f"group-{number}" for number in range(len(_families())))
    ),
    "one data set": lambda: replace(_families(), datasets=("one",) * len(_families())),
    "all groups equal": _all_equal,
    "an embedding of zeros": lambda: _with_vectors(0.0),
    "an embedding of constants": lambda: _with_vectors(1.0),
    "two questions": lambda: _few(2),
    "three questions": lambda: _few(3),
}
# The others repeat what these show.
QUICK_WORLDS = (
    *("a group with one question", "all groups equal"),
    *("an embedding of constants", "two questions"),
)
each_world = pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, marks=() if world in QUICK_WORLDS else pytest.mark.slow)
        for world in WORLDS
    ],
)
each_algo = pytest.mark.parametrize("algo", CONFIGS)


def _with_vectors(value: float) -> RouteTree:
    tree = _families()
    return replace(tree, parts=one_part(np.full_like(tree.embedding, value)))


@cache
def tree_of(world: str) -> RouteTree:
    return replace(WORLDS[world](), encoder="planted")


@cache
def shipped(world: str, algo: str) -> TrainedRouter:
    """The router that `train` ships."""
    training = Training(Objective(ALPHA), CONFIGS[algo], 0)
    tree = tree_of(world)
    policy = training.shipped(training.fit(tree, ignore_epoch), tree, Repetition().context)
    assert isinstance(policy, TrainedRouter)
    return policy


def without_width(values: Any, place: str = "") -> Iterator[str]:
    """The places in a JSON object at which an interval has no width."""
    if isinstance(values, list):
        for number, value in enumerate(values):
            yield from without_width(value, f"{place}[{number}]")
    elif isinstance(values, dict):
        for key, value in values.items():
            other = values.get(key.replace("low", "high"))
            if key.endswith("low") and isinstance(value, float) and other is not None:
                if not value < other:
                    yield f"{place}.{key}: {value}"
            elif key != "deciding_alphas":
                yield from without_width(value, f"{place}.{key}")


def test_an_interval_without_width_is_found() -> None:
    told = {"rows": [{"reward_low": 0.5, "reward_high": 0.5}, {"low": 0.1, "high": 0.2}]}
    assert list(without_width(told)) == [".rows[0].reward_low: 0.5"]


@each_world
@each_algo
def test_a_training_ends_in_a_sentence_and_a_report_has_wide_intervals(
    world: str, algo: str
) -> None:
    tree = tree_of(world)
    router = shipped(world, algo)
    assert router.constant is None or router.why_constant
    report = report_on_fold(tree, ALPHA, router, None, {}, "test", QUICK)
    assert message(report).startswith("HierRouter ")
    assert [table.title for table in named_tables(report).values()]
    assert list(without_width(as_object(report))) == []
    if world in ("all groups equal", "two questions", "three questions"):
        assert router.constant is not None


@each_world
@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(algo, marks=pytest.mark.slow if algo in ("ppo", "exact") else ())
        for algo in CONFIGS
    ],
)
def test_a_sweep_reports_every_alpha(world: str, algo: str) -> None:
    tree = tree_of(world)
    training = Training(Objective(ALPHA), CONFIGS[algo], 0, (0.0, ALPHA))
    sweep = training.shipped(training.fit(tree, ignore_epoch), tree, Repetition().context)
    assert isinstance(sweep, TrainedSweep)
    report = report_on_fold(tree, ALPHA, sweep.at(ALPHA), sweep, {}, "test", QUICK)
    assert list(without_width(as_object(report))) == []
    for alpha in (0.0, ALPHA / 2, 1e6):
        assert np.isfinite(sweep.at(alpha).outcome(tree).reward(alpha)).all()


@each_world
def test_baselines_compare_with_a_table_of_routes(world: str) -> None:
    tree = tree_of(world)
    result = contest(tree, ALPHA, baselines(), trained=shipped(world, "groups"))
    standings = comparison.build_standings(result, tree.scorer, {}, QUICK)
    assert len(standings.rows) > 10
    assert all(table.rows for table in comparison.named_tables(standings).values())
    rows = [vars(row) | {"entry": None} for row in (*standings.rows, *standings.values)]
    assert list(without_width(rows)) == []


@each_world
@each_algo
def test_a_live_question_of_an_unknown_group_is_decided(
    world: str, algo: str, tmp_path: Path
) -> None:
    """The run that was saved answers, whatever the question looks like."""
    save_checkpoint(shipped(world, algo), tmp_path)
    router = load_checkpoint(tmp_path)
    assert isinstance(router, TrainedRouter)
    embedding = np.zeros((2, tree_of(world).dim), np.float32)
    groups = ("never seen", "")
    states = router.live_states(embedding, [()] * 2, [0.0] * 2, groups)
    chances = router.decide_each(states)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    if router.constant is not None:
        np.testing.assert_array_equal(chances[0], chances[1])
    assert router.lacks_group("never seen") == bool(router.router.groups and not router.constant)


@each_world
@pytest.mark.parametrize("algo", ["groups", "clusters", "value", "mean", "best"])
def test_the_routes_of_a_table_or_a_constant_are_listed(world: str, algo: str) -> None:
    tree = tree_of(world)
    router = shipped(world, algo)
    is_table = algo in ("groups", "clusters") or router.origin.config.algo in ("groups", "clusters")
    if router.constant is None and not is_table:
        with pytest.raises(InputError, match="decides question by question"):
            list_routes(router, tree)
        return
    listed = list_routes(router, tree)
    *groups, of_all = listed.routes
    assert of_all.group == "" and of_all.gain == 0
    assert of_all.questions == len(tree) - tree.splits.count("test")
    assert sum(route.questions for route in groups) in (0, of_all.questions)
    assert all(route.gain >= 0 for route in groups)
    assert len(listed.table.rows) == len(listed.routes)

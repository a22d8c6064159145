"""Several routers, each without one part of the queries: who learns what, and who is asked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.learning import loop
from hierrouter.learning.checkpoint import load_checkpoint, save_checkpoint
from hierrouter.learning.loop import Watch, parts_of
from hierrouter.learning.training import TrainedRouter, train
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import (
    ALPHA,
    OBJECTIVE,
    SEVERAL_GLIMPSE,
    decided,
    small_tree,
    sweep_glimpse,
)
from tests.hierrouter.trees import planted_tree

FOLDS = SEVERAL_GLIMPSE.folds


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return small_tree()


@pytest.fixture(scope="module")
def trained(tree: RouteTree) -> TrainedRouter:
    return train(tree, OBJECTIVE, SEVERAL_GLIMPSE, 0)


def by_member(trained: TrainedRouter, tree: RouteTree) -> np.ndarray:
    """float64[members, queries, S, A]: what each would do alone."""
    alone = [replace(trained, router=type(trained.router)([one])) for one in trained.router]
    return np.stack([each.probabilities(tree) for each in alone])


def test_who_has_not_seen_a_question_decides_on_it(tree: RouteTree, trained: TrainedRouter) -> None:
    every, found = by_member(trained, tree), trained.probabilities(tree)
    part, splits = parts_of(tree, FOLDS), np.array(tree.splits)
    for query in range(len(tree)):
        if splits[query] != "test":
            np.testing.assert_array_equal(found[query], every[part[query], query])
    together = np.exp(np.log(every).mean(axis=0))
    together /= together.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(found[splits == "test"], together[splits == "test"], atol=1e-6)
    assert len(np.unique(every.argmax(axis=3), axis=0)) > 1 or np.ptp(every, axis=0).max() > 1e-4


def test_a_member_knows_nothing_of_its_own_part(tree: RouteTree, trained: TrainedRouter) -> None:
    part, splits = parts_of(tree, FOLDS), np.array(tree.splits)
    spoilt = replace(tree, score=np.where((part == 1)[:, None], 1 - tree.score, tree.score))
    other = train(spoilt, OBJECTIVE, SEVERAL_GLIMPSE, 0)
    members = zip(trained.router, other.router, strict=True)
    same = [
        all(np.array_equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
        for one, two in members
    ]
    assert same == [False, True, False]
    assert (part[splits != "test"] == 1).any()


def test_its_values_are_those_of_the_parts(tree: RouteTree, trained: TrainedRouter) -> None:
    judged = trained.judged(tree)
    assert set(judged.splits) == {"train", "validation"} and len(judged) == 30
    part, reward = parts_of(judged, FOLDS), trained.outcome(judged).reward(ALPHA)
    assert trained.history == pytest.approx([reward[part == k].mean() for k in range(FOLDS)])


def test_live_all_decide_together(tree: RouteTree, trained: TrainedRouter) -> None:
    fold = tree.split("test")
    table, path = trained.probabilities(fold), fold.routes.path(2)
    live = fold.embedding_at(np.array([4]), np.array([2]))[0], path, float(fold.cost[4, 2])
    np.testing.assert_allclose(decided(trained, *live), table[4, 2], atol=1e-6)


def test_progress_goes_over_all_members(tree: RouteTree) -> None:
    told: list[tuple[int, int]] = []
    train(tree, OBJECTIVE, SEVERAL_GLIMPSE, 0, Watch(lambda *said: told.append(said[:2])))
    assert told == [(3, 9), (6, 9), (9, 9)]
    assert loop.epochs_in_all(tree, SEVERAL_GLIMPSE) == 9


def test_many_queries_have_one_router_and_few_may_be_one_alone() -> None:
    few = planted_tree(per_family=(2, 1, 1), dim=8)
    many = few.select(np.resize(np.arange(len(few)), loop.FEW * 2))
    assert (loop.folds_for(few, SEVERAL_GLIMPSE), loop.folds_for(many, SEVERAL_GLIMPSE)) == (3, 1)
    one = few.split("train").select(np.array([0]))
    alone = train(one, OBJECTIVE, SEVERAL_GLIMPSE, 0)
    assert len(alone.router) == FOLDS and np.isfinite(alone.history).all()


def test_a_committee_is_loaded_as_it_was(
    tree: RouteTree, trained: TrainedRouter, tmp_path: Path
) -> None:
    save_checkpoint(trained, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter) and len(loaded.router) == FOLDS
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))
    swept = sweep_glimpse(tree, config=SEVERAL_GLIMPSE)
    save_checkpoint(swept, tmp_path)
    again = load_checkpoint(tmp_path)
    expected = swept.at(0.03).probabilities(tree)
    np.testing.assert_array_equal(again.at(0.03).probabilities(tree), expected)  # type: ignore[union-attr]

"""Explained queries against the tree, the cache's own SQL, and the router's exact outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import Objective
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.opening import Selection, open_tree
from hierrouter.reports.explain import explain, worst_queries
from hierrouter.reports.values import Explained
from hierrouter_cache.errors import CacheError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE
from tests.hostile import HARM, collect_hostile

DEAR = 0.4  # an alpha at which short routes are the best ones
CALLS = """SELECT route, hop, model, response, tokens_in, tokens_out, total_cost FROM nodes
WHERE hop > 0 AND dataset || '/' || id = '{name}'"""


@pytest.fixture(scope="module")
def tree(testbed_cache: Path) -> RouteTree:
    return open_tree(testbed_cache)


@pytest.fixture(scope="module", params=[(ALPHA, False), (DEAR, True)], ids=["full", "stop"])
def trained(request: pytest.FixtureRequest, tree: RouteTree) -> TrainedRouter:
    alpha, stop = request.param
    return train(tree, Objective(alpha, allow_stop=stop), EXACT_GLIMPSE, 0)


@pytest.fixture(scope="module")
def all_of_test(testbed_cache: Path, tree: RouteTree, trained: TrainedRouter) -> list[Explained]:
    rows = np.flatnonzero(np.array(tree.splits) == "test").tolist()
    return explain(testbed_cache, tree, rows, trained.alpha, trained)


def test_nodes_are_those_of_tree_and_cache(testbed_cache: Path, tree: RouteTree) -> None:
    [found] = explain(testbed_cache, tree, [7], ALPHA)
    stored = ask_cache(testbed_cache, CALLS.format(name=found.name)).to_pylist()
    assert len(found.nodes) == len(stored) == tree.routes.calls
    by_route = {row["route"]: row for row in stored}
    for node in found.nodes:
        row = by_route[node.route]
        assert (node.model, node.answer) == (row["model"], row["response"])
        assert (node.tokens_in, node.tokens_out) == (row["tokens_in"], row["tokens_out"])
        assert node.cost == pytest.approx(row["total_cost"])
        assert node.quality == tree.score[7, node.number]
        assert node.accuracy == tree.accuracy[7, node.number]
        assert node.reward == tree.node_reward(ALPHA)[7, node.number]
        assert len(found.on_way(node.number)) == row["hop"]
    question = ask_cache(testbed_cache, f"SELECT * FROM queries WHERE id = '{found.id}'")
    [asked] = question.to_pylist()
    assert (found.question, list(found.references)) == (asked["question"], asked["answers"])
    assert (found.dataset, found.split) == (asked["dataset"], asked["split"])


def test_without_a_router_there_is_no_route_of_its(testbed_cache: Path, tree: RouteTree) -> None:
    [found] = explain(testbed_cache, tree, [0], ALPHA)
    assert found.router is None and found.regret is None


def test_routes_are_worth_what_the_outcomes_say(
    tree: RouteTree, trained: TrainedRouter, all_of_test: list[Explained]
) -> None:
    """Summed up again over the fold: the router, the oracle, and the best fixed route."""
    fold, alpha, stop = tree.split("test"), trained.alpha, trained.objective.allow_stop
    fixed = best_fixed_route(tree.split("train"), alpha, fold, stop)
    assert {found.route(found.fixed) for found in all_of_test} == {fixed.name}
    for end, outcome in [
        (lambda found: found.router.node, trained.outcome(fold)),
        (lambda found: found.best, oracle(fold, alpha, stop)),
        (lambda found: found.fixed, fixed),
    ]:
        nodes = [found.node(end(found)) for found in all_of_test]
        assert [node.quality for node in nodes] == pytest.approx(outcome.quality.tolist())
        assert [node.cost for node in nodes] == pytest.approx(outcome.cost.tolist())
        assert [node.reward for node in nodes] == pytest.approx(outcome.reward(alpha).tolist())


def test_choices_are_those_of_the_greedy_policy(
    tree: RouteTree, trained: TrainedRouter, all_of_test: list[Explained]
) -> None:
    fold = tree.split("test")
    probabilities = trained.probabilities(fold)
    taken = greedy(probabilities, fold.base_rate).argmax(axis=2)
    for row, found in enumerate(all_of_test):
        way = found.on_way(found.router.node)
        assert [choice.state for choice in found.router.choices] == [0, *way[:-1]]
        for choice in found.router.choices:
            assert choice.probabilities == pytest.approx(probabilities[row, choice.state], abs=1e-6)
            assert choice.chosen == choice.actions[taken[row, choice.state]]
        last = found.router.choices[-1].chosen
        assert last.endswith(">stop") == (len(way) < tree.hops)
        assert found.route(found.router.node).endswith(">stop") == (len(way) < tree.hops)


def test_regret_is_the_sum_over_the_choices_and_by_hand(all_of_test: list[Explained]) -> None:
    for found in all_of_test:
        parts = [choice.regret for choice in found.router.choices]
        assert found.regret == pytest.approx(sum(parts), abs=1e-9)
        assert min(parts) >= -1e-12
    lost = max(all_of_test, key=lambda found: found.regret)
    assert lost.regret > 0.1
    first = lost.on_way(lost.router.node)[0]
    ends = [node for node in lost.nodes if first in lost.on_way(node.number)]
    if len(lost.router.choices) > 1:
        after = max(node.reward for node in ends if len(lost.on_way(node.number)) == lost.hops)
        before = lost.node(lost.best).reward
        assert lost.router.choices[0].regret == pytest.approx(before - after, abs=1e-9)


def test_the_worst_lose_most_and_nothing_lost_is_left_out(
    testbed_cache: Path, tree: RouteTree, trained: TrainedRouter, all_of_test: list[Explained]
) -> None:
    every = worst_queries(tree, "test", trained.alpha, trained, len(tree))
    regrets = {found.name: found.regret for found in all_of_test}
    shown = explain(testbed_cache, tree, every, trained.alpha, trained)
    ordered = [found.regret for found in shown]
    assert ordered == pytest.approx(sorted(ordered, reverse=True), abs=2e-9)
    assert {found.name for found in shown} == {n for n, lost in regrets.items() if lost > 1e-8}
    assert worst_queries(tree, "test", trained.alpha, trained, 3) == every[:3]
    assert {tree.splits[row] for row in every} == {"test"}


def test_the_fixed_route_is_chosen_on_train_alone(testbed_cache: Path, tree: RouteTree) -> None:
    no_train = replace(tree, splits=("test",) * len(tree))
    [found] = explain(testbed_cache, no_train, [0], ALPHA)
    assert found.fixed is None


def test_a_part_of_the_pool_has_its_own_nodes(testbed_cache: Path, tree: RouteTree) -> None:
    part = open_tree(testbed_cache, Selection(models=("facts", "calc")))
    [small], [whole] = (explain(testbed_cache, one, [3], ALPHA) for one in (part, tree))
    answers = {node.route: node.answer for node in whole.nodes}
    assert [node.route for node in small.below(0)] == ["facts", "calc"]
    assert all(node.answer == answers[node.route] for node in small.nodes)


def test_another_cache_is_refused(tmp_path: Path, tree: RouteTree) -> None:
    collect_hostile(tmp_path)
    with pytest.raises(CacheError, match="1 of 1 queries are not in the cache"):
        explain(tmp_path, tree, [0], ALPHA)


def test_hostile_answers_are_kept_as_they_are(tmp_path: Path) -> None:
    collect_hostile(tmp_path)
    tree = open_tree(tmp_path)
    found = explain(tmp_path, tree, list(range(len(HARM))), ALPHA)
    assert {node.answer for query in found for node in query.nodes} == set(HARM)
    assert [query.references for query in found] == [(text,) for text in HARM]

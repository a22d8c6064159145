"""What counts as another look at a contest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hierrouter.learning.baselines.arms import Play, Tuned
from hierrouter.learning.baselines.contest import contest, look_details
from hierrouter.learning.baselines.registry import OwnBaseline
from hierrouter.learning.baselines.simple import BestStatic
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005


class Always:
    """Takes one and the same arm."""

    name = "always"
    source = "a test"
    reads_answers = False

    def __init__(self, arm: int) -> None:
        self.arm = arm

    def fit(self, train, validation, alpha, rng) -> Tuned:
        return Tuned(lambda seen: Play.of(seen, [self.arm] * len(seen)), {})


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return planted_tree(per_family=(8, 4, 4))


def look(tree: RouteTree, arm: int, alpha: float = ALPHA) -> dict[str, Any]:
    baselines = (BestStatic(), OwnBaseline("mine:Always", Always(arm)))
    return look_details(contest(tree, alpha, baselines), baselines)


def test_an_edit_that_changes_a_figure_is_another_look(tree: RouteTree) -> None:
    assert look(tree, 0) == look(tree, 0)
    first, second = look(tree, 0), look(tree, 1)
    assert first != second
    assert {**first, "own": {}} == {**second, "own": {}}  # nothing else tells them apart


def test_a_look_is_json_and_names_who_took_part(tree: RouteTree) -> None:
    found = look(tree, 0)
    assert json.loads(json.dumps(found)) == found
    assert found["baselines"] == ["best static", "always"]
    assert found["own"].keys() == {"always"}


def test_built_in_baselines_are_known_by_name(tree: RouteTree) -> None:
    found = look_details(contest(tree, ALPHA, [BestStatic()]), [BestStatic()])
    assert found == {"alpha": ALPHA, "baselines": ["best static"], "sets": ["A", "B"], "seed": 42}


def test_who_was_left_out_was_not_looked_at(tree: RouteTree) -> None:
    reader = Always(0)
    reader.reads_answers = True  # and nobody loaded the texts
    baselines = (BestStatic(), OwnBaseline("mine:Always", reader))
    assert "own" not in look_details(contest(tree, ALPHA, baselines), baselines)

"""Which sets of arms a tree has."""

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import MOST_ROUTES, left_out, require_sets, usable_sets
from hierrouter.learning.baselines.contest import contest
from hierrouter.learning.baselines.simple import BestStatic
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree

BOTH = ("A", "B")
SMALL = {"families": 2, "per_family": (4, 2, 2), "dim": 8}


def as_imported(tree: RouteTree) -> RouteTree:
    """One hop, whose routes are the direct calls."""
    same = {
        name: np.pad(getattr(tree.direct, name)[:, : len(tree.models)], ((0, 0), (1, 0)))
        for name in ("score", "accuracy", "tokens_in", "tokens_out")
    }
    return replace(tree, **same)


@pytest.mark.parametrize(("names", "said"), [(["C"], "known: A, B"), (["A", "A"], "given twice")])
def test_wrong_sets_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        require_sets(names)


def test_both_sets_of_a_small_tree() -> None:
    assert usable_sets(planted_tree(**SMALL), BOTH) == BOTH


def test_direct_calls_are_not_compared_twice() -> None:
    tree = as_imported(planted_tree(hops=1, **SMALL))
    found = contest(tree, 0.005, (BestStatic(),))
    assert found.sets == ("A",)
    assert "Set B is left out: its routes are the direct calls of set A." in found.notes
    assert usable_sets(tree, ["B"]) == ("B",)


def test_one_hop_with_its_own_instruction_is_a_set_of_its_own() -> None:
    assert usable_sets(planted_tree(hops=1, **SMALL), BOTH) == BOTH


def test_too_many_routes_are_left_out_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = planted_tree(**SMALL)
    monkeypatch.setattr(arms, "MOST_ROUTES", 8)
    said = "9 routes, more than 8; take fewer --models or --hops"
    assert left_out(tree, BOTH) == {"B": said}
    assert f"Set B is left out: {said}." in contest(tree, 0.005, (BestStatic(),)).notes
    with pytest.raises(InputError, match="no arms to compare: --sets B; set B: 9 routes"):
        usable_sets(tree, ["B"])
    assert MOST_ROUTES > 125  # five models, three hops


def test_no_set_is_refused() -> None:
    with pytest.raises(InputError, match="no arms to compare: --sets ; name one"):
        usable_sets(planted_tree(**SMALL), [])

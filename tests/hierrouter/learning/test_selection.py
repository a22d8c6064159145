"""Which run is shown, what is said of it, and which runs are only named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.learning.checkpoint import finish_sweep, member_folder, save_checkpoint
from hierrouter.learning.selection import latest_run, overlooked_run, select_run
from hierrouter.learning.sweep import Sweep
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, RouteTree, repriced
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE, GRID, glimpse, small_tree
from tests.hierrouter.learning.runs import sweep_glimpse as glimpse_of_all

pytestmark = pytest.mark.usefixtures("place")


def trained(tree: RouteTree, name: str = "router", age: int = 0, alpha: float = ALPHA) -> Path:
    """A finished run of `train` that is so many seconds old."""
    folder = Path("runs") / name
    save_checkpoint(glimpse(tree, alpha=alpha, config=EXACT_GLIMPSE), folder)
    os.utime(folder / "policy.json", (1e9 - age, 1e9 - age))
    return folder


def swept(tree: RouteTree) -> Path:
    folder = Path("runs/sweep")
    network = glimpse_of_all(tree)
    save_checkpoint(network, member_folder(folder, 0))
    finish_sweep(folder, Sweep(GRID, (network,)), [0])
    return folder


def dear(tree: RouteTree) -> RouteTree:
    return repriced(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models})


def test_without_a_router_that_is_said() -> None:
    shown = select_run(small_tree(), 0.5)
    assert (shown.run, shown.trained, shown.alpha) == (None, None, 0.5)
    [said] = shown.remarks
    assert said == "no router trained on this tree; baselines only (`hierrouter train`)"


def test_a_router_shown_as_it_was_trained_needs_no_remark() -> None:
    tree = small_tree()
    run = trained(tree)
    shown = select_run(tree, None)
    assert (shown.run, shown.alpha, shown.remarks) == (run, ALPHA, ())
    assert shown.sweep is None


@pytest.mark.parametrize("alpha", [0.2, 0.05], ids=["between", "of the grid"])
def test_a_sweep_s_router_is_shown_where_no_other_is_for_this_alpha(alpha: float) -> None:
    tree = small_tree()
    trained(tree)
    run = swept(tree)
    shown = select_run(tree, alpha)
    assert shown.run == run and shown.trained and shown.trained.alpha == alpha
    [said] = shown.remarks
    assert said == (
        f"no run of `train` for alpha {alpha:g} on this tree; the sweep's network is shown, seed 0"
    )


def test_a_checkpoint_that_was_named_is_shown_whatever_its_alpha() -> None:
    tree = small_tree()
    run, sweep = trained(tree), swept(tree)
    shown = select_run(tree, 0.2, run, with_sweep=True)
    assert (shown.run, shown.sweep_run) == (run, sweep)
    assert shown.remarks == (f"the router was trained at alpha {ALPHA:g}, shown at 0.2",)


def test_other_prices_and_other_data_are_told_apart() -> None:
    tree = small_tree()
    run = trained(tree)
    assert select_run(dear(tree), None).remarks == (
        "the router was trained under other prices than shown here",
    )
    assert select_run(small_tree(seed=1), None, run).remarks == (
        "the router was trained on other data or scores than shown here",
    )


def test_a_newer_run_that_sees_otherwise_is_named_and_not_shown() -> None:
    tree = small_tree()
    run = trained(tree, "old", age=9)
    trained(replace(tree, view="query"), "new")
    shown = select_run(tree, None)
    assert shown.run == run
    assert shown.remarks == (
        "runs/new is not shown: it learned from this tree, seen in another way; "
        "add --state query to see it",
    )


def test_a_router_for_another_tree_is_refused_before_anything_is_shown() -> None:
    run = trained(small_tree())
    with pytest.raises(InputError, match="reads another view"):
        select_run(replace(small_tree(), view="query"), None, run)


def test_nothing_is_overlooked_where_there_is_nothing() -> None:
    assert latest_run(small_tree(), "train") is None
    assert overlooked_run(small_tree(), "train") is None


@pytest.mark.parametrize(("age", "is_told"), [(1, True), (9, False)], ids=["newer", "older"])
def test_a_run_that_reads_another_view_is_told_where_it_would_be_shown(
    age: int, is_told: bool
) -> None:
    tree = small_tree()
    shown, other = trained(tree, "a", 5), trained(replace(tree, view="query"), "b", age)
    assert latest_run(tree, "train") == shown
    told = overlooked_run(tree, "train")
    assert (told.folder if told else None) == (other if is_told else None)
    if told:
        assert (told.view, told.encoder, told.same_tree) == ("query", "planted", True)


def test_a_run_of_another_view_is_told_where_none_is_shown() -> None:
    other = trained(replace(small_tree(), view="query"), "b", 1)
    assert latest_run(small_tree(), "train") is None
    told = overlooked_run(small_tree(), "train")
    assert told is not None and told.folder == other


def test_a_run_of_the_alpha_asked_for_hides_a_newer_one_of_another_view() -> None:
    tree = small_tree()
    trained(tree, "a", 5, alpha=0.1)
    other = trained(replace(tree, view="query"), "b", 1, alpha=0.2)
    assert overlooked_run(tree, "train", 0.1) is None
    told = overlooked_run(tree, "train")
    assert told is not None and told.folder == other


def test_of_another_encoder_nobody_can_tell_which_tree_it_learned_from() -> None:
    """A fingerprint holds the encoder."""
    tree = small_tree()
    other = trained(replace(tree, encoder="elsewhere", content="f" * 32), "b", 1)
    told = overlooked_run(tree, "train")
    assert told is not None and (told.folder, told.same_tree) == (other, False)
    trained(tree, "a", 5)
    assert overlooked_run(tree, "train") is None


def test_a_run_on_other_data_is_nobodys() -> None:
    trained(replace(small_tree(seed=1), view="query"), "b", 1)
    assert overlooked_run(small_tree(), "train") is None

"""Which run is shown, what is said of it, and which runs are only named."""

from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.learning.checkpoint import member_folder, save_checkpoint
from hierrouter.learning.config import Objective
from hierrouter.learning.selection import latest_run, overlooked_run, select_run
from hierrouter.learning.sweep import Sweep, train_sweep
from hierrouter.learning.training import train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, RouteTree, repriced
from tests.hierrouter.learning import runs

pytestmark = pytest.mark.usefixtures("place")


def trained(
    tree: RouteTree,
    name: str = "router",
    age: int = 0,
    alpha: float = runs.ALPHA,
    objective: Objective | None = None,
) -> Path:
    """A finished run of `train`, after which so many others were finished."""
    folder = Path("runs") / name
    run = runs.finished(train(tree, objective or Objective(alpha), runs.EXACT_GLIMPSE, 0), folder)
    replace(run, seq=100 - age).write()
    return folder


def swept(tree: RouteTree, allow_stop: bool = False) -> Path:
    """A finished run of `sweep-alpha`."""
    folder, objective = Path("runs/sweep"), Objective(0.0, allow_stop)
    member = train_sweep(tree, runs.GRID, objective, runs.VALUE, seed=0)
    save_checkpoint(member, member_folder(folder, 0))
    runs.finished_sweep(folder, Sweep(runs.GRID, member))
    return folder


def test_without_a_router_that_is_said() -> None:
    shown = select_run(runs.small_tree(), 0.5)
    assert (shown.run, shown.trained, shown.alpha) == (None, None, 0.5)
    assert shown.remarks == ("no router trained on this tree; baselines only (`hierrouter train`)",)


def test_a_router_shown_as_it_was_trained_needs_no_remark() -> None:
    run = trained(runs.small_tree())
    shown = select_run(runs.small_tree(), None)
    assert (shown.run, shown.alpha, shown.remarks, shown.sweep) == (run, runs.ALPHA, (), None)


@pytest.mark.parametrize("allow_stop", [False, True], ids=["", "which may stop early"])
@pytest.mark.parametrize("alpha", [0.2, 0.05], ids=["between", "of the grid"])
def test_a_sweep_s_router_is_shown_where_an_alpha_has_none(alpha: float, allow_stop: bool) -> None:
    tree = runs.small_tree()
    trained(tree)
    run = swept(tree, allow_stop)
    shown = select_run(tree, alpha)
    assert shown.run == run and shown.trained
    assert shown.trained.objective == Objective(alpha, allow_stop)
    assert shown.remarks == (
        f"no run of `train` for alpha {alpha:g} on this tree; the sweep's router is shown, seed 0"
        + ", which may stop early" * allow_stop,
    )


def test_a_sweep_whose_routers_may_do_less_than_the_run_is_not_shown() -> None:
    tree, objective = runs.small_tree(), Objective(runs.ALPHA, allow_stop=True)
    run, sweep = trained(tree, objective=objective), swept(tree)
    shown = select_run(tree, 0.2)
    assert (shown.run, shown.sweep_run, shown.alpha) == (run, sweep, 0.2)
    assert shown.trained and shown.trained.objective == objective
    assert shown.remarks == (f"the router was trained at alpha {runs.ALPHA:g}, shown at 0.2",)


def test_a_checkpoint_that_was_named_is_shown_whatever_its_alpha() -> None:
    tree = runs.small_tree()
    run, sweep = trained(tree), swept(tree, allow_stop=True)
    shown = select_run(tree, 0.2, run, with_sweep=True)
    assert (shown.run, shown.sweep_run) == (run, sweep)
    assert shown.remarks == (f"the router was trained at alpha {runs.ALPHA:g}, shown at 0.2",)


def test_other_prices_and_other_data_are_told_apart() -> None:
    tree = runs.small_tree()
    run = trained(tree)
    dear = repriced(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models})
    assert select_run(dear, None).remarks == (
        "the router was trained under other prices than shown here",
    )
    assert select_run(runs.small_tree(seed=1), None, run).remarks == (
        "the router was trained on other data or scores than shown here",
    )


def test_a_newer_run_that_sees_otherwise_is_named_and_not_shown() -> None:
    tree = runs.small_tree()
    run = trained(tree, "old", age=9)
    trained(replace(tree, view="query"), "new")
    shown = select_run(tree, None)
    assert shown.run == run
    assert shown.remarks == (
        "runs/new is not shown: it learned from this tree, seen in another way; "
        "add --state query to see it",
    )


def test_a_router_for_another_tree_is_refused_before_anything_is_shown() -> None:
    run = trained(runs.small_tree())
    with pytest.raises(InputError, match="reads another view"):
        select_run(replace(runs.small_tree(), view="query"), None, run)


@pytest.mark.parametrize(("age", "is_told"), [(1, True), (9, False)], ids=["newer", "older"])
def test_a_run_that_reads_another_view_is_told_where_it_would_be_shown(
    age: int, is_told: bool
) -> None:
    tree = runs.small_tree()
    assert latest_run(tree, "train") is None and overlooked_run(tree, "train") is None
    other = trained(replace(tree, view="query"), "b", age)
    told = overlooked_run(tree, "train")
    assert told is not None and latest_run(tree, "train") is None
    assert (told.folder, told.view, told.encoder) == (other, "query", "planted")
    assert told.same_tree
    assert trained(tree, "a", 5) == latest_run(tree, "train")
    assert (overlooked_run(tree, "train") is not None) == is_told


def test_a_run_of_the_alpha_asked_for_hides_a_newer_one_of_another_view() -> None:
    tree = runs.small_tree()
    trained(tree, "a", 5, alpha=0.1)
    other = trained(replace(tree, view="query"), "b", 1, alpha=0.2)
    assert overlooked_run(tree, "train", 0.1) is None
    told = overlooked_run(tree, "train")
    assert told is not None and told.folder == other


def test_of_another_encoder_nobody_can_tell_which_tree_it_learned_from() -> None:
    """A fingerprint holds the encoder."""
    tree = runs.small_tree()
    other = trained(replace(tree, encoder="elsewhere", content="f" * 32), "b", 1)
    told = overlooked_run(tree, "train")
    assert told is not None and (told.folder, told.same_tree) == (other, False)
    trained(tree, "a", 5)
    assert overlooked_run(tree, "train") is None
    trained(replace(runs.small_tree(seed=1), view="query"), "other data", 0)
    assert overlooked_run(tree, "train") is None

"""Which finished runs a report finds, and which it only names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.learning.checkpoint import save_checkpoint
from hierrouter.learning.selection import latest_run, overlooked_run
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import EXACT_GLIMPSE, glimpse, small_tree


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, tree: RouteTree, age: int, alpha: float = 0.005) -> Path:
    """A finished run of `train` that is so many seconds old."""
    folder = Path("runs") / name
    save_checkpoint(glimpse(tree, alpha=alpha, config=EXACT_GLIMPSE), folder)
    os.utime(folder / "policy.json", (1e9 - age, 1e9 - age))
    return folder


def test_nothing_is_overlooked_where_there_is_nothing() -> None:
    assert latest_run(small_tree(), "train") is None
    assert overlooked_run(small_tree(), "train") is None


@pytest.mark.parametrize(("age", "is_told"), [(1, True), (9, False)], ids=["newer", "older"])
def test_a_run_that_reads_another_view_is_told_where_it_would_be_shown(
    age: int, is_told: bool
) -> None:
    tree = small_tree()
    shown, other = run("a", tree, 5), run("b", replace(tree, view="query"), age)
    assert latest_run(tree, "train") == shown
    told = overlooked_run(tree, "train")
    assert (told.folder if told else None) == (other if is_told else None)
    if told:
        assert (told.view, told.encoder, told.same_tree) == ("query", "planted", True)


def test_a_run_of_another_view_is_told_where_none_is_shown() -> None:
    other = run("b", replace(small_tree(), view="query"), 1)
    assert latest_run(small_tree(), "train") is None
    told = overlooked_run(small_tree(), "train")
    assert told is not None and told.folder == other


def test_a_run_of_the_alpha_asked_for_hides_a_newer_one_of_another_view() -> None:
    tree = small_tree()
    run("a", tree, 5, alpha=0.1)
    other = run("b", replace(tree, view="query"), 1, alpha=0.2)
    assert overlooked_run(tree, "train", 0.1) is None
    told = overlooked_run(tree, "train")
    assert told is not None and told.folder == other


def test_of_another_encoder_nobody_can_tell_which_tree_it_learned_from() -> None:
    """A fingerprint holds the encoder."""
    tree = small_tree()
    other = run("b", replace(tree, encoder="elsewhere", content="f" * 32), 1)
    told = overlooked_run(tree, "train")
    assert told is not None and (told.folder, told.same_tree) == (other, False)
    run("a", tree, 5)
    assert overlooked_run(tree, "train") is None


def test_a_run_on_other_data_is_nobodys() -> None:
    run("b", replace(small_tree(seed=1), view="query"), 1)
    assert overlooked_run(small_tree(), "train") is None

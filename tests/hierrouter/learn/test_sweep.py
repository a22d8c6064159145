"""The automatic grid, and sweeps in folders."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hierrouter.evaluate.bounds import oracle
from hierrouter.learn.checkpoint import save_checkpoint
from hierrouter.learn.sweep import SUMMARY, alpha_grid, finish_sweep, load_sweep, point_folder
from hierrouter_cache.errors import InputError
from tests.hierrouter.learn.runs import glimpse, small_tree
from tests.hierrouter.trees import planted_tree


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_a_grid_has_zero_the_papers_alpha_and_steps_of_the_frontier(count: int) -> None:
    grid = alpha_grid(planted_tree(), count)
    assert grid[:2] == (0.0, 0.005)
    assert list(grid) == sorted(set(grid))
    assert len(grid) == count
    assert all(float(f"{alpha:.1e}") == alpha for alpha in grid)


def test_each_step_of_a_grid_changes_the_oracle() -> None:
    tree = planted_tree()
    fold = tree.split("train")
    cost = [oracle(fold, alpha).cost.mean() for alpha in alpha_grid(tree, 6)[1:]]
    assert all(late < early for early, late in itertools.pairwise(cost))


def test_a_grid_needs_two_alphas_and_a_train_fold() -> None:
    with pytest.raises(InputError, match="at least 2"):
        alpha_grid(planted_tree(), 1)
    with pytest.raises(InputError, match="train fold is empty"):
        alpha_grid(planted_tree().split("test"), 4)


def test_a_finished_sweep_is_read_by_ascending_alpha(tmp_path: Path) -> None:
    tree = small_tree()
    trained = [glimpse(tree, alpha=alpha) for alpha in (0.5, 0.0, 0.005)]
    for router in trained:
        save_checkpoint(router, point_folder(tmp_path, router.alpha))
    with pytest.raises(InputError, match="no finished sweep"):
        load_sweep(tmp_path)
    finish_sweep(tmp_path, trained)
    assert [router.alpha for router in load_sweep(tmp_path)] == [0.0, 0.005, 0.5]


def test_a_damaged_summary_is_an_error(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text('{"alphas": "many"}')
    with pytest.raises(InputError, match="sweep summary is damaged"):
        load_sweep(tmp_path)

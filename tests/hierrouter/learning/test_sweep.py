"""The automatic grid, and sweeps in folders."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from hierrouter.evaluation.bounds import oracle
from hierrouter.learning.checkpoint import (
    SUMMARY,
    finish_sweep,
    load_sweep,
    member_folder,
    save_checkpoint,
)
from hierrouter.learning.network import Router
from hierrouter.learning.sweep import AlphaRouter, Sweep, alpha_grid
from hierrouter_cache.errors import InputError
from tests.hierrouter.learning.runs import GRID, glimpse, small_tree, sweep_glimpse
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


def test_a_finished_sweep_of_one_training_an_alpha_is_read_back(tmp_path: Path) -> None:
    tree, alphas = small_tree(), (0.0, 0.005, 0.5)
    members = tuple(tuple(glimpse(tree, seed, alpha) for alpha in alphas) for seed in (7, 8))
    for seed, routers in zip((7, 8), members, strict=True):
        for router in routers:
            save_checkpoint(router, member_folder(tmp_path, seed, router.alpha))
    with pytest.raises(InputError, match="no finished sweep"):
        load_sweep(tmp_path)
    finish_sweep(tmp_path, Sweep(alphas, members), (7, 8))
    found = load_sweep(tmp_path)
    assert found.alphas == alphas
    assert [[router.alpha for router in seeds] for seeds in found.routers] == [
        [alpha, alpha] for alpha in alphas
    ]
    assert [router.origin.seed for router in found.at(0.5)] == [7, 8]
    assert found.at(0.1) == []
    assert found.has(0.5) and not found.has(0.1)


def test_a_finished_sweep_of_one_network_answers_any_alpha(tmp_path: Path) -> None:
    members = tuple(sweep_glimpse(small_tree(), seed) for seed in (7, 8))
    for member in members:
        save_checkpoint(member, member_folder(tmp_path, member.origin.seed))
    finish_sweep(tmp_path, Sweep(GRID, members), (7, 8))
    found = load_sweep(tmp_path)
    assert (found.alphas, found.origin) == (GRID, members[0].origin)
    assert [len(routers) for routers in found.routers] == [2, 2, 2]
    assert [(router.alpha, router.origin.seed) for router in found.at(0.1)] == [(0.1, 7), (0.1, 8)]


def test_no_router_is_made_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(GRID, tuple(sweep_glimpse(small_tree(), seed) for seed in (7, 8)))
    made: list[float] = []
    make = AlphaRouter.at

    def counted(network: AlphaRouter, alpha: float) -> Router:
        made.append(alpha)
        return make(network, alpha)

    monkeypatch.setattr(AlphaRouter, "at", counted)
    assert sweep.has(GRID[1]) and sweep.has(0.1) and made == []
    assert len(sweep.at(GRID[1])) == 2 and made == [GRID[1]] * 2
    found = sweep.like(None, 0.1)
    assert found and (found.alpha, found.origin.seed) == (0.1, 7)
    assert made[2:] == [0.1]


def test_a_sweep_with_a_checkpoint_of_the_other_kind_is_an_error(tmp_path: Path) -> None:
    network = sweep_glimpse(small_tree())
    save_checkpoint(glimpse(small_tree()), member_folder(tmp_path, 0))
    finish_sweep(tmp_path, Sweep(GRID, (network,)), (0,))
    with pytest.raises(InputError, match="for one alpha, not for a sweep"):
        load_sweep(tmp_path)
    save_checkpoint(network, member_folder(tmp_path, 0, 0.0))
    finish_sweep(tmp_path, Sweep((0.0,), ((glimpse(small_tree()),),)), (0,))
    with pytest.raises(InputError, match="for every alpha, not for one"):
        load_sweep(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("alphas", []), ("alphas", [math.nan]), ("alphas", [-1]), ("alphas", "many"), ("seeds", [])],
)
def test_a_summary_of_nothing_or_no_numbers_is_an_error(
    tmp_path: Path, name: str, value: object
) -> None:
    network = sweep_glimpse(small_tree(), 7)
    save_checkpoint(network, member_folder(tmp_path, 7))
    finish_sweep(tmp_path, Sweep(GRID, (network,)), (7,))
    found = json.loads((tmp_path / SUMMARY).read_text())
    (tmp_path / SUMMARY).write_text(json.dumps({**found, name: value}))
    with pytest.raises(InputError, match="sweep summary is damaged"):
        load_sweep(tmp_path)


def test_a_damaged_summary_is_an_error(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text('{"alphas": "many"}')
    with pytest.raises(InputError, match="sweep summary is damaged"):
        load_sweep(tmp_path)

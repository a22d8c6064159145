"""Routers for many alphas: one network that is told alpha, grids, and sweeps in folders."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.learning.checkpoint import (
    SUMMARY,
    finish_sweep,
    load_checkpoint,
    load_sweep,
    member_folder,
    router_at,
    save_checkpoint,
)
from hierrouter.learning.config import Objective
from hierrouter.learning.loop import TrainingFold
from hierrouter.learning.network import Router, state_table
from hierrouter.learning.sweep import (
    SCALES,
    AlphaRouter,
    StandardReward,
    Sweep,
    TrainedSweep,
    alpha_grid,
    scales_of,
    train_sweep,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.learning.runs import (
    EXACT_GLIMPSE,
    GRID,
    OBJECTIVE,
    glimpse,
    small_tree,
    sweep_glimpse,
)
from tests.hierrouter.trees import planted_tree, random_tree

ALPHAS = (0.0, 1e-4, 0.005, 0.03, 1.0, 50.0)
GAP = 0.02  # smaller ones are left aside: at the largest alphas all routes are nearly alike


def test_the_router_at_an_alpha_is_the_network_told_that_alpha(
    planted: RouteTree, every_alpha: TrainedSweep
) -> None:
    queries, count = 50, planted.routes.states
    states = state_table(planted, OBJECTIVE).rows(slice(0, queries * count))
    told = torch.tensor(ALPHAS).expand(queries, -1)
    together = every_alpha.network(states, told)
    assert together.shape == (queries, len(ALPHAS), count, 3)
    for place, alpha in enumerate(ALPHAS):
        logits, _ = every_alpha.network.at(alpha)(states)
        expected = together[:, place].reshape(logits.shape)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_reading_a_router_off_draws_no_random_number(every_alpha: TrainedSweep) -> None:
    before = torch.get_rng_state()
    every_alpha.at(0.1)
    assert torch.equal(torch.get_rng_state(), before)


def test_alpha_makes_a_difference(planted: RouteTree, every_alpha: TrainedSweep) -> None:
    cost = [every_alpha.at(alpha).outcome(planted.split("test")).cost.mean() for alpha in (0, 5)]
    assert cost[1] < cost[0]


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_standard_rewards_are_those_of_a_training_at_that_alpha(
    alpha: float, allow_stop: bool
) -> None:
    tree = random_tree(Routes(3, 2), 12, seed=0)
    fold = TrainingFold.of(tree, Objective(alpha, allow_stop))
    query = np.array([7, 0, 3])
    found = StandardReward(fold)(query, np.full(3, alpha))
    np.testing.assert_allclose(found, fold.episode_reward(alpha, True)[query], atol=1e-9)


def test_rewards_that_are_all_equal_stay_finite() -> None:
    tree = random_tree(Routes(1, 2), 3, seed=0)
    fold = TrainingFold.of(tree, OBJECTIVE)
    assert StandardReward(fold)(np.arange(3), np.zeros(3))[:, -1].tolist() == [0, 0, 0]


def test_it_beats_the_best_fixed_route_wherever_that_leaves_a_gap(
    planted: RouteTree, every_alpha: TrainedSweep
) -> None:
    chosen_on, fold = planted.split("train"), planted.split("test")
    gaps = 0
    for alpha in every_alpha.alphas:
        reached = every_alpha.at(alpha).outcome(fold).reward(alpha).mean()
        fixed = best_fixed_route(chosen_on, alpha, fold).reward(alpha).mean()
        bound = oracle(fold, alpha).reward(alpha).mean()
        gaps += bound - fixed > GAP
        assert reached > fixed or bound - fixed <= GAP, alpha
    assert gaps >= len(every_alpha.alphas) - 1


def test_there_and_back(tmp_path: Path) -> None:
    trained = sweep_glimpse(small_tree())
    save_checkpoint(trained, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedSweep)
    assert (loaded.alphas, loaded.origin) == (trained.alphas, trained.origin)
    assert (loaded.objective, loaded.history) == (trained.objective, trained.history)
    tree = small_tree()
    for alpha in (*GRID, 0.7):
        expected = trained.at(alpha).probabilities(tree)
        np.testing.assert_array_equal(loaded.at(alpha).probabilities(tree), expected)
        np.testing.assert_array_equal(router_at(tmp_path, alpha).probabilities(tree), expected)
    assert router_at(tmp_path, None).alpha == GRID[0]


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf")])
def test_there_is_no_router_for_a_wrong_alpha(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha must be a finite number >= 0"):
        sweep_glimpse(small_tree()).at(alpha)


@pytest.mark.parametrize("alpha", [1.1e9, 1e300])
def test_there_is_no_router_for_an_alpha_out_of_all_proportion(alpha: float) -> None:
    trained = sweep_glimpse(small_tree())
    assert trained.at(1e9).alpha == 1e9
    with pytest.raises(InputError, match="alpha must be at most 1e9, got 1"):
        trained.at(alpha)


def test_a_limit_on_the_cost_of_a_query_is_refused() -> None:
    objective = Objective(0.0, max_cost=1.0)
    with pytest.raises(InputError, match="max_cost cannot be kept at every alpha"):
        train_sweep(small_tree(), GRID, objective, EXACT_GLIMPSE, seed=0)


def test_scales_lie_where_decisions_change() -> None:
    changes = np.linspace(0.1, 0.9, 41)
    scales = scales_of(changes)
    assert len(scales) == len(scales_of(np.empty(0))) == SCALES
    assert scales.tolist() == sorted(scales.tolist())
    assert 0.1 < scales[0] < 0.2 and 0.8 < scales[-1] < 0.9
    assert (scales_of(np.empty(0)) > 0).all()


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

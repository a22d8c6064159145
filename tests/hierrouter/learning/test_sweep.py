"""Routers for many alphas: one network that is told alpha, grids, and sweeps in folders."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.learning import checkpoint, sweep
from hierrouter.learning.checkpoint import load_sweep, member_folder, save_checkpoint
from hierrouter.learning.config import Objective
from hierrouter.learning.loop import TrainingFold
from hierrouter.learning.network import Router, state_table
from hierrouter.learning.run_folders import record_of
from hierrouter.learning.sweep import AlphaRouter, Sweep, TrainedSweep, alpha_grid
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.learning import runs
from tests.hierrouter.learning.runs import GRID, finished_sweep, glimpse, small_tree, sweep_glimpse
from tests.hierrouter.trees import random_tree

ALPHAS = (0.0, 1e-4, 0.005, 0.03, 1.0, 50.0)
GAP = 0.02  # smaller ones are left aside: at the largest alphas all routes are nearly alike


def test_the_router_at_an_alpha_is_the_network_told_that_alpha(
    planted: RouteTree, every_alpha: TrainedSweep
) -> None:
    queries, count = 50, planted.routes.states
    states = state_table(planted, runs.OBJECTIVE).rows(slice(0, queries * count))
    network = every_alpha.networks[0]
    together = network(states, torch.tensor(ALPHAS).expand(queries, -1))
    assert together.shape == (queries, len(ALPHAS), count, 3)
    before = torch.get_rng_state()
    for place, alpha in enumerate(ALPHAS):
        logits, _ = network.at(alpha)(states)
        expected = together[:, place].reshape(logits.shape)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(torch.get_rng_state(), before)  # no random number was drawn


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_standard_rewards_are_a_trainings_at_that_alpha(alpha: float, allow_stop: bool) -> None:
    fold = TrainingFold.of(random_tree(Routes(3, 2), 12, seed=0), Objective(alpha, allow_stop))
    query = np.array([7, 0, 3])
    found = sweep.StandardReward(fold)(query, np.full(3, alpha))
    np.testing.assert_allclose(found, fold.episode_reward(alpha, True)[query], atol=1e-9)


def test_rewards_that_are_all_equal_stay_finite() -> None:
    fold = TrainingFold.of(random_tree(Routes(1, 2), 3, seed=0), runs.OBJECTIVE)
    assert sweep.StandardReward(fold)(np.arange(3), np.zeros(3))[:, -1].tolist() == [0, 0, 0]


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


def test_alphas_out_of_proportion_and_query_limits_are_refused(every_alpha: TrainedSweep) -> None:
    assert every_alpha.at(1e9).alpha == 1e9
    with pytest.raises(InputError, match="alpha must be at most 1e9, got 1"):
        every_alpha.at(1.1e9)
    objective = Objective(0.0, max_cost=1.0)
    with pytest.raises(InputError, match="max_cost cannot be kept at every alpha"):
        sweep.train_sweep(small_tree(), GRID, objective, runs.EXACT_GLIMPSE, seed=0)


def test_scales_lie_where_decisions_change() -> None:
    scales = sweep.scales_of(np.linspace(0.1, 0.9, 41))
    assert len(scales) == len(sweep.scales_of(np.empty(0))) == sweep.SCALES
    assert scales.tolist() == sorted(scales.tolist())
    assert 0.1 < scales[0] < 0.2 and 0.8 < scales[-1] < 0.9
    assert (sweep.scales_of(np.empty(0)) > 0).all()


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_a_grid_has_zero_a_papers_alpha_and_frontier_steps(planted: RouteTree, count: int) -> None:
    grid = alpha_grid(planted, count)
    assert grid[:2] == (0.0, 0.005)
    assert list(grid) == sorted(set(grid))
    assert len(grid) == count
    assert all(float(f"{alpha:.1e}") == alpha for alpha in grid)
    cost = [oracle(planted.split("train"), alpha).cost.mean() for alpha in grid[1:7]]
    assert all(late < early for early, late in itertools.pairwise(cost))


def test_a_grid_needs_two_alphas_and_a_train_fold(planted: RouteTree) -> None:
    with pytest.raises(InputError, match="at least 2"):
        alpha_grid(planted, 1)
    with pytest.raises(InputError, match="train fold is empty"):
        alpha_grid(planted.split("test"), 4)


def test_a_finished_sweep_of_one_training_an_alpha_is_read_back(tmp_path: Path) -> None:
    tree, alphas = small_tree(), (0.0, 0.005, 0.5)
    members = tuple(tuple(glimpse(tree, seed, alpha) for alpha in alphas) for seed in (7, 8))
    for seed, routers in zip((7, 8), members, strict=True):
        for router in routers:
            save_checkpoint(router, member_folder(tmp_path, seed, router.alpha))
    with pytest.raises(InputError, match="no finished sweep"):
        load_sweep(tmp_path)
    finished_sweep(tmp_path, Sweep(alphas, members), (7, 8))
    found = load_sweep(tmp_path)
    assert found.alphas == alphas
    assert [[router.alpha for router in seeds] for seeds in found.routers] == [
        [alpha, alpha] for alpha in alphas
    ]
    assert [router.origin.seed for router in found.at(0.5)] == [7, 8]
    assert found.at(0.1) == []
    assert found.has(0.5) and not found.has(0.1)


def test_a_finished_sweep_of_one_network_makes_any_router_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = small_tree()
    members = tuple(sweep_glimpse(tree, seed) for seed in (7, 8))
    for member in members:
        save_checkpoint(member, member_folder(tmp_path, member.origin.seed))
    finished_sweep(tmp_path, Sweep(GRID, members), (7, 8))
    made: list[float] = []
    make = AlphaRouter.at

    def counted(network: AlphaRouter, alpha: float) -> Router:
        made.append(alpha)
        return make(network, alpha)

    with monkeypatch.context() as patched:
        patched.setattr(AlphaRouter, "at", counted)
        sweep = load_sweep(tmp_path)
        assert sweep.has(GRID[1]) and sweep.has(0.1) and made == []
        assert [router.origin.seed for router in sweep.at(0.1)] == [7, 8]
        found = sweep.like(None, 0.1)
        assert found and (found.alpha, found.origin.seed, made) == (0.1, 7, [0.1] * 3)
    assert (sweep.alphas, sweep.origin) == (GRID, members[0].origin)
    assert [len(routers) for routers in sweep.routers] == [2, 2, 2]
    for member, loaded in zip(members, sweep.members, strict=True):
        assert replace(loaded, networks=member.networks) == member
    for alpha in (*GRID, 0.7):
        expected = members[0].at(alpha).probabilities(tree)
        for router in (sweep.at(alpha)[0], checkpoint.router_at(member_folder(tmp_path, 7), alpha)):
            np.testing.assert_array_equal(router.probabilities(tree), expected)
    assert checkpoint.router_at(member_folder(tmp_path, 7), None).alpha == GRID[0]


def test_a_sweep_with_a_checkpoint_of_the_other_kind_is_an_error(tmp_path: Path) -> None:
    network = sweep_glimpse(small_tree())
    save_checkpoint(glimpse(small_tree()), member_folder(tmp_path, 0))
    finished_sweep(tmp_path, Sweep(GRID, (network,)), (0,))
    with pytest.raises(InputError, match="for one alpha, not for a sweep"):
        load_sweep(tmp_path)
    save_checkpoint(network, member_folder(tmp_path, 0, 0.0))
    finished_sweep(tmp_path, Sweep((0.0,), ((glimpse(small_tree()),),)), (0,))
    with pytest.raises(InputError, match="for every alpha, not for one"):
        load_sweep(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("alphas", []), ("alphas", [-1]), ("alphas", "many"), ("seeds", [])]
)
def test_a_summary_without_numbers_is_an_error(tmp_path: Path, name: str, value: object) -> None:
    network = sweep_glimpse(small_tree(), 7)
    save_checkpoint(network, member_folder(tmp_path, 7))
    finished_sweep(tmp_path, Sweep(GRID, (network,)), (7,))
    record = record_of(tmp_path)
    assert record
    replace(record, result={**record.result, name: value}).write()
    with pytest.raises(InputError, match="of a sweep is damaged"):
        load_sweep(tmp_path)

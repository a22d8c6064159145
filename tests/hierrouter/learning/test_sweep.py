"""Routers for many alphas: one value model for all, grids, budgets, and sweeps in folders."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.budget import optimum_at_mean_cost
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.cross_fit import sweep_with_fallback
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import Frontier, TrainedSweep, alpha_grid, meet_budget, train_sweep
from hierrouter.learning.training import train
from hierrouter.runs import checkpoint
from hierrouter.runs.checkpoint import load_sweep, member_folder, save_checkpoint
from hierrouter.runs.folders import read_record
from hierrouter.runs.run import Performance, sweep_table
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.hierrouter.learning.trainings import (
    EXACT_GLIMPSE,
    GRID,
    OBJECTIVE,
    VALUE,
    finished_sweep,
    glimpse,
    small_tree,
    sweep_glimpse,
)
from tests.hierrouter.trees import planted_tree, sub_pool


def best_per_kind(fold: RouteTree, alpha: float) -> float:
    """R of who knows each query's family and right route, and not how long its answers are."""
    rewards = fold.reward(alpha)
    right = fold.accuracy[:, fold.layout.leaves].argmax(axis=1)
    kinds = list(zip(fold.datasets, right.tolist(), strict=True))
    rows = [[at for at, each in enumerate(kinds) if each == kind] for kind in set(kinds)]
    return sum(float(rewards[each].mean(axis=0).max()) * len(each) for each in rows) / len(fold)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_where_prices_differ_90_fold_each_alpha_gets_its_router(seed: int) -> None:
    tree = planted_tree(spread=90, luck=0, noise=0.5, seed=seed)
    fold = tree.split("test")
    sweep = train_sweep(tree, alpha_grid(tree), Objective(0.0), ValueConfig(), 0)
    for alpha in sweep.alphas:
        reached = sweep.at(alpha).outcome(fold).reward(alpha).mean()
        assert best_per_kind(fold, alpha) - reached <= 0.02 * best_per_kind(fold, 0.0), alpha
    # Who never calls the dear model is far below that.
    assert best_per_kind(sub_pool(fold, tree.models[:2]), 0.005) < best_per_kind(fold, 0.005) - 0.2


def cost_of(trained: TrainedRouter, fold: RouteTree) -> float:
    return float(trained.outcome(fold).cost.mean())


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_budget_is_met_and_made_use_of(
    planted: RouteTree, every_alpha: TrainedSweep, share: float
) -> None:
    fold = every_alpha.at(0.0).judging_fold(planted)
    dear, cheap = (cost_of(every_alpha.at(alpha), fold) for alpha in (0.0, 5.0))
    budget = cheap + share * (dear - cheap)
    trained = meet_budget(every_alpha, planted, budget)
    reached = trained.outcome(fold)
    assert reached.cost.mean() <= budget * (1 + 1e-9)
    assert reached.cost.mean() > cheap
    assert cost_of(every_alpha.at(trained.alpha * 0.9), fold) >= reached.cost.mean()
    best = optimum_at_mean_cost(fold, budget).quality.mean()
    assert 0.8 * best <= reached.quality.mean() <= best


def test_the_least_budget_is_told_and_the_greatest_buys_the_best(
    planted: RouteTree, every_alpha: TrainedSweep
) -> None:
    message = r"no router is that cheap: --budget 0.1; the .* costs (\S+) per query, allow at least"
    with pytest.raises(InputError, match=message) as caught:
        meet_budget(every_alpha, planted, 0.1)
    told = re.search(message, str(caught.value))
    assert told
    cheapest = 1.001 * float(told[1])  # it is told with four digits
    trained = meet_budget(every_alpha, planted, cheapest)
    assert cost_of(trained, trained.judging_fold(planted)) <= cheapest
    assert meet_budget(every_alpha, planted, 1e9).alpha == 0


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_who_has_more_money_never_gets_less(seed: int) -> None:
    """Of 200 random budgets the greater one gives no lower Q and no lower R, and is kept."""
    tree = planted_tree(spread=(None, 3, 30, 90)[seed], luck=0.1, seed=seed, per_family=(20, 8, 1))
    objective = Objective(0.0, allow_stop=seed % 2 == 1)
    sweep = train_sweep(tree, alpha_grid(tree), objective, ValueConfig(), 0)
    sweep = sweep_with_fallback(sweep, tree)
    frontier = Frontier.of(sweep, tree)
    fold = sweep.at(0.0).judging_fold(tree)
    rng = np.random.default_rng(seed)
    budgets = np.sort(rng.uniform(frontier.cost[0], 1.2 * frontier.cost[-1], 200))
    reached = []
    for budget in budgets.tolist():
        router = sweep.at(frontier.within(budget))
        outcome = router.outcome(fold)
        assert outcome.cost.mean() <= budget * (1 + 1e-9)
        reached.append((outcome.quality.mean(), outcome.reward(router.alpha).mean()))
    assert (np.diff(np.array(reached), axis=0) >= -1e-12).all()
    assert len(set(reached)) > 3
    # Of the routers that are affordable none that fits the order has a higher Q.
    whole = optimum_at_mean_cost(fold, float(budgets[-1]), objective.ends_early)
    assert reached[-1][0] <= whole.quality.mean() + 1e-12


@given(
    points=st.lists(
        st.tuples(st.floats(0, 9), st.floats(0, 1), st.floats(0, 9)), min_size=1, max_size=20
    ),
    budgets=st.lists(st.floats(0, 12), min_size=2, max_size=9),
)
def test_any_points_give_a_rising_frontier(
    points: list[tuple[float, float, float]], budgets: list[float]
) -> None:
    frontier = Frontier.rising(*np.array(points).T)
    reward = frontier.quality - frontier.alpha * frontier.cost
    assert (np.diff(frontier.quality) > 0).all()
    assert (np.diff(frontier.cost) >= 0).all()
    assert (np.diff(reward) >= 0).all()
    assert frontier.cost[0] == min(cost for _, _, cost in points)
    affordable = [budget for budget in sorted(budgets) if budget >= frontier.cost[0]]
    quality = {float(alpha): q for alpha, q in zip(frontier.alpha, frontier.quality, strict=True)}
    taken = [frontier.within(budget) for budget in affordable]
    assert {*taken} <= {*quality}


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


def test_a_finished_sweep_has_a_router_for_any_alpha(tmp_path: Path) -> None:
    tree = small_tree()
    every = sweep_glimpse(tree, 7)
    save_checkpoint(every, member_folder(tmp_path, 7))
    with pytest.raises(InputError, match="no finished sweep"):
        load_sweep(tmp_path)
    finished_sweep(tmp_path, every)
    sweep = load_sweep(tmp_path)
    found = sweep.matching(None, 0.1)
    assert found and (found.alpha, found.origin.seed) == (0.1, 7)
    assert (sweep.alphas, sweep.origin) == (GRID, every.origin)
    assert tuple(router.alpha for router in sweep.routers) == GRID
    assert replace(sweep, model=every.model) == every
    for alpha in (*GRID, 0.7):
        expected = every.at(alpha).probabilities(tree)
        for router in (sweep.at(alpha), checkpoint.router_at(member_folder(tmp_path, 7), alpha)):
            np.testing.assert_array_equal(router.probabilities(tree), expected)
    assert checkpoint.router_at(member_folder(tmp_path, 7), None).alpha == GRID[0]


def test_a_sweep_with_a_checkpoint_for_one_alpha_is_an_error(tmp_path: Path) -> None:
    finished_sweep(tmp_path, glimpse(small_tree()))
    with pytest.raises(InputError, match="the sweep's checkpoint is for one alpha"):
        load_sweep(tmp_path)


@pytest.mark.parametrize("value", [[], [7, 7], "many", None])
def test_a_summary_without_its_seed_is_an_error(tmp_path: Path, value: object) -> None:
    finished_sweep(tmp_path, sweep_glimpse(small_tree(), 7))
    record = read_record(tmp_path)
    assert record
    replace(record, result={**record.result, "seeds": value}).write()
    with pytest.raises(InputError, match="of a sweep is damaged"):
        load_sweep(tmp_path)


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("seeds", [1, 2])
def test_columns_of_the_table_of_a_sweep_never_run_together(scale: float, seeds: int) -> None:
    """At any price; with usual ones its heading is as ever."""
    tree = small_tree()
    rates = zip(tree.direct.models, tree.direct.rate.tolist(), strict=True)
    tree = reprice(tree, {name: Rate(pair[0] * scale, pair[1] * scale) for name, pair in rates})
    grid = (0.0, 0.00012345 / scale, 123456.7)
    sweeps = [
        sweep_with_fallback(train_sweep(tree, grid, Objective(0.0), VALUE, seed), tree)
        for seed in range(seeds)
    ]
    heading, *lines = sweep_table(sweeps, tree).splitlines()
    assert heading.split()[:4] == ["alpha", "Q", "C", "R"]
    fold = sweeps[0].at(0.0).judging_fold(tree)
    assert len(lines) == len(grid)
    for alpha, line in zip(grid, lines, strict=True):
        router = sweeps[0].at(alpha)
        outcome = router.outcome(fold)
        cells = re.split(r" {2,}", line)
        assert cells[:4] == [
            f"{alpha:.4g}",
            f"{outcome.quality.mean():.3f}",
            money(outcome.cost.mean()),
            f"{outcome.reward(alpha).mean():.3f}",
        ]
        rest = [f"always {router.constant_route}"] if router.constant else []
        assert cells[4 + (seeds > 1) :] == rest


def test_usual_prices_keep_the_heading() -> None:
    tree = small_tree()
    sweep = sweep_glimpse(tree)
    assert sweep_table([sweep], tree).startswith("alpha      Q      C      R    (30 held-out")


def direct_calls_at(tree: RouteTree, score: float) -> RouteTree:
    """The same tree, in which direct calls have this score and cost nothing."""
    direct = tree.direct
    scores = np.full_like(direct.score, score)
    return replace(tree, direct=replace(direct, score=scores, rate=np.zeros_like(direct.rate)))


@pytest.mark.parametrize("algo", ["exact", "value"])
def test_what_was_reached_is_compared_with_direct_calls_too(algo: str) -> None:
    config = VALUE if algo == "value" else EXACT_GLIMPSE
    plain = small_tree()
    for score, is_named in ((1.0, True), (0.0, False)):
        tree = direct_calls_at(plain, score)
        reached = Performance.of(train(tree, OBJECTIVE, config, 0), tree)
        assert reached.direct == pytest.approx(score)
        text = str(reached)
        assert (f"best direct call {reached.direct_model} 1.000" in text) == is_named
        is_worse = text.endswith(f"; always calling {reached.direct_model} alone is better")
        assert is_worse == is_named == (reached.direct_judgement == "worse")


def test_a_gap_too_small_has_no_share() -> None:
    figures = {"where": "here", "reward": 0.4, "fixed": 0.5, "low": -0.1, "high": 0.0}
    assert Performance(**figures, oracle=0.504).share is None
    assert Performance(**figures, oracle=0.6).share == pytest.approx(-1.0)

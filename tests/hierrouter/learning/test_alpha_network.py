"""One network for many alphas: what it learns from, what is kept of it, and how it goes on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hierrouter.evaluation.outcome import greedy, policy_outcome
from hierrouter.learning import network
from hierrouter.learning.alpha_network import AlphaFold, AlphaNetwork, BestWeights, fit_networks
from hierrouter.learning.config import NetworkConfig, Objective, sweep_config
from hierrouter.learning.cross_fit import sweep_with_fallback
from hierrouter.learning.forward import NetworkGrid, NetworkRouter, TrainedNetwork
from hierrouter.learning.network import TrainingFold
from hierrouter.learning.resumption import Resumption, TrainingState
from hierrouter.learning.router import Origin, training_folds
from hierrouter.learning.sweep import TrainedSweep, alpha_grid, train_sweep
from hierrouter.runs.saved_states import TrainingProgress
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import (
    EXACT_GLIMPSE,
    GLIMPSE,
    GRID,
    OBJECTIVE,
    digest,
    small_tree,
)
from tests.hierrouter.trees import planted_tree

PPO = replace(GLIMPSE, epochs=5, evaluate_every=2, iterations=2, rollouts=40)
EXACT = replace(EXACT_GLIMPSE, epochs=4, evaluate_every=2)
CONFIGS = {
    "ppo": PPO,
    "ppo with exact advantages": replace(PPO, advantages="exact"),
    "exact": EXACT,
}
MAY_STOP = Objective(0.0, allow_stop=True)
MAY_RETURN = Objective(0.0, allow_return=True)


def fold_of(tree: RouteTree, objective: Objective = OBJECTIVE) -> TrainingFold:
    return TrainingFold.of(tree.split("train"), objective)


def alpha_network(fold: TrainingFold, alphas: int, seed: int = 0) -> AlphaNetwork:
    """A network whose alphas do not do the same."""
    torch.manual_seed(seed)
    made = AlphaNetwork(network.shape_for(fold.tree, fold.actions, GLIMPSE), alphas)
    made.standardise(fold.table)
    with torch.no_grad():
        for values in (made.modulation.weight, made.policy.weight):
            values.normal_()
    return made.requires_grad_(False)


def exported(made: AlphaNetwork, number: int) -> TrainedNetwork:
    weights = {name: value.numpy() for name, value in made.at(number).items()}
    return TrainedNetwork(made.shape, weights)


@pytest.mark.parametrize("objective", [OBJECTIVE, MAY_STOP], ids=["plain", "stop"])
def test_the_router_of_an_alpha_is_the_network_at_that_alpha(objective: Objective) -> None:
    fold = fold_of(small_tree(), objective)
    made = alpha_network(fold, len(GRID))
    repeated = AlphaFold.repeating(fold, GRID)
    logits, values = made(repeated.table.rows(slice(None)))
    chances = torch.softmax(logits.double(), dim=1).numpy()
    by_alpha = chances.reshape(len(GRID), len(fold.tree), -1, fold.actions.count)
    for number in range(len(GRID)):
        router = exported(made, number)
        expected = router.policy(fold.tree, fold.actions)
        np.testing.assert_allclose(by_alpha[number], expected, atol=1e-5)
    assert np.abs(by_alpha[0] - by_alpha[1]).max() > 0.1
    plain = network.RouterNetwork(made.shape)
    plain.load_state_dict(made.at(1))
    _, plain_values = plain(fold.table.rows(slice(None)))
    torch.testing.assert_close(values.reshape(len(GRID), -1)[1], plain_values)


def test_all_alphas_start_alike() -> None:
    fold = fold_of(small_tree())
    made = AlphaNetwork(network.shape_for(fold.tree, fold.actions, GLIMPSE), 3)
    for name, value in made.at(0).items():
        torch.testing.assert_close(value, made.at(2)[name], rtol=0, atol=0)


@pytest.mark.parametrize("objective", [OBJECTIVE, MAY_STOP], ids=["plain", "stop"])
def test_each_copy_of_a_query_has_the_reward_at_its_alpha(objective: Objective) -> None:
    fold = fold_of(small_tree(), objective)
    repeated = AlphaFold.repeating(fold, GRID)
    queries = len(fold.tree)
    for standardise in (False, True):
        reward = repeated.episode_reward(7.0, standardise)
        assert repeated.queries == len(GRID) * queries
        for number, alpha in enumerate(GRID):
            copies = number * queries + np.arange(queries)
            expected = fold.episode_reward(alpha, standardise)[np.arange(queries)]
            np.testing.assert_array_equal(reward[copies], expected)
            ending = np.arange(queries) % fold.actions.width
            pairs = expected[np.arange(queries), ending]
            np.testing.assert_array_equal(reward[copies, ending], pairs)


def test_copies_of_queries_take_no_memory() -> None:
    """A million nodes at 16 alphas would take gigabytes."""
    fold = fold_of(small_tree())
    repeated = AlphaFold.repeating(fold, GRID)
    table = repeated.table
    assert (len(table), repeated.tree) == (len(GRID) * len(fold.table), fold.tree)
    for name in ("node", "cost", "legal", "row", "vectors"):
        assert getattr(table, name) is getattr(fold.table, name)
    reward = repeated.episode_reward(0.0, standardise=True)
    assert np.shares_memory(reward.quality, fold.tree.score)
    assert reward.mean.shape == (len(GRID), len(fold.tree))


def test_states_of_a_copy_are_those_of_the_fold_with_other_nodes() -> None:
    fold = fold_of(small_tree())
    table = AlphaFold.repeating(fold, GRID).table
    count = len(fold.table)
    plain = fold.table.rows(slice(None))
    for number in range(len(GRID)):
        rows = table.rows(number * count + torch.arange(count))
        assert torch.equal(rows.node, plain.node + number * fold.actions.states)
        for own, expected in zip(rows._replace(node=plain.node), plain, strict=True):
            assert torch.equal(own, expected)
    everything = table.rows(slice(None))
    assert torch.equal(everything.cost, plain.cost.repeat(len(GRID)))
    trees = table.trees(torch.tensor([len(fold.tree) + 2]))
    assert torch.equal(trees.cost, fold.table.trees(torch.tensor([2])).cost)


@pytest.mark.parametrize("objective", [OBJECTIVE, MAY_STOP], ids=["plain", "stop"])
def test_means_of_all_alphas_are_those_of_each_router(objective: Objective) -> None:
    fold = fold_of(planted_tree(), objective)
    made = alpha_network(fold, len(GRID), seed=3)
    quality, cost = AlphaFold.repeating(fold, GRID).greedy_means(made)
    for number in range(len(GRID)):
        chances = exported(made, number).policy(fold.tree, fold.actions)
        choice = greedy(chances, fold.tree.base_rate)
        outcome = policy_outcome(fold.tree, fold.actions, choice, "", "router")
        assert quality[number] == pytest.approx(outcome.quality.mean(), abs=1e-12)
        assert cost[number] == pytest.approx(outcome.cost.mean(), abs=1e-12)


def test_the_best_weights_of_each_alpha_are_kept_and_of_equals_the_latest() -> None:
    fold = fold_of(small_tree())
    alphas = np.array([0.0, 1.0])
    offers = [alpha_network(fold, 2, seed) for seed in range(4)]
    best = BestWeights.before_training(offers[0])
    quality = np.array([[0.5, 0.5], [0.6, 0.4], [0.6, 0.5], [0.5, 0.9]])
    cost = np.array([[0.1, 0.1], [0.1, 0.1], [0.3, 0.1], [0.1, 0.6]])
    for offer, own_quality, own_cost in zip(offers, quality, cost, strict=True):
        best.offer(offer, alphas, own_quality, own_cost)
    # At alpha 0 the third equals the second, at 1 the third equals the first.
    assert (best.quality.tolist(), best.cost.tolist()) == ([0.6, 0.5], [0.3, 0.1])
    np.testing.assert_array_equal(best.rewards, quality - alphas * cost)
    grid = best.grid(offers[0].shape)
    for number, kept in enumerate(grid.networks):
        for name, value in offers[2].at(number).items():
            np.testing.assert_array_equal(kept.weights[name], value.numpy())


@pytest.mark.parametrize("config", [PPO, EXACT], ids=["ppo", "exact"])
def test_weights_are_those_of_the_last_quarter(config: NetworkConfig) -> None:
    tree = small_tree()
    longer = replace(config, epochs=12, evaluate_every=1, learning_rate=0.06, decay=False)
    grid = fit_networks(
        training_folds(tree), GRID, OBJECTIVE, longer, seed=1, on_epoch=lambda *_: None
    )
    rewards = np.array(grid.histories)
    assert rewards.shape == (len(GRID), 12)
    kept = np.array(grid.quality) - np.array(GRID) * np.array(grid.cost)
    np.testing.assert_array_equal(kept, rewards[:, 9:].max(axis=1))
    assert (kept < rewards.max(axis=1)).any()  # an earlier network was better at some alpha


def test_between_two_alphas_the_better_network_of_both_decides() -> None:
    fold = fold_of(small_tree())
    made = alpha_network(fold, 3)
    networks = tuple(exported(made, number) for number in range(3))
    grid = NetworkGrid(networks, (0.9, 0.6, 0.1), (3.0, 1.0, 0.5), ((0.1,), (0.2,), (0.3,)))
    # The first two are equally good at .15, the others at 1.
    sweep = TrainedSweep(grid, (0.1, 0.5, 2.0), OBJECTIVE, Origin.of(fold.tree, PPO, 0))
    expected = {0.0: 0, 0.1: 0, 0.14: 0, 0.16: 1, 0.5: 1, 0.99: 1, 1.01: 2, 2.0: 2, 1e9: 2}
    for alpha, number in expected.items():
        router = sweep.at(alpha)
        assert router.router == NetworkRouter(networks[number], fold.actions), alpha
        assert (router.alpha, router.history) == (alpha, grid.histories[number])
    for wrong in ({"quality": (0.9, 0.6)}, {"cost": (1.0, np.nan, 1.0)}, {"networks": ()}):
        with pytest.raises(ValueError, match="do not fit"):
            replace(grid, **wrong)


@pytest.mark.parametrize("algo", CONFIGS)
def test_the_same_seed_gives_the_same_bytes(algo: str, tmp_path: Path) -> None:
    tree = small_tree()

    def swept(seed: int) -> str:
        sweep = train_sweep(tree, GRID, OBJECTIVE, CONFIGS[algo], seed)
        return digest(sweep_with_fallback(sweep, tree), tmp_path)

    torch.manual_seed(99)
    first = swept(0)
    np.random.seed(5)
    assert swept(0) == first
    assert swept(1) != first


def states_of(config: NetworkConfig) -> list[TrainingState]:
    """The state after each epoch."""
    states: list[TrainingState] = []
    resumption = Resumption(on_state=lambda make_state: states.append(make_state()))
    train_sweep(small_tree(), GRID, OBJECTIVE, config, 3, resumption=resumption)
    return states


@pytest.mark.parametrize("algo", CONFIGS)
def test_from_every_epoch_to_the_same_bytes(algo: str, tmp_path: Path) -> None:
    config = CONFIGS[algo]
    expected = digest(train_sweep(small_tree(), GRID, OBJECTIVE, config, 3), tmp_path)
    file = TrainingProgress(tmp_path / "state", {})
    states = states_of(config)
    assert len(states) == config.epochs
    for state in states:
        file.save(state)
        resumed = train_sweep(
            small_tree(), GRID, OBJECTIVE, config, 3, resumption=Resumption(file.load())
        )
        assert digest(resumed, tmp_path) == expected


def without(name: str) -> Any:
    return lambda state: {key: value for key, value in state.arrays.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: replace(state, epoch=0),
        lambda state: replace(state, epoch=PPO.epochs + 1),
        lambda state: replace(state, arrays=without("best.second.weight")(state)),
        lambda state: replace(state, arrays=without("present.modulation.weight")(state)),
        lambda state: replace(state, arrays=without("learner.waiting_queries")(state)),
        lambda state: replace(
            state, arrays={**state.arrays, "best.second.bias": state.arrays["best.second.bias"][:1]}
        ),
        lambda state: replace(state, values={**state.values, "best": {"quality": [0.0]}}),
        lambda state: replace(state, values={**state.values, "learner": {}}),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: Any) -> None:
    state = change(replace(states_of(PPO)[1], file=Path("progress")))
    with pytest.raises(InputError, match="does not fit the training: progress; "):
        train_sweep(small_tree(), GRID, OBJECTIVE, PPO, 3, resumption=Resumption(state))


def test_a_training_that_diverges_is_an_error() -> None:
    with pytest.raises(InputError, match="training diverged in epoch 1"):
        train_sweep(small_tree(), GRID, OBJECTIVE, replace(PPO, learning_rate=1e30), 0)


@pytest.mark.parametrize("algo", ["ppo", "exact"])
def test_where_the_best_route_depends_on_query_and_alpha_both_are_learned(algo: str) -> None:
    """Networks of one training close most of the gap at each alpha of a planted tree."""
    tree = planted_tree()
    alphas = alpha_grid(tree, 4)
    config = sweep_config("default", algo, epochs=10)
    sweep = train_sweep(tree, alphas, OBJECTIVE, config, 0)
    fold = tree.split("test")
    for router in sweep.routers:
        single = best_known(tree, router.alpha)
        assert router.outcome(fold).reward(router.alpha).mean() >= single - 0.03, router.alpha


def best_known(tree: RouteTree, alpha: float) -> float:
    """R on the test fold of the best route of each family, which the tree was planted with."""
    train = tree.split("train")
    fold = tree.split("test")
    rewards = train.reward(alpha)
    reached = 0.0
    for family in set(fold.datasets):
        route = rewards[np.array(train.datasets) == family].mean(axis=0).argmax()
        reached += fold.reward(alpha)[np.array(fold.datasets) == family][:, route].sum()
    return reached / len(fold)

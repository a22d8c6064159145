import numpy as np
import pytest
import torch

from hierrouter.evaluate.bounds import best_fixed_route, gap_closed, oracle
from hierrouter.learn.config import PRESETS, PPOConfig, preset
from hierrouter.learn.ppo import train
from hierrouter.learn.sweep import alpha_grid
from hierrouter_cache.errors import InputError
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005


@pytest.mark.parametrize("seed", [0, 1])
def test_ppo_closes_the_gap_where_the_first_answer_tells_the_second_model(seed: int) -> None:
    tree = planted_tree(per_family=(120, 30, 60), dim=64, luck=0.0, noise=0.5, seed=seed)
    test = tree.split("test")
    router = train(tree, ALPHA, preset("default"), seed).outcome(test).reward(ALPHA).mean()
    fixed = best_fixed_route(tree.split("train"), ALPHA, test).reward(ALPHA).mean()
    bound = oracle(test, ALPHA).reward(ALPHA).mean()
    closed = gap_closed(router, fixed, bound)
    assert bound - fixed > 0.2
    assert closed is not None
    assert closed > 0.9


def test_the_test_fold_is_not_looked_at() -> None:
    tree = planted_tree(per_family=(12, 4, 4), dim=16)
    blind = tree.select(np.flatnonzero(np.array(tree.splits) != "test"))
    config = PPOConfig(epochs=2, rollouts=64, hidden=16)
    seen, unseen = (train(part, ALPHA, config, 0).probabilities(blind) for part in (tree, blind))
    assert np.array_equal(seen, unseen)


def test_training_leaves_the_global_state_alone() -> None:
    tree = planted_tree(per_family=(4, 2, 2), dim=16)
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads()
    train(tree, ALPHA, PPOConfig(epochs=1, rollouts=16, hidden=8), 0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), torch.get_num_threads())


def test_progress_reaches_the_end() -> None:
    tree = planted_tree(per_family=(4, 2, 2), dim=16)
    told: list[tuple[int, int]] = []
    config = PPOConfig(epochs=3, rollouts=16, hidden=8)
    trained = train(tree, ALPHA, config, 0, lambda done, total, *_: told.append((done, total)))
    assert told[-1] == (3, 3)
    assert len(trained.history) == len(told)


@pytest.mark.parametrize("alpha", [float("nan"), -1.0, float("inf")])
def test_a_bad_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha must be a finite number"):
        train(planted_tree(per_family=(2, 1, 1), dim=16), alpha, preset("default"), 0)


def test_nothing_to_train_on() -> None:
    tree = planted_tree(per_family=(0, 1, 1), dim=16)
    with pytest.raises(InputError, match="the train fold is empty"):
        train(tree, ALPHA, preset("default"), 0)


def test_the_papers_numbers() -> None:
    """Appendix B; each number once."""
    paper = PRESETS["paper"]
    assert (paper.iterations, paper.rollouts, paper.minibatches) == (8, 128, 16)
    assert (paper.update_epochs, paper.epochs, paper.warmup_steps) == (4, 200, 100)
    assert (paper.gamma, paper.gae_lambda, paper.clip) == (0.99, 0.95, 0.2)
    assert (paper.value_coefficient, paper.entropy_coefficient) == (0.5, 0.01)
    assert (paper.max_grad_norm, paper.learning_rate, paper.adam_eps) == (0.3, 1e-4, 1e-4)
    assert (paper.evaluate_every, paper.checkpoint_every) == (3, 5)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(InputError, match="unknown preset: papr"):
        preset("papr")


def test_the_automatic_grid_comes_from_the_train_fold() -> None:
    tree = planted_tree()
    grid = alpha_grid(tree, 6)
    assert grid[0] == 0
    assert ALPHA in grid
    assert list(grid) == sorted(set(grid))
    assert grid == alpha_grid(tree.split("train"), 6)

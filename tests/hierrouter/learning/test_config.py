"""Presets: the paper's numbers, and every wrong name by what it should be."""

from dataclasses import replace

import pytest

from hierrouter.learning.config import (
    ALGORITHMS,
    PRESETS,
    PPOConfig,
    TrainConfig,
    algorithm,
    preset,
    training_config,
)
from hierrouter_cache.errors import InputError


def test_the_papers_preset_has_the_papers_numbers() -> None:
    paper = preset("paper")
    assert isinstance(paper, PPOConfig)
    assert (paper.gamma, paper.gae_lambda, paper.clip) == (0.99, 0.95, 0.2)
    assert (paper.value_coefficient, paper.entropy_coefficient) == (0.5, 0.01)
    assert paper.entropy_end == paper.entropy_coefficient
    assert (paper.learning_rate, paper.adam_eps, paper.max_grad_norm) == (1e-4, 1e-4, 0.3)
    assert (paper.iterations, paper.rollouts) == (8, 128)
    assert (paper.minibatches, paper.update_epochs) == (16, 4)
    assert (paper.epochs, paper.warmup_steps, paper.patience) == (200, 100, 0)
    assert (paper.evaluate_every, paper.checkpoint_every) == (3, 5)
    assert not paper.standardise_reward
    assert not paper.scale_embedding and not paper.scale_cost and paper.plain_start
    assert not preset("default").plain_start


def test_a_training_is_of_a_preset_and_takes_one_epoch_or_more() -> None:
    for (name, algo), config in PRESETS.items():
        assert training_config(name, algo) is config
        assert (config.preset, config.algo) == (name, algo)
        assert type(config) is ALGORITHMS[algo]
        kept: TrainConfig = training_config(name, algo, keep_anyway=True)
        assert kept == replace(config, keep_anyway=True)
    assert training_config("default", "exact", 1, seeds=3) == replace(
        PRESETS["default", "exact"], epochs=1
    )
    with pytest.raises(InputError, match="epochs must be at least 1, got 0"):
        training_config("default", "ppo", 0)


def test_a_budget_takes_the_value_model_and_nothing_that_contradicts_it() -> None:
    assert (algorithm(None, None, 0.1), algorithm("exact", None, None)) == ("ppo", "exact")
    assert algorithm(None, 0.5, None) == algorithm("value", 0.5, None) == "value"
    for name in ("ppo", "exact"):
        with pytest.raises(InputError, match=f"--budget with --algo {name}; leave --algo out"):
            algorithm(name, 0.5, None)
    with pytest.raises(InputError, match="--budget and --alpha contradict each other"):
        algorithm(None, 0.5, 0.1)

"""Adam's learning rate, and Adam put away and taken up again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hierrouter.learning.config import TrainConfig, preset
from hierrouter.learning.loop import adam_tensors, make_adam, restore_adam, steps_made

STEPS = 200


def some_layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def step(layer: nn.Linear, adam: torch.optim.Adam) -> float:
    """One gradient step; returns the learning rate it was made with."""
    adam.zero_grad()
    layer(torch.ones(1, 3)).square().sum().backward()
    adam.step()
    return float(adam.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("name", "made", "factor"),
    [
        ("default", 0, 1.0),
        ("default", STEPS // 2, 0.5),
        ("default", STEPS - 1, 1 / STEPS),
        ("default", STEPS + 5, 0.0),
        ("paper", 0, 0.01),
        ("paper", 99, 1.0),
        ("paper", STEPS + 5, 1.0),
    ],
)
def test_the_learning_rate_rises_and_falls(name: str, made: int, factor: float) -> None:
    config: TrainConfig = preset(name)
    layer = some_layer()
    adam = make_adam(layer.parameters(), config, STEPS)
    rates = [step(layer, adam) for _ in range(made + 1)]
    assert rates[-1] == pytest.approx(config.learning_rate * factor)
    assert steps_made(adam) == made + 1


def test_adam_taken_up_again_makes_the_same_steps() -> None:
    config = preset("default")
    layer = some_layer()
    adam = make_adam(layer.parameters(), config, 8)
    assert adam_tensors(adam) == {}
    for _ in range(3):
        step(layer, adam)
    other = some_layer()
    other.load_state_dict({name: value.clone() for name, value in layer.state_dict().items()})
    again = make_adam(other.parameters(), config, 8)
    restore_adam(again, {name: value.clone() for name, value in adam_tensors(adam).items()})
    assert [step(layer, adam) for _ in range(5)] == [step(other, again) for _ in range(5)]
    assert torch.equal(layer.weight, other.weight)

"""Adam with the learning rate of the configuration.

In: parameters, a `TrainConfig`, the number of gradient steps. Out: an optimizer whose whole state,
schedule included, is in its `state_dict`, so that a training can be resumed. Not covered: losses.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hierrouter.learn.config import TrainConfig


def make_adam(
    parameters: Iterable[nn.Parameter], config: TrainConfig, steps: int
) -> torch.optim.Adam:
    """Adam whose learning rate follows `config` over `steps` gradient steps."""
    adam = torch.optim.Adam(
        list(parameters), lr=config.learning_rate, eps=config.adam_eps, fused=True
    )

    def schedule(*_: object) -> None:
        factor = _factor(steps_made(adam), steps, config)
        for group in adam.param_groups:
            group["lr"] = config.learning_rate * factor

    adam.register_step_pre_hook(schedule)
    return adam


def steps_made(adam: torch.optim.Adam) -> int:
    """Gradient steps so far, as Adam itself counts them."""
    first = adam.param_groups[0]["params"][0]
    return int(adam.state[first]["step"]) if first in adam.state else 0


def _factor(step: int, steps: int, config: TrainConfig) -> float:
    rising = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    falling = 1 - step / steps if config.decay else 1.0
    return rising * max(falling, 0.0)


def adam_tensors(adam: torch.optim.Adam) -> dict[str, Tensor]:
    """Moments and step counts by parameter number; empty before the first step."""
    return {
        f"{number}.{name}": value
        for number, moments in adam.state_dict()["state"].items()
        for name, value in moments.items()
    }


def restore_adam(adam: torch.optim.Adam, tensors: dict[str, Tensor]) -> None:
    """Put back what `adam_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value.clone()  # Adam works in place
    adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})

"""Adam on a few arrays, with copies on the way.

In: starting values, a loss, after how many steps to look. Out: the arrays at these moments, so that
the validation fold can say when to stop. Not covered: what is learned with it, see `factorisation`
and `dual_encoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]


def descend(
    start: Sequence[Array],
    loss: Callable[[Sequence[Tensor]], Tensor],
    stops: Sequence[int],
    learning_rate: float,
) -> Iterator[tuple[int, list[Array]]]:
    """Follow the gradient of a loss.

    Args:
        start: float32 arrays to be learned; they are not changed.
        loss: of tensors in the order of `start`; called once a step, it may draw a batch.
        stops: numbers of steps, rising.

    Yields:
        The number of steps made and a copy of the arrays, at each stop.
    """
    weights = [torch.tensor(values, requires_grad=True) for values in start]
    adam = torch.optim.Adam(weights, lr=learning_rate)
    made = 0
    for stop in stops:
        for _ in range(stop - made):
            adam.zero_grad()
            loss(weights).backward()  # type: ignore[no-untyped-call]
            adam.step()
        made = stop
        yield made, [weight.detach().numpy().copy() for weight in weights]


def random_map(rng: np.random.Generator, inputs: int, outputs: int, spread: float) -> Array:
    """float32[inputs, outputs], normal with a standard deviation of `spread`."""
    return rng.normal(0, spread, (inputs, outputs)).astype(np.float32)

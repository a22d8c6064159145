"""Muon in float32, equal shapes stacked.

`torch.optim.Muon` orthogonalises in bfloat16, one matrix at a time; on a processor without
bfloat16 units that took half of every step of models this small. In: a model's hidden matrices.
Out: an ordinary optimizer. Source: Jordan et al. 2024, "Muon". Not covered: Nesterov off, other
dtypes, anything but matrices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_TINY = 1e-7


class Muon(Optimizer):
    """Momentum whose direction is the nearest semi-orthogonal matrix."""

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._update(matrices, group["lr"], group["momentum"], group["decay"])

    def _update(self, matrices: list[Tensor], lr: float, momentum: float, decay: float) -> None:
        gradients = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
        state = self.state[matrices[0]]
        mean = state.setdefault("mean", torch.zeros_like(gradients))
        mean.lerp_(gradients, 1 - momentum)
        directions = orthogonalised(gradients.lerp(mean, momentum))
        rows, columns = matrices[0].shape
        scale = lr * max(1.0, rows / columns) ** 0.5
        for matrix, direction in zip(matrices, directions, strict=True):
            matrix.mul_(1 - lr * decay).sub_(direction, alpha=scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration towards singular values near 1; float32 [n, rows, columns]."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x

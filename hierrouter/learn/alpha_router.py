"""One network for every alpha.

In: `States` and alphas. Out: `AlphaRouter`, the paper's router whose two layers are scaled and
shifted by alpha (FiLM, arXiv:1709.07871); `TrainedSweep`, from which the router at any alpha is
read off as a plain `Router`. Not covered: its training, see `conditioned`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.learn.objective import Objective
from hierrouter.learn.origin import Origin
from hierrouter.learn.router import Router, RouterShape
from hierrouter.learn.states import States
from hierrouter.learn.trained import TrainedRouter

WIDTH = 32  # of the layer that reads alpha
SCALES = 7  # alphas at which the inputs that tell alpha are halfway


class AlphaRouter(nn.Module):
    """The paper's router, with alpha as one more input.

    Alpha is told by `alpha / (alpha + scale)` for several scales: numbers in [0, 1] that resolve
    the range in which decisions change. They give a factor and a shift for each unit of the two
    layers, so at a fixed alpha this is a `Router` with other weights, see `at`.

    Args:
        shape: of the router.
        scales: float32[SCALES], alphas > 0, ascending.
    """

    scales: Tensor

    def __init__(self, shape: RouterShape, scales: Tensor) -> None:
        super().__init__()
        self.base = Router(shape)
        self.register_buffer("scales", scales)
        self.read = nn.Linear(len(scales), WIDTH)
        self.modulate = nn.Linear(WIDTH, 4 * shape.hidden)
        nn.init.normal_(self.modulate.weight, std=0.02)
        nn.init.zeros_(self.modulate.bias)

    def forward(self, states: States, alpha: Tensor) -> Tensor:
        """Logits of whole trees at several alphas each; what does not depend on alpha, once.

        Args:
            states: the S states of one query after those of another, n = queries * S.
            alpha: float32[queries, K].

        Returns:
            float32[queries, K, S, A].
        """
        queries, alphas = alpha.shape
        rows = self._modulation(alpha.reshape(-1))
        factor, shift, factor2, shift2 = (row.reshape(queries, alphas, 1, -1) for row in rows)
        first = self.base.first(states).reshape(queries, 1, -1, self.base.shape.hidden)
        second = self.base.second(torch.tanh(first * factor + shift))
        features = torch.tanh(second * factor2 + shift2)
        legal = states.legal.reshape(queries, 1, -1, self.base.shape.actions)
        return self.base.logits(features, legal)

    def _modulation(self, alpha: Tensor) -> list[Tensor]:
        """Four of float32[n, hidden]: factor and shift of the first layer, of the second."""
        told = alpha[:, None] / (alpha[:, None] + self.scales)
        found = self.modulate(torch.tanh(self.read(told))).chunk(4, dim=1)
        return [found[0] + 1, found[1], found[2] + 1, found[3]]

    @torch.no_grad()
    def at(self, alpha: float) -> Router:
        """The router at one alpha: factors and shifts become part of its weights."""
        rows = self._modulation(torch.tensor([alpha], dtype=torch.float32))
        factor, shift, factor2, shift2 = (row[0] for row in rows)
        router = deepcopy(self.base)
        router.context.weight.mul_(factor[:, None])
        router.progress.weight.mul_(factor[:, None])
        router.progress.bias.mul_(factor).add_(shift)
        router.second.weight.mul_(factor2[:, None])
        router.second.bias.mul_(factor2).add_(shift2)
        return router.requires_grad_(False).eval()


def scales_of(break_points: NDArray[np.float64]) -> Tensor:
    """float32[SCALES]: quantiles of the alphas at which the oracle changes, see `hulls`."""
    if not len(break_points):
        return torch.ones(SCALES)
    spread = (np.arange(SCALES) + 0.5) / SCALES
    return torch.from_numpy(np.quantile(break_points, spread).astype(np.float32))


@dataclass(frozen=True)
class TrainedSweep:
    """A network for every alpha, and where it comes from.

    Attributes:
        network: the network, frozen.
        alphas: the grid on which the iterate was chosen, ascending.
        objective: what it was trained for, whatever its alpha.
        origin: where it comes from.
        history: mean over the grid of exact standardised R on validation, at each evaluation.
        kept: index in `history` of the iterate that was kept; None where it is not known.
    """

    network: AlphaRouter
    alphas: tuple[float, ...]
    objective: Objective
    origin: Origin
    history: tuple[float, ...]
    kept: int | None = None

    def at(self, alpha: float) -> TrainedRouter:
        """The router for one alpha >= 0; no training.

        Its history is empty: R at this alpha was not measured while the sweep was trained.

        Raises:
            InputError: alpha is not finite, below 0 or too great for an `Objective`.
        """
        return TrainedRouter(
            router=self.network.at(alpha),
            objective=replace(self.objective, alpha=alpha),
            origin=self.origin,
            history=(),
        )


# For one alpha, or for every one.
Policy = TrainedRouter | TrainedSweep

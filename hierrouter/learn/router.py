"""The paper's router as a torch module.

In: `States`. Out: a logit for each action, and a value. The text encoder is frozen and runs
elsewhere; its vectors come in. Not covered: how the weights are found, see `ppo` and `exact`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.actions import Actions
from hierrouter.learn.config import TrainConfig
from hierrouter.learn.states import States, StateTable
from hierrouter_cache.tree import RouteTree

# States pushed through the network at once when a whole tree is evaluated.
CHUNK = 16_384
# The logit of what must not be chosen: its probability is 0, and no sum becomes NaN.
NEVER = -1e9


@dataclass(frozen=True)
class RouterShape:
    """What must be known to build a router.

    Attributes:
        actions: A, M or 2M.
        hops: L.
        dim: length of an embedding; 0 where no text is seen.
        hidden: width of both layers.
        stage_dim: length of the learned stage embedding.
        embedding_scale: factor on embeddings.
        cost_scale: costs are divided by it.
    """

    actions: int
    hops: int
    dim: int
    hidden: int
    stage_dim: int
    embedding_scale: float
    cost_scale: float


def shape_for(tree: RouteTree, actions: Actions, config: TrainConfig) -> RouterShape:
    """The router to train on `tree` with the settings `config`."""
    return RouterShape(
        actions=actions.count,
        hops=tree.hops,
        dim=tree.dim,
        hidden=config.hidden,
        stage_dim=config.stage_dim,
        embedding_scale=math.sqrt(tree.dim) if config.scale_embedding else 1.0,
        cost_scale=cost_scale(tree),
    )


class Router(nn.Module):
    """Embedding, learned stage embedding and cost, concatenated; two layers, two heads.

    The first layer is written as the sum of one map of the embedding and one of the rest. It is
    the same function as one map of the concatenation, but no gradient is computed towards the
    frozen embedding.
    """

    def __init__(self, shape: RouterShape) -> None:
        super().__init__()
        self.shape = shape
        self.stage = nn.Embedding(shape.hops, shape.stage_dim)
        # torch warns where there is nothing to initialise.
        make = nn.Linear if shape.dim else _empty
        self.context = make(shape.dim, shape.hidden, bias=False)
        self.progress = nn.Linear(shape.stage_dim + 1, shape.hidden)
        self.second = nn.Linear(shape.hidden, shape.hidden)
        self.policy = _head(shape.hidden, shape.actions, gain=0.01)
        self.value = _head(shape.hidden, 1, gain=1.0)

    def first(self, states: States) -> Tensor:
        """float32[n, hidden]: the first layer, before its nonlinearity."""
        cost = states.cost[:, None] / self.shape.cost_scale
        progress = torch.cat([self.stage(states.stage), cost], dim=1)
        context = self.shape.embedding_scale * self.context(states.embedding)
        first: Tensor = context + self.progress(progress)
        return first

    def features(self, states: States) -> Tensor:
        """float32[n, hidden]: what both heads read."""
        return torch.tanh(self.second(torch.tanh(self.first(states))))

    def logits(self, features: Tensor, legal: Tensor) -> Tensor:
        """float32[n, A]; `NEVER` where an action is not legal, bool[n, A]."""
        logits: Tensor = self.policy(features).masked_fill(~legal, NEVER)
        return logits

    def forward(self, states: States) -> tuple[Tensor, Tensor]:
        """Logits float32[n, A] and values float32[n]."""
        features = self.features(states)
        return self.logits(features, states.legal), self.value(features)[:, 0]


def _empty(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return nn.Linear(inputs, outputs, bias=bias)


def _head(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer that starts orthogonal; a small gain starts close to uniform."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def cost_scale(tree: RouteTree) -> float:
    """Root mean square of the costs at which decisions are due, the root's 0 left out."""
    cost = tree.cost[:, 1 : tree.routes.states]
    return float(np.sqrt(np.square(cost).mean())) if cost.any() else 1.0


@torch.no_grad()
def action_probabilities(router: Router, table: StateTable) -> NDArray[np.float64]:
    """float64[states, A]: the policy at every state of the table."""
    chunks = [slice(start, start + CHUNK) for start in range(0, len(table), CHUNK)]
    logits = [router(table.rows(chunk))[0] for chunk in chunks]
    probabilities: NDArray[np.float64] = torch.softmax(torch.cat(logits).double(), dim=1).numpy()
    return probabilities

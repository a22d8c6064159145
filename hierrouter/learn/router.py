"""The paper's router as a torch module.

In: states (embedding, stage, cost). Out: M logits and a value. The text encoder is frozen and
runs elsewhere; its vectors come in. Not covered: how the weights are found, see `ppo`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.learn.config import PPOConfig
from hierrouter_cache.tree import RouteTree

# States pushed through the network at once when a whole tree is evaluated.
CHUNK = 16_384


@dataclass(frozen=True)
class RouterShape:
    """What must be known to build a router.

    Attributes:
        models: M.
        hops: L.
        dim: length of an embedding.
        hidden: width of both layers.
        stage_dim: length of the learned stage embedding.
        embedding_scale: factor on embeddings.
        cost_scale: costs are divided by it.
    """

    models: int
    hops: int
    dim: int
    hidden: int
    stage_dim: int
    embedding_scale: float
    cost_scale: float


def shape_for(tree: RouteTree, config: PPOConfig) -> RouterShape:
    """The router to train on `tree` with the settings `config`."""
    return RouterShape(
        models=len(tree.models),
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
        self.context = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.progress = nn.Linear(shape.stage_dim + 1, shape.hidden)
        self.second = nn.Linear(shape.hidden, shape.hidden)
        self.policy = _head(shape.hidden, shape.models, gain=0.01)
        self.value = _head(shape.hidden, 1, gain=1.0)

    def features(self, embedding: Tensor, stage: Tensor, cost: Tensor) -> Tensor:
        """float32[states, hidden]: what both heads read.

        Args:
            embedding: float32[states, dim], the frozen encoder's vectors of c_t.
            stage: int64[states], l_t.
            cost: float32[states], C_t in price * token.
        """
        progress = torch.cat([self.stage(stage), cost[:, None] / self.shape.cost_scale], dim=1)
        context = self.shape.embedding_scale * self.context(embedding)
        first = torch.tanh(context + self.progress(progress))
        return torch.tanh(self.second(first))

    def forward(self, embedding: Tensor, stage: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Logits float32[states, M] and values float32[states]; arguments as in `features`."""
        features = self.features(embedding, stage, cost)
        return self.policy(features), self.value(features)[:, 0]


def _head(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer that starts orthogonal; a small gain starts close to uniform."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True)
class StateTable:
    """All states of a tree as tensors, in the order of state numbers.

    Attributes:
        embedding: float32[queries * states, dim].
        stage: int64[queries * states].
        cost: float32[queries * states].
    """

    embedding: Tensor
    stage: Tensor
    cost: Tensor

    def __len__(self) -> int:
        return len(self.stage)

    def rows(self, state: Tensor | slice) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding, stage and cost of some states: the arguments of a `Router`."""
        return self.embedding[state], self.stage[state], self.cost[state]


def state_table(tree: RouteTree) -> StateTable:
    """The states of `tree`, each with its own copy of its embedding."""
    states = tree.routes.states
    stage = np.tile(tree.routes.depth()[:states], len(tree))
    cost = tree.cost[:, :states].astype(np.float32).ravel()
    embedding = tree.embedding.reshape(-1, tree.dim)
    return StateTable(torch.from_numpy(embedding), torch.from_numpy(stage), torch.from_numpy(cost))


def cost_scale(tree: RouteTree) -> float:
    """Root mean square of the costs at which decisions are due, the root's 0 left out."""
    cost = tree.cost[:, 1 : tree.routes.states]
    return float(np.sqrt(np.square(cost).mean())) if cost.any() else 1.0


@torch.no_grad()
def action_probabilities(router: Router, table: StateTable) -> NDArray[np.float64]:
    """float64[states, M]: the policy at every state of the table."""
    chunks = [slice(start, start + CHUNK) for start in range(0, len(table), CHUNK)]
    logits = [router(*table.rows(chunk))[0] for chunk in chunks]
    probabilities: NDArray[np.float64] = torch.softmax(torch.cat(logits).double(), dim=1).numpy()
    return probabilities

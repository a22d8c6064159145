"""The paper's router as a torch module.

In: `States`. Out: a logit for each action, and a value. The text encoder is frozen and runs
elsewhere; its vectors come in. Not covered: how the weights are found, see `ppo` and
`enumeration`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
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
        plain_start: how a new router starts, see `TrainConfig`.
    """

    actions: int
    hops: int
    dim: int
    hidden: int
    stage_dim: int
    embedding_scale: float
    cost_scale: float
    plain_start: bool

    @property
    def weights(self) -> int:
        """How many numbers a router learns, biases aside."""
        width = self.dim + self.stage_dim + 1 + self.hidden + self.actions + 1
        return self.hops * self.stage_dim + self.hidden * width


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
        plain_start=config.plain_start,
    )


class Router(nn.Module):
    """Embedding, learned stage embedding and cost, concatenated; two layers, two heads.

    The first layer is written as the sum of one map of the embedding and one of the rest. It is
    the same function as one map of the concatenation, but no gradient is computed towards the
    frozen embedding. With a plain start it also starts as one map would, and the heads as torch
    makes them: where embeddings are not scaled, small heads and a loud stage would drown the text
    for many epochs.
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
        plain = shape.plain_start
        self.policy = _head(shape.hidden, shape.actions, gain=None if plain else 0.01)
        self.value = _head(shape.hidden, 1, gain=None if plain else 1.0)
        if plain:
            _start_as_one(self.context, self.progress)

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


@torch.no_grad()
def _start_as_one(context: nn.Linear, progress: nn.Linear) -> None:
    """Draw both maps anew as torch draws one map of the concatenation of their inputs."""
    bound = 1 / math.sqrt(context.in_features + progress.in_features)
    for values in (context.weight, progress.weight, progress.bias):
        values.uniform_(-bound, bound)


def _head(inputs: int, outputs: int, gain: float | None) -> nn.Linear:
    """A linear layer that starts orthogonal, close to uniform with a small gain; None: as torch."""
    layer = nn.Linear(inputs, outputs)
    if gain is None:
        return layer
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def cost_scale(tree: RouteTree) -> float:
    """Root mean square of the costs at which decisions are due, the root's 0 left out."""
    cost = tree.cost[:, 1 : tree.routes.states]
    return float(np.sqrt(np.square(cost).mean())) if cost.any() else 1.0


def action_probabilities(
    router: Router, table: StateTable, state: Tensor | None = None
) -> NDArray[np.float64]:
    """float64[n, A]: the policy at some states of the table, int64[n], or at all of them."""
    logits = in_chunks(lambda states: router(states)[0], table, state)
    probabilities: NDArray[np.float64] = torch.softmax(logits.double(), dim=1).numpy()
    return probabilities


@torch.no_grad()
def in_chunks(
    network: Callable[[States], Tensor], table: StateTable, state: Tensor | None = None
) -> Tensor:
    """What a network makes of some states of the table, int64[n], or of all of them.

    Args:
        network: gives a row for each state.
    """
    states = torch.arange(len(table)) if state is None else state
    parts = states.split(CHUNK)  # type: ignore[no-untyped-call]
    return torch.cat([network(table.rows(part)) for part in parts])

"""What a trained network decides, in numpy: who only serves or explains waits for no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Actions, Booleans, Floats, Integers
from hierrouter_cache.tree import Routes, RouteTree

Array = NDArray[np.float32]

# States worked out at once when a whole tree is evaluated.
CHUNK = 16_384
# The logit of what must not be chosen: its probability is 0, and no sum becomes NaN.
NEVER = -1e9
UNSEEN = 1e9  # the deviation of what was never there
NUMBERS_GAIN = 4.0  # how much louder than one component of a text a number is


@dataclass(frozen=True)
class RouterShape:
    """What must be known to build a router.

    Attributes:
        actions: A, see `Actions`.
        models: M.
        hops: stages at which a decision may be due: L; one more where answers may be returned.
        dim: length of an embedding; 0 where no text is seen.
        hidden: width of both layers.
        stage_dim: length of the learned stage embedding.
        knows_route: whether that is one of the node, see `NetworkConfig`.
        embedding_scale: factor on embeddings.
        cost_scale: costs are divided by it.
        plain_start: how a new router starts, see `NetworkConfig`.
        numbers: how many of `dim`, the last ones, are numbers that are standardised.
    """

    actions: int
    models: int
    hops: int
    dim: int
    hidden: int
    stage_dim: int
    knows_route: bool
    embedding_scale: float
    cost_scale: float
    plain_start: bool
    numbers: int = 0

    @property
    def places(self) -> int:
        """How many stages, or nodes, have an embedding of their own."""
        return Routes(self.models, self.hops).states if self.knows_route else self.hops

    @property
    def weights(self) -> int:
        """How many numbers a router learns, biases aside."""
        width = self.dim + self.stage_dim + 1 + self.hidden + self.actions + 1
        return self.places * self.stage_dim + self.hidden * width

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of its tensors, all float32, by name."""
        hidden, actions = self.hidden, self.actions
        found: dict[str, tuple[int, ...]] = {
            "stage.weight": (self.places, self.stage_dim),
            "context.weight": (hidden, self.dim),
            "progress.weight": (hidden, self.stage_dim + 1),
            "progress.bias": (hidden,),
            "second.weight": (hidden, hidden),
            "second.bias": (hidden,),
            "policy.weight": (actions, hidden),
            "policy.bias": (actions,),
            "value.weight": (1, hidden),
            "value.bias": (1,),
        }
        if self.numbers:
            found |= {"centre": (self.numbers,), "spread": (self.numbers,)}
        return found


class Network:
    """A trained `hierrouter.learning.network.Router`: the same function of the same weights.

    Args:
        weights: float32 arrays by name, see `RouterShape.tensors`.

    Raises:
        ValueError: weights that are missing, too many, or of another shape or dtype.
    """

    def __init__(self, shape: RouterShape, weights: Mapping[str, NDArray[np.float32]]) -> None:
        found = {name: value.shape for name, value in weights.items()}
        if found != shape.tensors or any(value.dtype != np.float32 for value in weights.values()):
            raise ValueError("weights of another shape")
        self.shape = shape
        self.weights = dict(weights)
        self._depth = Routes(shape.models, shape.hops).depth()

    def sees(self, number: int) -> bool:
        """Whether one of the numbers was there in training."""
        return bool(self.weights["spread"][number] < UNSEEN)

    def features(self, embedding: Array, node: Integers, cost: Array) -> Array:
        """float32[n, hidden]: what both heads read.

        `embedding`: float32[n, dim]; `node`: int64[n]; `cost`: float32[n], C so far in money.
        """
        shape, weights = self.shape, self.weights
        place = node if shape.knows_route else self._depth[node]
        spent = (cost / np.float32(shape.cost_scale))[:, None]
        progress = np.concatenate([weights["stage.weight"][place], spent], axis=1)
        first = self._linear("progress", progress) + self._context(embedding)
        return np.tanh(self._linear("second", np.tanh(first)))

    def probabilities(
        self, embedding: Array, node: Integers, cost: Array, legal: Booleans
    ) -> Floats:
        """float64[n, A]: the policy at some states.

        `embedding`, `node`, `cost`: as for `features`; `legal`: bool[n, A], what may be chosen.
        """
        logits = self._linear("policy", self.features(embedding, node, cost))
        return softmax(np.where(legal, logits.astype(np.float64), NEVER))

    def policy(self, tree: RouteTree, actions: Actions) -> Floats:
        """float64[queries, S, A]: the policy at every state of a tree that shows them."""
        legal = actions.legal()
        parts = [
            self.probabilities(seen, node, cost, legal[node])
            for seen, node, cost in _states(tree, actions)
        ]
        return np.concatenate(parts).reshape(len(tree), actions.states, -1)

    def all_features(self, tree: RouteTree, actions: Actions) -> Floats:
        """float64[queries, S, hidden]: the features of every state of a tree that shows them."""
        parts = [self.features(*states).astype(np.float64) for states in _states(tree, actions)]
        return np.concatenate(parts).reshape(len(tree), actions.states, -1)

    def _context(self, embedding: Array) -> Array:
        """float32[n, hidden]: the map of the encoder's vectors, scaled, and of the numbers."""
        shape, weight = self.shape, self.weights["context.weight"]
        scale = np.float32(shape.embedding_scale)
        if not shape.numbers:
            return scale * (embedding @ weight.T)
        numbers = embedding[:, -shape.numbers :]
        read = (numbers - self.weights["centre"]) / self.weights["spread"]
        read = np.where(numbers != 0, np.float32(NUMBERS_GAIN) * read, np.float32(0))
        seen = np.concatenate([scale * embedding[:, : -shape.numbers], read], axis=1)
        return seen @ weight.T

    def _linear(self, name: str, inputs: Array) -> Array:
        return inputs @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]


def softmax(logits: Floats) -> Floats:
    """Over the last axis; 0 where a logit is minus infinity."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def _states(tree: RouteTree, actions: Actions) -> Iterator[tuple[Array, Integers, Array]]:
    """What a network reads at the states of a tree, chunk by chunk, query after query."""
    tree.require_embedded(actions.allow_return)
    for start in range(0, len(tree) * actions.states, CHUNK):
        state = np.arange(start, min(start + CHUNK, len(tree) * actions.states))
        query, node = np.divmod(state, actions.states)
        yield tree.embedding_at(query, node), node, tree.cost[query, node].astype(np.float32)

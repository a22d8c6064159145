"""Index arithmetic of the M-ary tree of routes.

A query's tree is numbered level by level: the root (nothing called yet) is node 0 and the child
reached from node n by calling model a is `n * M + 1 + a`. So a route, its parent and its last
action are arithmetic, and every array downstream has one column per node number.

    M = 2, L = 2          0
                     1         2          hop 1
                   3   4     5   6        hop 2: the leaves, where an episode ends

Not covered: prices, scores, or which nodes have been collected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

SEPARATOR = ">"
Number = TypeVar("Number", int, NDArray[np.int64])


@dataclass(frozen=True)
class Routes:
    """The shape of the tree for M models and L hops (paper section 3.1).

    Attributes:
        models: M, the size of the pool.
        hops: L, the number of calls in an episode.
    """

    models: int
    hops: int

    def __post_init__(self) -> None:
        if self.models < 1 or self.hops < 1:
            raise ValueError(f"a tree needs at least 1 model and 1 hop, got {self}")

    @property
    def states(self) -> int:
        """Nodes where a decision is due: 1 + M + ... + M^(L-1)."""
        return self.level_start(self.hops)

    @property
    def nodes(self) -> int:
        """All node numbers, root included: `states` + M^L."""
        return self.level_start(self.hops + 1)

    @property
    def calls(self) -> int:
        """Model calls in a query's tree: M + ... + M^L, all nodes but the root."""
        return self.nodes - 1

    @property
    def leaves(self) -> slice:
        """The node numbers at which an episode ends."""
        return slice(self.states, self.nodes)

    def level_start(self, level: int) -> int:
        """First node number at depth `level`; the root is level 0."""
        return sum(self.models**depth for depth in range(level))

    def level(self, level: int) -> slice:
        """The node numbers at depth `level`."""
        return slice(self.level_start(level), self.level_start(level + 1))

    def child(self, node: Number, action: Number) -> Number:
        """Node reached from `node` by calling model `action`; works on arrays and on ints."""
        return node * self.models + 1 + action

    def parent(self, node: int) -> int:
        """The node from which `node` was reached; `node` must not be the root."""
        return (node - 1) // self.models

    def action(self, node: int) -> int:
        """The model whose call led to `node`; `node` must not be the root."""
        return (node - 1) % self.models

    def depth(self) -> NDArray[np.int64]:
        """int64[nodes]: how many models have been called at each node."""
        return np.repeat(
            np.arange(self.hops + 1), [self.models**level for level in range(self.hops + 1)]
        )

    def path(self, node: int) -> tuple[int, ...]:
        """The models called on the way from the root to `node`."""
        steps: list[int] = []
        while node:
            steps.append(self.action(node))
            node = self.parent(node)
        return tuple(reversed(steps))

    def node(self, path: tuple[int, ...]) -> int:
        """The node number at the end of `path`; the inverse of `path()`."""
        number = 0
        for action in path:
            number = number * self.models + 1 + action
        return number

    def name(self, node: int, models: tuple[str, ...]) -> str:
        """Human name of a route, `first>second`; the root's is the empty string."""
        return SEPARATOR.join(models[action] for action in self.path(node))

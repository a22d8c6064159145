"""The cache as dense arrays: what everybody reads.

In: what `reader` found for a pool. Out: `RouteTree`, frozen arrays indexed by query and node
number (`routes`), with prices joined in. Not covered: policies, which live in `hierrouter`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import Routes

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class DirectCalls:
    """Single-model baselines: the question alone, no stage instruction (paper table 1).

    Attributes:
        models: K names; the pool's models first, then reference models outside it.
        score: float64[queries, K], quality in [0, 1].
        accuracy: float64[queries, K], 1 where the answer is right.
        tokens: int64[queries, K], tokens in and out.
        base_rate: float64[K], cost per token.
    """

    models: tuple[str, ...]
    score: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    tokens: NDArray[np.int64]
    base_rate: NDArray[np.float64]

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, K]: base_rate * tokens of the one call."""
        return self.tokens * self.base_rate


@dataclass(frozen=True)
class RouteTree:
    """Every route of every query, computed once (paper section 3.1, the deterministic MDP).

    Node numbers are those of `Routes`; column 0 is the root, whose score and tokens are 0.

    Attributes:
        models: M names; action a calls `models[a]`.
        hops: L.
        query_ids: one id a query.
        datasets: dataset of each query.
        splits: "train", "validation" or "test" for each query.
        score: float64[queries, nodes], quality Q of the node's response, in [0, 1].
        accuracy: float64[queries, nodes], 1 where the response is right, else 0.
        tokens_in: int64[queries, nodes], prompt tokens of the call that made the node.
        tokens_out: int64[queries, nodes], generated tokens of that call.
        base_rate: float64[M], cost per token of each model.
        embedding: float32[queries, states, dim], the context at each state.
        direct: the single-model calls.
        scorer: name of Q.
        fingerprint: digest of pool, prices, queries, scores, tokens and encoder; names the data
            in every report. A selection keeps that of the whole.
    """

    models: tuple[str, ...]
    hops: int
    query_ids: tuple[str, ...]
    datasets: tuple[str, ...]
    splits: tuple[str, ...]
    score: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    base_rate: NDArray[np.float64]
    embedding: NDArray[np.float32]
    direct: DirectCalls
    scorer: str
    fingerprint: str

    @cached_property
    def routes(self) -> Routes:
        """The index arithmetic of this tree."""
        return Routes(len(self.models), self.hops)

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: C, base_rate * tokens summed from the root to the node."""
        routes = self.routes
        total = np.zeros(self.score.shape)
        for node in range(1, routes.nodes):
            tokens = self.tokens_in[:, node] + self.tokens_out[:, node]
            delta = self.base_rate[routes.action(node)] * tokens
            total[:, node] = total[:, routes.parent(node)] + delta
        return total

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries, leaves]: R = Q - alpha * C at the end of each route."""
        leaves = self.routes.leaves
        return self.score[:, leaves] - alpha * self.cost[:, leaves]

    def __len__(self) -> int:
        return len(self.query_ids)

    def select(self, rows: NDArray[np.int64]) -> RouteTree:
        """The same tree for the queries at positions `rows` only, in that order."""
        direct = replace(
            self.direct,
            score=self.direct.score[rows],
            accuracy=self.direct.accuracy[rows],
            tokens=self.direct.tokens[rows],
        )
        return replace(
            self,
            query_ids=tuple(self.query_ids[row] for row in rows),
            datasets=tuple(self.datasets[row] for row in rows),
            splits=tuple(self.splits[row] for row in rows),
            score=self.score[rows],
            accuracy=self.accuracy[rows],
            tokens_in=self.tokens_in[rows],
            tokens_out=self.tokens_out[rows],
            embedding=self.embedding[rows],
            direct=direct,
        )

    def split(self, name: str) -> RouteTree:
        """The queries of one fold, "train", "validation" or "test"."""
        return self.select(np.flatnonzero(np.array(self.splits) == name))

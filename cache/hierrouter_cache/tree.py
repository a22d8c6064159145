"""The cache as dense arrays: what everybody reads.

In: what `reader` found for a pool. Out: `RouteTree`, frozen arrays indexed by query and node
number (`routes`), with prices joined in. What a policy sees of a state's texts is a row of vectors
in each of the tree's parts. Not covered: policies, which live in `hierrouter`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.pricing import Rate, cost_of, rate_table, total_cost
from hierrouter_cache.routes import Routes

SPLITS = ("train", "validation", "test")
PRICE_DIGEST = 8  # characters


@dataclass(frozen=True)
class DirectCalls:
    """Single-model baselines: the question alone, no stage instruction (paper table 1).

    Attributes:
        models: K names; the pool's models first, then reference models outside it.
        score: float64[queries, K], quality in [0, 1].
        accuracy: float64[queries, K], 1 where the answer is right.
        tokens_in: int64[queries, K], prompt tokens.
        tokens_out: int64[queries, K], generated tokens.
        rate: float64[K, 2], cost per token in and per token out.
    """

    models: tuple[str, ...]
    score: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    rate: NDArray[np.float64]

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, K]: cost of the one call."""
        return cost_of(self.tokens_in, self.tokens_out, self.rate)

    def select(self, rows: NDArray[np.int64]) -> DirectCalls:
        """The same for the queries at positions `rows` only, in that order."""
        return replace(
            self,
            score=self.score[rows],
            accuracy=self.accuracy[rows],
            tokens_in=self.tokens_in[rows],
            tokens_out=self.tokens_out[rows],
        )


@dataclass(frozen=True)
class StatePart:
    """What a policy sees of one text of each state: the context, say, or the question alone.

    Attributes:
        vectors: float32[rows, width], the encoder's vectors; where one file holds them all, mapped
            and not copied.
        row: int64[queries, states], row of `vectors` at each state.
    """

    vectors: NDArray[np.float32]
    row: NDArray[np.int64]

    @property
    def width(self) -> int:
        """Length of a vector."""
        return int(self.vectors.shape[1])

    def select(self, rows: NDArray[np.int64]) -> StatePart:
        """The same for the queries at positions `rows` only; the vectors are shared."""
        return replace(self, row=self.row[rows])


@dataclass(frozen=True, repr=False)
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
        rate: float64[M, 2], cost of a token in and of a token out of each model.
        parts: what a policy sees of each state's texts, side by side; stage and cost are part of
            a state whatever these are. None where no text is seen.
        direct: the single-model calls.
        scorer: name of Q.
        content: digest of pool, queries, scores, tokens and encoder, without prices. A selection
            keeps that of the whole.
        left_out: queries asked for that are not here because their trees have holes.
        context_free: whether later hops are the models' own independent answers, imported from
            a table of single calls: no answer was seen by the next model.
        priced_by: who gave the rate of each model, in words.
        encoder: name of the encoder, as it was given; "" where there is none.
        view: which texts `parts` are of, see `hierrouter.collect.views`.
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
    rate: NDArray[np.float64]
    parts: tuple[StatePart, ...]
    direct: DirectCalls
    scorer: str
    content: str
    left_out: int = 0
    context_free: bool = False
    priced_by: Mapping[str, str] = field(default_factory=dict)
    encoder: str = ""
    view: str = "context"

    @cached_property
    def routes(self) -> Routes:
        """The index arithmetic of this tree."""
        return Routes(len(self.models), self.hops)

    @cached_property
    def fingerprint(self) -> str:
        """Names the data in every report: `content`, a dash, and a digest of the prices."""
        rates = np.ascontiguousarray(self.rate).tobytes() + self.direct.rate.tobytes()
        return f"{self.content}-{hashlib.sha256(rates).hexdigest()[:PRICE_DIGEST]}"

    def same_content(self, fingerprint: str) -> bool:
        """Whether a fingerprint names this tree, under these prices or others."""
        return fingerprint.startswith(f"{self.content}-")

    @property
    def dim(self) -> int:
        """Length of an embedding: the sum over the parts, 0 without any."""
        return sum(part.width for part in self.parts)

    @property
    def embedding(self) -> NDArray[np.float32]:
        """float32[queries, states, dim]: what is seen of each state; a copy on every access."""
        query, node = np.indices((len(self), self.routes.states), sparse=True)
        return self.embedding_at(query, node)

    def embedding_at(
        self, query: NDArray[np.int64], node: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """float32[n, dim]: the vectors of all parts at some states, side by side; a copy.

        Args:
            query: int64[n], positions of queries.
            node: int64[n], numbers of states. Both may have more dimensions than one.
        """
        seen = [part.vectors[part.row[query, node]] for part in self.parts]
        if len(seen) == 1:
            return seen[0]
        shape = np.broadcast_shapes(query.shape, node.shape)
        return np.concatenate([np.empty((*shape, 0), np.float32), *seen], axis=-1)

    @property
    def base_rate(self) -> NDArray[np.float64]:
        """float64[M]: cost per token of each model, the mean of its two rates."""
        mean: NDArray[np.float64] = self.rate.mean(axis=1)
        return mean

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: C, the cost of all calls from the root to the node."""
        return total_cost(self.routes, self.tokens_in, self.tokens_out, self.rate)

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries, leaves]: R = Q - alpha * C at the end of each route."""
        return self.node_reward(alpha)[:, self.routes.leaves]

    def node_reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries, nodes]: R = Q - alpha * C where an episode ends at the node."""
        return self.score - alpha * self.cost

    def __len__(self) -> int:
        return len(self.query_ids)

    def __repr__(self) -> str:
        folds = ", ".join(f"{count} {fold}" for fold, count in self.folds.items())
        return (
            f"{type(self).__name__}({len(self)} queries ({folds}), {len(self.models)} models "
            f"({', '.join(self.models)}), {self.hops} hops, Q is {self.scorer})"
        )

    @property
    def folds(self) -> dict[str, int]:
        """How many queries each fold has; those that are empty are left out."""
        return {fold: count for fold in SPLITS if (count := self.splits.count(fold))}

    def select(self, rows: NDArray[np.int64]) -> Self:
        """The same tree for the queries at positions `rows` only, in that order."""
        return replace(
            self,
            query_ids=tuple(self.query_ids[row] for row in rows),
            datasets=tuple(self.datasets[row] for row in rows),
            splits=tuple(self.splits[row] for row in rows),
            score=self.score[rows],
            accuracy=self.accuracy[rows],
            tokens_in=self.tokens_in[rows],
            tokens_out=self.tokens_out[rows],
            parts=tuple(part.select(rows) for part in self.parts),
            direct=self.direct.select(rows),
        )

    def split(self, name: str) -> Self:
        """The queries of one fold, "train", "validation" or "test"."""
        return self.select(np.flatnonzero(np.array(self.splits) == name))


AnyTree = TypeVar("AnyTree", bound=RouteTree)


def repriced(tree: AnyTree, prices: Mapping[str, Rate]) -> AnyTree:
    """The same tree under other prices, as if it had been opened with them.

    Args:
        tree: nothing of it is computed again but costs and the fingerprint.
        prices: rate of every model of the tree, direct ones included.
    """
    direct = replace(tree.direct, rate=rate_table(tree.direct.models, prices))
    return replace(tree, rate=rate_table(tree.models, prices), direct=direct)

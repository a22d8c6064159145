"""The cache as dense arrays, and the arithmetic of node numbers and prices."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import InputError, WorldError

SEPARATOR = ">"
SPLITS = ("train", "validation", "test")
ALL_FOLDS = "all"  # a name for all of them
MEASURED = (
    "score",
    "accuracy",
    "tokens_in",
    "tokens_out",
    "seconds",
)  # of each call, tree or direct
Number = TypeVar("Number", int, NDArray[np.int64])
Value = TypeVar("Value", float, NDArray[np.float64])


def route_name(models: Sequence[str]) -> str:
    """Human name of a route: `first>second`, and `>first` where it has one call.

    A direct call of a model, the question alone, has the model's name: it is another call.
    """
    return SEPARATOR.join(models) if len(models) != 1 else f"{SEPARATOR}{models[0]}"


@dataclass(frozen=True)
class Routes:
    """The shape of the tree for M models and L hops (paper section 3.1)."""

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
        return (*self.path(self.parent(node)), self.action(node)) if node else ()

    def node(self, path: tuple[int, ...]) -> int:
        """The node number at the end of `path`; the inverse of `path()`."""
        number = 0
        for action in path:
            number = self.child(number, action)
        return number

    def name(self, node: int, models: tuple[str, ...]) -> str:
        """The route's `route_name`; the root's is the empty string."""
        return route_name([models[action] for action in self.path(node)])


@dataclass(frozen=True)
class Rate:
    """Cost of one token of one model (paper section 3.1).

    Attributes:
        tokens_in: cost of a prompt token.
        tokens_out: cost of a generated token; the paper's base rate is both at once.
    """

    tokens_in: float
    tokens_out: float

    @classmethod
    def base(cls, rate: float) -> Rate:
        """The paper's single rate: the same for tokens in and out."""
        return cls(rate, rate)


def rate_table(models: Sequence[str], prices: Mapping[str, Rate]) -> NDArray[np.float64]:
    """float64[models, 2]: cost of a token in and of a token out, in the order of `models`."""
    rows = [(prices[name].tokens_in, prices[name].tokens_out) for name in models]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def cost_of(
    tokens_in: NDArray[np.int64], tokens_out: NDArray[np.int64], rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[...]: cost of calls; `rate` is float64[..., 2] and broadcasts with the tokens.

    With one rate for both, tokens are added before they are multiplied: the paper's formula, to
    the last bit.
    """
    same = rate[..., 0] == rate[..., 1]
    single = rate[..., 0] * (tokens_in + tokens_out)
    return np.where(same, single, rate[..., 0] * tokens_in + rate[..., 1] * tokens_out)


def total_cost(
    routes: Routes,
    tokens_in: NDArray[np.int64],
    tokens_out: NDArray[np.int64],
    rate: NDArray[np.float64],
) -> NDArray[np.float64]:
    """float64[queries, nodes]: C, the cost of all calls from the root to each node.

    `routes`: shape of the tree; `tokens_in`, `tokens_out`: int64[queries, nodes], of the call that
    made the node; `rate`: float64[M, 2].
    """
    total = np.zeros(tokens_in.shape)
    for node in range(1, routes.nodes):
        delta = cost_of(tokens_in[:, node], tokens_out[:, node], rate[routes.action(node)])
        total[:, node] = total[:, routes.parent(node)] + delta
    return total


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
        seconds: float64[queries, K], as recorded; NaN where nobody measured them.
        second: cost of one of these.
    """

    models: tuple[str, ...]
    score: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    rate: NDArray[np.float64]
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))
    second: float = 0.0

    def __post_init__(self) -> None:
        _spread_seconds(self)

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, K]: cost of the one call."""
        cost = cost_of(self.tokens_in, self.tokens_out, self.rate)
        return cost + self.second * self.seconds if self.second else cost


@dataclass(frozen=True)
class StatePart:
    """What a policy sees of one text of each state, or numbers that the answers so far have.

    Attributes:
        vectors: float32[rows, width], the encoder's vectors; where one file holds them all, mapped
            and not copied.
        row: int64[queries, states], row of `vectors` at each state; int64[queries, nodes] where
            the leaves were embedded, too.
        is_text: False for numbers, which come after all texts; 0 where there is none.
    """

    vectors: NDArray[np.float32]
    row: NDArray[np.int64]
    is_text: bool = True

    @property
    def width(self) -> int:
        """Length of a vector."""
        return int(self.vectors.shape[1])


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
        pruned: queries of the train fold some of whose branches nobody called, because they hardly
            could be the best, see `hierrouter.collection.adaptive`; their score is NaN there. None
            where there are none. They are among no fold: only what learns from holes reads them.
        context_free: whether later hops are the models' own independent answers, imported from
            a table of single calls: no answer was seen by the next model.
        priced_by: who gave the rate of each model, in words.
        currency: of the rates, and so of C.
        seconds: float64[queries, nodes], of the call that made the node, as recorded; NaN where
            nobody measured them.
        second: cost of one of these; 0 where C counts tokens alone.
        encoder: name of the encoder, as it was given; "" where there is none.
        unembedded: why there are no vectors of the texts, in words; "" where there are.
        view: which texts `parts` are of, see `hierrouter.replay.states`.
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
    pruned: RouteTree | None = None
    context_free: bool = False
    priced_by: Mapping[str, str] = field(default_factory=dict)
    encoder: str = ""
    unembedded: str = ""
    view: str = "context"
    currency: str = "money"
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))
    second: float = 0.0

    def __post_init__(self) -> None:
        _spread_seconds(self)

    @cached_property
    def routes(self) -> Routes:
        """The index arithmetic of this tree."""
        return Routes(len(self.models), self.hops)

    @property
    def cost_unit(self) -> str:
        """What C is counted in, in every table, figure, page and JSON."""
        timed = f", a second at {self.second:g}" if self.second else ""
        return f"{self.currency} per question{timed}"

    @cached_property
    def fingerprint(self) -> str:
        """Names the data in every report: `content`, a dash, and 8 digits for the prices."""
        rates = np.ascontiguousarray(self.rate).tobytes() + self.direct.rate.tobytes()
        rates += np.float64(self.second).tobytes() if self.second else b""
        return f"{self.content}-{hashlib.sha256(rates).hexdigest()[:8]}"

    def same_content(self, fingerprint: str) -> bool:
        """Whether a fingerprint names this tree, under these prices or others."""
        return fingerprint.startswith(f"{self.content}-")

    @property
    def shows_leaves(self) -> bool:
        """Whether the parts show the leaves, too, where answers may be given."""
        return all(part.row.shape[1] == self.routes.nodes for part in self.parts)

    def require_embedded(self, leaves: bool = False) -> tuple[StatePart, ...]:
        """The parts, which a policy reads.

        Raises WorldError: there are none, because the encoder could not be had; InputError: they
        do not show the leaves, and these are asked for.
        """
        if self.unembedded:
            raise WorldError(self.unembedded)
        if leaves and not self.shows_leaves:
            raise InputError(
                "the tree does not show what follows the last call, which a router with "
                "allow_return sees; open the cache with allow_return, or --allow-return"
            )
        return self.parts

    @property
    def dim(self) -> int:
        """Length of an embedding: the sum over the parts, 0 without any; see `require_embedded`."""
        return sum(part.width for part in self.require_embedded())

    @property
    def numbers(self) -> int:
        """How many of `dim`, the last ones, are numbers and no part of an encoder's vector."""
        return sum(part.width for part in self.parts if not part.is_text)

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
        seen = [part.vectors[part.row[query, node]] for part in self.require_embedded()]
        if len(seen) == 1:
            return seen[0]
        shape = np.broadcast_shapes(query.shape, node.shape)
        return np.concatenate([np.empty((*shape, 0), np.float32), *seen], axis=-1)

    @property
    def base_rate(self) -> NDArray[np.float64]:
        """float64[M]: cost per token of each model, the mean of its two rates."""
        return self.rate.mean(axis=1)

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: C, the cost of all calls from the root to the node."""
        cost = total_cost(self.routes, self.tokens_in, self.tokens_out, self.rate)
        return cost + self.second * self.latency if self.second else cost

    @cached_property
    def latency(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: seconds of all calls from the root to the node."""
        total = self.seconds.copy()
        for node in range(1, self.routes.nodes):
            parent = self.routes.parent(node)
            total[:, node] += total[:, parent] if parent else 0.0
        return total

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries, leaves]: R = Q - alpha * C at the end of each route."""
        return self.node_reward(alpha)[:, self.routes.leaves]

    def node_reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries, nodes]: R = Q - alpha * C where an episode ends at the node."""
        return net_reward(self.score, self.cost, alpha)

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
            **_measured(self, rows),
            parts=tuple(replace(part, row=part.row[rows]) for part in self.parts),
            direct=replace(self.direct, **_measured(self.direct, rows)),
        )

    def with_pruned(self) -> RouteTree:
        """The queries of this tree, and then the pruned ones."""
        if self.pruned is None:
            return self
        both = self, self.pruned
        names = {
            name: getattr(self, name) + getattr(self.pruned, name)
            for name in ("query_ids", "datasets", "splits")
        }
        parts = tuple(
            replace(part, row=np.concatenate([part.row, other.row]))
            for part, other in zip(self.parts, self.pruned.parts, strict=True)
        )
        direct = replace(self.direct, **_beside(*(tree.direct for tree in both)))
        whole = {**names, **_beside(*both), "parts": parts, "direct": direct}
        return replace(self, **whole, pruned=None)

    def split(self, name: str) -> Self:
        """The queries of one fold, "train", "validation" or "test", or of "all" of them.

        Raises InputError: another name.
        """
        return self.select(self.rows(name))

    def rows(self, split: str) -> NDArray[np.int64]:
        """int64[n]: the positions of the queries of a fold; see `split`."""
        if split == ALL_FOLDS:
            return np.arange(len(self))
        if split not in SPLITS:
            raise InputError(f"unknown split: {split}; known: {', '.join((*SPLITS, ALL_FOLDS))}")
        return np.flatnonzero(np.array(self.splits) == split)


def net_reward(quality: Value, cost: Value, alpha: float) -> Value:
    """R = Q - alpha * C (paper section 3.1), of numbers, or of arrays of one shape."""
    return quality - alpha * cost


AnyTree = TypeVar("AnyTree", bound=RouteTree)


def repriced(tree: AnyTree, prices: Mapping[str, Rate], second: float = 0.0) -> AnyTree:
    """The same tree under other prices, as if it had been opened with them.

    `tree`: nothing of it is computed again but costs and the fingerprint; `prices`: rate of every
    model of the tree, direct ones included; `second`: price of a recorded second. Raises
    InputError: a second has a price, and calls have no seconds.
    """
    unmeasured = sum(int(np.isnan(one.seconds).sum()) for one in (tree, tree.direct))
    if second and unmeasured:
        raise InputError(
            f"no recorded seconds of {unmeasured:,} calls, as of imported ones: "
            f"--price-of-second {second:g}; leave it out"
        )
    direct = replace(tree.direct, rate=rate_table(tree.direct.models, prices), second=second)
    pruned = tree.pruned and repriced(tree.pruned, prices, second)
    rate = rate_table(tree.models, prices)
    return replace(tree, rate=rate, second=second, direct=direct, pruned=pruned)


def _spread_seconds(calls: RouteTree | DirectCalls) -> None:
    """A single number, the NaN of calls that nobody measured, is that of each call."""
    if not calls.seconds.ndim:
        object.__setattr__(calls, "seconds", np.broadcast_to(calls.seconds, calls.score.shape))


def _measured(calls: RouteTree | DirectCalls, chosen: Any) -> dict[str, Any]:
    """What was measured of some calls; `chosen` indexes [queries, columns]."""
    return {name: getattr(calls, name)[chosen] for name in MEASURED}


def _beside(*calls: RouteTree | DirectCalls) -> dict[str, Any]:
    """What was measured of the queries of the first, then of the others."""
    return {name: np.concatenate([getattr(one, name) for one in calls]) for name in MEASURED}

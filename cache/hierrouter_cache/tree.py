"""Route trees as dense arrays, and the arithmetic of costs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.layout import Layout

SPLITS = ("train", "validation", "test")
ALL_FOLDS = "all"  # all of them together
# Attributes of `RouteTree` and of `DirectCalls` that have a value for each call of each query.
CALL_MEASURES = (
    "score",
    "accuracy",
    "tokens_in",
    "tokens_out",
    "seconds",
    "tokens_cached",
    "tokens_thoughts",
)
# Those that are one number, for all calls, where no call has another.
SPREAD_MEASURES = ("seconds", "tokens_cached", "tokens_thoughts")
Value = TypeVar("Value", float, NDArray[np.float64])


@dataclass(frozen=True)
class Rate:
    """Price of the tokens of one model, in money per token.

    Attributes:
        tokens_in: price of one prompt token; not a count of tokens.
        tokens_out: price of one generated token; not a count of tokens.
        cached: price of a prompt token that the provider read from its cache; None is `tokens_in`.
        thoughts: price of a generated token of a thought; None is `tokens_out`.
        call: price of a call, whatever its tokens are.

    Source: paper section 3.1, where a base rate applies to both kinds of tokens.
    """

    tokens_in: float
    tokens_out: float
    cached: float | None = None
    thoughts: float | None = None
    call: float = 0.0

    @classmethod
    def base(cls, rate: float) -> Rate:
        """Return the paper's base rate: the same cost for tokens in and out."""
        return cls(rate, rate)

    @property
    def has_further(self) -> bool:
        """Whether there are prices beside those of a token in and of a token out."""
        return self.cached is not None or self.thoughts is not None or bool(self.call)

    @property
    def as_row(self) -> tuple[float, ...]:
        """All five prices, in the order of `rate_table`, also if there are no further ones."""
        cached = self.tokens_in if self.cached is None else self.cached
        thoughts = self.tokens_out if self.thoughts is None else self.thoughts
        return self.tokens_in, self.tokens_out, cached, thoughts, self.call

    @property
    def highest(self) -> Rate:
        """The rate of calls of whose tokens nothing but the number is known, at most."""
        tokens_in = max(self.tokens_in, self.cached or 0.0)
        return Rate(tokens_in, max(self.tokens_out, self.thoughts or 0.0), call=self.call)

    def times(self, factor: float) -> Rate:
        """Return the rate with each of its prices multiplied by a factor."""
        cached = None if self.cached is None else self.cached * factor
        thoughts = None if self.thoughts is None else self.thoughts * factor
        return Rate(
            self.tokens_in * factor, self.tokens_out * factor, cached, thoughts, self.call * factor
        )

    def cost(
        self,
        tokens_in: float,
        tokens_out: float,
        tokens_cached: float = 0,
        tokens_thoughts: float = 0,
        calls: float = 1,
    ) -> float:
        """Compute the cost of calls, in money.

        `cost_of` does this for arrays. With equal rates it rounds differently.

        Args:
            tokens_in: number of prompt tokens.
            tokens_out: number of generated tokens.
            tokens_cached: number of the prompt tokens that were read from a cache.
            tokens_thoughts: number of the generated tokens that belong to a thought.
            calls: number of calls that have these tokens together.
        """
        cost = self.tokens_in * tokens_in + self.tokens_out * tokens_out
        if self.cached is not None:
            cost += (self.cached - self.tokens_in) * tokens_cached
        if self.thoughts is not None:
            cost += (self.thoughts - self.tokens_out) * tokens_thoughts
        return cost + self.call * calls if self.call else cost


def rate_table(models: Sequence[str], prices: Mapping[str, Rate]) -> NDArray[np.float64]:
    """Return float64[models, 2], the cost of a token in and of a token out of each model.

    If a model has a further price, the table is float64[models, 5]: after these two the costs of a
    cached token in, of a token of a thought, and of a call, see `Rate`.

    Args:
        models: names of models; they set the order of the rows.
        prices: rates by name of the model.
    """
    width = 5 if any(prices[name].has_further for name in models) else 2
    rows = [prices[name].as_row[:width] for name in models]
    return np.array(rows, dtype=np.float64).reshape(-1, width)


def cost_of(
    tokens_in: NDArray[np.int64],
    tokens_out: NDArray[np.int64],
    rate: NDArray[np.float64],
    tokens_cached: NDArray[np.int64] | int = 0,
    tokens_thoughts: NDArray[np.int64] | int = 0,
) -> NDArray[np.float64]:
    """Compute the cost of calls.

    Args:
        tokens_in: int64[...], prompt tokens.
        tokens_out: int64[...], generated tokens.
        rate: float64[..., 2], cost of a token in and out; it broadcasts with the tokens. Or
            float64[..., 5], see `rate_table`.
        tokens_cached: int64[...], the prompt tokens among them that were read from a cache.
        tokens_thoughts: int64[...], the generated tokens among them that belong to a thought.

    Returns:
        float64[...].
    """
    if rate.shape[-1] > 2:
        cost = cost_of(tokens_in, tokens_out, rate[..., :2])
        cost = cost + (rate[..., 2] - rate[..., 0]) * tokens_cached
        cost = cost + (rate[..., 3] - rate[..., 1]) * tokens_thoughts
        return cost + rate[..., 4]
    rate_in = rate[..., 0]
    rate_out = rate[..., 1]
    # With equal rates the tokens are added before they are multiplied: this is the paper's formula
    # to the last bit.
    at_base_rate = rate_in * (tokens_in + tokens_out)
    at_two_rates = rate_in * tokens_in + rate_out * tokens_out
    return np.where(rate_in == rate_out, at_base_rate, at_two_rates)


def total_cost(
    layout: Layout,
    tokens_in: NDArray[np.int64],
    tokens_out: NDArray[np.int64],
    rate: NDArray[np.float64],
    tokens_cached: NDArray[np.int64] | None = None,
    tokens_thoughts: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Compute C, the cost of all calls from the root to each node.

    Args:
        layout: which nodes there are.
        tokens_in: int64[queries, nodes], prompt tokens of the call that led to the node.
        tokens_out: int64[queries, nodes], generated tokens of this call.
        rate: float64[M, 2], cost of a token in and out of each model; or float64[M, 5], see
            `rate_table`.
        tokens_cached: int64[queries, nodes], cached prompt tokens of this call; None is none.
        tokens_thoughts: int64[queries, nodes], tokens of this call's thought; None is none.

    Returns:
        float64[queries, nodes].
    """
    total = np.zeros(tokens_in.shape)
    for node in range(1, layout.nodes):
        cost = cost_of(
            tokens_in[:, node],
            tokens_out[:, node],
            rate[layout.action[node]],
            0 if tokens_cached is None else tokens_cached[:, node],
            0 if tokens_thoughts is None else tokens_thoughts[:, node],
        )
        total[:, node] = total[:, layout.parent[node]] + cost
    return total


@dataclass(frozen=True)
class DirectCalls:
    """Calls of single models on the question alone, without a stage instruction.

    If a call has several draws, its values are the means over them: then tokens are float64, and
    the cost is the mean cost, because it is linear in tokens.

    Source: the single-model baselines of the paper, table 1.

    Attributes:
        models: K names; the pool's models first, then reference models outside it.
        score: float64[queries, K], quality in [0, 1].
        accuracy: float64[queries, K], 1 if the answer is right, else 0; NaN if nothing judges it.
        tokens_in: int64[queries, K], prompt tokens.
        tokens_out: int64[queries, K], generated tokens.
        rate: float64[K, 2], cost of a token in and of a token out; float64[K, 5] if a model has
            further prices, see `rate_table`.
        seconds: float64[queries, K], recorded time of each call; NaN if it was not measured.
        second: cost of a second.
        tokens_cached: int64[queries, K], the prompt tokens that were read from a cache.
        tokens_thoughts: int64[queries, K], the generated tokens that belong to a thought.
    """

    models: tuple[str, ...]
    score: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    rate: NDArray[np.float64]
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))
    second: float = 0.0
    tokens_cached: NDArray[np.int64] = field(default_factory=lambda: np.array(0))
    tokens_thoughts: NDArray[np.int64] = field(default_factory=lambda: np.array(0))

    def __post_init__(self) -> None:
        _spread_measures(self)

    @property
    def rates(self) -> dict[str, Rate]:
        """The prices of a token, by model."""
        rows = zip(self.models, self.rate.tolist(), strict=True)
        return {name: Rate(*row) for name, row in rows}

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, K]: cost of each call."""
        cost = cost_of(
            self.tokens_in, self.tokens_out, self.rate, self.tokens_cached, self.tokens_thoughts
        )
        return cost + self.second * self.seconds if self.second else cost


@dataclass(frozen=True)
class StatePart:
    """One part of what a policy reads at each state: a text's embedding, or some numbers.

    Attributes:
        vectors: float32[rows, width], the encoder's vectors, mapped from the disk if one file
            holds them all; or numbers that describe the responses so far, 0 for no response.
        row: int64[queries, states], row of `vectors` at each state; int64[queries, nodes] if
            leaves are included.
        is_text: whether it is a text's embedding. Numbers come after all texts.
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
    """Every route of every query, computed once: the MDP.

    Node numbers are those of the layout; column 0 is the root, whose score and tokens are 0. If a
    call has several draws, one of them comes by chance; else the MDP is deterministic.

    Source: paper section 3.1.

    Attributes:
        models: names of the M actions that call a model. In the paper's tree they are models.
        layout: which routes there are.
        query_ids: id of each query.
        datasets: dataset of each query.
        splits: "train", "validation" or "test" for each query.
        score: float64[queries, nodes], quality Q of the node's response, in [0, 1].
        accuracy: float64[queries, nodes], 1 if the response is right, else 0; NaN for all calls
            of a query whose responses nothing judges.
        tokens_in: int64[queries, nodes], prompt tokens of the call that led to the node.
        tokens_out: int64[queries, nodes], generated tokens of this call.
        rate: float64[M, 2], cost of a token in and of a token out of each model; float64[M, 5] if
            a model has further prices, see `rate_table`.
        parts: what a policy reads of each state, side by side: vectors of its texts, and numbers on
            its answers; empty if the view shows neither. Stage and cost belong to a state in any
            case.
        direct: the direct calls.
        scorer: name of the scorer that gives Q.
        content: digest of pool, queries, scores, tokens and encoder, without prices. A selection
            of queries keeps the digest of the complete tree.
        left_out: number of requested queries that were left out, because their trees lack calls.
        pruned: queries of the train fold that lack some branches because these could hardly be the
            best, see `hierrouter.collection.adaptive`; their score is NaN there. None if there
            are none. They belong to no fold: only algorithms that accept missing branches read
            them.
        context_free: whether later hops are independent responses of the models, imported from
            a table of single calls: no model was given the response of another one.
        priced_by: source of each model's rate, in words.
        currency: unit of the rates, and so of C.
        seconds: float64[queries, nodes], recorded time of the call that led to the node; NaN if it
            was not measured.
        shared_time: share of the calls whose recorded time is an equal share of the time of all
            calls that were stored together, and not their own: those of earlier versions.
        second: cost of a second; 0 if C counts tokens alone.
        tokens_cached: int64[queries, nodes], the prompt tokens that were read from a cache.
        tokens_thoughts: int64[queries, nodes], the generated tokens that belong to a thought.
        encoder: name of the encoder, as the user wrote it, without a commit; "" if there is none.
        encoder_commit: commit of the hub that the vectors come from; "" if that is not where the
            encoder is from.
        unembedded: reason why the texts have no vectors; "" if they have.
        view: name of the texts and numbers that are in `parts`, see `hierrouter.replay.states`.
        weight: float64[queries, nodes], the probability of each node once its call is made: one
            over the number of draws; 0 if the query lacks the node, whose measures then are 0. None
            if every query has all nodes and each call has one draw.
        same_call: int64[queries, nodes], the first node of the query whose call is the same one:
            equal answers, of several draws or actions, lead to the same calls. None if each call is
            at one node, or has one draw.
        can_end: bool[queries, nodes], whether an episode may end at the node, because its response
            is judged; None if it may end at all of them but the root.
        sampled: by action that calls, whether its responses are drawn, at a temperature above 0 or
            in a log, so that another run would give others; None if that is unknown.
        callers: name of the model that each action calls, as `direct` names it; by default the name
            of the action.
    """

    models: tuple[str, ...]
    layout: Layout
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
    encoder_commit: str = ""
    unembedded: str = ""
    view: str = "context"
    currency: str = "money"
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))
    second: float = 0.0
    tokens_cached: NDArray[np.int64] = field(default_factory=lambda: np.array(0))
    tokens_thoughts: NDArray[np.int64] = field(default_factory=lambda: np.array(0))
    shared_time: float = 0.0
    weight: NDArray[np.float64] | None = None
    same_call: NDArray[np.int64] | None = None
    can_end: NDArray[np.bool_] | None = None
    sampled: tuple[bool, ...] | None = None
    callers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _spread_measures(self)
        object.__setattr__(self, "callers", self.callers or self.models)

    @property
    def hops(self) -> int:
        """L, the most calls of a route."""
        return self.layout.hops

    @property
    def cost_unit(self) -> str:
        """Unit of C, as every table, figure, page and JSON names it."""
        unit = f"{self.currency} per question"
        return f"{unit}, a second at {self.second:g}" if self.second else unit

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data in every report: `content`, a dash, and 8 digits for the prices."""
        rates = np.ascontiguousarray(self.rate).tobytes() + self.direct.rate.tobytes()
        if self.second:
            rates += np.float64(self.second).tobytes()
        return f"{self.content}-{hashlib.sha256(rates).hexdigest()[:8]}"

    def same_content(self, fingerprint: str) -> bool:
        """Return whether a fingerprint is of this tree, under these or other prices."""
        return fingerprint.startswith(f"{self.content}-")

    @property
    def shows_leaves(self) -> bool:
        """Whether `parts` include the leaves, where the policy may choose the answer to return."""
        return all(part.row.shape[1] == self.layout.nodes for part in self.parts)

    def require_embedded(self) -> tuple[StatePart, ...]:
        """Return the parts that a policy reads.

        Raises:
            WorldError: there are no parts, because the encoder was not available.
            InputError: a policy decides at the leaves, and the parts do not include them.
        """
        if self.unembedded:
            raise WorldError(self.unembedded)
        if self.layout.decides_at_leaves and not self.shows_leaves:
            raise InputError(
                "the tree does not show what follows the last call, which a router with "
                "allow_return sees; open the cache with allow_return, or --allow-return"
            )
        return self.parts

    @property
    def dim(self) -> int:
        """Length of an embedding: the sum over all parts, 0 if there are none.

        Raises:
            WorldError: the encoder was not available.
        """
        return sum(part.width for part in self.require_embedded())

    @property
    def numbers(self) -> int:
        """How many of the last entries of an embedding are numbers and not from an encoder."""
        return sum(part.width for part in self.parts if not part.is_text)

    @property
    def embedding(self) -> NDArray[np.float32]:
        """float32[queries, states, dim]: what a policy reads of each state; a copy each time."""
        query, node = np.indices((len(self), self.layout.inner), sparse=True)
        return self.embedding_at(query, node)

    def embedding_at(
        self, query: NDArray[np.int64], node: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the vectors of all parts at some states, side by side.

        Args:
            query: int64[n], positions of queries.
            node: int64[n], numbers of nodes. Both may have several dimensions, and broadcast.

        Returns:
            float32[n, dim], a copy.

        Raises:
            WorldError: the encoder was not available.
        """
        vectors = [part.vectors[part.row[query, node]] for part in self.require_embedded()]
        if len(vectors) == 1:
            return vectors[0]
        shape = np.broadcast_shapes(query.shape, node.shape)
        no_vectors = np.empty((*shape, 0), np.float32)  # sets the shape if there are no parts
        return np.concatenate([no_vectors, *vectors], axis=-1)

    @property
    def base_rate(self) -> NDArray[np.float64]:
        """float64[M]: cost of a token of each model, the mean of its two rates."""
        return self.rate[:, :2].mean(axis=1)

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: C, the cost of all calls from the root to the node."""
        cost = total_cost(
            self.layout,
            self.tokens_in,
            self.tokens_out,
            self.rate,
            self.tokens_cached,
            self.tokens_thoughts,
        )
        return cost + self.second * self.latency if self.second else cost

    @cached_property
    def latency(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: seconds of all calls from the root to the node."""
        total = self.seconds.copy()
        for node in range(1, self.layout.nodes):
            parent = self.layout.parent[node]
            total[:, node] += total[:, parent] if parent else 0.0
        return total

    @cached_property
    def offered(self) -> NDArray[np.bool_] | None:
        """bool[queries, inner nodes, M]: whether the query has a draw of a call at a node.

        None if every query has all nodes.
        """
        if self.weight is None:
            return None
        offered = np.zeros((len(self), self.layout.inner, self.layout.call_actions), np.bool_)
        for level in self.layout.levels:
            if level.calls:
                offered[:, level.inner] = level.gather(self.weight) > 0
        return offered

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """Return float64[queries, leaves], R = Q - alpha * C at the end of each route."""
        return self.node_reward(alpha)[:, self.layout.leaves]

    def node_reward(self, alpha: float) -> NDArray[np.float64]:
        """Return float64[queries, nodes], R = Q - alpha * C if an episode ends at the node."""
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
        """Number of queries in each fold; empty folds are left out."""
        counts = {fold: self.splits.count(fold) for fold in SPLITS}
        return {fold: count for fold, count in counts.items() if count}

    def select(self, rows: NDArray[np.int64]) -> Self:
        """Return this tree with some of its queries only.

        Args:
            rows: int64[n], their positions, in the order of the result.
        """
        return replace(
            self,
            query_ids=tuple(self.query_ids[row] for row in rows),
            datasets=tuple(self.datasets[row] for row in rows),
            splits=tuple(self.splits[row] for row in rows),
            **_select_measures(self, rows),
            weight=None if self.weight is None else self.weight[rows],
            same_call=None if self.same_call is None else self.same_call[rows],
            can_end=None if self.can_end is None else self.can_end[rows],
            parts=tuple(replace(part, row=part.row[rows]) for part in self.parts),
            direct=replace(self.direct, **_select_measures(self.direct, rows)),
        )

    def with_pruned(self) -> RouteTree:
        """Return a tree with the queries of this tree, and after them the pruned queries."""
        if self.pruned is None:
            return self
        names = {
            name: getattr(self, name) + getattr(self.pruned, name)
            for name in ("query_ids", "datasets", "splits")
        }
        parts = tuple(
            replace(part, row=np.concatenate([part.row, other.row]))
            for part, other in zip(self.parts, self.pruned.parts, strict=True)
        )
        measures = _concatenate_measures(self, self.pruned)
        for name in ("weight", "same_call", "can_end"):
            values = [getattr(tree, name) for tree in (self, self.pruned)]
            measures[name] = None if values[0] is None else np.concatenate(values)
        direct_measures = _concatenate_measures(self.direct, self.pruned.direct)
        direct = replace(self.direct, **direct_measures)
        return replace(self, **names, **measures, parts=parts, direct=direct, pruned=None)

    def with_layout(self, layout: Layout) -> Self:
        """Return this tree with other actions that end an episode without a call.

        Args:
            layout: with the same nodes, see `Layout.with_give_backs`.
        """
        if layout == self.layout:
            return self
        tree = replace(self, layout=layout)
        # What was computed of the nodes stays true.
        for name in ("cost", "latency", "offered", "fingerprint", "texts"):
            if name in self.__dict__:
                tree.__dict__[name] = self.__dict__[name]
        return tree

    @property
    def with_returns(self) -> Self:
        """This tree, where a policy may return any answer of its route after each answer."""
        return self.with_layout(self.layout.with_returns)

    def split(self, name: str) -> Self:
        """Return this tree with the queries of one fold only.

        Args:
            name: "train", "validation" or "test", or "all" for all of them.

        Raises:
            InputError: another name.
        """
        return self.select(self.rows(name))

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return int64[n], the positions of the queries of a fold.

        Args:
            split: "train", "validation" or "test", or "all" for all of them.

        Raises:
            InputError: another name.
        """
        if split == ALL_FOLDS:
            return np.arange(len(self))
        if split not in SPLITS:
            raise InputError(f"unknown split: {split}; known: {', '.join((*SPLITS, ALL_FOLDS))}")
        return np.flatnonzero(np.array(self.splits) == split)


def net_reward(quality: Value, cost: Value, alpha: Value | float) -> Value:
    """Compute R = Q - alpha * C.

    Source: paper section 3.1.

    Args:
        quality: Q, a number or an array.
        cost: C, a number or an array of the same shape.
        alpha: the weight of cost, one or one for each.
    """
    return quality - alpha * cost


AnyTree = TypeVar("AnyTree", bound=RouteTree)


def reprice(tree: AnyTree, prices: Mapping[str, Rate], second: float = 0.0) -> AnyTree:
    """Return a tree under other prices, as if it had been opened with them.

    Only costs and the fingerprint are computed again.

    Args:
        tree: the tree.
        prices: rate of every model of the tree, direct ones included.
        second: price of a recorded second.

    Raises:
        InputError: a second has a price, and the time of some calls was not recorded.
    """
    unmeasured = int(np.isnan(tree.seconds).sum() + np.isnan(tree.direct.seconds).sum())
    if second and unmeasured:
        raise InputError(
            f"no recorded seconds of {unmeasured:,} calls, as of imported ones: "
            f"--price-of-second {second:g}; leave it out"
        )
    direct = replace(tree.direct, rate=rate_table(tree.direct.models, prices), second=second)
    pruned = tree.pruned and reprice(tree.pruned, prices, second)
    rate = rate_table(tree.models, prices)
    return replace(tree, rate=rate, second=second, direct=direct, pruned=pruned)


def _spread_measures(calls: RouteTree | DirectCalls) -> None:
    """Replace a single number, the default of some measures, by one for each call.

    The default of seconds is NaN, that of tokens with a price of their own is 0.
    """
    for name in SPREAD_MEASURES:
        values = getattr(calls, name)
        if not values.ndim:
            object.__setattr__(calls, name, np.broadcast_to(values, calls.score.shape))


def _select_measures(calls: RouteTree | DirectCalls, index: Any) -> dict[str, Any]:
    """Return the `CALL_MEASURES` of some calls.

    Args:
        calls: all calls.
        index: an index of numpy for arrays of shape [queries, columns].
    """
    return {name: getattr(calls, name)[index] for name in CALL_MEASURES}


def _concatenate_measures(*groups: RouteTree | DirectCalls) -> dict[str, Any]:
    """Return the `CALL_MEASURES` of the queries of several groups of calls, one after another."""
    return {
        name: np.concatenate([getattr(calls, name) for calls in groups]) for name in CALL_MEASURES
    }

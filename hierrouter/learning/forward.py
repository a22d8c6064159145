"""The paper's network once it is trained, in numpy: serving and explaining need no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import (
    Actions,
    Booleans,
    Floats,
    Integers,
    LegalActions,
    has_holes,
)
from hierrouter.learning.resumption import prefix, select
from hierrouter.learning.router import LearnedPolicy, PolicyFamily, StateBatch
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree

Array = NDArray[np.float32]

# States evaluated at once when a whole tree is evaluated.
STATES_PER_PASS = 16_384
# The logit of an action that is not legal: its probability is 0, and no sum becomes NaN.
ILLEGAL_LOGIT = -1e9
NETWORK_GROUP = "network"  # begins the names of the tensors of a network of several
UNSEEN_SPREAD = 1e9  # the deviation of a number that was absent at every state
NUMBERS_GAIN = 4.0  # how much larger a standardised number is read than a component of a text


@dataclass(frozen=True)
class RouterShape:
    """The sizes and constants of a router's network, which checkpoints store.

    Attributes:
        actions: A, see `Actions`.
        models: M.
        hops: stages at which a decision may be due: L, or L + 1 with return.
        dim: length of an embedding; 0 if no text is visible.
        hidden: width of both layers.
        stage_dim: length of the learned stage embedding.
        knows_route: whether each node has such an embedding instead, see `NetworkConfig`.
        embedding_scale: factor on embeddings.
        cost_scale: divisor of costs.
        plain_start: how a new router starts, see `NetworkConfig`.
        numbers: how many of `dim`, the last ones, are numbers that are standardised.
        layout: which routes there are; None for the paper's tree, `Layout.full`. On other layouts
            a state is read by its stage and the mean of a learned embedding of each action so far,
            whatever the number of its node is.
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
    layout: Layout | None = None

    @classmethod
    def from_object(cls, values: Mapping[str, Any]) -> RouterShape:
        """Return the shape that `as_object` describes.

        Raises:
            ValueError, TypeError, KeyError: it describes none.
        """
        named = dict(values)
        if named.get("layout") is not None:
            named["layout"] = Layout.from_object(named["layout"])
        return cls(**named)

    def as_object(self) -> dict[str, Any]:
        """The shape as JSON values; files of earlier versions have no layout."""
        values = {name: getattr(self, name) for name in (each.name for each in fields(self))}
        del values["layout"]
        return values if self.layout is None else {**values, "layout": self.layout.as_object()}

    @property
    def routes(self) -> Layout:
        """The layout whose nodes are read; with return it has a further hop if it is full."""
        return self.layout or Layout.full(self.models, self.hops)

    @property
    def states(self) -> int:
        """S, the number of nodes where a decision is due."""
        return self.routes.states

    @property
    def stages(self) -> Integers:
        """int64[nodes], the row of the stage embedding that each node reads."""
        is_node = self.knows_route and self.layout is None
        return np.arange(self.states) if is_node else self.routes.depth()

    @property
    def shares(self) -> Array | None:
        """float32[nodes, M]: the share of each action among those so far; None if not read."""
        if self.layout is None:
            return None
        return _action_shares(self.layout, np.arange(self.models), self.models)

    @property
    def stage_rows(self) -> int:
        """How many stages, or nodes, have a learned embedding."""
        return self.states if self.knows_route and self.layout is None else self.hops

    @property
    def weights(self) -> int:
        """How many numbers a router learns, biases aside."""
        width = self.dim + self.stage_dim + 1 + self.hidden + self.actions + 1
        rows = self.stage_rows + (self.models if self.layout else 0)
        return rows * self.stage_dim + self.hidden * width

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of its tensors, all float32, by name."""
        hidden = self.hidden
        shapes: dict[str, tuple[int, ...]] = {
            "stage.weight": (self.stage_rows, self.stage_dim),
            "context.weight": (hidden, self.dim),
            "progress.weight": (hidden, self.stage_dim + 1),
            "progress.bias": (hidden,),
            "second.weight": (hidden, hidden),
            "second.bias": (hidden,),
            "policy.weight": (self.actions, hidden),
            "policy.bias": (self.actions,),
            "value.weight": (1, hidden),
            "value.bias": (1,),
        }
        if self.numbers:
            shapes |= {"centre": (self.numbers,), "spread": (self.numbers,)}
        if self.layout:
            shapes["called.weight"] = (self.models, self.stage_dim)
        return shapes


class TrainedNetwork:
    """A trained `hierrouter.learning.network.RouterNetwork`: the same function, same weights.

    Args:
        shape: the sizes.
        weights: float32 arrays by name, see `RouterShape.tensors`.

    Raises:
        ValueError: weights are missing, superfluous, or of another shape or dtype.
    """

    def __init__(self, shape: RouterShape, weights: Mapping[str, NDArray[np.float32]]) -> None:
        shapes = {name: value.shape for name, value in weights.items()}
        if shapes != shape.tensors or any(value.dtype != np.float32 for value in weights.values()):
            raise ValueError("weights of another shape")
        self.shape = shape
        self.weights = dict(weights)
        self._stages = shape.stages
        self._shares = shape.shares

    def on(self, layout: Layout, calls: Integers, head: Integers) -> TrainedNetwork:
        """Return the same policy on the states of another layout.

        A state is read by its stage and the actions so far; or, as in the paper's tree, by the node
        of that tree to which the same actions lead.

        Args:
            layout: has at most the stages that the network knows.
            calls: int64[actions of the layout that call], the number of each in this network.
            head: int64[A], the number of each action of the layout in this network.
        """
        network = copy(self)
        network.shape = replace(self.shape, actions=len(head))
        heads = {name: self.weights[name][head] for name in ("policy.weight", "policy.bias")}
        network.weights = {**self.weights, **heads}
        if self.shape.layout is not None:
            network._stages = layout.depth()
            network._shares = _action_shares(layout, calls, self.shape.models)
        elif self.shape.knows_route:
            node = np.zeros(layout.states, np.int64)
            for state in range(1, layout.states):
                parent = int(node[layout.parent[state]])
                node[state] = self.shape.routes.child(parent, int(calls[layout.action[state]]))
            network._stages = node
        else:
            network._stages = layout.depth()
        return network

    def has_learned(self, number: int) -> bool:
        """Whether one of the numbers was present in training."""
        return bool(self.weights["spread"][number] < UNSEEN_SPREAD)

    def features(self, embedding: Array, node: Integers, cost: Array) -> Array:
        """The input of both heads.

        Args:
            embedding: float32[n, dim].
            node: int64[n].
            cost: float32[n], C so far in money.

        Returns:
            float32[n, hidden].
        """
        shape = self.shape
        stage = self.weights["stage.weight"][self._stages[node]]
        if self._shares is not None:
            stage = stage + self._shares[node] @ self.weights["called.weight"]
        scaled_cost = (cost / np.float32(shape.cost_scale))[:, None]
        progress = np.concatenate([stage, scaled_cost], axis=1).astype(np.float32, copy=False)
        first = self._linear("progress", progress) + self._context(embedding)
        return np.tanh(self._linear("second", np.tanh(first)))

    def probabilities(
        self, embedding: Array, node: Integers, cost: Array, legal: Booleans
    ) -> Floats:
        """The policy at some states.

        Args:
            embedding: float32[n, dim].
            node: int64[n].
            cost: float32[n], C so far in money.
            legal: bool[n, A], which actions may be chosen.

        Returns:
            float64[n, A].
        """
        logits = self._linear("policy", self.features(embedding, node, cost))
        return softmax(np.where(legal, logits.astype(np.float64), ILLEGAL_LOGIT))

    def policy(self, tree: RouteTree, actions: Actions) -> Floats:
        """float64[queries, S, A]: the policy at every state of a tree with embeddings."""
        legal = LegalActions.of(tree.with_layout(actions.layout), actions)
        every = np.arange(len(tree) * actions.states)
        policy = np.empty((len(every), actions.count))
        if has_holes(tree) and len(legal.table) == len(tree):
            policy, every = forced_probabilities(legal.table.reshape(-1, actions.count))
        for state, embedding, query, node, cost in _state_chunks(tree, actions, every):
            policy[state] = self.probabilities(embedding, node, cost, legal.at(query, node))
        return policy.reshape(len(tree), actions.states, -1)

    def all_features(self, tree: RouteTree, actions: Actions) -> Floats:
        """float64[queries, S, hidden]: the features of every state of a tree with embeddings."""
        every = np.arange(len(tree) * actions.states)
        chunks = [
            self.features(embedding, node, cost).astype(np.float64)
            for _, embedding, _, node, cost in _state_chunks(tree, actions, every)
        ]
        return np.concatenate(chunks).reshape(len(tree), actions.states, -1)

    def _context(self, embedding: Array) -> Array:
        """float32[n, hidden]: the map of the encoder's vectors, scaled, and of the numbers."""
        shape = self.shape
        weight = self.weights["context.weight"]
        scale = np.float32(shape.embedding_scale)
        if not shape.numbers:
            return scale * (embedding @ weight.T)
        numbers = embedding[:, -shape.numbers :]
        standardised = (numbers - self.weights["centre"]) / self.weights["spread"]
        standardised = np.where(
            numbers != 0, np.float32(NUMBERS_GAIN) * standardised, np.float32(0)
        )
        inputs = np.concatenate([scale * embedding[:, : -shape.numbers], standardised], axis=1)
        return (inputs @ weight.T).astype(np.float32, copy=False)

    def _linear(self, name: str, inputs: Array) -> Array:
        """float32[n, outputs]: the layer of this name on inputs float32[n, inputs]."""
        return inputs @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]


@dataclass(frozen=True)
class NetworkRouter(LearnedPolicy):
    """A trained network that chooses among some actions.

    Attributes:
        network: the network.
        actions: what may be chosen.
    """

    kind: ClassVar[str] = "a network"
    holds_out: ClassVar[bool] = False
    can_defer: ClassVar[bool] = True

    network: TrainedNetwork
    actions: Actions

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return self.network.shape.dim

    def as_object(self) -> dict[str, Any]:
        """The shape, as JSON values."""
        return {"shape": self.network.shape.as_object()}

    def tensors(self) -> dict[str, Array]:
        """The weights, by name."""
        return self.network.weights

    def has_learned(self, number: int) -> bool:
        """Whether one of the numbers was present in training."""
        return self.network.has_learned(number)

    def on(self, actions: Actions, calls: Integers, head: Integers) -> NetworkRouter:
        """The same policy on other routes, see `TrainedNetwork.on`."""
        return NetworkRouter(self.network.on(actions.layout, calls, head), actions)

    def probabilities(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the stochastic policy at every state of a tree."""
        return self.network.policy(tree, self.actions)

    def features(self, tree: RouteTree) -> Floats:
        """float64[queries, S, hidden]: the input of the heads at every state of a tree."""
        return self.network.all_features(tree, self.actions)

    def live_probabilities(self, states: StateBatch) -> Floats:
        """float64[n, A]: the stochastic policy at some states."""
        legal = self.actions.legal()[states.node]
        cost = states.cost.astype(np.float32)
        return self.network.probabilities(states.embedding, states.node, cost, legal)

    def live_features(self, states: StateBatch) -> Floats:
        """float64[n, hidden]: the input of the heads at some states."""
        cost = states.cost.astype(np.float32)
        return self.network.features(states.embedding, states.node, cost).astype(np.float64)

    def expected(self, states: StateBatch) -> None:
        """None: it predicts neither Q nor C."""


@dataclass(frozen=True)
class NetworkGrid(PolicyFamily):
    """A network for each alpha of a grid, and what it reaches on the fold that chose its weights.

    Attributes:
        networks: one for each alpha, all of one shape.
        quality: mean Q of each on that fold.
        cost: mean C of each there, in money.
        histories: of each the exact R at its alpha there, at each evaluation of the training.

    Raises:
        ValueError: the parts do not fit together.
    """

    networks: tuple[TrainedNetwork, ...]
    quality: tuple[float, ...]
    cost: tuple[float, ...]
    histories: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        count = len(self.networks)
        lengths = {len(self.quality), len(self.cost), len(self.histories)}
        is_finite = np.isfinite([*self.quality, *self.cost]).all()
        if not count or lengths != {count} or not is_finite:
            raise ValueError("the parts of a grid of networks do not fit")

    @classmethod
    def from_object(
        cls, values: Mapping[str, Any], shape: RouterShape, tensors: Mapping[str, Array], count: int
    ) -> NetworkGrid:
        """Return the networks that `as_object` and `tensors` describe.

        Args:
            values: what `as_object` returned.
            shape: that of `values`.
            tensors: what `tensors` returned.
            count: number of networks.

        Raises:
            ValueError, TypeError, KeyError: they describe none.
        """
        groups = [select(tensors, f"{NETWORK_GROUP}{number}") for number in range(count)]
        if len(tensors) != count * len(shape.tensors):
            raise ValueError("tensors of no network")
        return cls(
            networks=tuple(TrainedNetwork(shape, weights) for weights in groups),
            quality=tuple(map(float, values["quality"])),
            cost=tuple(map(float, values["cost"])),
            histories=tuple(tuple(map(float, history)) for history in values["histories"]),
        )

    def as_object(self) -> dict[str, Any]:
        """The shape of the networks, and what they reach, as JSON values."""
        return {
            "shape": self.networks[0].shape.as_object(),
            "quality": list(self.quality),
            "cost": list(self.cost),
            "histories": [list(history) for history in self.histories],
        }

    def tensors(self) -> dict[str, Array]:
        """The weights of all networks, by name."""
        arrays: dict[str, Array] = {}
        for number, network in enumerate(self.networks):
            arrays.update(prefix(f"{NETWORK_GROUP}{number}", network.weights))
        return arrays

    def reward(self, number: int, alpha: float) -> float:
        """R of one of the networks at any alpha, on the fold that chose its weights.

        Of a policy R changes in a straight line with alpha, so no further evaluation is needed.
        """
        return self.quality[number] - alpha * self.cost[number]

    def at(self, alpha: float, alphas: Sequence[float], actions: Actions) -> NetworkRouter:
        """The network of an alpha of the grid; between two, that with the higher R here."""
        return NetworkRouter(self.networks[self._number(alpha, alphas)], actions)

    def history(self, alpha: float, alphas: Sequence[float]) -> tuple[float, ...]:
        """R of the network of an alpha on that fold, at each evaluation of the training."""
        return self.histories[self._number(alpha, alphas)]

    def learning_curve(self, alphas: Sequence[float]) -> list[dict[str, float]]:
        """The learning curve of all networks, see `sweep_rows`."""
        return sweep_rows(alphas, self.histories)

    def changes(self, alphas: Sequence[float]) -> list[float]:
        """The alphas between those of the grid at which another network becomes the better one."""
        changes: list[float] = []
        for number, (low, high) in enumerate(pairwise(alphas)):
            saved = self.cost[number] - self.cost[number + 1]
            if saved:
                change = (self.quality[number] - self.quality[number + 1]) / saved
                changes += [change] if low < change < high else []
        return changes

    def remark(self, alpha: float, alphas: Sequence[float]) -> str:
        """The network that is taken outside of the grid, in words."""
        low = alphas[0]
        high = alphas[-1]
        if low <= alpha <= high:
            return ""
        nearest = low if alpha < low else high
        return (
            f"alpha {alpha:g} lies outside of the sweep's, {low:g} to {high:g}: the network of "
            f"alpha {nearest:g} stands for it"
        )

    def _number(self, alpha: float, alphas: Sequence[float]) -> int:
        """The number of the network that decides at an alpha."""
        above = bisect_left(alphas, alpha)
        if above == len(alphas) or alpha == alphas[above] or above == 0:
            return min(above, len(alphas) - 1)
        return max(above - 1, above, key=lambda number: self.reward(number, alpha))


def sweep_rows(
    alphas: Sequence[float], histories: Sequence[Sequence[float]]
) -> list[dict[str, float]]:
    """The learning curve of a sweep, a row for each evaluation.

    Args:
        alphas: the grid.
        histories: for each alpha R on validation at each evaluation.

    Returns:
        Mean R over the alphas as `validation`, and R at each of them as `validation/0.005`.
    """
    names = [f"validation/{_alpha_name(alpha)}" for alpha in alphas]
    rows = []
    for rewards in zip(*histories, strict=True):
        mean = float(np.mean(rewards))
        rows.append({"validation": mean, **dict(zip(names, rewards, strict=True))})
    return rows


def _alpha_name(alpha: float) -> str:
    """An alpha in all its digits, with letters that each client takes in a name."""
    return repr(float(alpha)).removesuffix(".0").replace("+", "")


def _action_shares(layout: Layout, calls: Integers, models: int) -> Array:
    """float32[nodes, M]: the share of each action among those so far.

    Args:
        layout: has the nodes.
        calls: int64[actions of the layout that call], the number of each.
        models: M.
    """
    counts = np.zeros((layout.nodes, models), np.float32)
    for node in range(1, layout.nodes):
        counts[node] = counts[layout.parent[node]]
        counts[node, calls[layout.action[node]]] += 1
    return counts / np.maximum(layout.depth(), 1).astype(np.float32)[:, None]


def softmax(logits: Floats) -> Floats:
    """Softmax over the last axis; a logit of minus infinity has probability 0."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def softmax_policy(reward: Floats, temperature: Floats) -> Floats:
    """A policy that prefers what has the higher expected R; without a legal action all are alike.

    Args:
        reward: float64[..., A], expected R; NaN or -inf for an action that is not legal.
        temperature: float64[...] of each state, in units of R.

    Returns:
        float64[..., A].
    """
    logits = reward / temperature[..., None]
    logits = np.where(np.isnan(logits), -np.inf, logits)
    logits[np.isneginf(logits).all(axis=-1)] = 0.0
    return softmax(logits)


def forced_probabilities(legal: Booleans) -> tuple[Floats, Integers]:
    """Make the policy where there is nothing to choose, and find the states where there is.

    Args:
        legal: bool[n, A].

    Returns:
        float64[n, A]: 1 for the only legal action; without any, all are as probable. And int64[m],
        the rows with several legal actions.
    """
    count = legal.sum(axis=1)
    policy = np.where(count[:, None] > 0, legal, 1 / legal.shape[1]).astype(np.float64)
    return policy, np.flatnonzero(count > 1)


def _state_chunks(
    tree: RouteTree, actions: Actions, states: Integers
) -> Iterator[tuple[Integers, Array, Integers, Integers, Array]]:
    """The inputs of a network at some states of a tree, chunk by chunk.

    Args:
        tree: the queries.
        actions: what may be chosen.
        states: int64[n], numbers of the states, query after query.

    Yields:
        Numbers of the states int64[n], their embeddings float32[n, dim], queries int64[n], nodes
        int64[n], and costs so far float32[n].
    """
    tree = tree.with_layout(actions.layout)
    tree.require_embedded()
    for start in range(0, len(states), STATES_PER_PASS):
        state = states[start : start + STATES_PER_PASS]
        query, node = np.divmod(state, actions.states)
        cost = tree.cost[query, node].astype(np.float32)
        yield state, tree.embedding_at(query, node), query, node, cost

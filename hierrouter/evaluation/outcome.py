"""What a policy may do, and what it does on each query: exact, by enumeration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.tree import SEPARATOR, Routes, RouteTree, net_reward

# Arrays of this room; the shape stands in each docstring.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# Ends the name of an action that stops.
STOP = f"{SEPARATOR}stop"


@dataclass(frozen=True)
class Actions:
    """The action numbers of one tree: M, or 2M with stop.

    Attributes:
        routes: shape of the tree, for M models and L hops.
        allow_stop: whether an episode may end before L calls.
    """

    routes: Routes
    allow_stop: bool = False

    @property
    def count(self) -> int:
        """A: M, or 2M with stop."""
        return self.routes.models * (2 if self.allow_stop else 1)

    @property
    def endings(self) -> slice:
        """The node numbers at which an episode can end: the leaves; with stop, all but the root."""
        return slice(1, self.routes.nodes) if self.allow_stop else self.routes.leaves

    def model(self, action: Integers) -> Integers:
        """The model that `action` calls; works on arrays and on ints."""
        return action % self.routes.models

    def stops(self, action: Integers) -> Booleans:
        """Whether `action` ends the episode with its call; works on arrays and on ints."""
        return action >= self.routes.models

    def ends(self, node: Integers, action: Integers) -> Booleans:
        """Whether the episode is over at `node`, reached by `action`; arrays or ints."""
        return (node >= self.routes.states) | self.stops(action)

    def names(self, models: Sequence[str]) -> tuple[str, ...]:
        """The name of each action: a model, then each `model>stop` where stopping is allowed."""
        return (*models, *(f"{name}{STOP}" for name in models))[: self.count]

    def legal(self) -> Booleans:
        """bool[states, A]: what a policy may choose at each state.

        Before the last call only the half that does not stop is legal: the episode ends anyway,
        and there shall be one way to say so.
        """
        routes = self.routes
        legal = np.ones((routes.states, self.count), dtype=np.bool_)
        legal[routes.level(routes.hops - 1), routes.models :] = False
        return legal


Kind = Literal["single", "reference", "route", "router", "oracle", "baseline"]
ROUTER = "hierrouter"  # how tables call a trained router


@dataclass(frozen=True, repr=False)
class Outcome:
    """Expected result of one policy on each query of a tree.

    Attributes:
        name: how tables call the policy; a fixed route is `first>second`, one of a single call
            `>first`: not the direct call of `first`, which has no stage instruction.
        kind: a direct call of a pool model ("single") or of a larger one ("reference"), a fixed
            route, a trained router, the tree oracle, or another baseline.
        quality: float64[queries], expected Q, in [0, 1].
        accuracy: float64[queries], probability of a right answer.
        cost: float64[queries], expected C, in money.
    """

    name: str
    kind: Kind
    quality: Floats
    accuracy: Floats
    cost: Floats

    def reward(self, alpha: float) -> Floats:
        """float64[queries]: expected R = Q - alpha * C (paper section 3.1)."""
        return net_reward(self.quality, self.cost, alpha)

    def __repr__(self) -> str:
        from hierrouter.tables import money

        if not len(self.quality):
            return f"<{self.name} on no query>"
        return (
            f"<{self.name} on {len(self.quality)} queries: Q {self.quality.mean():.4f}, "
            f"C {money(self.cost.mean())}, right {self.accuracy.mean():.4f}>"
        )


def from_endings(tree: RouteTree, probability: Floats, name: str, kind: Kind) -> Outcome:
    """The outcome of ending at each node with a given probability.

    `probability`: float64[queries, nodes], rows sum to 1.
    """

    measured = (tree.score, tree.accuracy, tree.cost)
    return Outcome(name, kind, *((probability * values).sum(axis=1) for values in measured))


def at_nodes(tree: RouteTree, node: Integers, name: str, kind: Kind) -> Outcome:
    """The outcome of ending at one given node on each query.

    `node`: int64[queries], node numbers.
    """
    rows = np.arange(len(tree))
    return Outcome(
        name, kind, tree.score[rows, node], tree.accuracy[rows, node], tree.cost[rows, node]
    )


def single_calls(tree: RouteTree) -> list[Outcome]:
    """Direct calls: the pool's models ("single"), then larger ones ("reference"), table 1."""
    direct = tree.direct
    return [
        Outcome(
            name=model,
            kind="single" if model in tree.models else "reference",
            quality=direct.score[:, column],
            accuracy=direct.accuracy[:, column],
            cost=direct.cost[:, column],
        )
        for column, model in enumerate(direct.models)
    ]


def fixed_routes(tree: RouteTree, allow_stop: bool = False) -> list[Outcome]:
    """Each of the M^L routes taken on every query, in the order of their nodes.

    Args:
        allow_stop: the shorter routes too, such as `>first`.
    """
    endings = range(tree.routes.nodes)[Actions(tree.routes, allow_stop).endings]
    return [fixed_route(tree, node) for node in endings]


def fixed_route(tree: RouteTree, node: int) -> Outcome:
    """The route that ends at this node number, taken on every query."""
    nodes = np.full(len(tree), node, dtype=np.int64)
    return at_nodes(tree, nodes, tree.routes.name(node, tree.models), "route")


def mean_points(outcomes: Sequence[Outcome]) -> tuple[Floats, Floats]:
    """Mean cost and mean quality of each outcome: float64[outcomes] twice, see `frontier`."""
    cost = np.array([outcome.cost.mean() for outcome in outcomes])
    quality = np.array([outcome.quality.mean() for outcome in outcomes])
    return cost, quality


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """One policy drawn anew for each query, as with several seeds: means within each query."""
    measured = [(outcome.quality, outcome.accuracy, outcome.cost) for outcome in outcomes]
    return Outcome(outcomes[0].name, outcomes[0].kind, *np.mean(measured, axis=0))


def ending(actions: Actions, probabilities: Floats) -> Floats:
    """Probability of ending at each node: the product of the decisions on the way.

    `actions`: what may be chosen; `probabilities`: float64[queries, states, A], rows sum to 1; the
    root is state 0. Returns float64[queries, nodes], rows sum to 1; 0 at nodes where no episode can
    end.
    """
    routes, queries = actions.routes, len(probabilities)
    ends = np.zeros((queries, routes.nodes))
    going_on = np.ones((queries, 1))
    for level in range(routes.hops):
        decided = going_on[:, :, None] * probabilities[:, routes.level(level)]
        going_on = decided[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            ends[:, routes.level(level + 1)] = decided[:, :, routes.models :].reshape(queries, -1)
    ends[:, routes.leaves] += going_on
    return ends


def greedy(probabilities: Floats, base_rate: Floats) -> Floats:
    """The table of the greedy policy: 1 for the most probable action, 0 for the others.

    Ties go to the cheaper model per token, then to stopping, then to the lower action. The price
    of a token is known before the call; its number is not, and a policy must not look ahead.

    `probabilities`: float64[..., A], A = M or 2M; see `Actions`; `base_rate`: float64[M], cost per
    token. Returns float64[..., A], one-hot.
    """
    count = probabilities.shape[-1]
    stopping_first = np.roll(np.arange(count), len(base_rate))
    best = probabilities.max(axis=-1, keepdims=True)
    price = np.where(probabilities == best, np.resize(base_rate, count), np.inf)
    choice = stopping_first[price[..., stopping_first].argmin(axis=-1)]
    one_hot: Floats = np.eye(count)[choice]
    return one_hot


def policy_outcome(
    tree: RouteTree, actions: Actions, probabilities: Floats, name: str, kind: Kind
) -> Outcome:
    """The exact outcome of a policy given as a table.

    `actions`: what the columns of the table mean; `probabilities`: float64[queries, states, A]; see
    `greedy` for a deterministic policy.
    """
    return from_endings(tree, ending(actions, probabilities), name, kind)


def going_on(routes: Routes, endings: Floats) -> Floats:
    """Probability that an episode comes to each state and does not end there.

    `endings`: float64[queries, nodes], rows sum to 1. Returns float64[queries, states]; 1 at the
    root.
    """
    reached = endings.copy()
    deciding = np.empty((len(endings), routes.states))
    for level in reversed(range(routes.hops)):
        below = reached[:, routes.level(level + 1)].reshape(len(endings), -1, routes.models)
        deciding[:, routes.level(level)] = below.sum(axis=2)
        reached[:, routes.level(level)] += deciding[:, routes.level(level)]
    return deciding


def called(routes: Routes, endings: Floats) -> Floats:
    """Probability that the call of each node is made, whether or not the episode goes on.

    `endings`: float64[queries, nodes], rows sum to 1. Returns float64[queries, nodes]; 1 at the
    root, which is no call.
    """
    reached = endings.copy()
    reached[:, : routes.states] += going_on(routes, endings)
    return reached

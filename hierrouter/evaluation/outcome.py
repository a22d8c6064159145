"""What a policy may do, and what it does on each query: exact, by enumeration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.tree import SEPARATOR, Routes, RouteTree, net_reward

# Arrays of this room; the shape stands in each docstring.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# Ends the name of an action that stops.
STOP = f"{SEPARATOR}stop"


# Begins the name of an action that gives an answer of the route.
RETURN = f"return{SEPARATOR}"


@dataclass(frozen=True)
class Actions:
    """The action numbers of one tree: M that call; M more with stop; L more with return.

    Action i calls model i, M + i calls it and ends with its answer. The last L call nobody: they
    end the episode with answer 1, 2, ... of the route.

    Attributes:
        routes: shape of the tree, for M models and L hops.
        allow_stop: whether an episode may end before L calls.
        allow_return: whether an episode may end after any answer, with any answer of its route.
    """

    routes: Routes
    allow_stop: bool = False
    allow_return: bool = False

    @property
    def calls(self) -> int:
        """How many actions call a model: M, or 2M with stop."""
        return self.routes.models * (2 if self.allow_stop else 1)

    @property
    def returns(self) -> int:
        """How many actions give an answer and call nobody: L with return, else 0."""
        return self.routes.hops if self.allow_return else 0

    @property
    def count(self) -> int:
        """A: all of them."""
        return self.calls + self.returns

    @property
    def states(self) -> int:
        """S: nodes where a decision is due; with return the leaves, too."""
        return self.routes.nodes if self.allow_return else self.routes.states

    @property
    def steps(self) -> int:
        """Decisions of an episode, at most: L, or L + 1 with return."""
        return self.routes.hops + self.allow_return

    @property
    def width(self) -> int:
        """How wide arrays over endings are: as many as nodes; with return, as `Pairs`."""
        return len(pairs(self.routes).at) if self.allow_return else self.routes.nodes

    @property
    def endings(self) -> slice:
        """The numbers of the endings that can be: the leaves; with stop or return, all but 0."""
        early = self.allow_stop or self.allow_return
        return slice(1 if early else self.routes.states, self.width)

    def model(self, action: Integers) -> Integers:
        """The model that `action` calls, if it calls one; works on arrays and on ints."""
        return action % self.routes.models

    def stops(self, action: Integers) -> Booleans:
        """Whether `action` ends the episode itself; works on arrays and on ints."""
        return action >= self.routes.models

    def after(self, node: Any, action: Any) -> tuple[Any, Any, Any]:
        """The node after `action` at the state `node`, its ending, and whether that is the end.

        Arrays, int64[n], or ints. An answer that is not there yet counts as the last one, and so
        does a call after the last; at the root there is none.
        """
        reached, stops = self.routes.child(node, self.model(action)), self.stops(action)
        if not self.allow_return:
            return reached, reached, stops | (reached >= self.routes.states)
        answer = action - self.calls
        gives = (answer >= 0) | (node >= self.routes.states)
        ending = pairs(self.routes).number[node, np.where(answer >= 0, answer, -1)]
        reached = np.where(gives, node, reached)
        return reached, np.where(gives, ending, reached), gives | stops

    def names(self, models: Sequence[str]) -> tuple[str, ...]:
        """The name of each action: a model, each `model>stop`, and each `return>number`."""
        calls = (*models, *(f"{name}{STOP}" for name in models))[: self.calls]
        return (*calls, *(f"{RETURN}{answer + 1}" for answer in range(self.returns)))

    def legal(self) -> Booleans:
        """bool[S, A]: what a policy may choose at each state.

        Before the last call only the half that does not stop is legal: the episode ends anyway, or
        the answer may be given after it, and there shall be one way to say so. Only answers that
        are there can be given, and after the last call nothing else is left.
        """
        routes, models = self.routes, self.routes.models
        legal = np.ones((self.states, self.count), dtype=np.bool_)
        legal[routes.level(routes.hops - 1), models : self.calls] = False
        if self.allow_return:
            legal[routes.leaves, : self.calls] = False
            legal[:, self.calls :] = np.arange(routes.hops) < routes.depth()[:, None]
        return legal


class Pairs(NamedTuple):
    """Every ending by number: the nodes, each with its own answer, then nodes with earlier ones.

    Without return the nodes are all, and arrays over endings are as wide as there are nodes.

    Attributes:
        at: int64[endings], the node where the episode ends, which says what it costs.
        gives: int64[endings], the node whose answer is given, which says what it is worth.
        number: int64[nodes, L], the ending at a node with answer 1, 2, ... of its route; with the
            last one where that is not there yet.
    """

    at: Integers
    gives: Integers
    number: Integers


@lru_cache(maxsize=8)
def pairs(routes: Routes) -> Pairs:
    """The endings of trees of this shape."""
    nodes = np.arange(routes.nodes)
    number = np.tile(nodes[:, None], (1, routes.hops))
    at, gives, count = [nodes], [nodes], routes.nodes
    for calls in range(2, routes.hops + 1):
        here = given = nodes[routes.level(calls)]
        for answer in reversed(range(calls - 1)):
            given = (given - 1) // routes.models
            number[here, answer] = count + np.arange(len(here))
            at, gives, count = [*at, here], [*gives, given], count + len(here)
    return Pairs(np.concatenate(at), np.concatenate(gives), number)


def worth(tree: RouteTree, endings: int) -> tuple[Floats, Floats, Floats]:
    """Score, accuracy and C of so many endings, see `Pairs`: float64[queries, endings] each."""
    if endings == tree.routes.nodes:
        return tree.score, tree.accuracy, tree.cost
    at, gives, _ = pairs(tree.routes)
    return tree.score[:, gives], tree.accuracy[:, gives], tree.cost[:, at]


def ending_reward(tree: RouteTree, alpha: float, endings: int) -> Floats:
    """float64[queries, endings]: R = Q - alpha * C of each ending; see `worth`."""
    quality, _, cost = worth(tree, endings)
    return net_reward(quality, cost, alpha)


def ended_at(routes: Routes, endings: Floats) -> Floats:
    """float64[queries, nodes]: `endings`, float64[queries, endings], whatever answer they give."""
    if endings.shape[1] == routes.nodes:
        return endings
    found = np.zeros((len(endings), routes.nodes))
    np.add.at(found.T, pairs(routes).at, endings.T)
    return found


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
        seconds: float64[queries], expected seconds of all calls; None where nobody says.
    """

    name: str
    kind: Kind
    quality: Floats
    accuracy: Floats
    cost: Floats
    seconds: Floats | None = None

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
    """The outcome of ending in each way with a given probability.

    `probability`: float64[queries, endings], see `Pairs`, rows sum to 1.
    """

    measured = worth(tree, probability.shape[1])
    took = (ended_at(tree.routes, probability) * tree.latency)[:, 1:].sum(axis=1)
    quality, right, cost = ((probability * values).sum(axis=1) for values in measured)
    return Outcome(name, kind, quality, right, cost, took)


def at_nodes(tree: RouteTree, node: Integers, name: str, kind: Kind) -> Outcome:
    """The outcome of one given ending on each query.

    `node`: int64[queries], numbers of nodes, or of other endings, see `Pairs`.
    """
    (at, gives, _), rows = pairs(tree.routes), np.arange(len(tree))
    given, spent = (rows, gives[node]), tree.cost[rows, at[node]]
    took = tree.latency[rows, at[node]]
    return Outcome(name, kind, tree.score[given], tree.accuracy[given], spent, took)


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
            seconds=direct.seconds[:, column],
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


def ending(actions: Actions, probabilities: Floats) -> Floats:
    """Probability of each ending: the product of the decisions on the way.

    `actions`: what may be chosen; `probabilities`: float64[queries, S, A], rows sum to 1; the root
    is state 0. Returns float64[queries, endings], see `Pairs`; rows sum to 1; 0 where no episode
    can end.
    """
    routes, queries = actions.routes, len(probabilities)
    ends = np.zeros((queries, actions.width))
    going_on = np.ones((queries, 1))
    for level in range(actions.steps):
        decided = going_on[:, :, None] * probabilities[:, routes.level(level)]
        for answer in range(actions.returns):
            number = pairs(routes).number[routes.level(level), answer]
            ends[:, number] += decided[:, :, actions.calls + answer]
        if level == routes.hops:
            return ends
        going_on = decided[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            stopped = decided[:, :, routes.models : actions.calls].reshape(queries, -1)
            ends[:, routes.level(level + 1)] += stopped
    ends[:, routes.leaves] += going_on
    return ends


def greedy(probabilities: Floats, base_rate: Floats, returns: int = 0) -> Floats:
    """The table of the greedy policy: 1 for the most probable action, 0 for the others.

    Ties go to the cheaper model per token, to calling nobody first of all, then to stopping, then
    to the lower action. The price of a token is known before the call; its number is not, and a
    policy must not look ahead.

    `probabilities`: float64[..., A], see `Actions`; `base_rate`: float64[M], cost per token;
    `returns`: how many of the actions, the last ones, call nobody. Returns float64[..., A],
    one-hot.
    """
    count = probabilities.shape[-1]
    stopping_first = np.roll(np.arange(count), -len(base_rate))
    best = probabilities.max(axis=-1, keepdims=True)
    prices = np.append(np.resize(base_rate, count - returns), np.full(returns, -1.0))
    price = np.where(probabilities == best, prices, np.inf)
    choice = stopping_first[price[..., stopping_first].argmin(axis=-1)]
    return np.eye(count)[choice]


def policy_outcome(
    tree: RouteTree, actions: Actions, probabilities: Floats, name: str, kind: Kind
) -> Outcome:
    """The exact outcome of a policy given as a table.

    `actions`: what the columns of the table mean; `probabilities`: float64[queries, S, A]; see
    `greedy` for a deterministic policy.
    """
    return from_endings(tree, ending(actions, probabilities), name, kind)


def going_on(routes: Routes, endings: Floats) -> Floats:
    """Probability that an episode makes a call at each state.

    `endings`: float64[queries, endings], rows sum to 1. Returns float64[queries, states]; 1 at the
    root.
    """
    reached = ended_at(routes, endings).copy()
    deciding = np.empty((len(endings), routes.states))
    for level in reversed(range(routes.hops)):
        below = reached[:, routes.level(level + 1)].reshape(len(endings), -1, routes.models)
        deciding[:, routes.level(level)] = below.sum(axis=2)
        reached[:, routes.level(level)] += deciding[:, routes.level(level)]
    return deciding


def called(routes: Routes, endings: Floats) -> Floats:
    """Probability that the call of each node is made, whether or not the episode goes on.

    `endings`: float64[queries, endings], rows sum to 1. Returns float64[queries, nodes]; 1 at the
    root, which is no call.
    """
    reached = ended_at(routes, endings).copy()
    reached[:, : routes.states] += going_on(routes, endings)
    return reached

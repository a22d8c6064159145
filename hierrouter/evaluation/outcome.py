"""The actions of a policy, and its exact outcome on each query, by enumeration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.tree import SEPARATOR, Routes, RouteTree, net_reward

# Array types; the docstrings state the shapes.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

STOP_SUFFIX = f"{SEPARATOR}stop"  # ends the name of an action that stops
RETURN_PREFIX = f"return{SEPARATOR}"  # begins the name of an action that returns an answer


@dataclass(frozen=True)
class Actions:
    """The numbering of actions on one tree: M that call; M more with stop; L more with return.

    Action i calls model i; M + i calls it and ends the episode with its answer. The last L call no
    model: they end the episode with answer 1, 2, ... of the route.

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
        """Number of actions that call a model: M, or 2M with stop."""
        return self.routes.models * (2 if self.allow_stop else 1)

    @property
    def returns(self) -> int:
        """Number of actions that return an answer without a call: L with return, else 0."""
        return self.routes.hops if self.allow_return else 0

    @property
    def count(self) -> int:
        """A, the number of all actions."""
        return self.calls + self.returns

    @property
    def states(self) -> int:
        """S, the number of nodes where a decision is due; with return, the leaves are included."""
        return self.routes.nodes if self.allow_return else self.routes.states

    @property
    def steps(self) -> int:
        """The most decisions of an episode: L, or L + 1 with return."""
        return self.routes.hops + self.allow_return

    @property
    def width(self) -> int:
        """Number of endings: that of the nodes; with return, that of the `EndingTable`."""
        return len(ending_table(self.routes).node) if self.allow_return else self.routes.nodes

    @property
    def endings(self) -> slice:
        """Numbers of the possible endings: the leaves; with stop or return, all but the root."""
        ends_early = self.allow_stop or self.allow_return
        return slice(1 if ends_early else self.routes.states, self.width)

    def model(self, action: Integers) -> Integers:
        """The model that `action` calls, if it calls one; for arrays and ints."""
        return action % self.routes.models

    def stops(self, action: Integers) -> Booleans:
        """Whether `action` itself ends the episode; for arrays and ints."""
        return action >= self.routes.models

    def transition(self, node: Any, action: Any) -> tuple[Any, Any, Any]:
        """Take an action at a state.

        Returning an answer that does not exist yet returns the last one, and so does a call after
        the last call; at the root there is no answer.

        Args:
            node: int64[n] or int, the state.
            action: int64[n] or int.

        Returns:
            The next node, the number of the ending, and whether the episode ends; of the shape of
            the arguments. Without an end the number of the ending is that of the node.
        """
        child = self.routes.child(node, self.model(action))
        stops = self.stops(action)
        if not self.allow_return:
            return child, child, stops | (child >= self.routes.states)
        answer = action - self.calls
        returns = (answer >= 0) | (node >= self.routes.states)
        # Column -1, the last answer, is what a call after the last call returns.
        ending = ending_table(self.routes).number[node, np.where(answer >= 0, answer, -1)]
        child = np.where(returns, node, child)
        return child, np.where(returns, ending, child), returns | stops

    def names(self, models: Sequence[str]) -> tuple[str, ...]:
        """The name of each action: a model, `model>stop` or `return>number`."""
        calls = (*models, *(f"{name}{STOP_SUFFIX}" for name in models))[: self.calls]
        return (*calls, *(f"{RETURN_PREFIX}{answer + 1}" for answer in range(self.returns)))

    def legal(self) -> Booleans:
        """Compute bool[S, A]: which actions a policy may choose at each state.

        Stopping with the last call is illegal, because the episode ends there anyway (or the answer
        can be returned after it): no two legal actions do the same. Only answers that exist can be
        returned, and after the last call returning one is the only choice.
        """
        routes = self.routes
        legal = np.ones((self.states, self.count), dtype=np.bool_)
        legal[routes.level(routes.hops - 1), routes.models : self.calls] = False
        if self.allow_return:
            legal[routes.leaves, : self.calls] = False
            legal[:, self.calls :] = np.arange(routes.hops) < routes.depth()[:, None]
        return legal


class EndingTable(NamedTuple):
    """Every ending by number: the nodes, each with its own answer, then nodes with earlier answers.

    Without return there are no other endings than the nodes, so arrays over endings are as wide as
    there are nodes.

    Attributes:
        node: int64[endings], the node where the episode ends; it determines the cost.
        answer_node: int64[endings], the node whose answer is returned; it determines the quality.
        number: int64[nodes, L], the ending at a node with answer 1, 2, ... of its route; with the
            last answer if the numbered one does not exist yet.
    """

    node: Integers
    answer_node: Integers
    number: Integers


@lru_cache(maxsize=8)
def ending_table(routes: Routes) -> EndingTable:
    """Number the endings of trees of this shape."""
    nodes = np.arange(routes.nodes)
    number = np.tile(nodes[:, None], (1, routes.hops))
    end_nodes = [nodes]
    answer_nodes = [nodes]
    count = routes.nodes
    for calls in range(2, routes.hops + 1):
        level = nodes[routes.level(calls)]
        ancestors = level
        for answer in reversed(range(calls - 1)):
            ancestors = (ancestors - 1) // routes.models
            number[level, answer] = count + np.arange(len(level))
            end_nodes.append(level)
            answer_nodes.append(ancestors)
            count += len(level)
    return EndingTable(np.concatenate(end_nodes), np.concatenate(answer_nodes), number)


def ending_name(tree: RouteTree, ending: int, endings: int) -> str:
    """Return the name of the route of an ending, and of the answer it gives if not the last one.

    Args:
        tree: has the names of the models.
        ending: number of the ending.
        endings: number of endings: of nodes, or of the `EndingTable`.
    """
    if endings == tree.routes.nodes:
        return tree.routes.name(ending, tree.models)
    table = ending_table(tree.routes)
    node = int(table.node[ending])
    answer_node = int(table.answer_node[ending])
    route = tree.routes.name(node, tree.models)
    if answer_node == node:
        return route
    return f"{route}, {RETURN_PREFIX}{len(tree.routes.path(answer_node))}"


def ending_values(tree: RouteTree, endings: int) -> tuple[Floats, Floats, Floats]:
    """Look up the score, accuracy and C of each ending.

    Args:
        tree: the queries.
        endings: number of endings: of nodes, or of the `EndingTable`.

    Returns:
        float64[queries, endings] each.
    """
    if endings == tree.routes.nodes:
        return tree.score, tree.accuracy, tree.cost
    table = ending_table(tree.routes)
    answer_node = table.answer_node
    return tree.score[:, answer_node], tree.accuracy[:, answer_node], tree.cost[:, table.node]


def ending_reward(tree: RouteTree, alpha: float, endings: int) -> Floats:
    """Compute R = Q - alpha * C of each ending.

    Args:
        tree: the queries.
        alpha: cost penalty.
        endings: number of endings: of nodes, or of the `EndingTable`.

    Returns:
        float64[queries, endings].
    """
    quality, _, cost = ending_values(tree, endings)
    return net_reward(quality, cost, alpha)


def endings_by_node(routes: Routes, endings: Floats) -> Floats:
    """Sum values of endings over the answers that are returned at each node.

    Args:
        routes: shape of the tree.
        endings: float64[queries, endings].

    Returns:
        float64[queries, nodes].
    """
    if endings.shape[1] == routes.nodes:
        return endings
    sums = np.zeros((len(endings), routes.nodes))
    np.add.at(sums.T, ending_table(routes).node, endings.T)
    return sums


Kind = Literal["single", "reference", "route", "router", "oracle", "baseline"]
ROUTER = "hierrouter"  # the name of a trained router in tables


@dataclass(frozen=True, repr=False)
class Outcome:
    """Expected result of one policy on each query of a tree.

    Attributes:
        name: the policy's name in tables. A fixed route is `first>second`, one of a single call
            `>first`: it is not the direct call of `first`, which has no stage instruction.
        kind: a direct call of a pool model ("single") or of a larger one ("reference"), a fixed
            route, a trained router, the tree oracle, or another baseline.
        quality: float64[queries], expected Q, in [0, 1].
        accuracy: float64[queries], probability of a right answer; NaN where nothing judges answers.
        cost: float64[queries], expected C, in money.
        seconds: float64[queries], expected seconds of all calls; None if they are unknown.
    """

    name: str
    kind: Kind
    quality: Floats
    accuracy: Floats
    cost: Floats
    seconds: Floats | None = None

    def reward(self, alpha: float) -> Floats:
        """Compute float64[queries], expected R = Q - alpha * C (paper section 3.1)."""
        return net_reward(self.quality, self.cost, alpha)

    def __repr__(self) -> str:
        from hierrouter.tables import money

        if not len(self.quality):
            return f"<{self.name} on no query>"
        return (
            f"<{self.name} on {len(self.quality)} queries: Q {self.quality.mean():.4f}, "
            f"C {money(self.cost.mean())}, right {known_share(self.accuracy)}>"
        )


def known_share(accuracy: Floats) -> str:
    """Return the mean of the accuracies that are known, as text; a dash if none is."""
    known = accuracy[~np.isnan(accuracy)]
    return f"{known.mean():.4f}" if len(known) else "–"


def from_endings(tree: RouteTree, probability: Floats, name: str, kind: Kind) -> Outcome:
    """Compute the outcome of a policy from the probability of each ending.

    Args:
        tree: the queries.
        probability: float64[queries, endings], see `EndingTable`; rows sum to 1.
        name: name of the outcome.
        kind: kind of the outcome.
    """
    score, right, spent = ending_values(tree, probability.shape[1])
    node_probability = endings_by_node(tree.routes, probability)
    # The root, column 0, is no call and has no latency.
    seconds = (node_probability * tree.latency)[:, 1:].sum(axis=1)
    quality = (probability * score).sum(axis=1)
    accuracy = (probability * right).sum(axis=1)
    cost = (probability * spent).sum(axis=1)
    return Outcome(name, kind, quality, accuracy, cost, seconds)


def from_nodes(tree: RouteTree, ending: Integers, name: str, kind: Kind) -> Outcome:
    """Compute the outcome of one ending on each query.

    Args:
        tree: the queries.
        ending: int64[queries], numbers of nodes, or of other endings of the `EndingTable`.
        name: name of the outcome.
        kind: kind of the outcome.
    """
    table = ending_table(tree.routes)
    rows = np.arange(len(tree))
    node = table.node[ending]
    answer_node = table.answer_node[ending]
    return Outcome(
        name=name,
        kind=kind,
        quality=tree.score[rows, answer_node],
        accuracy=tree.accuracy[rows, answer_node],
        cost=tree.cost[rows, node],
        seconds=tree.latency[rows, node],
    )


def single_calls(tree: RouteTree) -> list[Outcome]:
    """Compute the outcome of every direct call of a tree (paper table 1).

    Returns:
        The pool's models ("single"), then larger ones ("reference").
    """
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
    """Take each of the M^L routes on every query.

    Args:
        tree: the queries.
        allow_stop: whether to include routes of fewer than L calls, such as `>first`.

    Returns:
        The outcomes, in the order of the nodes where the routes end.
    """
    endings = range(tree.routes.nodes)[Actions(tree.routes, allow_stop).endings]
    return [fixed_route(tree, node) for node in endings]


def fixed_route(tree: RouteTree, node: int) -> Outcome:
    """Take the route that ends at this node number on every query."""
    nodes = np.full(len(tree), node, dtype=np.int64)
    return from_nodes(tree, nodes, tree.routes.name(node, tree.models), "route")


def ending_probabilities(actions: Actions, probabilities: Floats) -> Floats:
    """Compute the probability of each ending: the product of the decisions on the route.

    Args:
        actions: what the columns of the table mean.
        probabilities: float64[queries, S, A], rows sum to 1; the root is state 0.

    Returns:
        float64[queries, endings], see `EndingTable`; rows sum to 1; 0 at nodes where no episode can
        end.
    """
    routes = actions.routes
    queries = len(probabilities)
    endings = np.zeros((queries, actions.width))
    reach = np.ones((queries, 1))  # probability of each state of the level
    for level in range(actions.steps):
        taken = reach[:, :, None] * probabilities[:, routes.level(level)]
        for answer in range(actions.returns):
            number = ending_table(routes).number[routes.level(level), answer]
            endings[:, number] += taken[:, :, actions.calls + answer]
        if level == routes.hops:
            return endings
        reach = taken[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            stopped = taken[:, :, routes.models : actions.calls].reshape(queries, -1)
            endings[:, routes.level(level + 1)] += stopped
    endings[:, routes.leaves] += reach
    return endings


def greedy(probabilities: Floats, base_rate: Floats, returns: int = 0) -> Floats:
    """Make the table of the greedy policy: 1 for the most probable action, 0 for the others.

    Ties go first to actions without a call, then to the cheaper model per token, then to stopping,
    then to the lower action. The price of a token is known before the call; the number of tokens is
    not, and a policy must not look ahead.

    Args:
        probabilities: float64[..., A], see `Actions`.
        base_rate: float64[M], cost per token.
        returns: how many of the actions, the last ones, call no model.

    Returns:
        float64[..., A], one-hot.
    """
    count = probabilities.shape[-1]
    stopping_first = np.roll(np.arange(count), -len(base_rate))
    best = probabilities.max(axis=-1, keepdims=True)
    # A price of -1 is below that of any model.
    prices = np.append(np.resize(base_rate, count - returns), np.full(returns, -1.0))
    price = np.where(probabilities == best, prices, np.inf)
    choice = stopping_first[price[..., stopping_first].argmin(axis=-1)]
    return np.eye(count)[choice]


def policy_outcome(
    tree: RouteTree, actions: Actions, probabilities: Floats, name: str, kind: Kind
) -> Outcome:
    """Compute the exact outcome of a policy that is given as a table.

    Args:
        tree: the queries.
        actions: what the columns of the table mean.
        probabilities: float64[queries, S, A]; see `greedy` for a deterministic policy.
        name: name of the outcome.
        kind: kind of the outcome.
    """
    return from_endings(tree, ending_probabilities(actions, probabilities), name, kind)


def continuation_probability(routes: Routes, endings: Floats) -> Floats:
    """Compute the probability that an episode makes a call at each state.

    Args:
        routes: shape of the tree.
        endings: float64[queries, endings], rows sum to 1.

    Returns:
        float64[queries, states]; 1 at the root.
    """
    reach = endings_by_node(routes, endings).copy()
    continuing = np.empty((len(endings), routes.states))
    # From the last level up: a state continues as often as its children are reached.
    for level in reversed(range(routes.hops)):
        children = reach[:, routes.level(level + 1)].reshape(len(endings), -1, routes.models)
        continuing[:, routes.level(level)] = children.sum(axis=2)
        reach[:, routes.level(level)] += continuing[:, routes.level(level)]
    return continuing


def call_probability(routes: Routes, endings: Floats) -> Floats:
    """Compute the probability that the call of each node is made.

    Args:
        routes: shape of the tree.
        endings: float64[queries, endings], rows sum to 1.

    Returns:
        float64[queries, nodes]; 1 at the root, which is no call.
    """
    reach = endings_by_node(routes, endings).copy()
    reach[:, : routes.states] += continuation_probability(routes, endings)
    return reach

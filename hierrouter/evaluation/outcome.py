"""The actions of a policy, and its exact outcome on each query, by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.layout import NEWEST, NOT_OFFERED, SEPARATOR, Calls, Layout, Level
from hierrouter_cache.tree import RouteTree, net_reward
from hierrouter_cache.walk import path_weights

# Array types; the docstrings state the shapes.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# The node that each of some calls leads to, from the states and the numbers of the calls.
MakeCall = Callable[[Any, Any], Any]

STOP_SUFFIX = f"{SEPARATOR}stop"  # ends the name of an action that stops
STOP_NAME = "stop"  # name of the action that ends with the newest answer, without a call
RETURN_PREFIX = f"return{SEPARATOR}"  # begins the name of an action that returns an answer


@dataclass(frozen=True)
class Actions:
    """The numbering of a policy's actions: those that call, with stop as many more, and others.

    Action i of C makes call i; with stop, action C + i makes it and ends the episode with its
    answer. The last actions make no call: they end the episode with an answer of the route, as
    `Layout.give_backs` says.

    Attributes:
        layout: which routes there are; C is M for the paper's tree of M models.
        allow_stop: whether an episode may end before L calls.
    """

    layout: Layout
    allow_stop: bool = False

    @property
    def calls(self) -> int:
        """Number of actions that make a call: C, or 2C with stop."""
        return self.layout.call_actions * (2 if self.allow_stop else 1)

    @property
    def returns(self) -> int:
        """Number of actions that return an answer without a call."""
        return len(self.layout.give_backs)

    @property
    def count(self) -> int:
        """A, the number of all actions."""
        return self.calls + self.returns

    @property
    def states(self) -> int:
        """S, the number of nodes where a decision is due."""
        return self.layout.states

    @property
    def steps(self) -> int:
        """The most decisions of an episode."""
        return self.layout.steps

    @property
    def width(self) -> int:
        """Number of endings: those of the nodes, and those with earlier answers."""
        return self.layout.endings

    @property
    def endings(self) -> slice:
        """Numbers of the possible endings: the leaves; with stop or return, all but the root."""
        ends_early = self.allow_stop or self.returns > 0
        return slice(1 if ends_early else self.layout.inner, self.width)

    def model(self, action: Integers) -> Integers:
        """The call that `action` makes, if it makes one; for arrays and ints."""
        return action % self.layout.call_actions

    def stops(self, action: Integers) -> Booleans:
        """Whether `action` itself ends the episode; for arrays and ints."""
        return action >= self.layout.call_actions

    def transition(
        self, node: Any, action: Any, make_call: MakeCall | None = None
    ) -> tuple[Any, Any, Any]:
        """Take an action at a state.

        Returning an answer that does not exist yet returns the last one, and so does a call that is
        not offered, as after the last call; at the root there is no answer.

        Args:
            node: int64[n] or int, the state.
            action: int64[n] or int.
            make_call: returns the node that a call leads to, see `Draws.drawn`; by default the
                first draw.

        Returns:
            The next node, the number of the ending, and whether the episode ends; of the shape of
            the arguments. Without an end the number of the ending is that of the node.
        """
        layout = self.layout
        stops = self.stops(action)
        if layout.is_full and not self.returns and make_call is None:
            child = layout.child(node, self.model(action))
            return child, child, stops | (child >= layout.inner)
        answer = action - self.calls
        is_leaf = node >= layout.inner
        # At a node where no call follows, any call counts as returning the last answer.
        state = np.where(is_leaf, 0, node)
        child = (make_call or layout.child)(state, self.model(action))
        returns = (answer >= 0) | is_leaf | (child == NOT_OFFERED)
        ending = node
        if self.returns:
            offer = layout.give_back[node, np.where(answer >= 0, answer, 0)]
            ending = np.where((answer >= 0) & (offer != NOT_OFFERED), offer, node)
        child = np.where(returns, node, child)
        is_over = returns | stops | (child >= layout.states)
        return child, np.where(returns, ending, child), is_over

    def names(self, models: Sequence[str]) -> tuple[str, ...]:
        """The name of each action: a model, `model>stop`, `return>number` or `stop`."""
        calls = (*models, *(f"{name}{STOP_SUFFIX}" for name in models))[: self.calls]
        return (*calls, *map(give_back_name, self.layout.give_backs))

    def legal(self) -> Booleans:
        """Compute bool[S, A]: which actions a policy may choose at each state.

        Stopping with the last call is illegal, because the episode ends there anyway (or the answer
        can be returned after it): no two legal actions do the same. Only answers that exist can be
        returned, and after the last call returning one is the only choice.
        """
        layout = self.layout
        legal = np.zeros((self.states, self.count), dtype=np.bool_)
        inner = slice(layout.inner)
        offered = layout.children != NOT_OFFERED
        legal[inner, : layout.call_actions] = offered
        if self.allow_stop:
            draws = layout.draws_of_calls
            may_go_on = ((draws != NOT_OFFERED) & (draws < layout.inner)).any(axis=2)
            legal[inner, layout.call_actions : self.calls] = may_go_on
        legal[:, self.calls :] = layout.give_back != NOT_OFFERED
        return legal


@dataclass(frozen=True, eq=False)
class Draws:
    """Chooses which draw of a call comes, by the weights of a tree.

    Attributes:
        layout: which routes there are.
        weight: float64[queries, nodes], see `RouteTree`.
        rng: source of chance; it is not used if each call has one draw.
        ends: bool[queries, nodes], where the query offers nothing, so that the episode ends.
    """

    layout: Layout
    weight: Floats
    rng: np.random.Generator
    ends: Booleans

    @classmethod
    def of(cls, tree: RouteTree, rng: np.random.Generator) -> Self | None:
        """Return the draws of a tree; None if every query has all nodes, and each call one draw."""
        if tree.weight is None:
            return None
        ends = dead_ends(tree)
        if tree.layout.give_backs:
            ends[:, : tree.layout.states] = False
        return cls(tree.layout, tree.weight, rng, ends)

    def transition(
        self, actions: Actions, query: Integers, node: Integers, action: Integers
    ) -> tuple[Integers, Integers, Booleans]:
        """Take an action at a state of each of some episodes, see `Actions.transition`.

        Args:
            actions: the actions.
            query: int64[n], as for `drawn`.
            node: int64[n], the states.
            action: int64[n].
        """
        child, ending, is_over = actions.transition(node, action, self.drawn(query))
        return child, ending, is_over | self.ends[query % len(self.ends), child]

    def drawn(self, query: Integers) -> MakeCall:
        """Return the function that makes a call in each of some episodes.

        Args:
            query: int64[n], position of each episode's query; positions count on from copy to copy
                of the queries.

        Returns:
            Function of n states and n numbers of calls to int64[n], the nodes; `NOT_OFFERED` where
            the query does not have the call.
        """
        own = query % len(self.weight)

        def make_call(node: Integers, call: Integers) -> Integers:
            nodes = self.layout.draws_of_calls[node, call]
            offered = nodes != NOT_OFFERED
            weight = np.where(offered, self.weight[own[:, None], nodes], 0.0)
            if self.layout.draws == 1:
                return np.where(weight[:, 0] > 0, nodes[:, 0], NOT_OFFERED)
            total = weight.cumsum(axis=1)
            chance = self.rng.random(len(own)) * total[:, -1]
            position = (total <= chance[:, None]).sum(axis=1)
            # Without any draw the position is beyond the last one.
            nodes = np.pad(nodes, ((0, 0), (0, 1)), constant_values=NOT_OFFERED)
            return nodes[np.arange(len(own)), position]

        return make_call


@dataclass(frozen=True)
class LegalActions:
    """Which actions a policy may choose at each state of each query of a tree.

    Attributes:
        table: bool[queries, S, A]; bool[1, S, A] if it is the same for all queries, because each
            has all nodes.
    """

    table: Booleans

    @classmethod
    def of(cls, tree: RouteTree, actions: Actions) -> LegalActions:
        """Find the legal actions, see `Actions.legal`, that a tree's queries offer.

        Of a query that lacks nodes, a call is legal where one of its draws is there; an episode may
        end, by a stop or without a call, where the answer is judged. Where nothing else is offered,
        it ends with the newest answer.
        """
        legal = actions.legal()
        if tree.offered is None or tree.weight is None:
            return cls(legal[None])
        layout = tree.layout
        table = np.repeat(legal[None], len(tree), axis=0)
        table[:, : layout.inner, : layout.call_actions] &= tree.offered
        can_end = np.ones(tree.score.shape, np.bool_) if tree.can_end is None else tree.can_end
        for level in layout.levels:
            if actions.allow_stop and level.calls:
                unjudged = level.gather((~can_end & (tree.weight > 0)).astype(np.float64))
                stopping = slice(layout.call_actions, actions.calls)
                may_end = (unjudged == 0) & tree.offered[:, level.inner]
                table[:, level.inner, stopping] &= may_end
            for row, column, ending in level.offers():
                state = level.numbers[row]
                table[:, state, actions.calls + column] &= can_end[:, layout.answer_node[ending]]
        has_none: Booleans = ~np.any(table, axis=2)
        is_newest = layout.give_back == np.arange(actions.states)[:, None]
        table[:, :, actions.calls :] |= has_none[:, :, None] & is_newest
        return cls(table)

    def at(self, query: Integers, node: Integers) -> Booleans:
        """bool[n, A]: the legal actions at some states, by query and node, int64[n] each."""
        return self.table[0, node] if len(self.table) == 1 else self.table[query, node]


def give_back_name(answer: int) -> str:
    """The name of an action that ends an episode without a call, see `Layout.give_backs`."""
    return STOP_NAME if answer == NEWEST else f"{RETURN_PREFIX}{answer}"


def ending_name(tree: RouteTree, ending: int) -> str:
    """Return the name of the route of an ending, and of the answer it gives if not the last one.

    Args:
        tree: has the names of the models.
        ending: number of the ending.
    """
    node = int(tree.layout.ending_node[ending])
    answer_node = int(tree.layout.answer_node[ending])
    route = tree.layout.name(node, tree.models)
    if answer_node == node:
        return route
    return f"{route}, {RETURN_PREFIX}{len(tree.layout.path(answer_node))}"


def draw_suffix(layout: Layout, node: int) -> str:
    """Return ` #2` for the second draw of a call; an empty text if the call has one draw.

    Args:
        layout: the routes.
        node: number of a node, not of the root.
    """
    if layout.draws == 1:
        return ""
    draws = layout.draws_of_calls[layout.parent[node], layout.action[node]]
    several = (draws != NOT_OFFERED).sum() > 1
    return f" #{layout.draw[node] + 1}" if several else ""


def ending_values(tree: RouteTree) -> tuple[Floats, Floats, Floats]:
    """Look up the score, accuracy and C of each ending.

    Args:
        tree: the queries.

    Returns:
        float64[queries, endings] each.
    """
    layout = tree.layout
    if layout.endings == layout.nodes:
        return tree.score, tree.accuracy, tree.cost
    answer_node = layout.answer_node
    return (
        tree.score[:, answer_node],
        tree.accuracy[:, answer_node],
        tree.cost[:, layout.ending_node],
    )


def ending_reward(tree: RouteTree, alpha: float) -> Floats:
    """Compute R = Q - alpha * C of each ending.

    Args:
        tree: the queries.
        alpha: cost penalty.

    Returns:
        float64[queries, endings].
    """
    quality, _, cost = ending_values(tree)
    return net_reward(quality, cost, alpha)


def endings_by_node(layout: Layout, endings: Floats) -> Floats:
    """Sum values of endings over the answers that are returned at each node.

    Args:
        layout: the routes.
        endings: float64[queries, endings]; or [queries, nodes], which stay as they are.

    Returns:
        float64[queries, nodes].
    """
    if endings.shape[1] == layout.nodes:
        return endings
    sums = np.zeros((len(endings), layout.nodes))
    np.add.at(sums.T, layout.ending_node, endings.T)
    return sums


Kind = Literal["single", "reference", "route", "router", "oracle", "baseline"]
LISTED_SHARE = 0.5  # of how often the route is offered that is offered most
SHARE_ROUNDING = 1e-9  # probabilities are rounded sums: one this far below 1 is 1
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
        probability: float64[queries, endings], see `Layout`; rows sum to 1.
        name: name of the outcome.
        kind: kind of the outcome.
    """
    # A fixed route or an oracle has probabilities of nodes only, which are the first endings.
    score, right, spent = (values[:, : probability.shape[1]] for values in ending_values(tree))
    node_probability = endings_by_node(tree.layout, probability)
    if tree.can_end is not None:
        # What nothing judges has no value, and no episode ends there.
        score, right = (np.where(probability > 0, values, 0.0) for values in (score, right))
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
        ending: int64[queries], numbers of endings, see `Layout`.
        name: name of the outcome.
        kind: kind of the outcome.
    """
    rows = np.arange(len(tree))
    node = tree.layout.ending_node[ending]
    answer_node = tree.layout.answer_node[ending]
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
            kind="single" if model in tree.callers else "reference",
            quality=direct.score[:, column],
            accuracy=direct.accuracy[:, column],
            cost=direct.cost[:, column],
            seconds=direct.seconds[:, column],
        )
        for column, model in enumerate(direct.models)
    ]


def route_ends(layout: Layout, allow_stop: bool = False) -> slice:
    """Return the numbers of the nodes at which a fixed route may end.

    Args:
        layout: the routes.
        allow_stop: whether a route may end before L calls.
    """
    ends_early = allow_stop or NEWEST in layout.give_backs
    return slice(1 if ends_early else layout.inner, layout.nodes)


def is_plain(tree: RouteTree) -> bool:
    """Whether every query has all nodes, each call has one draw, and all answers are judged."""
    return tree.weight is None and tree.can_end is None and tree.layout.draws == 1


def has_holes(tree: RouteTree) -> bool:
    """Whether some query lacks a node, or some answer is not judged."""
    is_complete = tree.weight is None or bool((tree.weight[:, 1:] > 0).all())
    return not is_complete or tree.can_end is not None


def reach_probability(tree: RouteTree, weight: Floats | None = None) -> Floats:
    """Compute float64[queries, nodes]: how probable a node is if its actions are taken.

    It is the product of the weights of the draws on the way; 0 where the query lacks the node.

    Args:
        tree: the queries.
        weight: float64[queries, nodes], weights of the draws; None is those of the tree.
    """
    weight = tree.weight if weight is None else weight
    return np.ones(tree.score.shape) if weight is None else path_weights(tree.layout, weight)


def dead_ends(tree: RouteTree) -> Booleans:
    """Compute bool[queries, nodes]: whether the query offers no further call at a node."""
    dead = np.ones(tree.score.shape, np.bool_)
    layout = tree.layout
    if tree.offered is None:
        dead[:, : layout.inner] = False
    else:
        dead[:, : layout.inner] = ~tree.offered.any(axis=2)
    return dead


def possible_ends(tree: RouteTree, allow_stop: bool = False) -> Booleans:
    """Find the nodes at which an episode may end with the newest answer.

    Where a query offers no further call, the episode ends: there is nothing else to do.

    Args:
        tree: the queries.
        allow_stop: whether an episode may end before L calls.

    Returns:
        bool[queries, nodes]; False where the query lacks the node.
    """
    ends = dead_ends(tree)
    first = route_ends(tree.layout, allow_stop).start
    ends[:, first:] |= True if tree.can_end is None else tree.can_end[:, first:]
    ends[:, 0] = False
    if tree.weight is not None:
        ends &= tree.weight > 0
    return ends


class RouteMeans:
    """The expected result of each fixed route on each query, over the draws of its calls.

    A fixed route is a sequence of actions. It is followed while a query offers its next action, and
    ends where the query offers no call. If a query offers other calls only, the route is not
    available for this query. On a tree where every query has all nodes, with one draw for each
    call, the values are views of those of the nodes.

    Args:
        tree: the queries.
        allow_stop: whether routes of fewer than L calls count.

    Attributes:
        node: int64[routes], the number of each route, see `Layout.route`, in ascending order.
    """

    def __init__(self, tree: RouteTree, allow_stop: bool = False) -> None:
        self.tree = tree
        self.allow_stop = allow_stop
        ends = route_ends(tree.layout, allow_stop)
        self._columns: Any = ends
        self.node = np.arange(ends.start, ends.stop)
        self._is_plain = is_plain(tree)
        if not self._is_plain:
            route = tree.layout.route
            is_route = route[self.node] == self.node
            if ends.start >= tree.layout.inner:
                # A route that goes on after one of its draws includes the end after the others.
                goes_on = np.isin(self.node, route[: tree.layout.inner])
                is_route &= ~goes_on
            self.node = self.node[is_route]
            self._columns = self.node

    @cached_property
    def quality(self) -> Floats:
        """float64[queries, routes], expected Q."""
        return self._mean(self.tree.score)

    @cached_property
    def accuracy(self) -> Floats:
        """float64[queries, routes], probability of a right answer."""
        return self._mean(self.tree.accuracy)

    @cached_property
    def cost(self) -> Floats:
        """float64[queries, routes], expected C."""
        return self._mean(self.tree.cost)

    @cached_property
    def seconds(self) -> Floats:
        """float64[queries, routes], expected seconds of all calls."""
        return self._mean(self.tree.latency)

    def reward(self, alpha: float) -> Floats:
        """Compute float64[queries, routes], expected R = Q - alpha * C."""
        if self._is_plain:
            return self.tree.node_reward(alpha)[:, self._columns]
        return net_reward(self.quality, self.cost, alpha)

    @cached_property
    def available(self) -> Booleans:
        """bool[queries, routes]: whether a query offers the route, whatever draws come."""
        if self._is_plain:
            return np.ones((len(self.tree), len(self.node)), np.bool_)
        return self.followed > 1 - SHARE_ROUNDING

    @cached_property
    def followed(self) -> Floats:
        """float64[queries, routes]: the probability that a query offers the route up to an end."""
        ends = possible_ends(self.tree, self.allow_stop)
        return RouteMeans._mean(self, ends.astype(np.float64))

    @cached_property
    def everywhere(self) -> Integers:
        """int64[n], the columns of the routes that are available for all queries."""
        if self._is_plain:
            return np.arange(len(self.node))
        return np.flatnonzero(self.available.all(axis=0))

    def outcome(self, column: int) -> Outcome:
        """Return the outcome of one route, by its column."""
        tree = self.tree
        name = tree.layout.name(int(self.node[column]), tree.models)
        values = (self.quality, self.accuracy, self.cost, self.seconds)
        quality, accuracy, cost, seconds = (value[:, column] for value in values)
        return Outcome(name, "route", quality, accuracy, cost, seconds)

    def with_weight(self, weight: Floats) -> RouteMeans:
        """Return the same routes with other probabilities of the draws.

        Args:
            weight: float64[queries, nodes]; 0 for draws that are left out. What a query offers
                stays the same; a route whose draws are all left out is not available.
        """
        means = RouteMeans(self.tree, self.allow_stop)
        means.__dict__["_reach"] = reach_probability(self.tree, weight)
        return means

    @cached_property
    def _reach(self) -> Floats:
        return reach_probability(self.tree)

    @cached_property
    def _ended(self) -> Floats:
        """float64[queries, nodes]: the probability of a node at which the query offers no call."""
        return self._reach * dead_ends(self.tree)

    def _mean(self, values: Floats) -> Floats:
        """Compute float64[queries, routes], the means of float64[queries, nodes]."""
        if self._is_plain:
            return values[:, self._columns]
        layout = self.tree.layout
        result = self._by_route(self._reach, values)
        # What has ended on the way is part of each route that goes on after it.
        ended = self._by_route(self._ended, values)
        ended_before = np.zeros_like(ended)
        routes = np.unique(layout.route)
        for number in routes[np.argsort(layout.depth()[routes], kind="stable")][1:]:
            parent = layout.route[layout.parent[number]]
            ended_before[:, number] = ended_before[:, parent] + ended[:, parent]
        return (result + ended_before)[:, self._columns]

    def _by_route(self, probability: Floats, values: Floats) -> Floats:
        """Sum products over the nodes of each route: float64[queries, nodes], by its number."""
        products = np.where(probability > 0, probability * values, 0.0)
        layout = self.tree.layout
        if layout.draws == 1:
            return products
        order = np.argsort(layout.route, kind="stable")
        ordered = layout.route[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        sums = np.zeros_like(products)
        sums[:, ordered[starts]] = np.add.reduceat(products[:, order], starts, axis=1)
        return sums


def step_ranks(actions: Actions, ranking: Sequence[int]) -> Floats:
    """Rank the actions at each state: by the best route that goes on with the action.

    Args:
        actions: the actions of a policy.
        ranking: numbers of routes, see `Layout.route`, the best one first.

    Returns:
        float64[S, A]: the position in `ranking` of the first route that begins with the actions so
        far and goes on with the action, or ends with it; infinite if there is none. An action that
        ends with the newest answer ranks before calls of the same route.
    """
    layout = actions.layout
    ends = np.full(layout.nodes, np.inf)
    begins = np.full(layout.nodes, np.inf)
    for position, end in reversed(list(enumerate(ranking))):
        ends[layout.route[end]] = position
        begins[layout.route[list(layout.nodes_to(end))]] = position
    # The numbers of the states and calls that are not offered do not matter.
    called = np.where(layout.children == NOT_OFFERED, 0, layout.route[layout.children])
    ranks = np.full((actions.states, actions.count), np.inf)
    ranks[: layout.inner, : layout.call_actions] = begins[called]
    if actions.allow_stop:
        ranks[: layout.inner, layout.call_actions : actions.calls] = ends[called] - 0.5
    states = np.arange(actions.states)[:, None]
    own = ends[layout.route[: actions.states], None] - 0.5
    ranks[:, actions.calls :] = np.where(layout.give_back == states, own, np.inf)
    return ranks


def route_policy(tree: RouteTree, actions: Actions, ranking: Sequence[int]) -> Floats:
    """Make the table of a policy that takes one route, and others where that is not offered.

    At each state it takes the step of the first route that begins with the actions so far and whose
    next step the query offers: a call, or the end. If there is none, it ends with the newest answer
    or else takes the first action that is offered.

    Args:
        tree: the queries; their layout is that of `actions`.
        actions: the actions of the policy.
        ranking: numbers of routes, see `Layout.route`, the best one first.

    Returns:
        float64[queries, S, A], one-hot.
    """
    last = float(tree.layout.nodes)
    ranks = np.minimum(step_ranks(actions, ranking), last)
    ranks[:, actions.calls :] = np.minimum(ranks[:, actions.calls :], last - 0.5)
    legal = LegalActions.of(tree, actions).table
    choice = np.where(legal, ranks, np.inf).argmin(axis=2)
    policy = np.eye(actions.count)[choice]
    return np.broadcast_to(policy, (len(tree), *policy.shape[1:]))


def route_endings(tree: RouteTree, ranking: Sequence[int], allow_stop: bool = False) -> Floats:
    """Compute where the policy of a route ends, see `route_policy`.

    Args:
        tree: the queries.
        ranking: numbers of routes, see `Layout.route`, the best one first.
        allow_stop: whether routes may end before L calls.

    Returns:
        float64[queries, endings], the probability of each ending.
    """
    actions = Actions(tree.layout, allow_stop)
    return ending_probabilities(actions, route_policy(tree, actions, ranking), tree.weight)


class FixedRoutes(RouteMeans):
    """The expected result of each fixed route on every query, also where it is not offered.

    The policy of route r follows r. Where the query does not offer its next step, it goes on with
    the first route of a ranking that begins with the actions so far and whose next step is offered,
    see `route_policy`. Without a ranking it takes there one of the steps that are offered, each
    with the same probability, and does so up to the end. So each route is one exactly defined
    policy, which reads no text. If all queries offer all routes, this is `RouteMeans`.

    Args:
        tree: the queries.
        allow_stop: whether routes of fewer than L calls count.
        ranking: numbers of routes, the best one first, see `bounds.rank_routes`; empty is chance.

    """

    def __init__(
        self, tree: RouteTree, allow_stop: bool = False, ranking: Sequence[int] = ()
    ) -> None:
        super().__init__(tree, allow_stop)
        self.ranking = tuple(ranking)

    @cached_property
    def is_complete(self) -> bool:
        """Whether all queries offer all routes."""
        return self._is_plain or bool((self.followed > 1 - SHARE_ROUNDING).all())

    @cached_property
    def listed(self) -> Integers:
        """int64[n], the columns of the routes that are listed; all if each is offered by all."""
        if self.is_complete:
            return np.arange(len(self.node))
        share = self.followed.mean(axis=0)
        return np.flatnonzero(share >= LISTED_SHARE * share.max() - SHARE_ROUNDING)

    @cached_property
    def available(self) -> Booleans:
        """bool[queries, routes]: True, unless draws on the way have been left out."""
        if self.is_complete:
            return super().available
        return self._mean(np.ones(self.tree.score.shape)) > 1 - SHARE_ROUNDING

    def with_weight(self, weight: Floats) -> FixedRoutes:
        """As `RouteMeans.with_weight`; the steps where a route is not offered stay the same."""
        means = FixedRoutes(self.tree, self.allow_stop, self.ranking)
        means.__dict__["_weight"] = weight
        means.__dict__["_reach"] = reach_probability(self.tree, weight)
        means.__dict__["is_complete"] = self.is_complete
        means.__dict__["listed"] = self.listed
        if not self.is_complete:
            means.__dict__["_steps"] = self._steps
        return means

    @cached_property
    def _weight(self) -> Floats | None:
        return self.tree.weight

    @cached_property
    def _dead(self) -> Booleans:
        return dead_ends(self.tree)

    @cached_property
    def _steps(self) -> tuple[Booleans, Floats]:
        """The legal actions and the probabilities off the route, [queries, S, A] each."""
        actions = Actions(self.tree.layout, self.allow_stop)
        shape = (len(self.tree), actions.states, actions.count)
        legal = np.broadcast_to(LegalActions.of(self.tree, actions).table, shape)
        if self.ranking:
            return legal, route_policy(self.tree, actions, self.ranking)
        return legal, _shares(legal)

    def _mean(self, values: Floats) -> Floats:
        """Compute float64[queries, routes], the means of float64[queries, nodes]."""
        if self.is_complete:
            return super()._mean(values)
        tree = self.tree
        layout = tree.layout
        judged = np.ones(values.shape, np.bool_) if tree.can_end is None else tree.can_end
        # Other nodes are no ends, and what nothing judges has no value.
        values = np.where((self._reach > 0) & (judged | self._dead), values, 0.0)
        left = self._reach * self._beside(values)
        ended = self._reach * np.where(self._ends_here, values, 0.0)
        ended += np.where(self._ends_here, 0.0, left)
        offered = np.zeros((len(tree), layout.nodes, layout.call_actions), np.bool_)
        offered[:, : layout.inner] = (
            layout.children != NOT_OFFERED if tree.offered is None else tree.offered
        )
        order = np.argsort(layout.route, kind="stable")
        numbers, starts = np.unique(layout.route[order], return_index=True)
        nodes = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
        # On the way to each route: where it has ended or gone on otherwise.
        before = np.zeros(values.shape)
        result = np.zeros(values.shape)
        for number in sorted(numbers.tolist(), key=lambda number: int(layout.depth()[number])):
            if number:
                parent = int(layout.route[layout.parent[number]])
                on_way = nodes[parent]
                is_off = ~offered[:, on_way, layout.action[number]]
                before[:, number] = before[:, parent] + (left[:, on_way] * is_off).sum(axis=1)
            result[:, number] = before[:, number] + ended[:, nodes[number]].sum(axis=1)
        return result[:, self._columns]

    @cached_property
    def _ends_here(self) -> Booleans:
        """bool[queries, nodes]: whether a route that ends at a node can do so."""
        layout = self.tree.layout
        legal, _ = self._steps
        calls = Actions(layout, self.allow_stop).calls
        ends = self._dead.copy()
        is_newest = layout.give_back == np.arange(layout.states)[:, None]
        ends[:, : layout.states] |= (legal[:, :, calls:] & is_newest).any(axis=2)
        if self.allow_stop:
            stops = legal[:, : layout.inner, layout.call_actions : calls]
            ends[:, 1:] |= stops[:, layout.parent[1:], layout.action[1:]]
        return ends

    def _beside(self, values: Floats) -> Floats:
        """Compute the mean from each node on, if no route is followed there.

        Args:
            values: float64[queries, nodes], of an end at the node.

        Returns:
            float64[queries, nodes].
        """
        layout = self.tree.layout
        calling = layout.call_actions
        calls = Actions(layout, self.allow_stop).calls
        _, steps = self._steps
        ahead = values.copy()
        for level in reversed(layout.levels):
            if not level.calls:
                continue
            chosen = steps[:, level.inner]
            total = (chosen[:, :, :calling] * level.gather(ahead, weight=self._weight)).sum(axis=2)
            if self.allow_stop:
                stopped = level.gather(values, weight=self._weight)
                total += (chosen[:, :, calling:calls] * stopped).sum(axis=2)
            total += chosen[:, :, calls:].sum(axis=2) * values[:, level.inner]
            dead = self._dead[:, level.inner]
            ahead[:, level.inner] = np.where(dead, values[:, level.inner], total)
        return ahead


def _shares(legal: Booleans) -> Floats:
    """Give each legal action the same probability; bool[..., A] to float64[..., A]."""
    count = legal.sum(axis=-1, keepdims=True)
    return np.divide(legal, count, out=np.zeros(legal.shape), where=count > 0)


def fixed_routes(
    tree: RouteTree, allow_stop: bool = False, ranking: Sequence[int] = ()
) -> list[Outcome]:
    """Take each of the M^L routes on every query.

    Where a query does not offer a route, others are taken, see `FixedRoutes`.

    Args:
        tree: the queries.
        allow_stop: whether to include routes of fewer than L calls, such as `>first`.
        ranking: see `FixedRoutes`.

    Returns:
        The outcomes of the listed routes, in the order of the nodes where they end.
    """
    means = FixedRoutes(tree, allow_stop, ranking)
    return [means.outcome(column) for column in means.listed.tolist()]


def fixed_route(
    tree: RouteTree, node: int, ranking: Sequence[int] = (), allow_stop: bool = True
) -> Outcome:
    """Take the route that ends at this node number on every query.

    Args:
        tree: the queries.
        node: where the route ends.
        ranking: which routes are taken where this one is not offered, see `FixedRoutes`.
        allow_stop: whether these may end before L calls; the route itself may.
    """
    means = FixedRoutes(tree, allow_stop, ranking)
    if tree.layout.route[node] not in means.node:
        means = FixedRoutes(tree, True, ranking)
    return means.outcome(int(np.searchsorted(means.node, tree.layout.route[node])))


@dataclass(frozen=True)
class VarianceShares:
    """How much of the variance of Q between fixed routes is due to the choice at each hop.

    Attributes:
        hops: float64[L], main effect of each hop: the variance of the means over all other hops,
            as a share of the whole variance.
        interaction: the rest, which no hop explains alone. With `hops` it sums to 1.
        deviation: standard deviation of Q over the routes.
    """

    hops: Floats
    interaction: float
    deviation: float


MIN_SPREAD = 1e-9  # of Q over routes: below, routes differ by rounding errors alone


def variance_shares(means: RouteMeans, queries: Integers) -> VarianceShares | None:
    """Split the variance of Q over fixed routes into main effects of the hops, and the rest.

    This is the exact decomposition of a full factorial without repetition (Fisher 1925, Statistical
    Methods for Research Workers, chapter 7): with each of A_1 x ... x A_L routes once, main effects
    and interactions are orthogonal, so the shares are at least 0 and sum to 1. That a few queries
    make means uncertain adds to all shares, and most to the interaction.

    Args:
        means: of the routes of L calls.
        queries: int64[n], positions of the queries whose mean Q is the value of a route.

    Returns:
        The shares. None if the routes are not a full product of at least 2 actions at 2 or more
        hops, if some query does not offer one of them, or if all routes have the same Q.
    """
    layout = means.tree.layout
    if len(means.everywhere) < len(means.node):
        return None
    depth = layout.depth()[means.node]
    if not len(depth) or (depth != layout.hops).any():
        return None
    positions = []  # by hop: int64[routes], number of the action among those of the hop
    counts = []
    node = means.node
    for _ in range(layout.hops):
        actions, position = np.unique(layout.action[node], return_inverse=True)
        positions.append(position)
        counts.append(len(actions))
        node = layout.parent[node]
    if np.prod(counts, dtype=np.float64) != len(means.node) or sum(n > 1 for n in counts) < 2:
        return None
    quality = np.empty(counts[::-1])
    quality[tuple(positions[::-1])] = means.quality[queries].mean(axis=0)
    deviation = float(quality.std())
    if deviation < MIN_SPREAD:
        return None
    hops = np.arange(layout.hops)
    main_effects = [quality.mean(axis=tuple(hops[hops != hop])).var() for hop in hops]
    shares = np.array(main_effects) / quality.var()
    return VarianceShares(shares, max(0.0, float(1 - shares.sum())), deviation)


def ending_probabilities(
    actions: Actions, probabilities: Floats, weight: Floats | None = None
) -> Floats:
    """Compute the probability of each ending: the product of the decisions on the route.

    Args:
        actions: what the columns of the table mean.
        probabilities: float64[queries, S, A], rows sum to 1; the root is state 0.
        weight: float64[queries, nodes], probability of each draw of a call, see `RouteTree`; None
            if each call has one.

    Returns:
        float64[queries, endings], see `Layout`; rows sum to 1; 0 at nodes where no episode can end.
    """
    layout = actions.layout
    queries = len(probabilities)
    endings = np.zeros((queries, actions.width))
    reach = np.ones((queries, 1))  # probability of each state of the level
    for level in layout.levels:
        taken = reach[:, :, None] * probabilities[:, level.states]
        flat = taken.reshape(queries, -1)
        for row, column, ending in level.offers():
            endings[:, ending] += flat[:, row * actions.count + actions.calls + column]
        if weight is not None and level.calls and not layout.give_backs:
            # Where a query offers no call, the episode ends with the newest answer.
            is_dead = ~(level.gather(weight) > 0).any(axis=2)
            endings[:, level.inner] += np.where(is_dead, reach, 0.0)
        calling = taken[:, :, : layout.call_actions]
        for calls in level.calls:
            if actions.allow_stop:
                stopping = taken[:, :, layout.call_actions : actions.calls]
                endings[:, calls.nodes] += _reached(calls, stopping, weight)
            if not calls.is_inner and not layout.decides_at_leaves:
                endings[:, calls.nodes] += _reached(calls, calling, weight)
        reach = states_reached(layout, level, calling, weight)
    return endings


def states_reached(
    layout: Layout, level: Level, called: Floats, weight: Floats | None = None
) -> Floats:
    """Compute the probability of each state of the next level.

    Args:
        layout: the routes.
        level: one of its levels.
        called: float64[queries, states of the level, C], the probability of each call.
        weight: as for `ending_probabilities`.

    Returns:
        float64[queries, states of the next level], without columns after the last level.
    """
    reached = [
        _reached(calls, called, weight)
        for calls in level.calls
        if calls.is_inner or layout.decides_at_leaves
    ]
    if len(reached) == 1:
        return reached[0]
    return np.concatenate([np.empty((len(called), 0)), *reached], axis=1)


def _reached(calls: Calls, called: Floats, weight: Floats | None) -> Floats:
    """float64[queries, n]: the probability of each node, from that of each call."""
    reached: Floats = calls.spread(called)
    return reached if weight is None else reached * weight[:, calls.nodes]


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
    endings = ending_probabilities(actions, probabilities, tree.weight)
    return from_endings(tree, endings, name, kind)


def continuation_probability(layout: Layout, endings: Floats) -> Floats:
    """Compute the probability that an episode makes a call at each node.

    Args:
        layout: the routes.
        endings: float64[queries, endings], rows sum to 1.

    Returns:
        float64[queries, inner nodes]; 1 at the root.
    """
    reach = endings_by_node(layout, endings).copy()
    continuing = np.empty((len(endings), layout.inner))
    # From the last level up: a node continues as often as its children are reached.
    for level in reversed(layout.levels):
        if level.calls:
            continuing[:, level.inner] = level.gather(reach).sum(axis=2)
            reach[:, level.inner] += continuing[:, level.inner]
    return continuing


def call_probability(layout: Layout, endings: Floats) -> Floats:
    """Compute the probability that the call of each node is made.

    Args:
        layout: the routes.
        endings: float64[queries, endings], rows sum to 1.

    Returns:
        float64[queries, nodes]; 1 at the root, which is no call.
    """
    reach = endings_by_node(layout, endings).copy()
    reach[:, : layout.inner] += continuation_probability(layout, endings)
    return reach

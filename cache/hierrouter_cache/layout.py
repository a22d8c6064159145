"""The layout of a tree: which routes there are, as nodes, actions and draws."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Number = TypeVar("Number", int, NDArray[np.int64])

SEPARATOR = ">"
NOT_OFFERED = -1  # in tables of children: no such action at this state
NEWEST = 0  # in `Layout.give_backs`: the newest answer, whatever its number is
# The most that a layout from a file may have; pools and imports have limits of their own below.
MAX_NODES = 100_000
MAX_DEPTH = 64  # calls of a route
# Numbers of an array by query and node, or by state, action and query (or draw). An opened log
# takes 220 bytes for each node of a query, so 4 GB at most.
MAX_CELLS = 20_000_000


def route_name(models: Sequence[str]) -> str:
    """Return the name of a route for people: `first>second`, or `>first` if it has one call.

    A direct call of a model has the plain name of the model. It is another call than `>first`,
    because its prompt has no stage instruction.

    Args:
        models: names of the called models, in order.
    """
    return SEPARATOR.join(models) if len(models) != 1 else f"{SEPARATOR}{models[0]}"


@dataclass(frozen=True, eq=False)
class Calls:
    """Some calls that are made at the states of one level, and the nodes that they lead to.

    Attributes:
        nodes: the numbers of the nodes, which are consecutive.
        source: int64[n], for each node the position of its parent and action among the pairs
            (state of the level, action that calls), in the order of the states.
        is_complete: whether each state of the level has each action, with one draw, so that
            `source` counts from 0 upwards.
        is_inner: whether further calls are offered at these nodes.
    """

    nodes: slice
    source: Integers
    is_complete: bool
    is_inner: bool

    def spread(self, values: Any) -> Any:
        """Look up the value of each node's parent and action.

        Args:
            values: [queries, states of the level, actions that call]; an array of numpy, or a
                tensor of torch.

        Returns:
            [queries, n], a view where that is possible.
        """
        # Not -1: there may be no queries.
        flat = values.reshape(len(values), values.shape[1] * values.shape[2])
        return flat if self.is_complete else flat[:, self.source]

    @cached_property
    def _first_draws(self) -> tuple[Integers, Integers]:
        """Position of the first draw of each action in `nodes`, and its `source`."""
        starts = np.flatnonzero(np.diff(self.source, prepend=-1))
        return starts, self.source[starts]

    def gather(self, values: NDArray[Any], result: NDArray[Any]) -> None:
        """Add values of the nodes at their parents and actions, also those of several draws.

        Args:
            values: [queries, n].
            result: [queries, inner states of the level, actions that call], contiguous; changed in
                place, where there are nodes.
        """
        starts, source = self._first_draws
        if len(starts) < len(self.source):
            values = np.add.reduceat(values, starts, axis=1)
        result.reshape(len(result), result.shape[1] * result.shape[2])[:, source] += values


@dataclass(frozen=True, eq=False)
class Level:
    """The states at which the same number of decisions has been made, and what may follow.

    Attributes:
        states: an index of the states: a slice if they are consecutive. Inner nodes come first.
        inner: the numbers of the inner nodes among them, which are consecutive.
        call_actions: number of actions that call.
        calls: the calls that may be made there: those that lead to inner nodes, and those that lead
            to leaves.
        give_backs: int64[n, 3], the offers to end with an answer and without a call: position of
            the state in `states`, position in `Layout.give_backs`, number of the ending.
    """

    states: Any
    inner: slice
    call_actions: int
    calls: tuple[Calls, ...]
    give_backs: Integers

    @cached_property
    def numbers(self) -> Integers:
        """int64[n], the numbers of the states, in their order."""
        if isinstance(self.states, slice):
            return np.arange(self.states.start, self.states.stop)
        return np.asarray(self.states)

    def offers(self) -> Iterator[Integers]:
        """Yield for each action that makes no call the rows of `give_backs` that are its own.

        Yields:
            int64[3, n], as in `give_backs`: no two of them have one state, or one ending.
        """
        for column in np.unique(self.give_backs[:, 1]):
            yield self.give_backs[self.give_backs[:, 1] == column].T

    def gather(
        self, values: NDArray[Any], fill: float = 0.0, weight: NDArray[np.float64] | None = None
    ) -> NDArray[Any]:
        """Look up the value of what each call leads to; sum the values of several draws.

        Args:
            values: [queries, nodes].
            fill: value of calls that are not offered.
            weight: float64[queries, nodes], multiplies the values; None is 1.

        Returns:
            [queries, inner nodes of the level, actions that call], a view where that is possible.
        """
        shape = (len(values), self.inner.stop - self.inner.start, self.call_actions)
        if weight is None and len(self.calls) == 1 and self.calls[0].is_complete:
            return values[:, self.calls[0].nodes].reshape(shape)
        result = np.zeros(shape, values.dtype)
        for calls in self.calls:
            reached = values[:, calls.nodes]
            calls.gather(reached if weight is None else reached * weight[:, calls.nodes], result)
        if fill and not self.offered.all():
            result[:, ~self.offered] = fill
        return result

    @cached_property
    def offered(self) -> NDArray[np.bool_]:
        """bool[inner nodes of the level, actions that call]: which calls may be made."""
        offered = np.zeros((self.inner.stop - self.inner.start, self.call_actions), np.bool_)
        for calls in self.calls:
            offered.ravel()[calls.source] = True
        return offered


@dataclass(frozen=True, eq=False)
class Layout:
    """Which routes the tree of a question has.

    A node is the root, or what a call has led to. Node numbers: inner nodes, at which further calls
    are offered, come before leaves; both are in breadth-first order, by parent, action and draw.
    For the paper's tree of M models and L hops (`Layout.full`) these are the numbers of a complete
    M-ary tree.

    The number of an ending is that of the node at which an episode ends with the newest answer.
    Endings with earlier answers have the numbers after those of the nodes.

    Source: paper section 3.1 for the full tree.

    Attributes:
        call_actions: number of actions that call; M for the full tree.
        parent: int64[nodes]; -1 for the root.
        action: int64[nodes], the action that led to the node; -1 for the root.
        draw: int64[nodes], which of the draws of this call the node is.
        give_backs: number of the answer, from 1, that each further action returns without a call;
            `NEWEST` is the newest one. Each is offered at every node that has such an answer;
            `NEWEST` at all inner nodes but the root.

    Raises:
        ValueError: the nodes are not in this order.
    """

    call_actions: int
    parent: Integers
    action: Integers
    draw: Integers
    give_backs: tuple[int, ...] = ()
    _full: tuple[int, int] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for values in (self.parent, self.action, self.draw):
            values.flags.writeable = False
        if len(self.parent) < 2 or self.call_actions < 1:
            raise ValueError("a layout needs at least 1 action and 1 call")
        if self._full is None and not np.array_equal(
            _canonical_order(self.parent, self.action, self.draw), np.arange(len(self.parent))
        ):
            raise ValueError("the nodes of a layout are not in their order")

    @classmethod
    def full(cls, models: int, hops: int) -> Layout:
        """Return the paper's tree: each of M models at each of L hops.

        Args:
            models: M.
            hops: L.

        Raises:
            ValueError: M or L is less than 1.

        Source: paper section 3.1.
        """
        return _full_layout(models, hops)

    @classmethod
    def sorted(
        cls,
        call_actions: int,
        parent: Integers,
        action: Integers,
        draw: Integers,
        give_backs: tuple[int, ...] = (),
    ) -> tuple[Self, Integers]:
        """Return the layout of nodes in any order, and int64[nodes], the order of its nodes.

        Args:
            call_actions: number of actions that call.
            parent: int64[nodes], positions of the parents; -1 for the root.
            action: int64[nodes]; -1 for the root.
            draw: int64[nodes].
            give_backs: as in the class.

        Raises:
            ValueError: a node does not descend from the root, or two nodes are the same draw.
        """
        order = _canonical_order(parent, action, draw)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        new_parent = np.where(parent[order] < 0, -1, number[parent[order]])
        return cls(call_actions, new_parent, action[order], draw[order], give_backs), order

    def forest(self, present: NDArray[np.bool_]) -> tuple[Layout, Integers, Integers]:
        """Return the trees of some queries as one tree, without the nodes that they lack.

        Below a new root, the root of each query is a draw of action 0. Where few queries share
        nodes, it has far fewer nodes than this layout times the queries. What no call follows in a
        query is a leaf.

        Args:
            present: bool[queries, nodes], which nodes a query has; with a node also its parent.

        Returns:
            The layout; its answers have numbers higher by 1. For each of its nodes but the root the
            position of the query, int64[n], and the number of the node here, int64[n].
        """
        query, node = np.nonzero(present)
        number = np.zeros(present.shape, np.int64)
        number[query, node] = 1 + np.arange(len(node))
        is_root = node == 0
        parent = np.where(is_root, 0, number[query, self.parent[node]])
        action = np.where(is_root, 0, self.action[node])
        draw = np.where(is_root, query, self.draw[node])
        give_backs = tuple(answer + (answer != NEWEST) for answer in self.give_backs)
        layout, order = Layout.sorted(
            self.call_actions,
            np.append(-1, parent),
            np.append(-1, action),
            np.append(0, draw),
            give_backs,
        )
        return layout, query[order[1:] - 1], node[order[1:] - 1]

    @classmethod
    def grown(
        cls,
        call_actions: int,
        offered: Callable[[tuple[int, ...]], Sequence[int]],
        draws: Callable[[int], int] = lambda action: 1,
        max_nodes: int | None = None,
    ) -> Layout:
        """Return the layout that has, at each node, the actions which are offered there.

        Args:
            call_actions: number of actions that call.
            offered: the actions that are offered after some actions.
            draws: the number of draws of a call, by action.
            max_nodes: the most nodes that the layout may have; None is no limit.

        Raises:
            ValueError: it has more nodes, or no calls.
        """
        paths: list[tuple[int, ...]] = [()]
        parent = [-1]
        actions = [-1]
        draw = [0]
        for number, path in enumerate(paths):  # grows while it is read
            for action in offered(path):
                for count in range(draws(action)):
                    paths.append((*path, action))
                    parent.append(number)
                    actions.append(action)
                    draw.append(count)
            if max_nodes is not None and len(paths) > max_nodes:
                raise ValueError(f"more than {max_nodes:,} nodes")
        layout, _ = cls.sorted(
            call_actions,
            np.array(parent, np.int64),
            np.array(actions, np.int64),
            np.array(draw, np.int64),
        )
        return layout

    @cached_property
    def digest(self) -> str:
        """Identifies the layout."""
        total = hashlib.sha256(repr((self.call_actions, self.give_backs)).encode())
        for values in (self.parent, self.action, self.draw):
            total.update(values.tobytes())
        return total.hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        if self._full:
            models, hops = self._full
            shape = f"{models} models, {hops} hops"
        else:
            shape = f"{self.nodes - 1} nodes of {self.call_actions} actions, {self.hops} hops"
        return f"Layout({shape}, give_backs={self.give_backs})"

    # Counts.

    @property
    def is_full(self) -> bool:
        """Whether each action is offered at each hop, with one draw: the paper's tree."""
        return self._full is not None

    @property
    def nodes(self) -> int:
        """Number of all nodes, the root included: 1 + M + ... + M^L for the full tree."""
        return len(self.parent)

    @property
    def calls(self) -> int:
        """Number of calls in a query's tree: one for each node except the root."""
        return self.nodes - 1

    @cached_property
    def inner(self) -> int:
        """Number of inner nodes, where calls are offered: 1 + M + ... + M^(L-1) if full."""
        return int(self.parent.max()) + 1

    @property
    def leaves(self) -> slice:
        """The numbers of the nodes at which no call is offered."""
        return slice(self.inner, self.nodes)

    @cached_property
    def decides_at_leaves(self) -> bool:
        """Whether a policy decides after the last call, too: which answer it returns."""
        return any(answer != NEWEST for answer in self.give_backs)

    @property
    def states(self) -> int:
        """Number of nodes where the policy decides: the inner ones, perhaps the leaves, too."""
        return self.nodes if self.decides_at_leaves else self.inner

    @cached_property
    def hops(self) -> int:
        """The most calls of a route; L for the full tree."""
        return self._full[1] if self._full else int(self.depth()[-1])

    @property
    def steps(self) -> int:
        """The most decisions of an episode: as many as calls; one more if leaves are states."""
        return self.hops + self.decides_at_leaves

    @cached_property
    def draws(self) -> int:
        """The most draws of a call."""
        return int(self.draw.max()) + 1

    @cached_property
    def route(self) -> Integers:
        """int64[nodes]: the lowest number of a node that the same actions lead to.

        This number is that of the fixed route, a sequence of actions, whatever draws come.
        """
        if self.draws == 1:
            return np.arange(self.nodes)
        route = np.zeros(self.nodes, np.int64)
        numbers: dict[tuple[int, int], int] = {}
        for node in range(1, self.nodes):  # a parent has a lower number than its children
            key = (int(route[self.parent[node]]), int(self.action[node]))
            route[node] = numbers.setdefault(key, node)
        return route

    # Nodes.

    @cached_property
    def _depth(self) -> Integers:
        depth = np.zeros(self.nodes, np.int64)
        ancestors = self.parent
        while (ancestors >= 0).any():
            depth += ancestors >= 0
            ancestors = np.where(ancestors >= 0, self.parent[ancestors], -1)
        return depth

    def depth(self) -> Integers:
        """Return int64[nodes], the number of calls from the root to each node."""
        return self._depth

    def level(self, depth: int) -> Any:
        """Return an index of the nodes after this many calls: a slice if they are consecutive."""
        if self._full:
            models, hops = self._full
            start = sum(models**hop for hop in range(depth))
            return slice(start, start + models**depth if depth <= hops else start)
        nodes = np.flatnonzero(self._depth == depth)
        if len(nodes) and nodes[-1] - nodes[0] + 1 == len(nodes):
            return slice(int(nodes[0]), int(nodes[-1]) + 1)
        return nodes

    @cached_property
    def children(self) -> Integers:
        """int64[inner, call_actions]: the first draw that an action leads to; or `NOT_OFFERED`."""
        table = np.full((self.inner, self.call_actions), NOT_OFFERED, np.int64)
        # In falling order, so that the first draw is written last.
        nodes = 1 + np.argsort(-self.draw[1:], kind="stable")
        table[self.parent[nodes], self.action[nodes]] = nodes
        table.flags.writeable = False
        return table

    @cached_property
    def draws_of_calls(self) -> Integers:
        """int64[inner, call_actions, draws]: the node of each draw of a call; or `NOT_OFFERED`.

        The draws of a call need not have neighbouring numbers: some may be inner nodes, and others
        leaves.
        """
        table = np.full((self.inner, self.call_actions, self.draws), NOT_OFFERED, np.int64)
        nodes = np.arange(1, self.nodes)
        table[self.parent[nodes], self.action[nodes], self.draw[nodes]] = nodes
        table.flags.writeable = False
        return table

    def child(self, node: Number, action: Number) -> Number:
        """Return the first draw of a call.

        Args:
            node: a number of an inner node, or an array of numbers.
            action: the number of an action that calls there, or an array of numbers.
        """
        if self._full:
            return node * self.call_actions + 1 + action
        child: Any = self.children[node, action]
        if isinstance(node, int):
            child = int(child)
        return child

    def path(self, node: int) -> tuple[int, ...]:
        """Return the actions on the way from the root to `node`."""
        return tuple(int(self.action[step]) for step in self.nodes_to(node))

    def nodes_to(self, node: int) -> tuple[int, ...]:
        """Return the nodes on the way from the root, excluded, to `node`, included."""
        nodes = []
        while node:
            nodes.append(node)
            node = int(self.parent[node])
        return tuple(reversed(nodes))

    def node(self, path: Sequence[int]) -> int:
        """Return the node at the end of a path of actions, by first draws.

        Raises:
            KeyError: the layout has no such path.
        """
        number = 0
        for action in path:
            if number >= self.inner or not 0 <= action < self.call_actions:
                raise KeyError(tuple(path))
            number = int(self.children[number, action])
            if number == NOT_OFFERED:
                raise KeyError(tuple(path))
        return number

    def name(self, node: int, models: Sequence[str]) -> str:
        """Return the `route_name` of the route to `node`; an empty text for the root.

        Args:
            node: number of the node.
            models: name of each action that calls.
        """
        return route_name([models[action] for action in self.path(node)])

    def as_object(self) -> dict[str, Any]:
        """The layout as JSON values, see `from_object`."""
        if self._full:
            models, hops = self._full
            nodes: dict[str, Any] = {"models": models, "hops": hops}
        else:
            nodes = {
                "actions": self.call_actions,
                "parent": self.parent.tolist(),
                "action": self.action.tolist(),
                "draw": self.draw.tolist(),
            }
        return {**nodes, "give_backs": list(self.give_backs)} if self.give_backs else nodes

    @classmethod
    def from_object(cls, values: Mapping[str, Any]) -> Layout:
        """Return the layout that `as_object` describes.

        Others may have written the values: nothing is computed of them before they are checked.

        Raises:
            ValueError, TypeError, KeyError: it describes none, or one that is too large.
        """
        if not isinstance(values, Mapping):
            raise TypeError("a layout is an object")
        give_backs = tuple(values.get("give_backs", ()))
        is_known = all(type(answer) is int and 0 <= answer <= MAX_DEPTH for answer in give_backs)
        if not is_known or len(set(give_backs)) < len(give_backs):
            raise ValueError("give_backs are no numbers of answers")
        if "hops" in values:
            models = values["models"]
            hops = values["hops"]
            if type(models) is not int or type(hops) is not int or not 0 < hops <= MAX_DEPTH:
                raise ValueError("no number of models or hops")
            if not 0 < models <= MAX_NODES or models**hops > MAX_NODES:
                raise ValueError(f"more than {MAX_NODES:,} nodes")
            return cls.full(models, hops).with_give_backs(give_backs)
        actions = values["actions"]
        parent = _stored_numbers(values["parent"])
        action = _stored_numbers(values["action"])
        draw = _stored_numbers(values["draw"])
        nodes = len(parent)
        is_sound = (
            type(actions) is int
            and len(action) == len(draw) == nodes
            and (int(parent[0]), int(action[0]), int(draw[0])) == (-1, -1, 0)
            and all(_is_within(column[1:], nodes) for column in (parent, draw))
            and _is_within(action[1:], actions)
        )
        if not is_sound:
            raise ValueError("the nodes of a layout are no numbers of nodes, actions and draws")
        fault = size_fault(1, nodes, int(parent.max()) + 1, actions, int(draw.max()) + 1)
        if fault:
            raise ValueError(fault)
        layout = cls(actions, parent, action, draw, give_backs)
        if layout.hops > MAX_DEPTH:
            raise ValueError(f"a route of more than {MAX_DEPTH} calls")
        return layout

    # Levels and endings.

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, from the root down to the last one at which there is a decision."""
        return tuple(self._levels())

    def _levels(self) -> Iterator[Level]:
        depth = self._depth
        inner_starts = np.searchsorted(depth[: self.inner], np.arange(self.hops + 2))
        leaf_starts = self.inner + np.searchsorted(depth[self.inner :], np.arange(self.hops + 2))
        for hop in range(self.steps):
            inner = slice(int(inner_starts[hop]), int(inner_starts[hop + 1]))
            leaves = slice(int(leaf_starts[hop]), int(leaf_starts[hop + 1]))
            states: Any = inner
            if self.decides_at_leaves and leaves.start < leaves.stop:
                states = np.r_[inner, leaves] if inner.start < inner.stop else leaves
            calls = []
            if inner.start < inner.stop:
                for starts in (inner_starts, leaf_starts):
                    nodes = slice(int(starts[hop + 1]), int(starts[hop + 2]))
                    if nodes.start < nodes.stop:
                        calls.append(self._calls(inner, nodes, isinstance(states, slice)))
            yield Level(states, inner, self.call_actions, tuple(calls), self._offers(states))

    def _calls(self, states: slice, nodes: slice, is_alone: bool) -> Calls:
        """The calls from the inner states of a level; whether these are all of its states."""
        source = (self.parent[nodes] - states.start) * self.call_actions + self.action[nodes]
        pairs = (states.stop - states.start) * self.call_actions
        is_complete = is_alone and np.array_equal(source, np.arange(pairs))
        return Calls(nodes, source, is_complete, is_inner=nodes.start < self.inner)

    def _offers(self, states: Any) -> Integers:
        """int64[n, 3], as in `Level.give_backs`."""
        offers = []
        for column in range(len(self.give_backs)):
            number = self.give_back[states, column]
            rows = np.flatnonzero(number != NOT_OFFERED)
            offers.append(np.stack([rows, np.full_like(rows, column), number[rows]], axis=1))
        return np.concatenate([np.empty((0, 3), np.int64), *offers])

    @cached_property
    def give_back(self) -> Integers:
        """int64[states, give_backs]: the ending to which each offer leads; or `NOT_OFFERED`."""
        return self._endings[0]

    @cached_property
    def ending_node(self) -> Integers:
        """int64[endings]: the node where the episode ends; it determines the cost."""
        return self._endings[1]

    @cached_property
    def answer_node(self) -> Integers:
        """int64[endings]: the node whose answer is returned; it determines the quality."""
        return self._endings[2]

    @property
    def endings(self) -> int:
        """Number of endings: of the nodes, and of nodes with earlier answers."""
        return len(self.ending_node)

    @cached_property
    def _endings(self) -> tuple[Integers, Integers, Integers]:
        numbers = np.full((self.states, len(self.give_backs)), NOT_OFFERED, np.int64)
        nodes = [np.arange(self.nodes)]
        answers = [np.arange(self.nodes)]
        count = self.nodes
        depth = self._depth[: self.states]
        # The last answers first: so the numbers of full trees are those of earlier versions.
        for calls in range(1, self.hops + 1):
            level = np.flatnonzero(depth == calls)
            ancestors = level
            for answer in range(calls, 0, -1):
                for column, wanted in enumerate(self.give_backs):
                    if answer == calls and wanted in (answer, NEWEST):
                        numbers[level, column] = level
                    elif wanted == answer:
                        numbers[level, column] = count + np.arange(len(level))
                if answer < calls and answer in self.give_backs:
                    nodes.append(level)
                    answers.append(ancestors)
                    count += len(level)
                ancestors = self.parent[ancestors]
        return numbers, np.concatenate(nodes), np.concatenate(answers)

    def with_give_backs(self, give_backs: Sequence[int]) -> Layout:
        """Return the layout with other actions that end an episode without a call.

        Args:
            give_backs: as in the class.
        """
        if self._full:
            return _full_layout(*self._full, tuple(give_backs))
        return Layout(self.call_actions, self.parent, self.action, self.draw, tuple(give_backs))

    def cut(self, hops: int) -> Layout:
        """Return the layout without what follows some number of calls.

        Args:
            hops: at least 1.
        """
        if self._full:
            return Layout.full(self._full[0], min(hops, self._full[1]))
        layout, _ = self.of_nodes(self._depth <= hops)
        return layout

    def of_nodes(self, kept: NDArray[np.bool_]) -> tuple[Layout, Integers]:
        """Return the layout of some nodes, where an episode ends after a call only.

        Args:
            kept: bool[nodes]; with a node also its parent.

        Returns:
            The layout; and int64[its nodes], their numbers here.
        """
        nodes = np.flatnonzero(kept)
        # Parents come before their children, but their numbers change with those left out.
        number = np.cumsum(kept) - 1
        parent = np.where(self.parent[nodes] < 0, -1, number[self.parent[nodes]])
        columns = (parent, self.action[nodes], self.draw[nodes])
        layout, order = Layout.sorted(self.call_actions, *columns)
        return layout, nodes[order]

    @property
    def without_draws(self) -> Layout:
        """The layout of the same routes, with one draw of each call."""
        if self.draws == 1:
            return self
        first = np.flatnonzero(self.route == np.arange(self.nodes))
        number = np.zeros(self.nodes, np.int64)
        number[first] = np.arange(len(first))
        parent = np.append(-1, number[self.route[self.parent[first[1:]]]])
        draw = np.zeros(len(first), np.int64)
        layout, _ = Layout.sorted(
            self.call_actions, parent, self.action[first], draw, self.give_backs
        )
        return layout

    @property
    def with_returns(self) -> Layout:
        """The layout in which a policy may, after each answer, return any answer of its route."""
        return self.with_give_backs(range(1, self.hops + 1))

    @property
    def without_give_backs(self) -> Layout:
        """The layout with actions that call only."""
        return self.with_give_backs(()) if self.give_backs else self


def size_fault(queries: int, nodes: int, inner: int, actions: int, draws: int) -> str | None:
    """Say what makes a layout too large for arrays; None if it is not.

    Args:
        queries: number of queries that have the layout.
        nodes: number of nodes.
        inner: number of inner nodes.
        actions: number of actions that call.
        draws: the most draws of a call.

    Returns:
        What there is, and how much there may be.
    """
    if nodes > MAX_NODES:
        return f"{nodes:,} nodes, at most {MAX_NODES:,}"
    if queries * nodes > MAX_CELLS:
        return f"{queries:,} queries times {nodes:,} nodes, at most {MAX_CELLS:,}"
    largest = max(queries, draws)
    if inner * actions * largest > MAX_CELLS:
        name = "queries" if queries >= draws else "draws"
        return (
            f"{inner:,} inner nodes times {actions:,} actions times {largest:,} {name}, "
            f"at most {MAX_CELLS:,}"
        )
    return None


def _stored_numbers(values: Any) -> Integers:
    """Return int64[n], n > 0, of a list of a file.

    Raises:
        ValueError, TypeError: it is no such list, or too long.
    """
    if not isinstance(values, list) or not 0 < len(values) <= MAX_NODES:
        raise ValueError(f"no list of at most {MAX_NODES:,} numbers")
    if not all(type(value) is int and -1 <= value <= MAX_NODES for value in values):
        raise ValueError("numbers of nodes, actions and draws are small integers")
    return np.array(values, np.int64)


def _is_within(numbers: Integers, end: int) -> bool:
    """Whether all numbers are from 0 to below `end`."""
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < end)


@lru_cache(maxsize=32)
def _full_layout(models: int, hops: int, give_backs: tuple[int, ...] = ()) -> Layout:
    if models < 1 or hops < 1:
        raise ValueError(f"a tree needs at least 1 model and 1 hop, got {models} and {hops}")
    nodes = np.arange(sum(models**hop for hop in range(hops + 1)))
    parent = (nodes - 1) // models
    action = np.where(nodes > 0, (nodes - 1) % models, -1)
    return Layout(models, parent, action, np.zeros_like(nodes), give_backs, (models, hops))


def _canonical_order(parent: Integers, action: Integers, draw: Integers) -> Integers:
    """Return int64[nodes], the positions of nodes in the order of `Layout`.

    Args:
        parent: int64[nodes], position of each parent; -1 for the root.
        action: int64[nodes].
        draw: int64[nodes].

    Raises:
        ValueError: there is not one root, a node does not descend from it, or two nodes are equal.
    """
    count = len(parent)
    has_children = np.zeros(count, np.bool_)
    has_children[parent[parent >= 0]] = True
    by_parent = np.lexsort((draw, action, parent))
    starts = np.searchsorted(parent[by_parent], np.arange(-1, count + 1))
    level = by_parent[: starts[1]]
    if len(level) != 1:
        raise ValueError(f"{len(level)} nodes without a parent")
    inner = []
    leaves = []
    placed = 0
    while len(level):
        placed += len(level)
        is_inner = has_children[level]
        inner.append(level[is_inner])
        leaves.append(level[~is_inner])
        first = starts[level[is_inner] + 1]
        counts = starts[level[is_inner] + 2] - first
        before = np.cumsum(counts) - counts
        level = by_parent[np.repeat(first - before, counts) + np.arange(counts.sum())]
        keys = np.stack([parent[level], action[level], draw[level]])
        if (np.diff(keys, axis=1) == 0).all(axis=0).any():
            raise ValueError("two nodes are the same draw of the same call")
    if placed < count:
        raise ValueError(f"{count - placed} nodes do not descend from the root")
    return np.concatenate([*inner, *leaves])

"""One query's tree and routes, as plain values.

In: nothing; these are the types that `explain` fills and reports read. Out: `Explained`: every node
with its answer and what it is worth, what the router chose and lost, and the routes to compare it
with. Not covered: how it looks (`report.explained`, `report.worst`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hierrouter.actions import STOP


@dataclass(frozen=True)
class Node:
    """One call of a query's tree.

    Attributes:
        number: of the node, see `hierrouter_cache.routes`.
        parent: number of the node whose answer the call saw; 0 is the question.
        model: that was called.
        route: all models called up to here, `first>second`.
        answer: its response.
        quality: Q of the answer, in [0, 1].
        accuracy: 1 where it is right, else 0.
        tokens_in, tokens_out: of this call.
        cost: C, of all calls up to here, in price * token.
        reward: R = Q - alpha * C, were the route to end here.
    """

    number: int
    parent: int
    model: str
    route: str
    answer: str
    quality: float
    accuracy: float
    tokens_in: int
    tokens_out: int
    cost: float
    reward: float


@dataclass(frozen=True)
class Choice:
    """What a router does at one state on its way.

    Attributes:
        state: number of the node where the choice is made; 0 is the question.
        actions: names of what may be chosen: a model, or `model>stop`.
        probabilities: of the actions under the stochastic policy, in their order.
        chosen: the action that the greedy policy takes.
        regret: how much less R the best ending after the choice has than the best one before it.
    """

    state: int
    actions: tuple[str, ...]
    probabilities: tuple[float, ...]
    chosen: str
    regret: float


@dataclass(frozen=True)
class Routed:
    """The greedy route of a router.

    Attributes:
        node: number of the node where it ends.
        choices: one a hop, from the question on.
    """

    node: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Explained:
    """A query, its tree, and the routes to compare.

    Attributes:
        id, dataset, split: which query it is.
        question: its text.
        references: the answers that count as right.
        scorer: name of Q.
        alpha: price of cost in R.
        hops: L.
        nodes: all calls of the tree by number, the first is number 1.
        best: number of the node where the best route in hindsight ends.
        fixed: where the fixed route ends that is best on the train fold; None where that is empty.
        router: what the router does; None where there is none.
    """

    id: str
    dataset: str
    split: str
    question: str
    references: tuple[str, ...]
    scorer: str
    alpha: float
    hops: int
    nodes: tuple[Node, ...]
    best: int
    fixed: int | None
    router: Routed | None

    @property
    def name(self) -> str:
        """`dataset/id`."""
        return f"{self.dataset}/{self.id}"

    @property
    def regret(self) -> float | None:
        """R of the best route in hindsight less R of the router's; None without a router."""
        if self.router is None:
            return None
        return self.node(self.best).reward - self.node(self.router.node).reward

    def node(self, number: int) -> Node:
        """The node of this number; the root, 0, is none."""
        return self.nodes[number - 1]

    def below(self, number: int) -> tuple[Node, ...]:
        """The calls made from a node, in action order; none after the last hop."""
        return self._children.get(number, ())

    def on_way(self, number: int) -> tuple[int, ...]:
        """Numbers from the first call to this node."""
        way = []
        while number:
            way.append(number)
            number = self.node(number).parent
        return tuple(reversed(way))

    def route(self, number: int) -> str:
        """Name of the route that ends at a node; `first>stop` where it is shorter than L."""
        node = self.node(number)
        return node.route + STOP if len(self.on_way(number)) < self.hops else node.route

    @cached_property
    def _children(self) -> dict[int, tuple[Node, ...]]:
        found: dict[int, tuple[Node, ...]] = {}
        for node in self.nodes:
            found[node.parent] = (*found.get(node.parent, ()), node)
        return found

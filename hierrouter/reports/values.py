"""The parts of what a report says, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hierrouter.evaluation.outcome import STOP


@dataclass(frozen=True)
class Estimate:
    """A mean over queries and its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """The lowest and the highest mean among the seeds of a policy.

    Attributes:
        seeds: how many there are, at least 2.
        quality, cost, reward: lowest and highest.
    """

    seeds: int
    quality: tuple[float, float]
    cost: tuple[float, float]
    reward: tuple[float, float]


@dataclass(frozen=True)
class Crossed:
    """Intervals of the mean over all seeds and queries that there could be.

    Attributes:
        quality, cost, reward: low and high.
    """

    quality: tuple[float, float]
    cost: tuple[float, float]
    reward: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """The router against one policy over all queries, one of several claims that hold at once.

    Attributes:
        policy, kind: as in `Row`.
        difference: R(router) - R(policy).
        low, high: its interval; all of a report hold together with the report's level.
    """

    policy: str
    kind: str
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Power:
    """What differences the queries of a report can show, by a two-sided paired t test.

    Attributes:
        policy, kind: whom the router is compared with.
        deviation: standard deviation over queries of R(router) - R(policy).
        power: probability of finding what is there.
        smallest_difference: the smallest mean difference that is found with it.
        wanted_difference: one that would be worth finding.
        queries: how many it takes to find that one.
    """

    policy: str
    kind: str
    deviation: float
    power: float
    smallest_difference: float
    wanted_difference: float
    queries: int


@dataclass(frozen=True)
class PricedRow:
    """A policy over all queries under one price list.

    Attributes:
        policy, kind: as in `Row`.
        cost, reward: means, with the ends of their intervals.
    """

    policy: str
    kind: str
    cost: float
    reward: float
    cost_low: float
    cost_high: float
    reward_low: float
    reward_high: float


@dataclass(frozen=True)
class PricedRows:
    """Every policy under one price list.

    Attributes:
        name: of the price list.
        rows: in the order of the report's policies. A policy that is chosen under prices, such as
            the oracle, is chosen under these.
        gap_closed: as in `Report`.
    """

    name: str
    rows: tuple[PricedRow, ...]
    gap_closed: Mapping[str, float | None]


@dataclass(frozen=True)
class DepthRow:
    """What the router answers after a given number of calls.

    Ends of an interval are None where too many resamples hold no such query.

    Attributes:
        calls: 1 to L.
        share: expected share of the queries that are answered here.
        quality, cost, reward: means over these; None where there are none.
    """

    calls: int
    share: float
    share_low: float
    share_high: float
    quality: float | None
    quality_low: float | None
    quality_high: float | None
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    reward: float | None
    reward_low: float | None
    reward_high: float | None


@dataclass(frozen=True)
class PairFigures:
    """The router as the weak model of a pair, see `evaluate.pairs`; None where Q hardly differs.

    Attributes:
        apgr: average share of the gap in Q that is recovered; chance has 0.5.
        cpt_50, cpt_80: least share handed over that recovers 50 % and 80 % of it.
    """

    apgr: float | None
    cpt_50: float | None
    cpt_80: float | None


@dataclass(frozen=True)
class RungRow:
    """One bound of the ladder on one dataset.

    Attributes:
        rung: a key of `evaluate.ladder.MEANINGS`.
        policy: the model or route that was chosen, where one was; else the rung again.
        dataset: a dataset's name, or "all".
        n: how many queries.
        quality, cost, reward: means of Q, C and R.
    """

    rung: str
    policy: str
    dataset: str
    n: int
    quality: Estimate
    cost: Estimate
    reward: Estimate


@dataclass(frozen=True)
class Measurable:
    """The best of all policies that see no more than the tree's view shows.

    Attributes:
        view: which texts are seen.
        looks: how many of the queries look different before the first call.
        n: how many queries there are; where all look different this is the tree oracle.
        reward: mean R.
    """

    view: str
    looks: int
    n: int
    reward: Estimate


@dataclass(frozen=True)
class RegretParts:
    """A regret, and where it comes from: whole = plan + adaptivity.

    Attributes:
        whole: R of the tree oracle less R of the router.
        plan: lost by the first choice.
        adaptivity: lost by all later choices.
    """

    whole: Estimate
    plan: Estimate
    adaptivity: Estimate


@dataclass(frozen=True)
class RegretRow:
    """The router's regret on one dataset.

    Attributes:
        dataset: a dataset's name, or "all".
        n: how many queries.
        shown: on the fold that is shown.
        generalisation: that less the same of the train fold, resampled on its own; None where the
            train fold is shown or has no such query.
    """

    dataset: str
    n: int
    shown: RegretParts
    generalisation: RegretParts | None


@dataclass(frozen=True)
class CallRow:
    """How often a policy calls a model at a hop.

    Attributes:
        policy, kind: of the router or the tree oracle, as in `Row`.
        hop: 1 to L.
        model: name.
        calls: expected calls a query, in [0, 1].
    """

    policy: str
    kind: str
    hop: int
    model: str
    calls: Estimate


@dataclass(frozen=True)
class Bounded:
    """A figure that is no mean over queries; ends are None where resamples do not bound it."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class HullRow:
    """What a set of policies reaches over a range of mean costs.

    Attributes:
        policy: "hierrouter", "static arms", "random" or "oracle", the exact frontier.
        kind: as in `Row`.
        points: how many policies the hull is of; None for the exact frontier.
        mean_quality: hull area divided by the width of the range; None where that is empty, or
            where there is one point.
        cost_save: share of the best static arm's cost saved at its quality; None where no mixture
            is as good.
        perf_gain: Q gained at the best static arm's cost; None where all points are dearer.
        pareto_distance: mean distance of the router's points from the oracle's frontier, where the
            width of the range is one unit of cost; None for the others, and without a range.
    """

    policy: str
    kind: str
    points: int | None
    mean_quality: Bounded | None
    cost_save: Bounded | None
    perf_gain: Bounded | None
    pareto_distance: float | None


@dataclass(frozen=True)
class FrontierFigures:
    """Figures of frontiers over one range of costs, with the static arm they are held against.

    Attributes:
        low, high: the range of mean costs, from the cheapest static arm to the best one; equal
            where these are one.
        static: the best static arm: the direct call or fixed route with the highest mean Q on the
            train fold.
        static_quality, static_cost: its means on the fold that is shown.
        resamples: how many intervals are made of; arm and range are the same in each.
        hulls: a row for each set of policies; the first is a sweep's, or of the one router.
    """

    low: float
    high: float
    static: str
    static_quality: float
    static_cost: float
    resamples: int
    hulls: tuple[HullRow, ...]


@dataclass(frozen=True)
class RepairRow:
    """What calling a model after another one does to the answer.

    Attributes:
        hop: of the later call, 2 to L.
        before: the model whose answer there was.
        model: the one that is called.
        right: probability that the answer before was right.
        repair: probability that wrong became right.
        damage: probability that right became wrong.
        quality: change in Q.
        cost: cost of the call.
    """

    hop: int
    before: str
    model: str
    right: float
    repair: Estimate
    damage: Estimate
    quality: Estimate
    cost: float


@dataclass(frozen=True)
class Worth:
    """What one model adds to what can be reached.

    Attributes:
        leave_one_out: what is lost without it.
        shapley: what it adds on average over all orders of joining.
        error: standard error of `shapley` from orders drawn at random; 0 where all were valued.
    """

    leave_one_out: Estimate
    shapley: Estimate
    error: float


@dataclass(frozen=True)
class AreaWorth:
    """The same of the mean quality under the oracle's frontier; see `FrontierFigures.low`.

    Attributes: as `Worth`; not a mean over queries, so without intervals.
    """

    leave_one_out: float
    shapley: float
    error: float


@dataclass(frozen=True)
class ModelRow:
    """What a model is worth, and at which price.

    Attributes:
        model: name.
        reward: of the tree oracle's R; None where the pool is too large.
        area: of the oracle's frontier; None, too, without a range of costs.
        share: the model's share of the tree oracle's calls, at its present price.
        below_5_percent: factor of its price beyond which that share is below 5 %; 0 where it
            always is, None where it never is.
        leaves: factor beyond which the model is not called; None where it always is.
    """

    model: str
    reward: Worth | None
    area: AreaWorth | None
    share: float
    below_5_percent: float | None
    leaves: float | None


@dataclass(frozen=True)
class Analysis:
    """Everything beside the policies themselves, on the fold that is shown.

    Attributes:
        ladder: rung after rung, each over the report's datasets in their order, "all" last.
        measurable: what the tree's view shows at most.
        regret: the router's, by dataset, "all" last; empty without a router.
        calls: of the router, if there is one, and of the tree oracle.
        frontier: figures of the sweep, or of the one router; None without a train fold.
        repair: every hop from the second on, every pair of models; empty where there is one hop.
        models: a row for each model of the pool.
    """

    ladder: tuple[RungRow, ...]
    measurable: Measurable
    regret: tuple[RegretRow, ...]
    calls: tuple[CallRow, ...]
    frontier: FrontierFigures | None
    repair: tuple[RepairRow, ...]
    models: tuple[ModelRow, ...]


@dataclass(frozen=True)
class Node:
    """One call of a query's tree.

    Attributes:
        number: of the node, see `hierrouter_cache.tree`.
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

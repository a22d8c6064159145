"""What a report says, as plain values.

In: nothing; these are the types that `build` fills and everybody else reads. Out: `Report`, its
`Row`s and what a headline needs. Costs are rates times tokens (paper section 3.1), rewards are
R = Q - alpha * C. Not covered: how a number is worked out (`build`) or shown (`tables`, `page`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hierrouter.evaluate.deferral import DeferralPoint
from hierrouter.evaluate.depth import DepthPoint
from hierrouter.explained import Explained
from hierrouter.report.analysis import Analysis, RegretRow
from hierrouter.report.certainty import Comparison, Crossed, Power, Spread
from hierrouter.report.learning import LearningCurve
from hierrouter.report.route_map import RouteMap
from hierrouter.report.rows import DepthRow, PairFigures, PricedRows

ALL = "all"
COST_UNIT = "base_rate*token"
COST_UNIT_IN_OUT = "price*token"  # where tokens in and tokens out have prices of their own


@dataclass(frozen=True)
class Row:
    """One policy on one dataset; the fields are the keys of the JSON contract.

    Attributes:
        policy: model, route `first>second` or `first>stop`, `hierrouter`, `oracle` or a
            baseline's name.
        kind: single, reference, route, router, oracle or baseline.
        dataset: a dataset's name, or "all" for every query.
        n: how many queries.
        quality: mean Q, in [0, 1].
        accuracy: share of right answers, in [0, 1].
        cost: mean C a query, in the report's unit of cost.
        reward: mean R = Q - alpha * C.
        reward_low: lower end of the interval of `reward`.
        reward_high: upper end of it.
        difference: R(router) - R(policy) over the same queries; None for the router itself and
            where there is no router.
        difference_low: lower end of the interval of `difference`.
        difference_high: upper end of it.
        quality_low, quality_high: ends of the interval of `quality`.
        accuracy_low, accuracy_high: of `accuracy`.
        cost_low, cost_high: of `cost`.
    """

    policy: str
    kind: str
    dataset: str
    n: int
    quality: float
    accuracy: float
    cost: float
    reward: float
    reward_low: float
    reward_high: float
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    quality_low: float
    quality_high: float
    accuracy_low: float
    accuracy_high: float
    cost_low: float
    cost_high: float


@dataclass(frozen=True)
class FrontierRow:
    """A policy at one alpha of a sweep; means over all queries and seeds, reward at that alpha.

    Attributes:
        policy, kind: as in `Row`.
        alpha: cost penalty.
        quality, cost, reward: means.
        quality_low, quality_high: ends of the interval of `quality`: these seeds, other queries.
        cost_low, cost_high: of `cost`.
        reward_low, reward_high: of `reward`.
        spread: how far the seeds lie apart; None where there is one.
        crossed: intervals for other seeds and other queries; None where there is one of either.
    """

    policy: str
    kind: str
    alpha: float
    quality: float
    cost: float
    reward: float
    quality_low: float
    quality_high: float
    cost_low: float
    cost_high: float
    reward_low: float
    reward_high: float
    spread: Spread | None = None
    crossed: Crossed | None = None


@dataclass(frozen=True)
class HandingOver:
    """The router of a report, with a stronger model for what it doubts.

    Attributes:
        stronger: the model that is called directly.
        chosen_on: fold that chose the threshold.
        share_allowed: share that was to be kept to there; None where the highest R was wanted.
        chosen: what this threshold gives on the fold that is shown.
        curve: the same of other thresholds, by rising share.
        pair: figures of that curve.
    """

    stronger: str
    chosen_on: str
    share_allowed: float | None
    chosen: DeferralPoint
    curve: tuple[DeferralPoint, ...]
    pair: PairFigures


@dataclass(frozen=True)
class Bootstrap:
    """How the intervals were made: expanded percentiles over queries drawn with replacement.

    Attributes:
        n: resamples.
        level: coverage, in (0, 1).
        seed: of the resampling.
    """

    n: int = 10_000
    level: float = 0.95
    seed: int = 0

    @property
    def interval_title(self) -> str:
        """Of a column of intervals: `95% interval`."""
        return f"{self.level:.0%} interval"


@dataclass(frozen=True)
class Report:
    """Everything there is to show.

    Attributes:
        alpha: weight of cost in the reward.
        scorer: name of Q.
        split: fold the queries come from.
        bootstrap: how the intervals were made.
        datasets: names in the order of their columns, "all" last.
        rows: policy after policy, each over `datasets` in that order.
        gap_closed: share of the distance from the best fixed route to the oracle, by dataset;
            None where that is below `evaluate.bounds.SMALLEST_GAP`; empty without a router.
        frontier: policies over a sweep of alpha.
        provenance: where data and policy came from; JSON values.
        gap_closed_intervals: low and high of each `gap_closed`; None where it has no bounds.
        comparisons: the router against every other policy but the oracle, all at once.
        power: what differences these queries can show; None where there is nothing to compare.
        cost_unit: what C is counted in.
        notes: sentences that a reader must not miss.
        price_lists: the same policies under several price lists, the report's own one first;
            empty where there is but one.
        depths: what the router answers after 1 to L calls; empty where it cannot stop early.
        depth_curve: the sweep by rising share of queries with more than one call; empty where its
            routers cannot stop early.
        deferral: the router with a stronger model behind it, where one was named.
        worst: queries on which the router loses most, the largest regret first; for the page.
        analysis: bounds, regret, calls, value of models; None where only outcomes are known.
        route_map: which routes router and oracle take; None where only outcomes are known.
        learning: how the router learned; None without one, and for one read off a sweep.
        policy_regret: of each policy of the user's own, by dataset, "all" last.
    """

    alpha: float
    scorer: str
    split: str
    bootstrap: Bootstrap
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    gap_closed: Mapping[str, float | None]
    frontier: tuple[FrontierRow, ...]
    provenance: Mapping[str, Any]
    gap_closed_intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    power: Power | None = None
    cost_unit: str = COST_UNIT
    notes: tuple[str, ...] = ()
    price_lists: tuple[PricedRows, ...] = ()
    depths: tuple[DepthRow, ...] = ()
    depth_curve: tuple[DepthPoint, ...] = ()
    deferral: HandingOver | None = None
    worst: tuple[Explained, ...] = ()
    analysis: Analysis | None = None
    route_map: RouteMap | None = None
    learning: LearningCurve | None = None
    policy_regret: Mapping[str, tuple[RegretRow, ...]] = field(default_factory=dict)

    @cached_property
    def by_policy(self) -> tuple[tuple[Row, ...], ...]:
        """The rows of each policy, one for each of `datasets`."""
        width = len(self.datasets)
        return tuple(self.rows[at : at + width] for at in range(0, len(self.rows), width))

    @cached_property
    def overall(self) -> tuple[Row, ...]:
        """One row a policy: that over all queries."""
        return tuple(rows[-1] for rows in self.by_policy)

    @property
    def shown_datasets(self) -> tuple[str, ...]:
        """The columns of a table: a single dataset needs no total beside it."""
        return self.datasets if len(self.datasets) > 2 else self.datasets[:1]

    @property
    def router(self) -> Row | None:
        """The trained policy over all queries, if there is one."""
        return next((row for row in self.overall if row.kind == "router"), None)

    @property
    def has_spread(self) -> bool:
        """Whether the frontier is the mean of several seeds."""
        return any(row.spread for row in self.frontier)

    def best(self, kind: str, by: str = "reward") -> Row | None:
        """The policy of this kind with the highest `by` over all queries, the cheaper on a tie."""
        rows = [row for row in self.overall if row.kind == kind]
        return max(rows, key=lambda row: (getattr(row, by), -row.cost), default=None)

    def gap(self, dataset: str) -> float | None:
        """R(oracle) - R(best fixed route) on a dataset; None where either is missing."""
        rows = [row for row in self.rows if row.dataset == dataset]
        oracle, fixed = (
            max((row.reward for row in rows if row.kind == kind), default=None)
            for kind in ("oracle", "route")
        )
        return None if oracle is None or fixed is None else oracle - fixed

    @property
    def quality_factor(self) -> float | None:
        """Q(router) / Q(best single model of the pool); None where either is missing or nil."""
        single = self.best("single", by="quality")
        if self.router is None or single is None or single.quality <= 0:
            return None
        return self.router.quality / single.quality

"""The contents of a report as values: its figures, and the rows that are read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.questions.audit import Audit
from hierrouter.reports.estimates import Bootstrap, EstimateLines, Row, pivot


@dataclass(frozen=True)
class DeferralSummary:
    """The router of a report with deferral to a stronger model.

    Attributes:
        stronger: name of the model that takes the queries that the router doubts.
        chosen_on: fold on which the threshold was chosen.
        share_allowed: greatest share of the queries that may be deferred; None if the threshold
            was chosen for the highest R.
        chosen: figures at the threshold that was chosen.
        curve: figures at other thresholds, by rising share.
    """

    stronger: str
    chosen_on: str
    share_allowed: float | None
    chosen: DeferralPoint
    curve: tuple[DeferralPoint, ...]


@dataclass(frozen=True)
class Saving:
    """Cost that the router saves against a single model, over all queries.

    Attributes:
        policy: name of the model.
        which: "best" for the model with the highest Q, the cheaper one on a tie, or "dearest".
        share: 1 - C(router) / C(model); below 0 the router costs more.
        low: lower end of the interval of `share`.
        high: upper end.
        quality: Q(router) - Q(model).
        quality_low: lower end of its interval.
        quality_high: upper end.
    """

    policy: str
    which: str
    share: float
    low: float
    high: float
    quality: float
    quality_low: float
    quality_high: float


@dataclass(frozen=True)
class SplitGap:
    """The gap from the best fixed route to the split oracle, which has no luck in it.

    Attributes:
        gap: R of the split oracle less R of the best fixed route.
        share: share of it that the router closes; None if it is below `bounds.SMALLEST_GAP`.
        ends: low and high of the share; None if it has no bounds.
    """

    gap: float
    share: float | None
    ends: tuple[float, float] | None


@dataclass(frozen=True)
class ReportData:
    """Everything that a report can show.

    Attributes:
        alpha: weight of cost in R.
        scorer: name of the scorer that Q comes from.
        split: the fold that was evaluated.
        bootstrap: settings of the intervals.
        datasets: names of the datasets; the last one is "all".
        estimates: every mean with its interval, one line each, see `estimates.ESTIMATE_SCHEMA`.
            The rows below are read from it.
        gap_closed: share of the distance from the best fixed route to the oracle, by dataset;
            None if that distance is below `bounds.SMALLEST_GAP`; empty without a router.
        provenance: JSON values that say where data and router come from.
        gap_closed_intervals: low and high of each `gap_closed`; None if it has no bounds.
        price_gaps: `gap_closed` under each price list, the report's own one first; empty if there
            is only one price list.
        cost_unit: unit of C.
        deciding_alphas: the least and the greatest alpha at which cost decides which route is best,
            of a query or of a group of them, see `policy_break_points`; None if it never does.
        constant: the route that the router takes for every query because no gain was shown for any
            other; "" if it does route.
        fixed_route: the route that the router takes for every query of the fold, for the reason of
            `constant` or because its policy always chooses the same; "" if it takes several.
        training: how the router was trained, see `config.training_title`; "" if nothing is known.
        savings: against the best and the most expensive single model; empty without a router.
        notes: sentences that a reader must not miss.
        deferral: the router with deferral to a stronger model, if one was named.
        p95_below: most seconds that 95 % of the queries may take; None without a limit.
        history: the learning curve of the router, columns by name: epoch, train and validation, see
            `hierrouter.runs.run.history_table`; empty for the value model and without a router.
        audit: of the direct calls of all folds; None if only outcomes are known.
        unembedded: why the states have no vectors, so that no router can be shown, whether one is
            trained or not; "" if they have.
        split_gap: share of the gap to the split oracle that is closed; None without a router, or
            if no call has several draws.
        luck_unknown: a sentence that luck cannot be told from skill, as calls at a temperature
            above 0 have one draw; "" if it can, or if nothing was drawn.
        unfit: how the newest run was trained, if no run fits what is reported on; "" if one does,
            or nothing has been trained.
        too_few: says that the queries of all folds are too few for a router and for intervals; ""
            if they are not.
        allow_stop: whether the router may end before L calls; fixed routes and the oracle of
            `rows` may, too.
        allow_return: whether it may return an earlier answer, and they may end before L calls.
    """

    alpha: float
    scorer: str
    split: str
    bootstrap: Bootstrap
    datasets: tuple[str, ...]
    estimates: EstimateLines
    gap_closed: Mapping[str, float | None]
    provenance: Mapping[str, Any]
    gap_closed_intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    price_gaps: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    cost_unit: str = "money per question"
    deciding_alphas: tuple[float, float] | None = None
    constant: str = ""
    fixed_route: str = ""
    training: str = ""
    savings: tuple[Saving, ...] = ()
    notes: tuple[str, ...] = ()
    deferral: DeferralSummary | None = None
    p95_below: float | None = None
    history: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    audit: Audit | None = None
    unembedded: str = ""
    luck_unknown: str = ""
    unfit: str = ""
    split_gap: SplitGap | None = None
    too_few: str = ""
    allow_stop: bool = False
    allow_return: bool = False

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Rows of policy after policy, each over `datasets` in that order.

        Metrics: quality, accuracy, cost, reward, and difference = R(router) - R(policy) over the
        same queries, which is None for the router itself and without a router.
        """
        return pivot(self.estimates, "policies", "policy", "kind", "dataset", "n")

    def is_router(self, row: Row) -> bool:
        """Whether a row is of the route that the router takes for every query, see `constant`.

        Then both make the same choice on any query, and their difference has no interval.
        """
        router = self.router
        is_constant = (row.kind, row.policy) == ("route", self.constant)
        if router is None or not is_constant or row.difference_low is not None:
            return False
        return bool((row.quality, row.cost) == (router.quality, router.cost))

    @cached_property
    def by_policy(self) -> tuple[tuple[Row, ...], ...]:
        """The rows of each policy, one for each of `datasets`."""
        width = len(self.datasets)
        return tuple(self.rows[start : start + width] for start in range(0, len(self.rows), width))

    @cached_property
    def overall(self) -> tuple[Row, ...]:
        """One row a policy: the one over all queries."""
        return tuple(rows[-1] for rows in self.by_policy)

    @cached_property
    def comparisons(self) -> tuple[Row, ...]:
        """`difference` of the router to every other policy except oracles.

        All intervals hold at once. Empty without a router.
        """
        return pivot(self.estimates, "at once", "policy", "kind")

    @cached_property
    def frontier(self) -> tuple[Row, ...]:
        """Policies over a sweep of alpha: quality, cost, reward at that alpha."""
        return pivot(self.estimates, "frontier", "policy", "kind", "alpha")

    @cached_property
    def price_lists(self) -> tuple[Row, ...]:
        """Each price list with its `name`, `rows` (cost and reward) and `gap_closed`.

        A policy that is chosen under prices, such as the oracle, is chosen under these.
        """
        rows = pivot(self.estimates, "prices", "prices", "policy", "kind")
        return tuple(
            Row(name=name, rows=tuple(row for row in rows if row.prices == name), gap_closed=gaps)
            for name, gaps in self.price_gaps.items()
        )

    @cached_property
    def depths(self) -> tuple[Row, ...]:
        """Queries that the router ends after `hop` calls, 1 to L: share, quality, cost, reward.

        Means are None if no query ends there; no rows if the router cannot stop early.
        """
        return pivot(self.estimates, "depths", "hop")

    @cached_property
    def latency(self) -> tuple[Row, ...]:
        """p50 and p95 of each policy, seconds a query; empty if no seconds were recorded."""
        return pivot(self.estimates, "latency", "policy", "kind")

    @property
    def best_in_time(self) -> Row | None:
        """The fixed route or direct call with the highest R whose p95 is within `p95_below`."""
        limit = inf if self.p95_below is None else self.p95_below
        quick = {(row.policy, row.kind) for row in self.latency if row.p95 <= limit}
        candidates = [
            row
            for row in self.overall
            if row.kind in ("single", "reference", "route") and (row.policy, row.kind) in quick
        ]
        return max(candidates, key=_by_reward_then_cost, default=None)

    @cached_property
    def ladder(self) -> tuple[Row, ...]:
        """quality, cost, reward of rung after rung of the ladder, each over `datasets`.

        `rung` is a name of `bounds.ladder`; `policy` is the model or route that was chosen, or the
        name of the rung again. Empty if only outcomes are known, as are all rows below.
        """
        return pivot(self.estimates, "ladder", "rung", "policy", "dataset", "n")

    @cached_property
    def looks(self) -> tuple[Row, ...]:
        """Gain of the rule named by `policy` over the best route of each dataset.

        quality, cost (times alpha) and reward, each over a dataset, at last over all; empty if no
        first answer was recorded or the tree has one hop.
        """
        return pivot(self.estimates, "looks", "policy", "dataset", "n")

    @cached_property
    def reliability(self) -> tuple[Row, ...]:
        """The router's n decisions by the probability of its choice, from `least` to `below`.

        `said` is the mean of the probability that the router predicted for its choice to be the
        best, `best` the share of choices that were.
        Empty unless a value model decides.
        """
        return pivot(self.estimates, "reliability", "policy", "n")

    @cached_property
    def regret(self) -> tuple[Row, ...]:
        """Regret of the router, then of the user's policies, by dataset.

        whole = plan + adaptivity: lost by the first choice and by all later ones.
        """
        return pivot(self.estimates, "regret", "policy", "dataset", "n")

    @cached_property
    def luck(self) -> tuple[Row, ...]:
        """Regret of the router to the clairvoyant oracle, by dataset.

        whole = luck + adaptivity + plan + generalisation, see `bounds.luck_of_regret`. Empty if no
        call has several draws.
        """
        return pivot(self.estimates, "luck", "policy", "dataset", "n")

    @cached_property
    def variance(self) -> tuple[Row, ...]:
        """Which hop decides Q of a fixed route, by dataset, see `outcome.variance_shares`.

        Each row has `hops`, the shares of the variance, `interaction` and `deviation`. Empty if the
        routes are not a full product of actions at two or more hops.
        """
        rows = pivot(self.estimates, "variance", "dataset", "n", "hop")
        shares: dict[str, list[float]] = {}
        for row in rows:
            if row.hop is not None:
                shares.setdefault(row.dataset, []).append(row.share)
        return tuple(
            Row(
                dataset=row.dataset,
                n=row.n,
                hops=shares[row.dataset],
                interaction=row.interaction,
                deviation=row.deviation,
            )
            for row in rows
            if row.hop is None
        )

    @property
    def shown_datasets(self) -> tuple[str, ...]:
        """The columns of a table: a single dataset needs no total beside it."""
        return self.datasets if len(self.datasets) > 2 else self.datasets[:1]

    @property
    def ability(self) -> str:
        """When an episode of the router, and of the oracle of `rows`, may end: a predicate."""
        if self.allow_return:
            return "may return an earlier answer"
        return "may stop early" if self.allow_stop else "makes all its calls"

    @property
    def queries(self) -> int:
        """Number of all queries."""
        return int(self.overall[0].n) if self.overall else 0

    @property
    def router(self) -> Row | None:
        """The trained policy over all queries; None without one."""
        return next((row for row in self.overall if row.kind == "router"), None)

    def best(self, kind: str) -> Row | None:
        """Return the policy of a kind with the highest R over all queries, the cheaper on a tie."""
        rows = [row for row in self.overall if row.kind == kind]
        return max(rows, key=_by_reward_then_cost, default=None)

    def gap(self, dataset: str) -> float | None:
        """Return R(oracle) - R(best fixed route) on a dataset; None if either is missing."""
        oracle = self._highest_reward("oracle", dataset)
        fixed = self._highest_reward("route", dataset)
        return None if oracle is None or fixed is None else oracle - fixed

    def _highest_reward(self, kind: str, dataset: str) -> float | None:
        rewards = [
            float(row.reward) for row in self.rows if row.dataset == dataset and row.kind == kind
        ]
        return max(rewards, default=None)


def _by_reward_then_cost(row: Row) -> tuple[float, float]:
    """Key for `max`: the highest R, the cheaper on a tie."""
    return row.reward, -row.cost

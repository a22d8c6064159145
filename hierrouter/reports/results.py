"""What a report says as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.reports.values import Bootstrap, Lines, Row, pivot


@dataclass(frozen=True)
class HandingOver:
    """The router of a report, with a stronger model for what it doubts.

    Attributes:
        share_allowed: share that was to be kept to there; None where the highest R was wanted.
        curve: the same of other thresholds, by rising share.
    """

    stronger: str
    chosen_on: str
    share_allowed: float | None
    chosen: DeferralPoint
    curve: tuple[DeferralPoint, ...]


@dataclass(frozen=True)
class Saving:
    """What the router saves against a single model, over all queries.

    Attributes:
        which: "best" in Q, the cheaper of equals, or "dearest".
        share: 1 - C(router) / C(model); below 0 the router costs more.
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
class Report:
    """Everything there is to show.

    Attributes:
        estimates: every mean with its interval, one line each; see `values.SCHEMA`. The rows below
            are read off it.
        gap_closed: share of the distance from the best fixed route to the oracle, by dataset;
            None where that is below `bounds.SMALLEST_GAP`; empty without a router.
        gap_closed_intervals: low and high of each `gap_closed`; None where it has no bounds.
        price_gaps: `gap_closed` under each price list, the report's own one first; empty where
            there is but one.
        deciding_alphas: the least and the greatest alpha at which cost decides which route is best,
            of a query or of a group of them, see `policy_break_points`; None where it never does.
        constant: the route that the router takes for every query, where no gain was shown; "" else.
        savings: against the best and the dearest single model; empty without a router.
        deferral: the router with a stronger model behind it, where one was named.
        p95_below: the most seconds that 95 % of the queries may take; None where there is no limit.
    """

    alpha: float
    scorer: str
    split: str
    bootstrap: Bootstrap
    datasets: tuple[str, ...]
    estimates: Lines
    gap_closed: Mapping[str, float | None]
    provenance: Mapping[str, Any]
    gap_closed_intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    price_gaps: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    cost_unit: str = "money per question"
    deciding_alphas: tuple[float, float] | None = None
    constant: str = ""
    savings: tuple[Saving, ...] = ()
    notes: tuple[str, ...] = ()
    deferral: HandingOver | None = None
    p95_below: float | None = None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Policy after policy, each over `datasets` in that order.

        quality, accuracy, cost and reward; difference is R(router) - R(policy) over the same
        queries, None for the router itself and where there is no router.
        """
        return pivot(self.estimates, "policies", "policy", "kind", "dataset", "n")

    @cached_property
    def by_policy(self) -> tuple[tuple[Row, ...], ...]:
        """The rows of each policy, one for each of `datasets`."""
        width = len(self.datasets)
        return tuple(self.rows[at : at + width] for at in range(0, len(self.rows), width))

    @cached_property
    def overall(self) -> tuple[Row, ...]:
        """One row a policy: that over all queries."""
        return tuple(rows[-1] for rows in self.by_policy)

    @cached_property
    def comparisons(self) -> tuple[Row, ...]:
        """`difference` of the router to every other policy but oracles; all intervals hold at once.

        Empty where there is no router.
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
            Row(name=name, rows=tuple(r for r in rows if r.prices == name), gap_closed=gaps)
            for name, gaps in self.price_gaps.items()
        )

    @cached_property
    def depths(self) -> tuple[Row, ...]:
        """What the router answers after `hop` calls, 1 to L: share, quality, cost, reward.

        Means are None where no query ends; there are no rows where the router cannot stop early.
        """
        return pivot(self.estimates, "depths", "hop")

    @cached_property
    def latency(self) -> tuple[Row, ...]:
        """p50 and p95 of each policy, seconds a query; empty where none were recorded."""
        return pivot(self.estimates, "latency", "policy", "kind")

    @property
    def best_in_time(self) -> Row | None:
        """The fixed route or direct call with the highest R whose p95 is within `p95_below`."""
        limit = inf if self.p95_below is None else self.p95_below
        quick = {(row.policy, row.kind) for row in self.latency if row.p95 <= limit}
        fixed = [row for row in self.overall if row.kind in ("single", "reference", "route")]
        found = [row for row in fixed if (row.policy, row.kind) in quick]
        return max(found, key=lambda row: (row.reward, -row.cost), default=None)

    @cached_property
    def ladder(self) -> tuple[Row, ...]:
        """quality, cost, reward of rung after rung, each over `datasets`.

        `rung` is a name of `bounds.ladder`, `policy` the model or route that was chosen, where one
        was; else the rung again. Empty where only outcomes are known, as are all rows below.
        """
        return pivot(self.estimates, "ladder", "rung", "policy", "dataset", "n")

    @cached_property
    def looks(self) -> tuple[Row, ...]:
        """What the rule named by `policy` gets beyond the best route of each dataset.

        quality, cost (times alpha) and reward, each over a dataset, at last over all; empty where
        there is nothing to look at.
        """
        return pivot(self.estimates, "looks", "policy", "dataset", "n")

    @cached_property
    def reliability(self) -> tuple[Row, ...]:
        """The router's n decisions by the probability it chose with, from `least` to `below`.

        said is its mean, best the share that were the best choice. Empty where no value model
        decides.
        """
        return pivot(self.estimates, "reliability", "policy", "n")

    @cached_property
    def regret(self) -> tuple[Row, ...]:
        """The regret of the router, then of policies of the user's own, by dataset.

        whole = plan + adaptivity: lost by the first choice and by all later ones.
        """
        return pivot(self.estimates, "regret", "policy", "dataset", "n")

    @property
    def shown_datasets(self) -> tuple[str, ...]:
        """The columns of a table: a single dataset needs no total beside it."""
        return self.datasets if len(self.datasets) > 2 else self.datasets[:1]

    @property
    def router(self) -> Row | None:
        """The trained policy over all queries, if there is one."""
        return next((row for row in self.overall if row.kind == "router"), None)

    def best(self, kind: str) -> Row | None:
        """The policy of this kind with the highest R over all queries, the cheaper on a tie."""
        rows = [row for row in self.overall if row.kind == kind]
        return max(rows, key=lambda row: (row.reward, -row.cost), default=None)

    def gap(self, dataset: str) -> float | None:
        """R(oracle) - R(best fixed route) on a dataset; None where either is missing."""
        rows = [row for row in self.rows if row.dataset == dataset]
        oracle, fixed = (
            max((float(row.reward) for row in rows if row.kind == kind), default=None)
            for kind in ("oracle", "route")
        )
        return None if oracle is None or fixed is None else oracle - fixed

"""What a report says as a whole, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.calls import DepthPoint
from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.evaluation.outcome import STOP, Outcome
from hierrouter.reports.values import (
    Analysis,
    Comparison,
    Crossed,
    DepthRow,
    Explained,
    PairFigures,
    Power,
    PricedRows,
    RegretRow,
    Spread,
)
from hierrouter.tables import json_text
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:
    from hierrouter.learning.trained import TrainedRouter


@dataclass(frozen=True)
class LearningCurve:
    """Net reward of the greedy router on the fold that chose its weights, while it learned.

    Attributes:
        alpha: cost penalty it was trained for; R is at this one.
        fold: "validation", or "train" where there was no validation fold.
        epochs: done at each evaluation.
        reward: mean R at each evaluation.
        chosen: the epoch whose weights were kept, that of the highest R, on a tie of the highest
            on train; None where the checkpoint does not tell.
        fixed: R of the best fixed route on these very queries.
        oracle: R of the tree oracle on them.
    """

    alpha: float
    fold: str
    epochs: tuple[int, ...]
    reward: tuple[float, ...]
    chosen: int | None
    fixed: float | None
    oracle: float | None


def learning_curve(trained: TrainedRouter, tree: RouteTree, fold: str) -> LearningCurve | None:
    """The curve of a training; None where it has no history.

    The bounds are left out where `tree` is not the one that the router learned on: under other
    prices or on other data R would be another.

    Args:
        tree: all folds.
        fold: name of the one that chose the weights.
    """
    if not trained.history:
        return None
    config, alpha = trained.origin.config, trained.alpha
    every = (config.evaluate_every * (at + 1) for at in range(len(trained.history)))
    epochs = tuple(min(epoch, config.epochs) for epoch in every)
    fixed, known = _bounds(trained, tree, fold)
    return LearningCurve(
        alpha=alpha,
        fold=fold,
        epochs=epochs,
        reward=trained.history,
        chosen=None if trained.kept is None else epochs[trained.kept],
        fixed=fixed,
        oracle=known,
    )


def _bounds(
    trained: TrainedRouter, tree: RouteTree, fold: str
) -> tuple[float, float] | tuple[None, None]:
    """Mean R of the best fixed route and of the oracle, on the fold that chose."""
    if tree.fingerprint != trained.origin.fingerprint:
        return None, None
    alpha, stop, queries = trained.alpha, trained.objective.allow_stop, tree.split(fold)
    bounds = best_fixed_route(queries, alpha, queries, stop), oracle(queries, alpha, stop)
    fixed, known = (float(bound.reward(alpha).mean()) for bound in bounds)
    return fixed, known


MOST_ROUTES = 10  # with a column of their own; the rest shares the last one
OTHER = "other"


@dataclass(frozen=True)
class RouteShares:
    """How the queries of one dataset are spread over the routes.

    Attributes:
        dataset: a dataset's name, or "all".
        router: expected share of its queries for each of the map's routes, 0 to 1, sum 1; None
            without a router.
        oracle: the same of the tree oracle.
    """

    dataset: str
    router: tuple[float, ...] | None
    oracle: tuple[float, ...]


@dataclass(frozen=True)
class RouteMap:
    """Routes by dataset.

    Attributes:
        routes: those that router or oracle take, the most frequent ones first; "other" last, where
            there are more than `MOST_ROUTES`.
        rows: one for each dataset, "all" last.
    """

    routes: tuple[str, ...]
    rows: tuple[RouteShares, ...]


def route_map(
    fold: RouteTree,
    router: NDArray[np.float64] | None,
    oracle: NDArray[np.int64],
    columns: Mapping[str, NDArray[np.int64]],
) -> RouteMap:
    """The shares of each route; ties in frequency go to the lower node number.

    Args:
        fold: the queries that are shown.
        router: float64[queries, nodes], where the router ends, rows sum to 1; see
            `TrainedRouter.endings`.
        oracle: int64[queries], the node at which the oracle ends; see `bounds.best_nodes`.
        columns: positions of the queries of each dataset, all of them last; see
            `build.columns_of`.
    """
    known = np.zeros((len(fold), fold.routes.nodes))
    known[np.arange(len(fold)), oracle] = 1
    taken = known.mean(axis=0) + (router.mean(axis=0) if router is not None else 0)
    nodes = [int(node) for node in np.argsort(-taken, kind="stable") if taken[node] > 0]
    shown = nodes[:MOST_ROUTES]

    def shares(endings: NDArray[np.float64], rows: NDArray[np.int64]) -> tuple[float, ...]:
        mean = endings[rows].mean(axis=0)
        rest = (float(mean[nodes[MOST_ROUTES:]].sum()),) if len(nodes) > MOST_ROUTES else ()
        return (*mean[shown].tolist(), *rest)

    names = [_name(fold, node) for node in shown]
    return RouteMap(
        routes=(*names, *([OTHER] if len(nodes) > MOST_ROUTES else [])),
        rows=tuple(
            RouteShares(
                dataset=dataset,
                router=None if router is None else shares(router, rows),
                oracle=shares(known, rows),
            )
            for dataset, rows in columns.items()
        ),
    )


def _name(fold: RouteTree, node: int) -> str:
    """As fixed routes are called in the tables."""
    name = fold.routes.name(node, fold.models)
    return name + STOP if node < fold.routes.states else name


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


def best_of_kind(
    outcomes: Sequence[Outcome],
    kind: str,
    alpha: float,
    queries: NDArray[np.int64] | slice = slice(None),
) -> Outcome | None:
    """The policy of a kind with the highest mean R, the cheaper on a tie; None without one.

    Args:
        alpha: weight of cost in R.
        queries: int64[n], positions of the queries that count; all if not given.
    """

    def worth(one: Outcome) -> tuple[float, float]:
        return float(one.reward(alpha)[queries].mean()), -float(one.cost[queries].mean())

    return max((one for one in outcomes if one.kind == kind), key=worth, default=None)


FORMAT = 1  # of the object; goes up where a key leaves or changes its meaning


def as_json(report: Report) -> str:
    """The contract's object as text; see `plain_json.json_text` for the errors."""
    return json_text(as_object(report), "report")


def as_object(report: Report) -> dict[str, Any]:
    """The report as dictionaries and lists, floats as they are."""
    # There only where somebody brought a policy.
    regret = {name: [asdict(row) for row in rows] for name, rows in report.policy_regret.items()}
    return {
        "format": FORMAT,
        "alpha": report.alpha,
        "cost_unit": report.cost_unit,
        "scorer": report.scorer,
        "split": report.split,
        "bootstrap": {**asdict(report.bootstrap), "cluster": "query"},
        "rows": [asdict(row) for row in report.rows],
        "gap_closed": dict(report.gap_closed),
        "gap_closed_intervals": dict(report.gap_closed_intervals),
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "power": asdict(report.power) if report.power else None,
        "frontier": [asdict(row) for row in report.frontier],
        "price_lists": [asdict(prices) for prices in report.price_lists],
        "depths": [asdict(depth) for depth in report.depths],
        "depth_curve": [asdict(point) for point in report.depth_curve],
        "deferral": _deferral(report.deferral),
        "analysis": asdict(report.analysis) if report.analysis else None,
        "route_map": asdict(report.route_map) if report.route_map else None,
        "learning": asdict(report.learning) if report.learning else None,
        "notes": list(report.notes),
        "provenance": dict(report.provenance),
        **({"policy_regret": regret} if regret else {}),
    }


def _deferral(handing: HandingOver | None) -> dict[str, Any] | None:
    """A threshold is null where no query is handed over, or each one: see its share."""
    if handing is None:
        return None
    points = [_deferral_point(point) for point in (handing.chosen, *handing.curve)]
    return {**asdict(handing), "chosen": points[0], "curve": points[1:]}


def _deferral_point(point: DeferralPoint) -> dict[str, float | None]:
    threshold = point.threshold if math.isfinite(point.threshold) else None
    return {**asdict(point), "threshold": threshold}

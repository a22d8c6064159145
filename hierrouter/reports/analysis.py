"""Everything a report says beside its policies, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import (
    Regret,
    Rung,
    best_nodes,
    cheapest_best,
    ladder,
    random_policy,
    split_regret,
)
from hierrouter.evaluation.budget import PriceMix, exact_frontier, price_mix
from hierrouter.evaluation.calls import Repair, measurable_optimum, observations, repair_matrices
from hierrouter.evaluation.contribution import (
    EXACT,
    Contribution,
    Value,
    contributions,
    frontier_area,
    oracle_reward,
)
from hierrouter.evaluation.intervals import expanded_tail, percentile_interval, resampled_means
from hierrouter.evaluation.metrics import (
    area_under,
    call_mix,
    cost_save,
    frontier,
    pareto_distance,
    perf_gain,
)
from hierrouter.evaluation.outcome import (
    ROUTER,
    Outcome,
    fixed_routes,
    from_endings,
    mean_outcome,
    mean_points,
    single_calls,
)
from hierrouter.learning.trained import TrainedRouter
from hierrouter.reports.build import FrontierPoint, columns_of, draws, estimates, stream_of_all
from hierrouter.reports.results import ALL, Bootstrap
from hierrouter.reports.values import (
    Analysis,
    AreaWorth,
    Bounded,
    CallRow,
    Estimate,
    FrontierFigures,
    HullRow,
    Measurable,
    ModelRow,
    RegretParts,
    RegretRow,
    RepairRow,
    RungRow,
    Worth,
)
from hierrouter_cache.tree import Routes, RouteTree

Values = NDArray[np.float64]  # [figures, queries]
Columns = Mapping[str, NDArray[np.int64]]  # see `report.build.columns_of`
Found = Mapping[str, Mapping[str, list[Estimate]]]


def estimated(
    columns: Columns,
    by_dataset: Mapping[str, Values],
    overall: Mapping[str, Values],
    bootstrap: Bootstrap,
) -> Found:
    """The mean and interval of each figure, by dataset and name of its group.

    Args:
        columns: positions of the queries of each dataset, in the order of their streams.
        by_dataset: float64[figures, queries], wanted for every dataset.
        overall: the same, wanted over all queries only.
        bootstrap: how intervals are made.
    """
    return {
        name: _groups({**by_dataset, **(overall if name == ALL else {})}, queries, bootstrap, at)
        for at, (name, queries) in enumerate(columns.items())
    }


def _groups(
    groups: Mapping[str, Values], queries: NDArray[np.int64], bootstrap: Bootstrap, stream: int
) -> dict[str, list[Estimate]]:
    values = np.concatenate([group[:, queries] for group in groups.values()])
    found = iter(estimates(values, bootstrap, stream))
    return {name: [next(found) for _ in group] for name, group in groups.items()}


@dataclass(frozen=True)
class StaticArms:
    """The static arms of a fold.

    Attributes:
        arms: each on every query.
        best: the one with the highest mean Q on the train fold; ties go to the cheaper one.
        allow_stop: whether routes of fewer than L calls are among them.
        low, high: mean cost of the cheapest arm and of `best`. These are the budgets that one
            could have spent without a router; equal where the best arm is the cheapest.
    """

    arms: tuple[Outcome, ...]
    best: Outcome
    allow_stop: bool
    low: float
    high: float

    @property
    def width(self) -> float:
        """high - low, in price * token; 0 where there is no range."""
        return self.high - self.low


def static_arms(train: RouteTree, fold: RouteTree, allow_stop: bool) -> StaticArms | None:
    """The arms of a fold; None where there is no train fold to choose on."""
    if not len(train):
        return None
    cost, quality = mean_points(_arms(train, allow_stop))
    arms = _arms(fold, allow_stop)
    best = arms[int(cheapest_best(quality[None], cost[None])[0])]
    low = float(np.min(mean_points(arms)[0]))
    return StaticArms(tuple(arms), best, allow_stop, low, float(best.cost.mean()))


def _arms(tree: RouteTree, allow_stop: bool) -> list[Outcome]:
    direct = [call for call in single_calls(tree) if call.kind == "single"]
    return [*direct, *fixed_routes(tree, allow_stop)]


RESAMPLES = 1_000  # at most: every one has hulls of its own
Points = tuple[NDArray[np.float64], NDArray[np.float64]]  # mean cost and mean quality


def frontier_figures(
    fold: RouteTree,
    arms: StaticArms | None,
    routers: Sequence[Outcome],
    bootstrap: Bootstrap,
    stream: int,
) -> FrontierFigures | None:
    """Figures of routers, and of what they are held against; None without static arms.

    Args:
        fold: that is shown.
        arms: its static arms.
        routers: a sweep's, one for each alpha, or the only one; may be empty.
        bootstrap: how intervals are made.
        stream: of all queries, see `report.intervals.draws`.
    """
    if arms is None:
        return None
    exact = exact_frontier(fold, arms.allow_stop)
    drawn = replace(bootstrap, n=min(bootstrap.n, RESAMPLES))
    found = {
        ("static arms", "route"): arms.arms,
        ("random", "baseline"): [random_policy(fold, arms.allow_stop)],
    }
    if routers:
        found = {(ROUTER, "router"): routers, **found}
    hulls = [_row(*name, policies, exact, arms, drawn, stream) for name, policies in found.items()]
    best = mean_points([arms.best])
    return FrontierFigures(
        low=arms.low,
        high=arms.high,
        static=arms.best.name,
        static_quality=float(best[1][0]),
        static_cost=float(best[0][0]),
        resamples=drawn.n,
        hulls=(*hulls, _bound(exact, arms)),
    )


def _row(
    policy: str,
    kind: str,
    policies: Sequence[Outcome],
    exact: Points,
    arms: StaticArms,
    bootstrap: Bootstrap,
    stream: int,
) -> HullRow:
    mean_quality, save, gain = _bounded(policies, arms, bootstrap, stream)
    return HullRow(
        policy=policy,
        kind=kind,
        points=len(policies),
        mean_quality=mean_quality if len(policies) > 1 else None,
        cost_save=save,
        perf_gain=gain,
        pareto_distance=_distance(policies, exact, arms) if kind == "router" else None,
    )


def _bound(exact: Points, arms: StaticArms) -> HullRow:
    """The exact frontier, whose points are choices of each query: it is not resampled."""
    mean_quality, save, gain = _figures(exact, arms, mean_points([arms.best]))
    return HullRow(
        policy="oracle",
        kind="oracle",
        points=None,
        mean_quality=_value(mean_quality),
        cost_save=_value(save),
        perf_gain=_value(gain),
        pareto_distance=None,
    )


def _bounded(
    policies: Sequence[Outcome], arms: StaticArms, bootstrap: Bootstrap, stream: int
) -> list[Bounded | None]:
    """The three figures of some policies, each with its interval."""
    shown = _figures(mean_points(policies), arms, mean_points([arms.best]))
    several = [*policies, arms.best]
    values = np.array([*(one.cost for one in several), *(one.quality for one in several)])
    means = resampled_means(values, bootstrap.n, draws(bootstrap, stream))
    cost, quality = np.split(means.T, 2, axis=1)
    resampled = np.array(
        [
            _figures((c[:-1], q[:-1]), arms, (c[-1:], q[-1:]))
            for c, q in zip(cost, quality, strict=True)
        ]
    )
    tail = expanded_tail(values.shape[1], bootstrap.level)
    # What a resample does not reach is below all that others do.
    reached = np.where(np.isnan(resampled), -np.inf, resampled)
    low = np.quantile(reached, tail, axis=0, method="lower").tolist()
    high = np.quantile(reached, 1 - tail, axis=0, method="higher").tolist()
    return [_value(*figure) for figure in zip(shown, low, high, strict=True)]


def _figures(points: Points, arms: StaticArms, static: Points) -> tuple[float, float, float]:
    """Mean quality over the range, CostSave, PerfGain; nan where there is none."""
    cost, quality = points
    hull = frontier(cost, quality)
    corners = cost[hull], quality[hull]
    held_against = float(static[0][0]), float(static[1][0])
    save, gain = cost_save(*corners, *held_against), perf_gain(*corners, *held_against)
    mean = area_under(*corners, arms.low, arms.high) / arms.width if arms.width > 0 else math.nan
    return mean, math.nan if save is None else save, math.nan if gain is None else gain


def _distance(policies: Sequence[Outcome], exact: Points, arms: StaticArms) -> float | None:
    """Mean ParetoDist of the policies from the oracle's frontier; None without a range."""
    if arms.width <= 0:
        return None
    points = zip(*(figure.tolist() for figure in mean_points(policies)), strict=True)
    return float(np.mean([pareto_distance(c, q, *exact, arms.width) for c, q in points]))


def _value(value: float, low: float = -math.inf, high: float = -math.inf) -> Bounded | None:
    """None where there is no value; ends that are not known are None."""
    if math.isnan(value):
        return None
    ends = (end if math.isfinite(end) else None for end in (low, high))
    return Bounded(value, *ends)


@dataclass(frozen=True)
class Seen:
    """What a view tells apart.

    Attributes:
        looks: how many queries look different before the first call.
        reward: float64[queries], R of the best policy that sees no more.
    """

    looks: int
    reward: NDArray[np.float64]


def seen(fold: RouteTree, alpha: float, allow_stop: bool) -> Seen:
    """The bound of all policies that read what the tree's view shows, stage and cost."""
    observed = observations(fold)
    best = measurable_optimum(fold, observed, alpha, allow_stop)
    return Seen(len(np.unique(observed[:, 0])), best.reward(alpha))


def ladder_values(rungs: Sequence[Rung], alpha: float) -> Values:
    """Q of each rung, then C, then R: float64[3 * rungs, queries]."""
    outcomes = [rung.outcome for rung in rungs]
    return np.array(
        [
            *(outcome.quality for outcome in outcomes),
            *(outcome.cost for outcome in outcomes),
            *(outcome.reward(alpha) for outcome in outcomes),
        ]
    )


def ladder_rows(rungs: Sequence[Rung], columns: Columns, found: Found) -> tuple[RungRow, ...]:
    """Rung after rung, each by dataset, "all" last.

    Args:
        found: estimates of `ladder_values` under "ladder".
    """
    return tuple(
        RungRow(
            rung.name,
            _chosen(rung),
            dataset,
            len(queries),
            *found[dataset]["ladder"][at :: len(rungs)],
        )
        for at, rung in enumerate(rungs)
        for dataset, queries in columns.items()
    )


def _chosen(rung: Rung) -> str:
    """The model or route that was chosen; oracles, chance and classifiers choose none."""
    return rung.outcome.name if rung.outcome.kind in ("single", "route") else rung.name


@dataclass(frozen=True)
class Mixes:
    """Expected calls of some policies.

    Attributes:
        policies: name and kind of each.
        values: float64[policies * hops * models, queries].
    """

    policies: tuple[tuple[str, str], ...]
    values: Values


def mixes(
    fold: RouteTree, alpha: float, endings: NDArray[np.float64] | None, allow_stop: bool
) -> Mixes:
    """Calls of the router and of the tree oracle at each hop.

    Args:
        endings: float64[queries, nodes], the router's; None without one.
    """
    policies = {("oracle", "oracle"): oracle_endings(fold, alpha, allow_stop)}
    if endings is not None:
        policies = {(ROUTER, "router"): endings, **policies}
    called = [call_mix(fold.routes, ends).reshape(len(fold), -1).T for ends in policies.values()]
    return Mixes(tuple(policies), np.concatenate(called))


def oracle_endings(fold: RouteTree, alpha: float, allow_stop: bool) -> NDArray[np.float64]:
    """float64[queries, nodes]: 1 where the tree oracle ends."""
    endings = np.zeros((len(fold), fold.routes.nodes))
    endings[np.arange(len(fold)), best_nodes(fold, alpha, allow_stop)] = 1
    return endings


def call_rows(called: Mixes, fold: RouteTree, found: Sequence[Estimate]) -> tuple[CallRow, ...]:
    """A row for each policy, hop and model.

    Args:
        found: estimates of `called.values`.
    """
    places = product(called.policies, range(1, fold.hops + 1), fold.models)
    return tuple(
        CallRow(*policy, hop, model, calls)
        for (policy, hop, model), calls in zip(places, found, strict=True)
    )


def repair_values(repairs: Sequence[Repair], queries: int) -> Values:
    """Repair, damage and change in Q of each hop: float64[3 * hops * pairs, queries]."""
    figures = [
        figure.reshape(len(figure), -1).T
        for repair in repairs
        for figure in (repair.repair, repair.damage, repair.quality)
    ]
    return np.concatenate([np.empty((0, queries)), *figures])


def repair_rows(
    repairs: Sequence[Repair], models: Sequence[str], found: Sequence[Estimate]
) -> tuple[RepairRow, ...]:
    """A row for each hop from the second on, and each pair of models.

    Args:
        found: estimates of `repair_values`.
    """
    rows, left = [], iter(found)
    for repair in repairs:
        repaired, damaged, better = (
            [next(left) for _ in range(len(models) ** 2)] for _ in range(3)
        )
        right, cost = repair.right.mean(axis=0), repair.cost.mean(axis=0)
        for at, (before, model) in enumerate(product(range(len(models)), repeat=2)):
            rows.append(
                RepairRow(
                    hop=repair.hop,
                    before=models[before],
                    model=models[model],
                    right=float(right[before]),
                    repair=repaired[at],
                    damage=damaged[at],
                    quality=better[at],
                    cost=float(cost[before, model]),
                )
            )
    return tuple(rows)


Fold = tuple[Sequence[str], Values]  # dataset of each query, `regret_values`


def regret_values(regret: Regret) -> Values:
    """Whole, plan and adaptivity: float64[3, queries]."""
    return np.stack([regret.total, regret.plan, regret.adaptivity])


def regret_rows(
    columns: Columns, shown: Values | None, found: Found, train: Fold | None, bootstrap: Bootstrap
) -> tuple[RegretRow, ...]:
    """The regret by dataset, "all" last; none without a router.

    Args:
        columns: positions of the queries of each dataset of the fold shown.
        shown: `regret_values` of that fold; None without a router.
        found: estimates of these under "regret".
        train: the train fold; None where it is the one shown, or empty.
        bootstrap: how intervals are made.
    """
    if shown is None:
        return ()
    trained = columns_of(train[0]) if train else {}
    rows = []
    for at, (dataset, queries) in enumerate(columns.items()):
        more = None
        if train and dataset in trained:
            folds = shown[:, queries], train[1][:, trained[dataset]]
            # Streams of their own: the draws of both folds are independent.
            more = RegretParts(*_difference(*folds, bootstrap, (at, len(columns) + at)))
        rows.append(RegretRow(dataset, len(queries), RegretParts(*found[dataset]["regret"]), more))
    return tuple(rows)


def policy_regret(
    fold: RouteTree,
    alpha: float,
    endings: NDArray[np.float64],
    allow_stop: bool,
    bootstrap: Bootstrap,
) -> tuple[RegretRow, ...]:
    """The regret of any policy by dataset, "all" last.

    Args:
        fold: the queries that are shown.
        endings: float64[queries, nodes], see `evaluate.regret.split_regret`.
        allow_stop: whether the oracle, too, may end before L calls.
    """
    columns = columns_of(fold.datasets)
    values = regret_values(split_regret(fold, alpha, endings, allow_stop))
    found = estimated(columns, {"regret": values}, {}, bootstrap)
    return regret_rows(columns, values, found, None, bootstrap)


def _difference(
    shown: Values, train: Values, bootstrap: Bootstrap, streams: tuple[int, int]
) -> list[Estimate]:
    """Mean of each row on the fold shown less that on train; the smaller fold widens the ends."""
    means = [
        resampled_means(values, bootstrap.n, draws(bootstrap, stream))
        for values, stream in zip((shown, train), streams, strict=True)
    ]
    queries = min(shown.shape[1], train.shape[1])
    low, high = percentile_interval(means[0] - means[1], queries, bootstrap.level)
    mean = shown.mean(axis=1) - train.mean(axis=1)
    return [
        Estimate(*ends) for ends in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
    ]


ORDERS = 50  # of joining, drawn where there are more than `EXACT` models
SEED = 0  # of that draw
LARGEST = 30_000_000  # nodes of all sub-pools times queries: about three seconds
FEW = 0.05  # of the oracle's calls


def reward_worths(fold: RouteTree, alpha: float, allow_stop: bool) -> Contribution | None:
    """Contributions to the tree oracle's R on each query; None where the pool is too large."""
    return _contributions(fold, oracle_reward(alpha, allow_stop))


def worth_values(worths: Contribution | None, queries: int) -> Values:
    """Leave-one-out, then Shapley of each model: float64[2 * M, queries]; None has no rows."""
    if worths is None:
        return np.empty((0, queries))
    return np.concatenate([worths.leave_one_out, worths.shapley])


def model_rows(
    fold: RouteTree,
    alpha: float,
    allow_stop: bool,
    worths: Contribution | None,
    found: Sequence[Estimate],
    arms: StaticArms | None,
) -> tuple[ModelRow, ...]:
    """A row for each model, in the pool's order.

    Args:
        worths: of R, see `reward_worths`.
        found: estimates of `worth_values`.
        arms: give the range of costs of the frontier's area; None leaves it out.
    """
    count = len(fold.models)
    by_reward: list[Worth | None] = [None] * count
    if worths is not None:
        figures = zip(found[:count], found[count:], worths.error.tolist(), strict=True)
        by_reward = [Worth(*row) for row in figures]
    calls = call_mix(fold.routes, oracle_endings(fold, alpha, allow_stop)).sum(axis=(0, 1))
    shares: list[float] = (calls / calls.sum()).tolist()
    return tuple(
        _model_row(price_mix(fold, model, alpha, allow_stop), reward, area, share)
        for model, reward, area, share in zip(
            fold.models, by_reward, _areas(fold, arms), shares, strict=True
        )
    )


def _model_row(
    mix: PriceMix, reward: Worth | None, area: AreaWorth | None, share: float
) -> ModelRow:
    return ModelRow(
        model=mix.model,
        reward=reward,
        area=area,
        share=share,
        below_5_percent=_finite(mix.last_at(FEW)),
        leaves=_finite(mix.leaves),
    )


def _areas(fold: RouteTree, arms: StaticArms | None) -> Sequence[AreaWorth | None]:
    """Of the mean quality under the oracle's frontier; None without a range of costs."""
    worths = None
    if arms and arms.width > 0:
        area, width = frontier_area(arms.low, arms.high, arms.allow_stop), arms.width
        worths = _contributions(fold, lambda tree: area(tree) / width)
    if worths is None:
        return [None] * len(fold.models)
    figures = (worths.leave_one_out, worths.shapley, worths.error)
    return [AreaWorth(*row) for row in np.stack(figures, axis=1).tolist()]


def _contributions(fold: RouteTree, value: Value) -> Contribution | None:
    if _nodes_valued(fold.routes) * len(fold) > LARGEST:
        return None
    rng = np.random.default_rng(SEED)
    return contributions(fold, value, rng=rng, permutations=ORDERS)


def _nodes_valued(routes: Routes) -> int:
    """Nodes of all the sub-pools that are valued, about."""
    sizes = range(1, routes.models + 1)
    nodes = [Routes(size, routes.hops).nodes for size in sizes]
    if routes.models > EXACT:
        return ORDERS * sum(nodes)
    return sum(math.comb(routes.models, size) * n for size, n in zip(sizes, nodes, strict=True))


def _finite(factor: float) -> float | None:
    """None for a price that is never reached."""
    return factor if math.isfinite(factor) else None


def analyse(
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: NDArray[np.float64] | None,
    swept: Sequence[FrontierPoint] = (),
    swept_stop: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Analysis:
    """The ladder, the router's regret and calls, repairs, and what each model is worth.

    Args:
        tree: all folds.
        split: the fold to analyse, not empty.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
        trained: the router; where it may stop early, chance, fixed routes and bounds may, too.
        endings: float64[queries, nodes], where that router's episodes end on the fold; None without
            one.
        swept: the routers of a sweep on this fold, where there is one.
        swept_stop: whether these may stop early.
        bootstrap: how intervals are made.

    Raises:
        InputError: a router made for another tree.
    """
    bootstrap, fold, train = bootstrap or Bootstrap(), tree.split(split), tree.split("train")
    stop = trained is not None and trained.objective.allow_stop
    rungs, view = ladder(train, alpha, fold, stop), seen(fold, alpha, stop)
    called, repairs = mixes(fold, alpha, endings, stop), repair_matrices(fold)
    arms = static_arms(train, fold, swept_stop if swept else stop)
    worths = reward_worths(fold, alpha, stop)
    by_dataset = {"ladder": ladder_values(rungs, alpha)}
    if endings is not None:
        by_dataset["regret"] = regret_values(split_regret(fold, alpha, endings, stop))
    overall = {
        "measurable": view.reward[None],
        "calls": called.values,
        "repair": repair_values(repairs, len(fold)),
        "models": worth_values(worths, len(fold)),
    }
    columns = columns_of(fold.datasets)
    found = estimated(columns, by_dataset, overall, bootstrap)
    routers = [mean_outcome(point.by_seed) for point in swept]
    if not routers and endings is not None:
        routers = [from_endings(fold, endings, ROUTER, "router")]
    every = found[ALL]
    return Analysis(
        ladder=ladder_rows(rungs, columns, found),
        measurable=Measurable(fold.view, view.looks, len(fold), every["measurable"][0]),
        regret=regret_rows(
            columns,
            by_dataset.get("regret"),
            found,
            None if split == "train" else _trained_regret(train, alpha, trained),
            bootstrap,
        ),
        calls=call_rows(called, fold, every["calls"]),
        frontier=frontier_figures(fold, arms, routers, bootstrap, stream_of_all(fold.datasets)),
        repair=repair_rows(repairs, fold.models, every["repair"]),
        models=model_rows(fold, alpha, stop, worths, every["models"], arms),
    )


def _trained_regret(
    train: RouteTree, alpha: float, trained: TrainedRouter | None
) -> tuple[Sequence[str], Values] | None:
    """Datasets of the train fold and the router's regret there; None where either is missing."""
    if trained is None or not len(train):
        return None
    lost = split_regret(train, alpha, trained.endings(train), trained.objective.allow_stop)
    return train.datasets, regret_values(lost)

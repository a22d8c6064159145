"""What a report says beside its policies: bounds, regret, calls, and what each model is worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation import bounds, contribution, metrics, outcome
from hierrouter.evaluation.budget import exact_frontier, price_mix
from hierrouter.evaluation.calls import repair_matrices
from hierrouter.evaluation.intervals import expanded_tail, percentile_interval, resampled_means
from hierrouter.learning.config import Objective
from hierrouter.learning.training import TrainedRouter
from hierrouter.reports.build import FrontierPoint
from hierrouter.reports.results import CostRange
from hierrouter.reports.values import Bootstrap, Estimate, Estimates, Values, columns_of, each
from hierrouter.tables import finite
from hierrouter_cache.tree import Routes, RouteTree


def add_analysis(
    found: Estimates,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: NDArray[np.float64] | None,
    swept: Sequence[FrontierPoint] = (),
    swept_stop: bool = False,
) -> CostRange | None:
    """The ladder, the router's regret and calls, repairs, and what each model is worth.

    Raises InputError: a router made for another tree. Returns the costs between which frontiers are
    compared; None without a train fold.

    Args:
        found: the table, of the queries of the fold.
        tree: all folds.
        split: the fold to analyse, not empty.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
        trained: the router; where it may stop early, chance, fixed routes and bounds may, too.
        endings: float64[queries, endings], how that router's episodes end on the fold; None
            without one.
        swept: the routers of a sweep on this fold, where there is one.
        swept_stop: whether these may stop early.
    """
    fold, train = tree.split(split), tree.split("train")
    may = trained.objective if trained else Objective(alpha)
    stop, returns = may.ends_early, may.allow_return
    _add_ladder(found, train, fold, alpha, stop)
    if endings is not None:
        lost = None
        if trained is not None and split != "train" and len(train):
            ends = trained.endings(train)
            lost = train.datasets, bounds.split_regret(train, alpha, ends, stop, returns)
        regret = bounds.split_regret(fold, alpha, endings, stop, returns)
        add_regret(found, outcome.ROUTER, regret, lost)
    _add_calls(found, fold, alpha, endings, stop)
    routers = [outcome.mean_outcome(point.by_seed) for point in swept]
    if not routers and endings is not None:
        routers = [outcome.from_endings(fold, endings, outcome.ROUTER, "router")]
    arms = static_arms(train, fold, swept_stop if swept else stop)
    costs = add_hulls(found, fold, arms, routers) if arms else None
    _add_repair(found, fold)
    _add_models(found, fold, alpha, stop, arms)
    return costs


def _add_ladder(
    found: Estimates, train: RouteTree, fold: RouteTree, alpha: float, stop: bool
) -> None:
    """Q, C and R of rung after rung, each by dataset."""
    for rung, one in bounds.ladder(train, alpha, fold, stop).items():
        # Oracles, chance and classifiers choose none.
        chosen = one.name if one.kind in ("single", "route") else rung
        worth = {"quality": one.quality, "cost": one.cost, "reward": one.reward(alpha)}
        found.add("ladder", worth, found.columns, rung=rung, policy=chosen)


PARTS = ("whole", "plan", "adaptivity")  # of a regret


def add_regret(
    found: Estimates,
    policy: str,
    regret: outcome.Floats,
    train: tuple[Sequence[str], outcome.Floats] | None = None,
) -> None:
    """A policy's regret by dataset, and how much more it is than on the train fold.

    Args:
        found: the table, of the queries of the fold shown.
        policy: its name.
        regret: on that fold, float64[queries, choices], see `split_regret`.
        train: datasets of the queries of the train fold and the regret there; None where it is the
            fold shown, or empty.
    """
    shown = _parts(regret)
    trained = columns_of(train[0]) if train else {}
    for stream, (dataset, queries) in enumerate(found.columns.items()):
        found.add("regret", dict(zip(PARTS, shown, strict=True)), [dataset], policy=policy)
        more: list[Estimate | None] = [None] * len(PARTS)
        if train and dataset in trained:
            lost = _parts(train[1])
            # Streams of their own: the draws of both folds are independent.
            streams = stream, len(found.columns) + stream
            more = [*_more(shown[:, queries], lost[:, trained[dataset]], found.bootstrap, streams)]
        beyond = {f"more_{part}": one for part, one in zip(PARTS, more, strict=True)}
        found.state("regret", beyond, policy=policy, dataset=dataset, n=len(queries))


def _parts(regret: outcome.Floats) -> outcome.Floats:
    """float64[3, queries], see `PARTS`."""
    return np.stack([regret.sum(axis=1), regret[:, 0], regret[:, 1:].sum(axis=1)])


def _more(
    shown: Values, train: Values, bootstrap: Bootstrap, streams: tuple[int, int]
) -> list[Estimate]:
    """Mean of each row on the fold shown less that on train; the smaller fold widens the ends."""
    means = [
        resampled_means(values, bootstrap.n, bootstrap.draws(stream))
        for values, stream in zip((shown, train), streams, strict=True)
    ]
    queries = min(shown.shape[1], train.shape[1])
    low, high = percentile_interval(means[0] - means[1], queries, bootstrap.level)
    return each(shown.mean(axis=1) - train.mean(axis=1), low, high)


def _add_calls(
    found: Estimates, fold: RouteTree, alpha: float, endings: NDArray[np.float64] | None, stop: bool
) -> None:
    """Expected calls of each model at each hop, by the router and by the tree oracle."""
    policies = {("oracle", "oracle"): _oracle_endings(fold, alpha, stop)}
    if endings is not None:
        policies = {(outcome.ROUTER, "router"): endings, **policies}
    for (policy, kind), ends in policies.items():
        mix = metrics.call_mix(fold.routes, ends)
        for hop, (at, model) in product(range(fold.hops), enumerate(fold.models)):
            calls = {"calls": mix[:, hop, at]}
            found.add("calls", calls, policy=policy, kind=kind, hop=hop + 1, model=model)


def _oracle_endings(fold: RouteTree, alpha: float, stop: bool) -> NDArray[np.float64]:
    """float64[queries, nodes]: 1 where the tree oracle ends."""
    endings = np.zeros((len(fold), fold.routes.nodes))
    endings[np.arange(len(fold)), bounds.best_nodes(fold, alpha, stop)] = 1
    return endings


def _add_repair(found: Estimates, fold: RouteTree) -> None:
    """Repair, damage and change in Q at each hop from the second on, for each pair of models."""
    for at in repair_matrices(fold):
        right, cost = at.right.mean(axis=0), at.cost.mean(axis=0)
        for one, other in product(range(len(fold.models)), repeat=2):
            of: dict[str, Any] = {"before": fold.models[one], "model": fold.models[other]}
            changes = {"repair": at.repair, "damage": at.damage, "quality": at.quality}
            means = {name: change[:, one, other] for name, change in changes.items()}
            found.add("repair", means, hop=at.hop, **of)
            known = {"right": right[one], "cost": cost[one, other]}
            found.state("repair", known, hop=at.hop, **of)


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

    arms: tuple[outcome.Outcome, ...]
    best: outcome.Outcome
    allow_stop: bool
    low: float
    high: float

    @property
    def width(self) -> float:
        """high - low, in money; 0 where there is no range."""
        return self.high - self.low


def static_arms(train: RouteTree, fold: RouteTree, allow_stop: bool) -> StaticArms | None:
    """The arms of a fold; None where there is no train fold to choose on."""
    if not len(train):
        return None
    cost, quality = outcome.mean_points(_arms(train, allow_stop))
    arms = _arms(fold, allow_stop)
    best = arms[int(bounds.cheapest_best(quality[None], cost[None])[0])]
    low = float(np.min(outcome.mean_points(arms)[0]))
    return StaticArms(tuple(arms), best, allow_stop, low, float(best.cost.mean()))


def _arms(tree: RouteTree, allow_stop: bool) -> list[outcome.Outcome]:
    direct = [call for call in outcome.single_calls(tree) if call.kind == "single"]
    return [*direct, *outcome.fixed_routes(tree, allow_stop)]


RESAMPLES = 1_000  # at most: every one has hulls of its own
HULL = ("mean_quality", "cost_save", "perf_gain")
Points = tuple[NDArray[np.float64], NDArray[np.float64]]  # mean cost and mean quality


def add_hulls(
    found: Estimates, fold: RouteTree, arms: StaticArms, routers: Sequence[outcome.Outcome]
) -> CostRange:
    """What the hull of routers reaches, and of what they are held against.

    `found`: the table; `fold`: that is shown; `arms`: its static arms; `routers`: a sweep's, one
    for each alpha, or the only one; may be empty.
    """
    exact = exact_frontier(fold, arms.allow_stop)
    drawn = replace(found.bootstrap, n=min(found.bootstrap.n, RESAMPLES))
    sets: dict[tuple[str, str], Sequence[outcome.Outcome]] = {
        (outcome.ROUTER, "router"): routers,
        ("static arms", "route"): arms.arms,
        ("random", "baseline"): [bounds.random_policy(fold, arms.allow_stop)],
    }
    for (policy, kind), policies in sets.items():
        if not policies:
            continue
        figures = _bounded(policies, arms, drawn, found.every)
        reached: dict[str, Estimate | float | None] = dict(zip(HULL, figures, strict=True))
        if len(policies) < 2:
            reached["mean_quality"] = None
        distance = _distance(policies, exact, arms) if kind == "router" else None
        reached["pareto_distance"] = distance
        found.state("hulls", reached, policy=policy, kind=kind, n=len(policies))
    # The exact frontier's points are choices of each query: it is not resampled.
    known = map(finite, _hull_figures(exact, arms, outcome.mean_points([arms.best])))
    hindsight = {**dict(zip(HULL, known, strict=True)), "pareto_distance": None}
    found.state("hulls", hindsight, policy="oracle", kind="oracle")
    best = outcome.mean_points([arms.best])
    return CostRange(
        low=arms.low,
        high=arms.high,
        static=arms.best.name,
        static_quality=float(best[1][0]),
        static_cost=float(best[0][0]),
        resamples=drawn.n,
    )


def _bounded(
    policies: Sequence[outcome.Outcome], arms: StaticArms, bootstrap: Bootstrap, stream: int
) -> list[Estimate | None]:
    """The three figures of some policies, each with its interval; None where there is none."""
    shown = _hull_figures(outcome.mean_points(policies), arms, outcome.mean_points([arms.best]))
    several = [*policies, arms.best]
    values = np.array([*(one.cost for one in several), *(one.quality for one in several)])
    means = resampled_means(values, bootstrap.n, bootstrap.draws(stream))
    cost, quality = np.split(means.T, 2, axis=1)
    resampled = np.array(
        [
            _hull_figures((c[:-1], q[:-1]), arms, (c[-1:], q[-1:]))
            for c, q in zip(cost, quality, strict=True)
        ]
    )
    tail = expanded_tail(values.shape[1], bootstrap.level)
    # What a resample does not reach is below all that others do.
    reached = np.where(np.isnan(resampled), -np.inf, resampled)
    low = np.quantile(reached, tail, axis=0, method="lower").tolist()
    high = np.quantile(reached, 1 - tail, axis=0, method="higher").tolist()
    return [
        None if math.isnan(value) else Estimate(value, *map(finite, ends))
        for value, *ends in zip(shown, low, high, strict=True)
    ]


def _hull_figures(points: Points, arms: StaticArms, static: Points) -> tuple[float, float, float]:
    """Mean quality over the range, CostSave, PerfGain; nan where there is none."""
    cost, quality = points
    hull = metrics.frontier(cost, quality)
    corners = cost[hull], quality[hull]
    held_against = float(static[0][0]), float(static[1][0])
    mean, save = math.nan, metrics.cost_save(*corners, *held_against)
    gain = metrics.perf_gain(*corners, *held_against)
    if arms.width > 0:
        mean = metrics.area_under(*corners, arms.low, arms.high) / arms.width
    return mean, math.nan if save is None else save, math.nan if gain is None else gain


def _distance(policies: Sequence[outcome.Outcome], exact: Points, arms: StaticArms) -> float | None:
    """Mean ParetoDist of the policies from the oracle's frontier; None without a range."""
    if arms.width <= 0:
        return None
    points = zip(*(figure.tolist() for figure in outcome.mean_points(policies)), strict=True)
    return float(np.mean([metrics.pareto_distance(c, q, *exact, arms.width) for c, q in points]))


ORDERS = 50  # of joining, drawn where there are more than `EXACT` models
SEED = 0  # of that draw
LARGEST = 30_000_000  # nodes of all sub-pools times queries: about three seconds
FEW = 0.05  # of the oracle's calls


def _add_models(
    found: Estimates, fold: RouteTree, alpha: float, stop: bool, arms: StaticArms | None
) -> None:
    """What each model adds to the oracle's R and frontier, and the prices that it bears.

    `arms`: give the range of costs of the frontier's area; None leaves it out.
    """
    reward, area = _contributions(fold, contribution.oracle_reward(alpha, stop)), None
    if arms and arms.width > 0:
        value, width = contribution.frontier_area(arms.low, arms.high, arms.allow_stop), arms.width
        area = _contributions(fold, lambda tree: value(tree) / width)
    calls = metrics.call_mix(fold.routes, _oracle_endings(fold, alpha, stop)).sum(axis=(0, 1))
    shares = calls / calls.sum()
    for at, model in enumerate(fold.models):
        mix = price_mix(fold, model, alpha, stop)
        worths = {
            "reward_lost": reward.leave_one_out[at] if reward else None,
            "reward_shapley": reward.shapley[at] if reward else None,
        }
        found.add("models", worths, model=model)
        known = {
            "reward_error": reward.error[at] if reward else None,
            "area_lost": area.leave_one_out[at] if area else None,
            "area_shapley": area.shapley[at] if area else None,
            "area_error": area.error[at] if area else None,
            "share": shares[at],
            "below_5_percent": finite(mix.last_at(FEW)),
            "leaves": finite(mix.leaves),
        }
        found.state("models", known, model=model)


def _contributions(fold: RouteTree, value: contribution.Value) -> contribution.Contribution | None:
    """Of each model to a value; None where the pool is too large."""
    if _nodes_valued(fold.routes) * len(fold) > LARGEST:
        return None
    rng = np.random.default_rng(SEED)
    return contribution.contributions(fold, value, rng=rng, permutations=ORDERS)


def _nodes_valued(routes: Routes) -> int:
    """Nodes of all the sub-pools that are valued, about."""
    sizes = range(1, routes.models + 1)
    nodes = [Routes(size, routes.hops).nodes for size in sizes]
    if routes.models > contribution.EXACT:
        return ORDERS * sum(nodes)
    return sum(math.comb(routes.models, size) * n for size, n in zip(sizes, nodes, strict=True))

"""What an analysis of a fold says, as plain values.

In: nothing; these are the types that `hierrouter.analysis` fills and tables, page and JSON read.
Out: `Analysis`: the bound ladder, where a router's regret comes from, its calls, figures of a
frontier, when a further call helps, what each model is worth. The fields are keys of the JSON.
Not covered: what the figures mean and how they mislead (docs/metrics.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from hierrouter.report.certainty import Estimate


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

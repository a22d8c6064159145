"""Cross-fitting: what a policy gains on questions that its training has not seen; do no harm.

The questions of the folds "train" and "validation" are divided into K folds. K times everything
that a training does is done again without one of them: the fixed route is chosen, weights are
learned, and what is left of the fold "validation" chooses the checkpoint. The policy and the route
are then compared on the fold that was left out. So each question is judged once, by a training that
knew nothing of it, and all of them decide instead of the fifth that is the fold "validation". The
test fold is never read.

A router is shipped if the lower end of its gain over the fixed route is above 0, one-sided. The aim
is that it is shipped without a gain with a probability of at most .05. Why this should hold:

* The gain of a question is of a policy and a route that were chosen without it, so its expectation
  is the true gain of this choice, however many checkpoints were compared.
* The folds share questions: where two routes are equally good, the one that is worse on a fold is
  taken for the better one by the others, and the gains of the folds go together. So the test is
  made at `TEST_RATE`. In the worst case, two routes that are exactly equal and a policy that takes
  one or the other, a test at .025 is wrong in .043 of draws, at .05 in .081 (3 folds; with 5 it is
  .055 and .096). Where a route is as good as the best one on one kind of question only, a table
  that can choose freely there is wrong more often, see docs/experiments.md.
* There is a first look, which costs no training and has a part of the rate, `FIRST_LOOK_RATE`. Only
  if it shows nothing the trainings are repeated, and have the rest. For a network it is a look at
  the fold "validation". That fold chose among its checkpoints, so the part is divided by their
  number: a checkpoint is fixed once the fold "train" is, and by the union bound the best of E of
  them shows a gain that does not exist no more often than E times one of them does. The value model
  predicts each question by a fit without it; the route it is compared with is the one that is the
  best on these very questions, which looks better than it is.
* The best of several seeds is a choice, too: each seed has its part of the rate.
* The best of several policy classes is a choice, too: each class has its part of the rate. It is
  compared with the route that is the best on these very questions, which looks better than it is.
  That is more than needed where routes are nearly equal, and what holds where one route is the best
  and another one is as good on one kind of question only: there classes choose freely, nothing is
  gained, and over the routes of the other folds the best of five classes is shown in up to .14 of
  draws at the same rate. Over the best route it is .03 to .07.
* At several alphas one simultaneous test is made. It steps down (Romano and Wolf, Exact and
  Approximate Stepdown Methods for Multiple Hypothesis Testing, Journal of the American Statistical
  Association 100, 2005): where gains are shown, the others are compared again without them.

Intervals are those of `hierrouter.evaluation.intervals`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from hierrouter.declarations.checks import MAX_ALPHA
from hierrouter.evaluation.bounds import (
    RANK_DIGITS,
    REWARD_ROUNDING,
    SMALLEST_GAP,
    best_fixed_route,
    cheapest_best,
    oracle,
    rank_routes,
)
from hierrouter.evaluation.budget import RouteHull, policy_break_points
from hierrouter.evaluation.intervals import (
    DIFFERENCES,
    ValueRange,
    difference_range,
    queries_needed,
    simultaneous_intervals,
)
from hierrouter.evaluation.outcome import Booleans, FixedRoutes, Floats, Integers, Outcome
from hierrouter.learning.config import (
    BestConfig,
    NetworkConfig,
    Objective,
    OnEpoch,
    TianshouConfig,
    ignore_epoch,
)
from hierrouter.learning.own_algorithm import OwnAlgorithm
from hierrouter.learning.policy_classes import sums_by_group
from hierrouter.learning.router import (
    MAX_QUERIES_NEEDED,
    WORTHWHILE_GAIN,
    Constant,
    Ladder,
    PolicyFamily,
    TrainedRouter,
    choosing_fold,
    training_queries,
)
from hierrouter.learning.sweep import MEASURED_ALPHAS, FixedChoices, TrainedSweep, train_sweep
from hierrouter.learning.training import train
from hierrouter.learning.value import BEYOND_LAST_BREAK_POINT, query_digests
from hierrouter_cache.tree import RouteTree, net_reward

# Rates at which gains are tested, one-sided: of both looks together, and of the first one.
TEST_RATE = 0.03
FIRST_LOOK_RATE = 0.006
FOLDS = 3  # K
RESAMPLES = 10_000
# Questions on which policy classes are compared, at most: as many as a value model learns from.
MAX_CONTEST_QUESTIONS = 16_384


@dataclass(frozen=True)
class OutOfFold:
    """Q and C of policies on each question, each by a training without this question.

    Attributes:
        alphas: of each policy.
        quality: float64[alphas, queries].
        cost: float64[alphas, queries], in money.
    """

    alphas: tuple[float, ...]
    quality: Floats
    cost: Floats

    @classmethod
    def of(cls, alphas: Sequence[float], outcomes: Sequence[Outcome]) -> OutOfFold:
        """Those of one policy for each alpha."""
        return cls(
            tuple(alphas),
            np.array([outcome.quality for outcome in outcomes]),
            np.array([outcome.cost for outcome in outcomes]),
        )

    @property
    def reward(self) -> Floats:
        """float64[alphas, queries], R at each policy's own alpha."""
        return net_reward(self.quality, self.cost, np.array(self.alphas)[:, None])


@dataclass(frozen=True)
class Repetition:
    """How the trainings of a policy are done again.

    Attributes:
        own: the algorithm of the user that the settings name; None if they name none.
        candidates: trainings of which the best one is taken, such as several seeds.
        context: called with the number of the training, from 1, and how many there are; returns the
            context in which it runs, whose value is called after each evaluation.
    """

    own: OwnAlgorithm | None = None
    candidates: int = 1
    context: Callable[[int, int], AbstractContextManager[OnEpoch]] = lambda number, count: (
        nullcontext(ignore_epoch)
    )


def question_folds(tree: RouteTree, count: int, seed: int) -> Integers:
    """Divide the questions of a tree into folds.

    A question's place comes from its digest, not from its row. Each fold has an equal share of each
    dataset, and of each fold of the tree.

    Args:
        tree: the questions.
        count: number of folds.
        seed: other seeds give other folds.

    Returns:
        int64[queries], the fold of each, from 0.
    """
    keys = []
    for dataset, query in zip(tree.datasets, tree.query_ids, strict=True):
        digest = hashlib.sha256(f"{seed}\n{dataset}\n{query}".encode()).digest()
        keys.append(int.from_bytes(digest[:8], "big", signed=True))
    order = np.lexsort((np.array(keys), np.array(tree.datasets), np.array(tree.splits)))
    folds = np.empty(len(tree), np.int64)
    folds[order] = np.arange(len(tree)) % count
    return folds


def policies_out_of_fold(
    tree: RouteTree,
    alphas: Sequence[float],
    folds: Integers,
    fit: Callable[[int, RouteTree], Callable[[float], TrainedRouter]],
) -> OutOfFold:
    """Judge each question by a training on the other folds.

    Args:
        tree: the questions to learn from.
        alphas: at which the policies are judged.
        folds: int64[queries], of `question_folds`.
        fit: called with the number of a fold and the tree without it; trains, and returns the
            router for an alpha.
    """
    shape = (len(alphas), len(tree))
    quality = np.empty(shape)
    cost = np.empty(shape)
    for fold in np.unique(folds).tolist():
        rows = np.flatnonzero(folds == fold)
        judged = tree.select(rows)
        router_at = fit(fold, tree.select(np.flatnonzero(folds != fold)))
        for number, alpha in enumerate(alphas):
            outcome = router_at(alpha).outcome(judged)
            quality[number, rows] = outcome.quality
            cost[number, rows] = outcome.cost
    return OutOfFold(tuple(alphas), quality, cost)


def routes_out_of_fold(
    tree: RouteTree, alphas: Sequence[float], folds: Integers, allow_stop: bool
) -> OutOfFold:
    """Take on each question the fixed route that is the best on the other folds.

    Args:
        tree: the questions to choose from.
        alphas: at which routes are chosen.
        folds: int64[queries], numbers from 0, all of which occur; `arange` leaves out each question
            alone.
        allow_stop: whether routes of fewer than L calls count.
    """
    means = FixedRoutes(tree, allow_stop)
    shape = (len(alphas), len(tree))
    quality = np.empty(shape)
    cost = np.empty(shape)
    if not means.is_complete:
        for fold in np.unique(folds).tolist():
            rows = np.flatnonzero(folds == fold)
            judged = tree.select(rows)
            others = tree.select(np.flatnonzero(folds != fold))
            for number, alpha in enumerate(alphas):
                outcome = best_fixed_route(others, alpha, judged, allow_stop)
                quality[number, rows] = outcome.quality
                cost[number, rows] = outcome.cost
        return OutOfFold(tuple(alphas), quality, cost)
    mean_quality = _means_without(means.quality, folds)
    mean_cost = _means_without(means.cost, folds)
    rows = np.arange(len(tree))
    for number, alpha in enumerate(alphas):
        # Rounded: the sums of equally good routes must not decide between them.
        reward = np.round(net_reward(mean_quality, mean_cost, alpha), RANK_DIGITS)
        best = cheapest_best(reward, np.round(mean_cost, RANK_DIGITS))[folds]
        quality[number] = means.quality[rows, best]
        cost[number] = means.cost[rows, best]
    return OutOfFold(tuple(alphas), quality, cost)


def _means_without(values: Floats, folds: Integers) -> Floats:
    """float64[folds, routes]: means of float64[queries, routes] without the queries of a fold."""
    sums, count = sums_by_group(values, folds)
    left = len(values) - count
    return (values.sum(axis=0) - sums) / np.maximum(left, 1)[:, None]


def shown_gains(
    gains: Floats,
    rate: float,
    within: Sequence[ValueRange] | None = None,
    strata: Sequence[str] | None = None,
) -> tuple[Floats, Floats]:
    """Bound the means of some gains, such that all lower bounds above 0 hold at once.

    Args:
        gains: float64[comparisons, queries], paired by query.
        rate: probability that the lower bound of a gain is above 0 that is not, one-sided.
        within: the values that each gain may have; None is those of a share.
        strata: the dataset of each query; None is one for all.

    Returns:
        Low and high, float64[comparisons] each: those of the step in which a gain was shown, or of
        the last step. -inf and inf if the queries are too few to show anything: all differences may
        have one sign by chance.
    """
    count, queries = gains.shape
    low = np.full(count, -np.inf)
    high = np.full(count, np.inf)
    if 0.5**queries > rate:
        return low, high
    ranges = [DIFFERENCES] * count if within is None else within
    still_open = np.arange(count)
    while len(still_open):
        ends = simultaneous_intervals(
            gains[still_open],
            RESAMPLES,
            1 - 2 * rate,
            np.random.default_rng(0),
            [ranges[number] for number in still_open.tolist()],
            strata,
        )
        low[still_open], high[still_open] = ends
        is_shown = ends[0] > REWARD_ROUNDING
        if not is_shown.any():
            break
        still_open = still_open[~is_shown]
    return low, high


def with_fallback(
    router: TrainedRouter, tree: RouteTree, repetition: Repetition | None = None
) -> TrainedRouter:
    """The same router, with a constant choice in its place if it shows no gain.

    The gain is that over the best fixed route (one of fewer calls too, if the router may stop).
    Where queries do not offer that route, the constant takes others, see `rank_routes`.

    Args:
        router: as it was trained.
        tree: the tree it learned from; all folds, or all but the test fold.
        repetition: how a network is trained again; None judges it by its fold "validation" alone.
    """
    if router.origin.config.keep_anyway:
        return router
    questions = training_queries(tree)
    alphas = (router.alpha,)
    judged = _judged_gains(router, questions, alphas, lambda alpha: router, repetition)
    return _with_constant(router, questions, judged)


def _with_constant(
    router: TrainedRouter, questions: RouteTree, judged: JudgedGains
) -> TrainedRouter:
    """The router with a constant choice if no gain was shown at its alpha.

    Args:
        router: without a constant choice.
        questions: on which fixed routes are chosen.
        judged: the gains at this alpha alone.
    """
    [constant] = judged.constants(questions, (router.alpha,), router.objective.ends_early)
    return replace(router, constant=constant) if constant else router


def sweep_with_fallback(
    sweep: TrainedSweep, tree: RouteTree, repetition: Repetition | None = None
) -> TrainedSweep:
    """The sweep with the constant of `with_fallback` at every alpha, by one simultaneous test.

    Args:
        sweep: as it was trained.
        tree: the tree it learned from; all folds, or all but the test fold.
        repetition: how networks are trained again; None judges them by their fold "validation"
            alone.
    """
    alone = replace(sweep, constants=(), fixed=None)
    if sweep.origin.config.keep_anyway:
        return replace(alone, constants=(None,) * len(sweep.alphas))
    questions = training_queries(tree)
    hull = RouteHull.of(questions, sweep.objective.ends_early)
    further = [*hull.changes.tolist(), *sweep.model.changes(sweep.alphas)]
    alphas = _measured_alphas(questions, sweep.objective, (*sweep.alphas, *further))
    judged = _judged_gains(alone.at(alphas[0]), questions, alphas, alone.at, repetition, sweep)
    return _with_constants(sweep, questions, hull, alphas, judged)


def _measured_alphas(
    questions: RouteTree, objective: Objective, further: Sequence[float]
) -> tuple[float, ...]:
    """Alphas at which routers are measured: some over the range in which cost decides, and further.

    Args:
        questions: of the folds that may be learned from.
        objective: how an episode may end.
        further: alphas that are to be among them.
    """
    break_points = policy_break_points(questions, objective.ends_early)
    # Above the last break-point the cheapest route is the best of every query.
    last = BEYOND_LAST_BREAK_POINT * break_points[-1:]
    candidates = break_points
    if len(candidates) > MEASURED_ALPHAS:
        candidates = np.quantile(break_points, np.linspace(0, 1, MEASURED_ALPHAS))
    points = np.concatenate([[0.0], candidates, last, further])
    return tuple(np.unique(np.minimum(points, MAX_ALPHA)).tolist())


def _with_constants(
    sweep: TrainedSweep,
    questions: RouteTree,
    hull: RouteHull,
    alphas: tuple[float, ...],
    judged: JudgedGains,
) -> TrainedSweep:
    """The sweep with a constant choice at each alpha where no gain was shown.

    Args:
        sweep: without constant choices.
        questions: on which fixed routes are chosen.
        hull: of these.
        alphas: where gains were judged, the grid among them.
        judged: the gains there.
    """
    constants = judged.constants(questions, alphas, sweep.objective.ends_early)
    by_alpha = dict(zip(alphas, constants, strict=True))
    return replace(
        sweep,
        constants=tuple(by_alpha[alpha] for alpha in sweep.alphas),
        fixed=FixedChoices(hull, alphas, constants),
    )


@dataclass(frozen=True)
class JudgedGains:
    """Gains over the best fixed route, and what they show.

    Attributes:
        gains: float64[alphas, queries].
        low: float64[alphas], see `shown_gains`.
        high: float64[alphas].
        rate: at which they were tested.
        is_cross_fitted: whether all questions that can be learned from have judged.
        reach: float64[alphas], the largest loss that a query may have.
    """

    gains: Floats
    low: Floats
    high: Floats
    rate: float
    is_cross_fitted: bool
    reach: Floats

    @classmethod
    def of(
        cls,
        policies: OutOfFold,
        routes: OutOfFold,
        rate: float,
        judged: RouteTree,
        is_cross_fitted: bool,
    ) -> JudgedGains:
        """Judge gains at a rate of false positives.

        Args:
            policies: what gains.
            routes: what it gains over.
            rate: see `shown_gains`.
            judged: the queries of both.
            is_cross_fitted: see the attributes.
        """
        gains = policies.reward - routes.reward
        within = [
            difference_range(alpha, cost, other_cost)
            for alpha, cost, other_cost in zip(
                policies.alphas, policies.cost, routes.cost, strict=True
            )
        ]
        low, high = shown_gains(gains, rate, within, judged.datasets)
        reach = np.array([-row_range.low for row_range in within])
        return cls(gains, low, high, rate, is_cross_fitted, reach)

    @classmethod
    def unknown(cls, gains: Floats, is_cross_fitted: bool) -> JudgedGains:
        """Gains that show nothing, because there are no questions that can judge.

        Args:
            gains: float64[alphas, queries].
            is_cross_fitted: see the attributes.
        """
        ends = np.full(len(gains), np.inf)
        return cls(gains, -ends, ends, TEST_RATE, is_cross_fitted, np.zeros(len(gains)))

    def or_shown_by(self, other: JudgedGains) -> JudgedGains:
        """The same gains, with the ends of another look at each alpha where that shows a gain."""
        return replace(
            self,
            low=np.where(other.is_shown, other.low, self.low),
            high=np.where(other.is_shown, other.high, self.high),
        )

    @property
    def is_shown(self) -> Booleans:
        """bool[alphas]: whether there is a gain."""
        return self.low > REWARD_ROUNDING

    def constants(
        self, questions: RouteTree, alphas: Sequence[float], allow_stop: bool
    ) -> tuple[Constant | None, ...]:
        """Make the constant choice of each alpha; None where a gain is shown.

        Args:
            questions: on which fixed routes are chosen.
            alphas: in the order of the gains.
            allow_stop: whether routes of fewer than L calls count.
        """
        constants: list[Constant | None] = []
        for number, alpha in enumerate(alphas):
            if self.is_shown[number]:
                constants.append(None)
                continue
            node, *others = rank_routes(questions, alpha, allow_stop)
            constants.append(self._constant(number, node, others))
        return tuple(constants)

    def _constant(self, number: int, node: int, others: Sequence[int]) -> Constant:
        """Make the constant choice for an alpha, by its number; see `Constant`."""
        gains = self.gains[number]
        low = float(self.low[number])
        high = float(self.high[number])
        spread = float(gains.std(ddof=1)) if len(gains) > 1 else 0.0
        needed = 0
        if spread:
            reach = float(self.reach[number])
            needed = queries_needed(WORTHWHILE_GAIN, spread, reach, self.rate)
            needed = min(needed, MAX_QUERIES_NEEDED)
        gain = float(gains.mean())
        if not np.isfinite(low):
            # So few questions bound nothing; a file has finite numbers.
            low = min(gain, float(gains.min()))
            high = max(gain, float(gains.max()))
        return Constant(
            node,
            gain,
            low,
            high,
            needed,
            len(gains),
            others=tuple(others),
            cross_fitted=self.is_cross_fitted,
        )


def _judged_gains(
    router: TrainedRouter,
    questions: RouteTree,
    alphas: tuple[float, ...],
    router_at: Callable[[float], TrainedRouter],
    repetition: Repetition | None,
    sweep: TrainedSweep | None = None,
) -> JudgedGains:
    """Judge the gains of the routers for some alphas, see `with_fallback`.

    Args:
        router: one of them.
        questions: of the folds that may be learned from.
        alphas: ascending.
        router_at: returns the router for an alpha, without a constant choice.
        repetition: see `with_fallback`.
        sweep: the sweep that they belong to; None for a single router.
    """
    ends_early = router.objective.ends_early
    config = router.origin.config
    folds = min(FOLDS, questions.splits.count("train"))
    has_algorithm = repetition and (repetition.own or not isinstance(config, TianshouConfig))
    repeats = bool(has_algorithm) and folds > 1
    rate = TEST_RATE / (repetition.candidates if repetition else 1)
    first = None
    if router.holds_out or choosing_fold(questions) != "train":
        looks = 1 if router.holds_out else max(len(router.history), 1)
        share = FIRST_LOOK_RATE / TEST_RATE if repeats else 1.0
        learned = router.constant_fold(questions)
        judged = router.judging_fold(questions)
        compared = _compared(learned, judged, alphas, router_at, ends_early)
        first = JudgedGains.of(*compared, rate * share / looks, judged, router.holds_out)
        if not repeats or first.is_shown.all():
            return first
        rate *= 1 - share
    if not repeats or repetition is None:
        # There are no questions but those that it learned from, and they show nothing.
        policies, routes = _compared(questions, questions, alphas, router_at, ends_early)
        return JudgedGains.unknown(policies.reward - routes.reward, is_cross_fitted=False)
    number = question_folds(questions, folds, router.origin.seed)

    def fit(fold: int, learned: RouteTree) -> Callable[[float], TrainedRouter]:
        with repetition.context(fold + 1, folds) as on_epoch:
            if sweep:
                return train_sweep(
                    learned, sweep.alphas, sweep.objective, config, sweep.origin.seed, on_epoch
                ).at
            own = repetition.own
            again = train(learned, router.objective, config, router.origin.seed, on_epoch, own=own)
            return lambda alpha: again

    policies = policies_out_of_fold(questions, alphas, number, fit)
    routes = routes_out_of_fold(questions, alphas, number, ends_early)
    second = JudgedGains.of(policies, routes, rate, questions, is_cross_fitted=True)
    return second.or_shown_by(first) if first else second


def _compared(
    learned: RouteTree,
    judged: RouteTree,
    alphas: tuple[float, ...],
    router_at: Callable[[float], TrainedRouter],
    ends_early: bool,
) -> tuple[OutOfFold, OutOfFold]:
    """What some routers do on one fold, and the routes that are the best on another one."""
    policies = [router_at(alpha).outcome(judged) for alpha in alphas]
    routes = [best_fixed_route(learned, alpha, judged, ends_early) for alpha in alphas]
    return OutOfFold.of(alphas, policies), OutOfFold.of(alphas, routes)


def train_best(
    tree: RouteTree,
    objective: Objective,
    config: BestConfig,
    seed: int,
    on_epoch: OnEpoch = ignore_epoch,
) -> TrainedRouter:
    """Train the best of several policy classes, chosen and judged by one cross-fit.

    All classes are trained without each fold. The one with the highest mean gain on the questions
    that were left out is trained on all questions. It is shipped if these gains show that it is
    better than the route that is the best on the same questions: both were chosen by what judges
    them.

    Args:
        tree: all folds, or all but the test fold.
        objective: alpha, and how an episode may end.
        config: which classes.
        seed: of everything random.
        on_epoch: called after each training with how many are done.

    Raises:
        InputError: there is nothing to train on, or a training diverged.
    """
    questions = training_queries(tree)
    grid = (objective.alpha,)
    contest = _Contest.of(questions, grid, grid, objective, config, seed, on_epoch)
    router = train(tree, objective, config.configs[contest.best], seed)
    router = replace(router, ladder=contest.ladder)
    if config.keep_anyway:
        return router
    return _with_constant(router, questions, contest.judged)


def sweep_best(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: BestConfig,
    seed: int,
    on_epoch: OnEpoch = ignore_epoch,
) -> TrainedSweep:
    """Sweep with the best of several policy classes, see `train_best`.

    One class is chosen for all alphas: that with the highest mean gain over the alphas at which
    gains are measured, each as a share of the gap between the best fixed route and the oracle.

    Args:
        tree: all folds, or all but the test fold.
        alphas: the grid.
        objective: how an episode may end; its alpha is not used.
        config: which classes.
        seed: of everything random.
        on_epoch: called after each training with how many are done.

    Raises:
        InputError: there is nothing to learn from.
    """
    questions = training_queries(tree)
    hull = RouteHull.of(questions, objective.ends_early)
    measured = _measured_alphas(questions, objective, (*alphas, *hull.changes.tolist()))
    contest = _Contest.of(questions, alphas, measured, objective, config, seed, on_epoch)
    sweep = train_sweep(tree, alphas, objective, config.configs[contest.best], seed)
    sweep = replace(sweep, ladder=contest.ladder)
    if config.keep_anyway:
        return replace(sweep, constants=(None,) * len(sweep.alphas))
    return _with_constants(sweep, questions, hull, measured, contest.judged)


@dataclass(frozen=True)
class _Contest:
    """Policy classes that were cross-fitted on the same folds.

    Attributes:
        ladder: the mean gain of each class, the simplest class first.
        best: the class with the highest mean gain; of equal ones the simplest.
        judged: its gains, and what they show.
    """

    ladder: Ladder
    best: str
    judged: JudgedGains

    @classmethod
    def of(
        cls,
        questions: RouteTree,
        grid: Sequence[float],
        alphas: tuple[float, ...],
        objective: Objective,
        config: BestConfig,
        seed: int,
        on_epoch: OnEpoch,
    ) -> _Contest:
        """Train every class without each fold, see `train_best`.

        Args:
            questions: of the folds that may be learned from; of very many a fixed part is taken.
            grid: alphas for which the classes are trained.
            alphas: at which gains are measured.
            objective: how an episode may end.
            config: which classes.
            seed: of the folds, and of all trainings.
            on_epoch: see `train_best`.
        """
        if len(questions) > MAX_CONTEST_QUESTIONS:
            # The first ones in the order of their digests are as good as random ones.
            order = np.argsort(query_digests(questions), kind="stable")
            questions = questions.select(np.sort(order[:MAX_CONTEST_QUESTIONS]))
        count = min(FOLDS, questions.splits.count("train"))
        names = list(config.configs)
        ends_early = objective.ends_early
        if count < 2:
            # A single question cannot judge what was learned without it.
            nothing = np.zeros((len(alphas), len(questions)))
            judged = JudgedGains.unknown(nothing, is_cross_fitted=True)
            return cls(tuple((name, 0.0) for name in names), names[0], judged)
        folds = question_folds(questions, count, seed)
        routes = routes_out_of_fold(questions, alphas, folds, ends_early)
        total = count * len(names) + 1
        done = 0

        def on_training() -> None:
            nonlocal done
            done += 1
            on_epoch(done, total, math.nan, math.nan)

        shape = (len(names), len(alphas), len(questions))
        quality = np.empty(shape)
        cost = np.empty(shape)
        for fold in range(count):
            rows = np.flatnonzero(folds == fold)
            judged_rows = questions.select(rows)
            learned = questions.select(np.flatnonzero(folds != fold))
            classes = _train_classes(learned, grid, objective, config, seed, on_training)
            for number, router_at in enumerate(classes):
                for position, alpha in enumerate(alphas):
                    outcome = router_at(alpha).outcome(judged_rows)
                    quality[number, position, rows] = outcome.quality
                    cost[number, position, rows] = outcome.cost
        reward = net_reward(quality, cost, np.array(alphas)[:, None])
        gains = reward - routes.reward
        if len(alphas) > 1:
            most = [oracle(questions, alpha, ends_early).reward(alpha).mean() for alpha in alphas]
            gap = np.maximum(np.array(most) - routes.reward.mean(axis=1), SMALLEST_GAP)
            gains /= gap[:, None]
        scores = gains.mean(axis=(1, 2))
        best = int(scores.round(RANK_DIGITS).argmax())  # of equal ones the first
        policies = OutOfFold(alphas, quality[best], cost[best])
        best_routes = [
            best_fixed_route(questions, alpha, questions, ends_early) for alpha in alphas
        ]
        of_all = OutOfFold.of(alphas, best_routes)
        rate = TEST_RATE / len(names)
        judged = JudgedGains.of(policies, of_all, rate, questions, is_cross_fitted=True)
        ladder = tuple(zip(names, scores.tolist(), strict=True))
        return cls(ladder, names[best], judged)


def _always(router: TrainedRouter) -> Callable[[float], TrainedRouter]:
    """A function that returns a router, whatever the alpha."""
    return lambda alpha: router


def _train_classes(
    learned: RouteTree,
    grid: Sequence[float],
    objective: Objective,
    config: BestConfig,
    seed: int,
    on_training: Callable[[], None],
) -> list[Callable[[float], TrainedRouter]]:
    """Train every class on the same questions; each entry returns the router for an alpha.

    Args:
        learned: the questions.
        grid: alphas to train for.
        objective: how an episode may end; its alpha is that of the grid, if that has only one.
        config: which classes.
        seed: of all trainings.
        on_training: called after each of them.
    """
    classes: list[Callable[[float], TrainedRouter]] = []
    fitted: dict[str, PolicyFamily] = {}
    for name, settings in config.configs.items():
        if isinstance(settings, NetworkConfig) and len(grid) == 1:
            router = train(learned, replace(objective, alpha=grid[0]), settings, seed)
            classes.append(_always(router))
        else:
            sweep = train_sweep(learned, grid, objective, settings, seed, fitted=fitted)
            fitted[name] = sweep.model
            classes.append(sweep.at)
        on_training()
    return classes

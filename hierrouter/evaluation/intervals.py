"""Confidence intervals of means, differences, ratios and shares, by weighting queries at random.

Every interval of the project comes from here. What could other queries of the same kind show? Each
query that there is gets a random weight from the exponential distribution (Rubin 1981, The Bayesian
Bootstrap), and one query that nobody has seen gets a further weight. For the lower end of an
interval the unseen query has the lowest value that is possible, for the upper end the highest: see
`ValueRange`. So an event that did not occur in 30 queries still counts, and no interval is without
width because all values happen to be equal.
"""

import math
from ast import literal_eval
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import REWARD_ROUNDING, SMALLEST_GAP
from hierrouter.evaluation.outcome import Booleans, Floats, Integers, Outcome

# Weights are drawn in batches, of fewer resamples if there are many queries: this bounds the memory
# at about 8 bytes * DRAWS_PER_BATCH and keeps the weights in the processor's cache. The size of a
# batch changes nothing but rounding.
RESAMPLES_PER_BATCH = 128
DRAWS_PER_BATCH = 1 << 17
# Up to this number of draws, the weights are cached, 4 bytes each: the next figures of the same
# queries need them again.
MAX_CACHED_DRAWS = 1 << 25
# From this number of queries on, weighted means are as good as normal: their percentiles differ
# from those of the limit by less than those of 10,000 resamples do from one seed to the next.
NORMAL_LIMIT_QUERIES = 20_000

# The weight of the unseen query is gamma-distributed with this shape; that of a query that was seen
# has shape 1. Of values 0 and 1 the ends are then about those of Jeffreys's interval. The full
# weight, 1, would be Gaffke's bound (2005), which holds for all distributions and is wider.
UNSEEN_SHAPE = 0.5
# Where nothing bounds the values, the unseen query may be this many times further from their median
# than the furthest value. With 2.5 the intervals of 30 lognormal costs (sigma 1.5) hold the mean.
REACH_BEYOND_SEEN = 2.5
# Strata with fewer queries than this are taken together: their own spread is unknown.
MIN_STRATUM_QUERIES = 5

CONFIDENCE_LEVEL = 0.95
TEST_POWER = 0.8  # probability that the test of `queries_needed` finds a difference that exists

# Differences that are resampled together: bounds the memory at 32 bytes * this * resamples.
DIFFERENCES_PER_BATCH = 256

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class ValueRange:
    """The values that a query may have, so that what was not seen is counted.

    Attributes:
        low: the lowest value; -inf if nothing bounds it.
        high: the highest value; inf if nothing bounds it.
    """

    low: float = -math.inf
    high: float = math.inf

    def ends(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the values of an unseen query for the lower and the upper end of an interval.

        An end that nothing bounds is the median -+ `REACH_BEYOND_SEEN` times the largest distance
        of a value, or of the other end, from it. Values outside the range extend it.

        Args:
            values: float64[rows, queries], at least 1 query.

        Returns:
            float64[rows] each.
        """
        rows = len(values)
        return _unseen_values(values, np.full(rows, self.low), np.full(rows, self.high))


def _unseen_values(values: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Compute `ValueRange.ends` of rows with different ranges, float64[rows] each."""
    middle = np.median(values, axis=1)
    smallest = values.min(axis=1)
    largest = values.max(axis=1)
    distance = np.maximum(largest - middle, middle - smallest)
    for bound in (low, high):
        to_bound = np.where(np.isfinite(bound), np.abs(middle - bound), 0.0)
        distance = np.maximum(distance, to_bound)
    # All values are equal: the unseen one may be of the same size with the other sign.
    reach = REACH_BEYOND_SEEN * np.where(distance > 0, distance, np.abs(middle))
    return (
        np.where(np.isinf(low), middle - reach, np.minimum(low, smallest)),
        np.where(np.isinf(high), middle + reach, np.maximum(high, largest)),
    )


SHARES = ValueRange(0.0, 1.0)  # Q, accuracy, and whether something holds
DIFFERENCES = ValueRange(-1.0, 1.0)  # of two shares; of R, where cost decides little
AMOUNTS = ValueRange(0.0)  # costs and seconds
UNBOUNDED = ValueRange()


def largest_amount(amounts: Floats) -> float:
    """Return the highest cost that an unseen query may have, see `ValueRange`.

    Args:
        amounts: float64[queries], costs that were seen; 0 is returned without any.
    """
    if not len(amounts):
        return 0.0
    return float(AMOUNTS.ends(amounts[None])[1][0])


def reward_range(alpha: float, cost: Floats) -> ValueRange:
    """Return the range of R = Q - alpha * C of a policy.

    Args:
        alpha: weight of cost in R.
        cost: float64[queries], costs of the policy.
    """
    return ValueRange(-alpha * largest_amount(cost), 1.0)


def difference_range(alpha: float, cost: Floats, other_cost: Floats) -> ValueRange:
    """Return the range of R of a policy, less R of another one.

    Args:
        alpha: weight of cost in R.
        cost: float64[queries], costs of the policy.
        other_cost: float64[queries], costs of the other one.
    """
    low = reward_range(alpha, cost).low
    other_low = reward_range(alpha, other_cost).low
    return ValueRange(low - 1.0, 1.0 - other_low)


class Strata(NamedTuple):
    """Groups of queries that were sampled apart, such as the data sets of a fold.

    Attributes:
        codes: int64[queries], the number of each query's group.
        sizes: int64[groups], the number of queries of each.
    """

    codes: Integers
    sizes: Integers

    @classmethod
    def of(cls, names: Sequence[Any] | Integers | None, queries: int) -> "Strata":
        """Make the strata of some queries.

        Groups of fewer than `MIN_STRATUM_QUERIES` are taken together; if these are too few still,
        with the next smallest one.

        Args:
            names: the group of each query, text or number; None is one group.
            queries: their number.

        Raises:
            ValueError: there are no queries.
        """
        if queries == 0:
            raise ValueError("no queries to resample")
        if names is None:
            return cls(np.zeros(queries, np.int64), np.array([queries]))
        _, codes, sizes = np.unique(np.asarray(names), return_inverse=True, return_counts=True)
        order = np.argsort(sizes, kind="stable")
        is_small = sizes[order] < MIN_STRATUM_QUERIES
        pooled = int(is_small.sum())
        if pooled and sizes[order[:pooled]].sum() < MIN_STRATUM_QUERIES:
            pooled = min(pooled + 1, len(sizes))
        codes_of_groups = np.empty(len(sizes), np.int64)
        codes_of_groups[order] = np.maximum(np.arange(len(sizes)) - max(pooled - 1, 0), 0)
        codes = codes_of_groups[codes]
        return cls(codes, np.bincount(codes))

    @property
    def shares(self) -> Floats:
        """float64[groups], the share of the queries that each has."""
        return self.sizes / self.sizes.sum()

    def tail(self, level: float = CONFIDENCE_LEVEL) -> float:
        """Compute the share of the resamples to cut off at each end, see `expanded_tail`."""
        # The variance of a weighted mean is (n - 1) / (n + 1) of the unbiased one in each group.
        shrinkage = float((self.shares * (self.sizes - 1) / (self.sizes + 1)).sum())
        return expanded_tail(int((self.sizes - 1).sum()), shrinkage, (1 - level) / 2)


def expanded_tail(freedom: int, shrinkage: float, tail: float) -> float:
    """Compute the share to cut off at each end, so that few queries get wide intervals.

    Plain percentiles are too narrow for few queries. These lie as much further out as Student's
    interval is wider (Hesterberg 2015, What Teachers Should Know About the Bootstrap, The American
    Statistician 69(4), section 5.3.2).

    Args:
        freedom: degrees of freedom of the spread: queries less strata.
        shrinkage: variance of the resampled means, by the unbiased one.
        tail: the share that would be cut off of many queries.

    Returns:
        Below `tail`, and closer to it the more queries there are; 0 if there is no spread.
    """
    from scipy import special

    if tail <= 0 or shrinkage <= 0 or freedom < 1:
        return 0.0
    return float(special.ndtr(special.stdtrit(freedom, tail) / math.sqrt(shrinkage)))


@dataclass(frozen=True)
class Resamples:
    """Weighted means of the same queries with many draws of the weights.

    Attributes:
        means: float64[rows], without weights.
        deviations: float64[rows, n], sums of weight times value less mean, over the queries that
            were seen.
        unseen: float64[n], weight of the unseen query; it and the other weights add up to 1.
        strata: of the queries.
    """

    means: Floats
    deviations: Floats
    unseen: Floats
    strata: Strata

    def including(self, values: Floats) -> Floats:
        """Return float64[rows, n], the means if the unseen query has float64[rows] values."""
        return self._deviations_including(values) + self.means[:, None]

    def _deviations_including(self, values: Floats) -> Floats:
        """Return `including`, less `means`: float64[rows, n], a new array."""
        deviations = np.multiply.outer(values - self.means, self.unseen)
        deviations += self.deviations
        return deviations

    def interval(
        self, lowest: Floats, highest: Floats, level: float = CONFIDENCE_LEVEL
    ) -> tuple[Floats, Floats]:
        """Compute expanded percentiles of the mean of each row.

        Args:
            lowest: float64[rows], the values of the unseen query for the lower ends.
            highest: float64[rows], for the upper ends.
            level: confidence level, in (0, 1).

        Returns:
            Low and high, float64[rows] each.
        """
        tail = self.strata.tail(level)
        low = _quantile(self._deviations_including(lowest), tail)
        high = _quantile(self._deviations_including(highest), 1 - tail)
        return self.means + low, self.means + high


def _quantile(values: Floats, share: float) -> Floats:
    """Compute a quantile of each row, float64[rows], and leave the rows in another order.

    It is that of `np.quantile`, which also looks for the largest and the smallest value and takes
    twice as long.
    """
    position = share * (values.shape[1] - 1)
    rank = min(int(position), values.shape[1] - 2)
    if rank < 0:
        return values[:, 0]
    values.partition((rank, rank + 1), axis=1)
    below = values[:, rank]
    return below + (position - rank) * (values[:, rank + 1] - below)


def resample(
    values: Floats, n: int, rng: np.random.Generator, strata: Sequence[Any] | Integers | None = None
) -> Resamples:
    """Compute weighted means of the queries n times, with the same weights for every row.

    The weights of the queries of a stratum add up to its share of the queries: folds are cut in
    each data set, so the number of its queries is no accident. The weight of the unseen query is
    divided among the strata by their size.

    From `NORMAL_LIMIT_QUERIES` queries on the means are drawn from their normal limit, with the
    same means and covariances: each query is then read only once.

    Args:
        values: float64[rows, queries].
        n: number of resamples.
        rng: source of the draws; equal states give equal resamples.
        strata: the group of each query; None is one group for all.

    Raises:
        ValueError: there are no queries.
    """
    queries = values.shape[1]
    groups = Strata.of(strata, queries)
    if queries >= NORMAL_LIMIT_QUERIES:
        unseen = rng.standard_gamma(UNSEEN_SHAPE, n) / queries
        deviations = _draw_normal_deviations(values, n, rng, groups)
        return Resamples(values.mean(axis=1), deviations, unseen, groups)
    if n * queries > MAX_CACHED_DRAWS:
        return _weigh(values, _draw_weights(groups, n, rng), groups)
    state = repr(rng.bit_generator.state)
    weights, state_after = _cached_weights(state, groups.codes.tobytes(), queries, n)
    rng.bit_generator.state = state_after
    return _weigh(values, weights, groups)


def _draw_normal_deviations(
    values: Floats, n: int, rng: np.random.Generator, strata: Strata
) -> Floats:
    """Draw deviations of means from the normal distribution that they have in the limit."""
    queries = values.shape[1]
    means_of_strata = np.stack([np.bincount(strata.codes, row) / strata.sizes for row in values])
    covariance = np.zeros((len(values), len(values)))
    for start in range(0, queries, DRAWS_PER_BATCH):
        part = slice(start, start + DRAWS_PER_BATCH)
        centered = values[:, part] - means_of_strata[:, strata.codes[part]]
        covariance += centered @ centered.T
    scale, axes = np.linalg.eigh(covariance / queries**2)
    # Rounding can make the smallest eigenvalues negative.
    return axes * np.sqrt(np.maximum(scale, 0)) @ rng.standard_normal((len(values), n))


WeightBatch = tuple[Weights, Floats]  # of the queries, and of the unseen one


@lru_cache(maxsize=2)
def _cached_weights(
    state: str, codes: bytes, queries: int, n: int
) -> tuple[list[WeightBatch], dict[str, Any]]:
    """Draw the weights with a generator in a given state.

    Args:
        state: `repr` of the state of the generator's bit generator, so that it can be a cache key.
        codes: bytes of the codes of the strata, see `Strata`.
        queries: number of queries.
        n: number of resamples.

    Returns:
        The weights, see `_draw_weights`, and the state of the bit generator afterwards.
    """
    rng = np.random.default_rng()
    rng.bit_generator.state = literal_eval(state)
    numbers = np.frombuffer(codes, np.int64)
    strata = Strata(numbers, np.bincount(numbers, minlength=1))
    return list(_draw_weights(strata, n, rng)), dict(rng.bit_generator.state)


def _draw_weights(strata: Strata, n: int, rng: np.random.Generator) -> Iterator[WeightBatch]:
    """Yield float32[batch, queries] and float64[batch], batch after batch: the weights."""
    queries = len(strata.codes)
    batch = max(1, min(RESAMPLES_PER_BATCH, DRAWS_PER_BATCH // queries))
    unseen = rng.standard_gamma(UNSEEN_SHAPE * strata.shares, (n, len(strata.sizes)))
    members = np.eye(len(strata.sizes), dtype=np.float32)[strata.codes]
    for start in range(0, n, batch):
        of_batch = unseen[start : start + batch]
        drawn = rng.standard_exponential((len(of_batch), queries), dtype=np.float32)
        # Weights of a stratum and of its part of the unseen query add up to its share.
        scale = strata.shares / (drawn @ members + of_batch)
        if len(strata.sizes) == 1:
            drawn *= scale.astype(np.float32)
        else:
            drawn *= scale.astype(np.float32)[:, strata.codes]
        yield drawn, (of_batch * scale).sum(axis=1)


def _weigh(values: Floats, batches: Iterable[WeightBatch], strata: Strata) -> Resamples:
    """Compute weighted means of each row, with batches of weights from `_draw_weights`."""
    means = values.mean(axis=1)
    centered = values - means[:, None]
    deviations = []
    unseen = []
    for weights, unseen_weights in batches:
        # In double precision, so that a figure does not depend on the rows beside it.
        deviations.append(centered @ weights.T.astype(np.float64))
        unseen.append(unseen_weights)
    return Resamples(means, np.concatenate(deviations, axis=1), np.concatenate(unseen), strata)


def mean_intervals(
    values: Floats,
    n: int,
    level: float,
    rng: np.random.Generator,
    within: ValueRange | Sequence[ValueRange] = DIFFERENCES,
    strata: Sequence[Any] | Integers | None = None,
) -> tuple[Floats, Floats]:
    """Compute an interval of the mean of each row, each by itself.

    Args:
        values: float64[rows, queries].
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.
        within: the values that a query may have, for all rows or for each.
        strata: the group of each query, see `resample`.

    Returns:
        Low and high, float64[rows] each.
    """
    lowest, highest = _row_ends(values, within)
    return resample(values, n, rng, strata).interval(lowest, highest, level)


def _row_ends(values: Floats, within: ValueRange | Sequence[ValueRange]) -> tuple[Floats, Floats]:
    """Return the values of an unseen query, float64[rows] each, see `ValueRange.ends`."""
    if isinstance(within, ValueRange):
        return within.ends(values)
    low = np.array([row_range.low for row_range in within])
    high = np.array([row_range.high for row_range in within])
    return _unseen_values(values, low, high)


def interval(
    values: Floats,
    n: int = 10_000,
    level: float = CONFIDENCE_LEVEL,
    *,
    rng: np.random.Generator,
    within: ValueRange = DIFFERENCES,
    strata: Sequence[Any] | Integers | None = None,
) -> tuple[float, float]:
    """Compute an interval of the mean of one policy, or of a difference that is paired by query.

    Args:
        values: float64[queries].
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.
        within: the values that a query may have.
        strata: the group of each query, see `resample`.

    Returns:
        Low and high.
    """
    low, high = mean_intervals(values[None], n, level, rng, within, strata)
    return float(low[0]), float(high[0])


def reward_interval(
    policy: Outcome,
    other: Outcome,
    alpha: float,
    strata: Sequence[str] | None = None,
    level: float = CONFIDENCE_LEVEL,
) -> tuple[float, float]:
    """Compute an interval of mean R of a policy less that of another one, with a fixed seed.

    Args:
        policy: its outcome on some queries.
        other: outcome of the other policy on the same queries.
        alpha: weight of cost in R.
        strata: the dataset of each query; None is one for all.
        level: confidence level, in (0, 1).

    Returns:
        Low and high.
    """
    return interval(
        policy.reward(alpha) - other.reward(alpha),
        level=level,
        rng=np.random.default_rng(0),
        within=difference_range(alpha, policy.cost, other.cost),
        strata=strata,
    )


def influence_interval(
    value: float,
    influence: Floats,
    within: ValueRange | None = None,
    level: float = CONFIDENCE_LEVEL,
) -> tuple[float, float]:
    """Compute an interval of an estimate that is linear in the queries, near its value.

    Such are means of queries that count differently: weighted by importance, or with several
    episodes each. An unseen query adds as much as the one that adds most, in either direction.

    Args:
        value: the estimate.
        influence: float64[queries], what each query adds to the estimate, times their number; the
            mean is 0.
        within: values that an unseen query may have in any case.
        level: confidence level, in (0, 1).

    Returns:
        Low and high; NaN if the value is.
    """
    if math.isnan(value):
        return math.nan, math.nan
    values = value + influence
    reach = float(np.abs(influence).max(initial=0.0)) or abs(value)
    low = value - reach
    high = value + reach
    if within is not None:
        low = min(low, within.low)
        high = max(high, within.high)
    rng = np.random.default_rng(0)
    return interval(values, level=level, rng=rng, within=ValueRange(low, high))


class Ratio(NamedTuple):
    """A query's part of a ratio of means.

    Attributes:
        numerator: its value above the line.
        denominator: its value below the line.
    """

    numerator: float
    denominator: float


def ratio_interval(
    numerator: Floats,
    denominator: Floats,
    lowest: Ratio,
    highest: Ratio,
    n: int,
    level: float,
    rng: np.random.Generator,
    strata: Sequence[Any] | Integers | None = None,
    smallest: float = 0.0,
) -> tuple[float, float]:
    """Compute an interval of the mean of one figure, divided by the mean of another.

    Args:
        numerator: float64[queries].
        denominator: float64[queries], not below 0 on average.
        lowest: the unseen query for the lower end.
        highest: the unseen query for the upper end.
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.
        strata: the group of each query, see `resample`.
        smallest: the ratio is unknown in resamples whose denominator is below this.

    Returns:
        Low and high; infinite where resamples do not bound the ratio.
    """
    resamples = resample(np.array([numerator, denominator]), n, rng, strata)
    tail = resamples.strata.tail(level)
    # An unknown ratio may be anything: take the lowest for one end and the highest for the other.
    lows = _ratios(resamples, lowest, -math.inf, smallest)
    highs = _ratios(resamples, highest, math.inf, smallest)
    low = float(np.quantile(lows, tail, method="lower"))
    high = float(np.quantile(highs, 1 - tail, method="higher"))
    return low, high


def _ratios(resamples: Resamples, unseen: Ratio, unknown: float, smallest: float) -> Floats:
    """Divide the first row of resamples by the second, float64[n], see `ratio_interval`."""
    above, below = resamples.including(np.array(unseen))
    ratios = np.full(len(above), unknown)
    np.divide(above, below, out=ratios, where=(below >= smallest) & (below > 0))
    return ratios


def cost_ratio_interval(
    cost: Floats,
    other_cost: Floats,
    n: int,
    level: float,
    rng: np.random.Generator,
    strata: Sequence[Any] | Integers | None = None,
) -> tuple[float, float]:
    """Compute an interval of the mean cost of a policy, divided by that of another one.

    On the unseen query the other policy costs as much as on the mean one. The policy costs nothing
    for the lower end; for the upper end twice its mean cost, or as much more than it usually does
    in relation to the other policy as `UNBOUNDED` says.

    Args:
        cost: float64[queries], costs of the policy.
        other_cost: float64[queries], costs of the other one on the same queries; not all 0.
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.
        strata: the group of each query, see `resample`.

    Returns:
        Low and high.
    """
    mean = float(cost.mean())
    other_mean = float(other_cost.mean())
    rest = cost - mean / other_mean * other_cost
    _, [most] = UNBOUNDED.ends(rest[None])
    lowest = Ratio(0.0, other_mean)
    highest = Ratio(mean + max(float(most), mean), other_mean)
    return ratio_interval(cost, other_cost, lowest, highest, n, level, rng, strata)


def share_interval(
    query: Integers,
    holds: Booleans,
    n: int,
    level: float,
    rng: np.random.Generator,
    weight: Floats | None = None,
) -> tuple[float, float]:
    """Compute an interval of the share of decisions at which a condition holds.

    Queries are resampled, each with all its decisions: those of one query are not independent. The
    unseen query has as many decisions as the mean one.

    Args:
        query: int64[decisions], the query of each decision; at least one.
        holds: bool[decisions], whether the condition holds.
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.
        weight: float64[decisions], how much each decision counts; None is 1.

    Returns:
        Low and high.
    """
    _, position = np.unique(query, return_inverse=True)
    weight = np.ones(len(query)) if weight is None else weight
    holding = np.bincount(position, holds * weight).astype(np.float64)
    decisions = np.bincount(position, weight).astype(np.float64)
    usual = float(decisions.mean())
    return ratio_interval(holding, decisions, Ratio(0.0, usual), Ratio(usual, usual), n, level, rng)


def gap_closed_interval(
    router: Floats,
    fixed: Floats,
    oracle: Floats,
    n: int,
    level: float,
    rng: np.random.Generator,
    strata: Sequence[Any] | Integers | None = None,
) -> tuple[float, float] | None:
    """Compute an interval of `hierrouter.evaluation.bounds.gap_closed`.

    The fixed route is the same in every resample. The best of several is chosen on the queries it
    is judged on, so its mean is too high, and the share too low. Choosing it anew in each resample
    would not cover that choice but repeat the mistake: the best route of a resample is better still
    (see docs/decisions.md). So this is the interval of the share against that very route.

    On the unseen query the router loses a whole point where the oracle cannot win one, or wins all
    that the oracle wins.

    Args:
        router: float64[queries], rewards of the router.
        fixed: float64[queries], rewards of the best fixed route on the same queries.
        oracle: float64[queries], rewards of the tree oracle on the same queries.
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.
        strata: the group of each query, see `resample`.

    Returns:
        Low and high; None if the resamples do not bound the share, because the gap is below
        `SMALLEST_GAP` in too many of them.
    """
    gain = router - fixed
    gap = oracle - fixed
    largest = float(np.abs([gain, gap]).max(initial=1.0))
    low, high = ratio_interval(
        gain,
        gap,
        Ratio(-largest, 0.0),
        Ratio(largest, largest),
        n,
        level,
        rng,
        strata,
        SMALLEST_GAP,
    )
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


# A difference worth naming: of R, and of what the oracle earns more than any fixed choice. The
# second one counts where costs are large numbers, and R with them.
SMALLEST_DIFFERENCE = 0.001
SMALLEST_SHARE_OF_GAP = 0.01

Judgement = Literal["better", "barely better", "open", "barely worse", "worse"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)  # the most favourable first


@dataclass(frozen=True)
class Judge:
    """Decides whether one policy is better than another: the only place where that is decided.

    Attributes:
        queries: number of queries that both were evaluated on.
        gap: R of the oracle less that of the best fixed choice; 0 if it is not known.
        level: confidence level of the intervals, in (0, 1).
    """

    queries: int
    gap: float = 0.0
    level: float = CONFIDENCE_LEVEL

    @property
    def smallest_difference(self) -> float:
        """The smallest difference in R that is worth naming."""
        return max(SMALLEST_DIFFERENCE, SMALLEST_SHARE_OF_GAP * self.gap)

    @property
    def has_enough_queries(self) -> bool:
        """Whether the queries can show anything.

        Of fewer all differences may have one sign by chance, with a probability above 1 - level
        (sign test).
        """
        return bool(2 * 0.5**self.queries <= 1 - self.level)

    def judge(self, difference: float, low: float | None, high: float | None) -> Judgement:
        """Judge a policy by its R less that of another one.

        Args:
            difference: its mean over the queries.
            low: lower end of its interval; None without one.
            high: upper end.

        Returns:
            "better" or "worse" if the interval leaves out 0 and the difference is worth naming;
            "barely better" or "barely worse" if it is not; "open" if the interval holds 0, or the
            queries are too few.
        """
        if low is None or high is None or not self.has_enough_queries:
            return "open"
        is_worth_naming = abs(difference) >= self.smallest_difference
        if low > REWARD_ROUNDING:
            return "better" if is_worth_naming else "barely better"
        if high < -REWARD_ROUNDING:
            return "worse" if is_worth_naming else "barely worse"
        return "open"


def queries_needed(
    difference: float,
    deviation: float,
    reach: float = 0.0,
    rate: float = (1 - CONFIDENCE_LEVEL) / 2,
) -> int:
    """Compute the fewest queries whose interval of a mean difference is above 0, most of the time.

    The interval shows the difference with probability `TEST_POWER`. It is about that of a one-sided
    paired t test, less what the unseen query may take away. Of the test n is the smallest with
    P(T > t) = `TEST_POWER`, where T follows the noncentral t distribution with n - 1 degrees of
    freedom and noncentrality sqrt(n) d / s, and t is Student's 1 - `rate` quantile; for many
    queries and the rate of a 95 % interval (1.960 + 0.842)^2 s^2 / d^2. Cohen, Statistical Power
    Analysis (1988), chapter 2.

    Args:
        difference: d, above 0.
        deviation: s, the standard deviation of the difference over queries.
        reach: how far the lowest value that is possible is below 0, see `ValueRange`.
        rate: probability that the interval is above 0 without a difference, one-sided.

    Returns:
        n, at least 2.
    """
    few = 2
    many = 2
    while _smallest_difference(deviation, reach, rate, many) > difference:
        few = many
        many *= 2
    while few < many:
        middle = (few + many) // 2
        if _smallest_difference(deviation, reach, rate, middle) > difference:
            few = middle + 1
        else:
            many = middle
    return many


def _smallest_difference(deviation: float, reach: float, rate: float, queries: int) -> float:
    """The smallest difference that a number of queries shows, see `queries_needed`."""
    from scipy import special

    critical = float(special.stdtrit(queries - 1, 1 - rate))
    noncentrality = float(special.nctdtrinc(queries - 1, 1 - TEST_POWER, critical))
    # Mean and variance of the unseen query's weight are both `UNSEEN_SHAPE`, in queries.
    variance = deviation**2 + UNSEEN_SHAPE * reach**2 / queries
    return noncentrality * math.sqrt(variance / queries) + UNSEEN_SHAPE * reach / queries


def simultaneous_intervals(
    differences: Floats,
    n: int,
    level: float,
    rng: np.random.Generator,
    within: ValueRange | Sequence[ValueRange] = DIFFERENCES,
    strata: Sequence[Any] | Integers | None = None,
) -> tuple[Floats, Floats]:
    """Compute intervals of the mean of each row that hold for all rows at once.

    Each is cut off at the same share of its resamples, which is chosen such that a share `level` of
    the resamples lies within all intervals. So rows that go together count as little more than
    one, and a row with rare events has a skewed interval here as it has alone. Beran, Balanced
    Simultaneous Confidence Sets (Journal of the American Statistical Association 83, 1988); the
    rule is min-p in Westfall and Young, Resampling-Based Multiple Testing (1993).

    Args:
        differences: float64[comparisons, queries], paired by query.
        n: number of resamples.
        level: probability that all intervals hold, in (0, 1).
        rng: source of the draws.
        within: the values that a query may have, for all rows or for each.
        strata: the group of each query, see `resample`.

    Returns:
        Low and high, float64[comparisons] each; of a single row they are those of `interval`.
    """
    lowest, highest = _row_ends(differences, within)
    state = rng.bit_generator.state
    nearest_end = np.full(n, n)  # of each resample: its rank in the row where it is most extreme
    batches = [
        slice(start, start + DIFFERENCES_PER_BATCH)
        for start in range(0, len(differences), DIFFERENCES_PER_BATCH)
    ]
    for batch in batches:
        rng.bit_generator.state = state  # the same resamples for every batch
        resamples = resample(differences[batch], n, rng, strata)
        for row in resamples.including(lowest[batch]):
            np.minimum(nearest_end, _ranks(row), out=nearest_end)
        for row in -resamples.including(highest[batch]):
            np.minimum(nearest_end, _ranks(row), out=nearest_end)
    # The lowest share of the resamples is outside of some interval.
    cut = np.quantile(nearest_end, 1 - level, method="lower") / n
    low = np.empty(len(differences))
    high = np.empty(len(differences))
    for batch in batches:
        rng.bit_generator.state = state
        resamples = resample(differences[batch], n, rng, strata)
        simultaneous_level = 1 - min(2 * float(cut), 1 - level)
        low[batch], high[batch] = resamples.interval(
            lowest[batch], highest[batch], simultaneous_level
        )
    return low, high


def _ranks(values: Floats) -> Integers:
    """Return int64[n], how many values are smaller than each; n for values that are all equal."""
    if np.ptp(values) == 0:
        return np.full(len(values), len(values))
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks

"""Confidence intervals of means, differences and shares, by resampling queries."""

import math
from ast import literal_eval
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import REWARD_ROUNDING, SMALLEST_GAP
from hierrouter.evaluation.outcome import Booleans, Floats, Integers

# Resamples are counted in batches, of fewer resamples if there are many queries: this bounds the
# memory at about 32 bytes * DRAWS_PER_BATCH and keeps the counts in the processor's cache. The size
# of a batch does not change the resamples.
RESAMPLES_PER_BATCH = 128
DRAWS_PER_BATCH = 1 << 17
# Up to this number of draws, the counts are cached, 2 bytes each: the next figures of the same
# queries need them again.
MAX_CACHED_DRAWS = 1 << 25
# From this number of queries on, means of resamples are as good as normal: their percentiles differ
# from those of the limit by less than those of 10,000 resamples do from one seed to the next.
NORMAL_LIMIT_QUERIES = 20_000

CONFIDENCE_LEVEL = 0.95  # of the test that `queries_needed` plans
TEST_POWER = 0.8  # probability that this test finds a difference that exists

# Differences that are resampled together: bounds the memory at 8 bytes * this * resamples.
DIFFERENCES_PER_BATCH = 256

Counts = NDArray[np.uint16]  # how often each resample of a batch has each query


def resampled_means(values: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Compute the means of n resamples of the queries, the same resamples for every row.

    From `NORMAL_LIMIT_QUERIES` queries on the means are drawn from their normal limit, with the
    same means and covariances: each query is then read only once.

    Args:
        values: float64[policies, queries].
        n: number of resamples.
        rng: source of the draws; equal states give equal resamples.

    Returns:
        float64[policies, n].

    Raises:
        ValueError: there are no queries.
    """
    queries = values.shape[1]
    if queries == 0:
        raise ValueError("no queries to resample")
    if queries >= NORMAL_LIMIT_QUERIES:
        return _draw_normal_means(values, n, rng)
    if n * queries > MAX_CACHED_DRAWS:
        return _weighted_means(values, _draw_counts(queries, n, rng))
    counts, state_after = _cached_counts(repr(rng.bit_generator.state), queries, n)
    rng.bit_generator.state = state_after
    return _weighted_means(values, counts)


def _draw_normal_means(values: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Draw means of resamples from the normal distribution that they have in the limit."""
    queries = values.shape[1]
    means = values.mean(axis=1, keepdims=True)
    covariance = np.zeros((len(values), len(values)))
    for start in range(0, queries, DRAWS_PER_BATCH):
        centered = values[:, start : start + DRAWS_PER_BATCH] - means
        covariance += centered @ centered.T
    scale, axes = np.linalg.eigh(covariance / queries**2)
    # Rounding can make the smallest eigenvalues negative.
    deviations = axes * np.sqrt(np.maximum(scale, 0)) @ rng.standard_normal((len(values), n))
    return means + deviations


@lru_cache(maxsize=2)
def _cached_counts(state: str, queries: int, n: int) -> tuple[list[Counts], dict[str, Any]]:
    """Draw the counts with a generator in a given state.

    Args:
        state: `repr` of the state of the generator's bit generator, so that it can be a cache key.
        queries: number of queries.
        n: number of resamples.

    Returns:
        The counts, see `_draw_counts`, and the state of the bit generator afterwards.
    """
    rng = np.random.default_rng()
    rng.bit_generator.state = literal_eval(state)
    return list(_draw_counts(queries, n, rng)), dict(rng.bit_generator.state)


def _draw_counts(queries: int, n: int, rng: np.random.Generator) -> Iterator[Counts]:
    """Yield uint16[batch, queries], batch after batch: how often each resample has each query."""
    batch = max(1, min(RESAMPLES_PER_BATCH, DRAWS_PER_BATCH // queries))
    for start in range(0, n, batch):
        drawn = rng.integers(0, queries, (min(batch, n - start), queries))
        # Give each resample its own range of numbers, so that one bincount counts all of them.
        drawn += np.arange(len(drawn))[:, None] * queries
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        yield counts.astype(np.uint16)


def _weighted_means(values: Floats, counts: Iterable[Counts]) -> Floats:
    """Compute the mean of each row over resamples: float64[policies, resamples].

    Multiplying the values by how often each query was drawn is four times faster than looking up
    the value of every draw, and the same up to rounding.
    """
    queries = values.shape[1]
    means = [values @ batch.T.astype(float) / queries for batch in counts]
    return np.concatenate(means, axis=1)


def percentile_interval(means: Floats, queries: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Compute expanded percentiles of resampled means, over the last axis.

    Plain percentiles are too narrow for few queries: like a normal interval with n in place of
    n - 1. These lie as much further out as Student's interval is wider (Hesterberg 2015, What
    Teachers Should Know About the Bootstrap, The American Statistician 69(4), section 5.3.2).

    Args:
        means: float64[..., n].
        queries: number of queries in each resample.
        level: confidence level, in (0, 1).

    Returns:
        Low and high, float64[...] each.
    """
    tail = expanded_tail(queries, level)
    low, high = np.quantile(means, [tail, 1 - tail], axis=-1)
    return low, high


def expanded_tail(queries: int, level: float = 0.95) -> float:
    """Compute the share to cut off at each end, see `percentile_interval`.

    Args:
        queries: number of queries in each resample.
        level: confidence level, in (0, 1).

    Returns:
        Below (1 - level) / 2, and closer to it the more queries there are.
    """
    from scipy import special

    freedom = max(queries - 1, 1)
    expansion = math.sqrt(1 + 1 / freedom)
    return float(special.ndtr(expansion * special.stdtrit(freedom, (1 - level) / 2)))


def interval(
    values: Floats, n: int = 10_000, level: float = 0.95, *, rng: np.random.Generator
) -> tuple[float, float]:
    """Compute an interval of the mean of one policy, or of a difference that is paired by query.

    Args:
        values: float64[queries].
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.

    Returns:
        Low and high.
    """
    means = resampled_means(values[None], n, rng)[0]
    low, high = percentile_interval(means, len(values), level)
    return float(low), float(high)


def share_interval(
    query: Integers,
    holds: Booleans,
    n: int,
    level: float,
    rng: np.random.Generator,
    weight: Floats | None = None,
) -> tuple[float, float]:
    """Compute an interval of the share of decisions at which a condition holds.

    Queries are resampled, each with all its decisions: those of one query are not independent.

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
    sums = [np.bincount(position, holds * weight), np.bincount(position, weight)]
    counts = np.array(sums, np.float64)
    holding, decisions = resampled_means(counts, n, rng)
    low, high = percentile_interval(holding / decisions, counts.shape[1], level)
    return float(low), float(high)


def gap_closed_interval(
    router: Floats, fixed: Floats, oracle: Floats, n: int, level: float, rng: np.random.Generator
) -> tuple[float, float] | None:
    """Compute an interval of `hierrouter.evaluation.bounds.gap_closed`: expanded percentiles.

    The fixed route is the same in every resample. The best of several is chosen on the queries it
    is judged on, so its mean is too high, and the share too low. Choosing it anew in each resample
    would not cover that choice but repeat the mistake: the best route of a resample is better still
    (see docs/decisions.md). So this is the interval of the share against that very route.

    Args:
        router: float64[queries], rewards of the router.
        fixed: float64[queries], rewards of the best fixed route on the same queries.
        oracle: float64[queries], rewards of the tree oracle on the same queries.
        n: number of resamples.
        level: confidence level, in (0, 1).
        rng: source of the draws.

    Returns:
        Low and high; None if the resamples do not bound the share, because the gap is below
        `SMALLEST_GAP` in too many of them.
    """
    means = resampled_means(np.array([router, fixed, oracle]), n, rng)
    gap = means[2] - means[1]
    is_large = gap >= SMALLEST_GAP
    share = np.full(n, np.nan)
    np.divide(means[0] - means[1], gap, out=share, where=is_large)
    tail = expanded_tail(len(router), level)
    # An unknown share may be anything: take the lowest for one end and the highest for the other.
    low = float(np.quantile(np.where(is_large, share, -np.inf), tail, method="lower"))
    high = float(np.quantile(np.where(is_large, share, np.inf), 1 - tail, method="higher"))
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
        (sign test). The interval of equal differences has no width, however few there are.
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


def queries_needed(difference: float, deviation: float) -> int:
    """Compute the fewest queries that show a mean difference, by a two-sided paired t test.

    The test finds the difference with probability `TEST_POWER`, and a difference that does not
    exist with 1 - `CONFIDENCE_LEVEL`. So n is the smallest with P(T > t) = `TEST_POWER`, where T
    follows the noncentral t distribution with n - 1 degrees of freedom and noncentrality
    sqrt(n) d / s, and t is Student's (1 + `CONFIDENCE_LEVEL`) / 2 quantile; for many queries
    (1.960 + 0.842)^2 s^2 / d^2. Finding it with the wrong sign, about once in a million, is left
    out. Cohen, Statistical Power Analysis (1988), chapter 2.

    Args:
        difference: d, above 0.
        deviation: s, the standard deviation of the difference over queries.

    Returns:
        n, at least 2.
    """
    from scipy import special

    normal = float(special.ndtri((1 + CONFIDENCE_LEVEL) / 2) + special.ndtri(TEST_POWER))
    queries = max(math.floor((normal * deviation / difference) ** 2), 2)
    while _smallest_difference(deviation, queries) > difference:
        queries += 1  # Student's t needs about 2 more than the normal distribution
    return queries


def _smallest_difference(deviation: float, queries: int) -> float:
    """The smallest difference that a number of queries shows, see `queries_needed`."""
    from scipy import special

    critical = float(special.stdtrit(queries - 1, (1 + CONFIDENCE_LEVEL) / 2))
    noncentrality = float(special.nctdtrinc(queries - 1, 1 - TEST_POWER, critical))
    return noncentrality * deviation / math.sqrt(queries)


def simultaneous_intervals(
    differences: Floats, n: int, level: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Compute mean +- c * standard error of each difference, with one c for all.

    c is the `level` quantile over resamples of max |mean* - mean| / error, no less than that of one
    difference alone. It is taken as a normal deviate and replaced by Student's for the same
    probability, because there may be few queries.

    Args:
        differences: float64[comparisons, queries], paired by query; at least 2 queries.
        n: number of resamples.
        level: probability that all intervals hold, in (0, 1).
        rng: source of the draws.

    Returns:
        Low and high, float64[comparisons] each; equal for a difference that is the same on every
        query.
    """
    from scipy import special

    queries = differences.shape[1]
    mean = differences.mean(axis=1)
    error = differences.std(axis=1) / math.sqrt(queries)
    largest = np.zeros(n)  # the largest |t| of each resample
    # A difference without variance has no t; below this its variance is rounding.
    varying = np.flatnonzero(error > np.finfo(np.float64).eps * np.abs(mean))
    state = rng.bit_generator.state
    for start in range(0, len(varying), DIFFERENCES_PER_BATCH):
        batch = varying[start : start + DIFFERENCES_PER_BATCH]
        rng.bit_generator.state = state  # the same resamples for every batch
        deviation = np.abs(resampled_means(differences[batch], n, rng) - mean[batch, None])
        np.maximum(largest, (deviation / error[batch, None]).max(axis=0), out=largest)
    # Resamples of a few queries take few values: their quantile can be less than one needs alone.
    critical = max(np.quantile(largest, level), -special.ndtri((1 - level) / 2))
    student = -special.stdtrit(queries - 1, special.ndtr(-critical))
    half_width = student * error * math.sqrt(queries / (queries - 1))
    return mean - half_width, mean + half_width

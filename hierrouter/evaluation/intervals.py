"""How sure a mean, a difference or a share is, by resampling queries."""

import math
from ast import literal_eval
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hierrouter.evaluation.bounds import SMALLEST_GAP
from hierrouter.evaluation.outcome import Floats, Integers

# Resamples counted at once, fewer where queries are many: the memory is bounded at about
# 32 bytes * DRAWS, and what is counted stays near the processor. Resamples are the same ones.
BATCH = 128
DRAWS = 1 << 17
HELD = 1 << 25  # draws whose counts wait for the next figures of the same queries, 2 bytes each
# So many queries that the means of resamples are as good as normal: their percentiles differ from
# those of the limit by less than those of 10,000 resamples do from one seed to the next.
MANY = 20_000


def resampled_means(values: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Means of n resamples of the queries, the same resamples for every row.

    From `MANY` queries on they are drawn from their normal limit, with the same means and
    covariances: no query is looked at more than once. Returns float64[policies, n].

    `values`: float64[policies, queries]; `n`: number of resamples; `rng`: source of the draws;
    equal states give equal resamples.
    """
    queries = values.shape[1]
    if queries == 0:
        raise ValueError("no queries to resample")
    if queries >= MANY:
        return _limit(values, n, rng)
    if n * queries > HELD:
        return _means(values, _counts(queries, n, rng))
    counts, after = _held(repr(rng.bit_generator.state), queries, n)
    rng.bit_generator.state = after
    return _means(values, counts)


def _limit(values: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Means of resamples, drawn from the normal distribution that they have in the limit."""
    queries = values.shape[1]
    means = values.mean(axis=1, keepdims=True)
    covariance = np.zeros((len(values), len(values)))
    for start in range(0, queries, DRAWS):
        part = values[:, start : start + DRAWS] - means
        covariance += part @ part.T
    scale, axes = np.linalg.eigh(covariance / queries**2)
    drawn = axes * np.sqrt(np.maximum(scale, 0)) @ rng.standard_normal((len(values), n))
    return means + drawn


@lru_cache(maxsize=2)
def _held(state: str, queries: int, n: int) -> tuple[list[Integers], dict[str, Any]]:
    """The counts of a generator in this state, and its state afterwards."""
    rng = np.random.default_rng()
    rng.bit_generator.state = literal_eval(state)
    return list(_counts(queries, n, rng)), dict(rng.bit_generator.state)


def _counts(queries: int, n: int, rng: np.random.Generator) -> Iterator[Integers]:
    """uint16[batch, queries], batch after batch: how often each resample has each query."""
    batch = max(1, min(BATCH, DRAWS // queries))
    for start in range(0, n, batch):
        drawn = rng.integers(0, queries, (min(batch, n - start), queries))
        drawn += np.arange(len(drawn))[:, None] * queries  # in all resamples, one after another
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        yield counts.astype(np.uint16)


def _means(values: Floats, counts: Iterable[Integers]) -> Floats:
    """Mean of each row over resamples: float64[policies, resamples].

    How often each query was drawn, times its values: four times faster than looking up the values
    of every draw, and the same to rounding.
    """
    queries = values.shape[1]
    return np.concatenate([values @ each.T.astype(float) / queries for each in counts], axis=1)


def percentile_interval(means: Floats, queries: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Expanded percentiles of the resampled means, over the last axis.

    Plain percentiles are too narrow for few queries: like a normal interval with n in place of n -
    1. These lie as much further out as Student's interval is wider (Hesterberg 2015, What Teachers
    Should Know About the Bootstrap, The American Statistician 69(4), section 5.3.2). Returns low
    and high, float64[...] each.

    `means`: float64[..., n]; `queries`: how many each resample is made of; `level`: in (0, 1).
    """
    tail = expanded_tail(queries, level)
    low, high = np.quantile(means, [tail, 1 - tail], axis=-1)
    return low, high


def expanded_tail(queries: int, level: float = 0.95) -> float:
    """What to cut off at each end: below (1 - level) / 2, the closer to it the more queries."""
    from scipy import special

    freedom = max(queries - 1, 1)
    wider = math.sqrt(1 + 1 / freedom)
    return float(special.ndtr(wider * special.stdtrit(freedom, (1 - level) / 2)))


def interval(
    values: Floats, n: int = 10_000, level: float = 0.95, *, rng: np.random.Generator
) -> tuple[float, float]:
    """Interval of the mean of one policy, or of a difference that is paired by query.

    `values`: float64[queries].
    """
    means = resampled_means(values[None], n, rng)[0]
    low, high = percentile_interval(means, len(values), level)
    return float(low), float(high)


def gap_closed_interval(
    router: Floats, fixed: Floats, oracle: Floats, n: int, level: float, rng: np.random.Generator
) -> tuple[float, float] | None:
    """Expanded percentiles of the share over resamples of the queries.

    The fixed route is the same in every resample. The best of several is chosen on the queries it
    is judged on, so its mean is too high, and the share too low. Choosing it anew in each resample
    would not cover that choice but repeat the mistake: the best route of a resample is better still
    (see docs/decisions.md). So this is for the share against that very route. Returns low and high;
    None where the resamples do not bound the share, because the gap is below `SMALLEST_GAP` in too
    many of them.

    `router`, `fixed`, `oracle`: float64[queries], rewards on the same queries; `n`: number of
    resamples; `level`: in (0, 1); `rng`: source of the draws.
    """
    means = resampled_means(np.array([router, fixed, oracle]), n, rng)
    gap = means[2] - means[1]
    large = gap >= SMALLEST_GAP
    share = np.full(n, np.nan)
    np.divide(means[0] - means[1], gap, out=share, where=large)
    tail = expanded_tail(len(router), level)
    # A share that is not known may be anything: the lowest for one end, the highest for the other.
    low = float(np.quantile(np.where(large, share, -np.inf), tail, method="lower"))
    high = float(np.quantile(np.where(large, share, np.inf), 1 - tail, method="higher"))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


LEVEL, POWER = 0.95, 0.8


def queries_needed(difference: float, deviation: float) -> int:
    """The fewest queries that show a mean difference, by a two-sided paired t test; at least 2.

    They find it with probability `POWER`, and what is not there with 1 - `LEVEL`: n with P(T > t) =
    `POWER`, where T follows the noncentral t distribution with n - 1 degrees of freedom and
    noncentrality sqrt(n) d / s, and t is Student's (1 + `LEVEL`) / 2 quantile; for many queries
    (1.960 + 0.842)^2 s^2 / d^2. Finding it on the wrong side, about once in a million, is left out.
    Cohen, Statistical Power Analysis (1988), chapter 2.

    `difference`: d, above 0; `deviation`: s, its standard deviation over queries.
    """
    from scipy import special

    normal = float(special.ndtri((1 + LEVEL) / 2) + special.ndtri(POWER))
    queries = max(math.floor((normal * deviation / difference) ** 2), 2)
    while _smallest_difference(deviation, queries) > difference:
        queries += 1  # Student's t wants 2 more or so than the normal distribution
    return queries


def _smallest_difference(deviation: float, queries: int) -> float:
    from scipy import special

    critical = float(special.stdtrit(queries - 1, (1 + LEVEL) / 2))
    noncentrality = float(special.nctdtrinc(queries - 1, 1 - POWER, critical))
    return noncentrality * deviation / math.sqrt(queries)


# Differences resampled together: bounds the memory at 8 bytes * AT_ONCE * resamples.
AT_ONCE = 256


def simultaneous_intervals(
    differences: Floats, n: int, level: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Mean +- c * standard error of each difference, with one c for all.

    c is the `level` quantile over resamples of max |mean* - mean| / error, no less than that of one
    difference, taken as a normal deviate and replaced by Student's for the same probability, which
    few queries need. Returns low and high, float64[comparisons] each; equal where a difference is
    the same on every query.

    Args:
        differences: float64[comparisons, queries], paired by query; at least 2 queries.
        level: probability that all intervals hold, in (0, 1).
    """
    from scipy import special

    queries = differences.shape[1]
    mean = differences.mean(axis=1)
    error = differences.std(axis=1) / math.sqrt(queries)
    largest = np.zeros(n)  # |t| of each resample; what never varies has none
    varies = np.flatnonzero(error > np.finfo(np.float64).eps * np.abs(mean))
    state = rng.bit_generator.state
    for start in range(0, len(varies), AT_ONCE):
        part = varies[start : start + AT_ONCE]
        rng.bit_generator.state = state  # the same resamples for every part
        off = np.abs(resampled_means(differences[part], n, rng) - mean[part, None])
        np.maximum(largest, (off / error[part, None]).max(axis=0), out=largest)
    # Resamples of a few queries take few values: their quantile can be less than one needs alone.
    critical = max(np.quantile(largest, level), -special.ndtri((1 - level) / 2))
    student = -special.stdtrit(queries - 1, special.ndtr(-critical))
    half = student * error * math.sqrt(queries / (queries - 1))
    return mean - half, mean + half

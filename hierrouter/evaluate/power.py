"""How many queries a difference needs to show.

In: how much a paired difference varies from query to query. Out: the smallest mean difference that
a two-sided paired t test finds with a given power, and the number of queries at which that is a
difference asked for. Not covered: costs of collecting them.
"""

from __future__ import annotations

import math

from scipy import special, stats

LEVEL, POWER = 0.95, 0.8


def smallest_difference(
    deviation: float, queries: int, level: float = LEVEL, power: float = POWER
) -> float:
    """d with P(|T| > t) = power, where T = sqrt(n) mean / s has noncentrality sqrt(n) d / s.

    T follows the noncentral t distribution with n - 1 degrees of freedom and t is Student's
    (1 + level) / 2 quantile; for many queries d is (1.960 + 0.842) s / sqrt(n). Finding it on the
    wrong side, about once in a million, is left out. Cohen, Statistical Power Analysis (1988),
    chapter 2.

    Args:
        deviation: s, standard deviation of the difference over queries.
        queries: n, at least 2.
        level: 1 less the probability of finding what is not there.
        power: probability of finding d.
    """
    freedom = queries - 1
    critical = float(stats.t.ppf((1 + level) / 2, freedom))
    noncentrality = float(special.nctdtrinc(freedom, 1 - power, critical))
    return noncentrality * deviation / math.sqrt(queries)


def queries_needed(
    difference: float, deviation: float, level: float = LEVEL, power: float = POWER
) -> int:
    """The fewest queries whose `smallest_difference` is at most this one; at least 2.

    Args:
        difference: above 0.
        deviation: as for `smallest_difference`.
    """
    normal = float(stats.norm.ppf((1 + level) / 2) + stats.norm.ppf(power))
    queries = max(math.floor((normal * deviation / difference) ** 2), 2)
    while smallest_difference(deviation, queries, level, power) > difference:
        queries += 1  # Student's t wants 2 more or so than the normal distribution
    return queries

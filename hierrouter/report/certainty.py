"""How sure a figure is, as plain values.

In: nothing; these are types that `build` and its rooms fill. Out: intervals of one figure, of
several seeds, of several claims at once, and what a number of queries can show. Not covered: how
they are worked out (`hierrouter.evaluate`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over queries and its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """The lowest and the highest mean among the seeds of a policy.

    Attributes:
        seeds: how many there are, at least 2.
        quality, cost, reward: lowest and highest.
    """

    seeds: int
    quality: tuple[float, float]
    cost: tuple[float, float]
    reward: tuple[float, float]


@dataclass(frozen=True)
class Crossed:
    """Intervals of the mean over all seeds and queries that there could be.

    Attributes:
        quality, cost, reward: low and high.
    """

    quality: tuple[float, float]
    cost: tuple[float, float]
    reward: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """The router against one policy over all queries, one of several claims that hold at once.

    Attributes:
        policy, kind: as in `Row`.
        difference: R(router) - R(policy).
        low, high: its interval; all of a report hold together with the report's level.
    """

    policy: str
    kind: str
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Power:
    """What differences the queries of a report can show, by a two-sided paired t test.

    Attributes:
        policy, kind: whom the router is compared with.
        deviation: standard deviation over queries of R(router) - R(policy).
        power: probability of finding what is there.
        smallest_difference: the smallest mean difference that is found with it.
        wanted_difference: one that would be worth finding.
        queries: how many it takes to find that one.
    """

    policy: str
    kind: str
    deviation: float
    power: float
    smallest_difference: float
    wanted_difference: float
    queries: int

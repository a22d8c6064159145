"""Rows of what a report only sometimes has.

In: nothing; these are types that `priced`, `depth_rows` and `deferral` fill. Out: policies under a
price list, what is answered at a depth, figures of a pair. Not covered: rows that every report has
(`results`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PricedRow:
    """A policy over all queries under one price list.

    Attributes:
        policy, kind: as in `Row`.
        cost, reward: means, with the ends of their intervals.
    """

    policy: str
    kind: str
    cost: float
    reward: float
    cost_low: float
    cost_high: float
    reward_low: float
    reward_high: float


@dataclass(frozen=True)
class PricedRows:
    """Every policy under one price list.

    Attributes:
        name: of the price list.
        rows: in the order of the report's policies. A policy that is chosen under prices, such as
            the oracle, is chosen under these.
        gap_closed: as in `Report`.
    """

    name: str
    rows: tuple[PricedRow, ...]
    gap_closed: Mapping[str, float | None]


@dataclass(frozen=True)
class DepthRow:
    """What the router answers after a given number of calls.

    Ends of an interval are None where too many resamples hold no such query.

    Attributes:
        calls: 1 to L.
        share: expected share of the queries that are answered here.
        quality, cost, reward: means over these; None where there are none.
    """

    calls: int
    share: float
    share_low: float
    share_high: float
    quality: float | None
    quality_low: float | None
    quality_high: float | None
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    reward: float | None
    reward_low: float | None
    reward_high: float | None


@dataclass(frozen=True)
class PairFigures:
    """The router as the weak model of a pair, see `evaluate.pairs`; None where Q hardly differs.

    Attributes:
        apgr: average share of the gap in Q that is recovered; chance has 0.5.
        cpt_50, cpt_80: least share handed over that recovers 50 % and 80 % of it.
    """

    apgr: float | None
    cpt_50: float | None
    cpt_80: float | None

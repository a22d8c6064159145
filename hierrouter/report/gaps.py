"""Share of the gap closed, by dataset.

In: what each policy is worth. Out: the share and its interval. The fixed route is the best one on
the very queries it is judged on: a bar that no choice made on training queries can raise. Not
covered: what the interval says (`hierrouter.evaluate.gap`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.bounds import gap_closed
from hierrouter.evaluate.gap import gap_closed_interval
from hierrouter.evaluate.outcome import Outcome
from hierrouter.report.best import best_of_kind
from hierrouter.report.intervals import draws
from hierrouter.report.results import ALL, Bootstrap, Report

IN_THE_RATIO = ("router", "route", "oracle")


def gaps_closed(
    rewards: Mapping[str, Sequence[tuple[str, float]]],
) -> dict[str, float | None]:
    """Share of the gap closed in each column that has a router, a fixed route and an oracle.

    Args:
        rewards: kind and mean R of every policy, by column.
    """
    gaps: dict[str, float | None] = {}
    for column, policies in rewards.items():
        router, fixed, oracle = (
            max((reward for kind, reward in policies if kind == wanted), default=None)
            for wanted in IN_THE_RATIO
        )
        if router is not None and fixed is not None and oracle is not None:
            gaps[column] = gap_closed(router, fixed, oracle)
    return gaps


def gap_intervals(
    gaps: Mapping[str, float | None],
    columns: Mapping[str, NDArray[np.int64]],
    outcomes: Sequence[Outcome],
    alpha: float,
    bootstrap: Bootstrap,
) -> dict[str, tuple[float, float] | None]:
    """The interval of each share; None where there is no share, or no bound of it.

    Args:
        gaps: see `gaps_closed`.
        columns: positions of the queries of each dataset, in the order of their streams.
        outcomes: all policies.
        alpha: weight of cost in R.
        bootstrap: how intervals are made.
    """
    found: dict[str, tuple[float, float] | None] = {}
    for stream, (column, queries) in enumerate(columns.items()):
        if column not in gaps:
            continue
        found[column] = None
        if gaps[column] is not None:
            best = (best_of_kind(outcomes, kind, alpha, queries) for kind in IN_THE_RATIO)
            router, fixed, oracle = (one.reward(alpha)[queries] for one in best if one is not None)
            rng = draws(bootstrap, stream)
            found[column] = gap_closed_interval(
                router, fixed, oracle, bootstrap.n, bootstrap.level, rng
            )
    return found


def gap_sentence(report: Report) -> str:
    """The share over all queries with its interval; empty where there is no share."""
    share = report.gap_closed.get(ALL)
    if share is None:
        return ""
    ends = report.gap_closed_intervals.get(ALL)
    level = report.bootstrap.interval_title
    sure = f"[{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "without bounds"
    return f"Over all queries it is {share:.3f}, {level} {sure} against this fixed route."

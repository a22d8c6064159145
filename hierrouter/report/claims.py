"""What may be claimed of a router, and what not yet.

In: what each policy does on each query. Out: `Comparison`s that hold all at once, `Power`, the
number of queries that a difference needs, and both in words. Not covered: differences one at a time
(`build`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierrouter.evaluate.outcome import Outcome
from hierrouter.evaluate.power import POWER, queries_needed, smallest_difference
from hierrouter.evaluate.simultaneous import simultaneous_intervals
from hierrouter.report.best import best_of_kind
from hierrouter.report.certainty import Comparison, Power
from hierrouter.report.intervals import draws
from hierrouter.report.results import Bootstrap, Report

WANTED = 0.01  # a difference in R worth knowing
NAMED = 5  # policies named in a sentence at most
FEWEST = 10  # queries: the deviation of fewer is hardly known


def comparisons(
    outcomes: Sequence[Outcome], alpha: float, bootstrap: Bootstrap, stream: int
) -> tuple[Comparison, ...]:
    """The router against every other policy but oracles; none where there is no router.

    Args:
        outcomes: policies over the same queries.
        alpha: weight of cost in R.
        bootstrap: how intervals are made.
        stream: of all queries, see `intervals.draws`.
    """
    router = best_of_kind(outcomes, "router", alpha)
    rivals = [one for one in outcomes if one.kind not in ("router", "oracle")]
    if router is None or not rivals or len(router.quality) < 2:
        return ()
    differences = router.reward(alpha) - np.array([one.reward(alpha) for one in rivals])
    rng = draws(bootstrap, stream)
    low, high = simultaneous_intervals(differences, bootstrap.n, bootstrap.level, rng)
    figures = zip(
        rivals, differences.mean(axis=1).tolist(), low.tolist(), high.tolist(), strict=True
    )
    return tuple(Comparison(one.name, one.kind, *numbers) for one, *numbers in figures)


def power(outcomes: Sequence[Outcome], alpha: float, level: float) -> Power | None:
    """What these queries can show against the best fixed route, the best pool model without one.

    None where there is no router, no such policy, no query on which the two differ, or too few
    queries to tell how much they vary.
    """
    router, *rivals = (
        best_of_kind(outcomes, kind, alpha) for kind in ("router", "route", "single")
    )
    rival = next((one for one in rivals if one is not None), None)
    if router is None or rival is None or len(router.quality) < FEWEST:
        return None
    difference = router.reward(alpha) - rival.reward(alpha)
    deviation = float(difference.std(ddof=1))
    if deviation <= np.finfo(np.float64).eps * abs(float(difference.mean())):
        return None
    return Power(
        policy=rival.name,
        kind=rival.kind,
        deviation=deviation,
        power=POWER,
        smallest_difference=smallest_difference(deviation, len(difference), level),
        wanted_difference=WANTED,
        queries=queries_needed(WANTED, deviation, level),
    )


def claims_sentence(report: Report) -> str:
    """Who is beaten when all comparisons are to hold at once, and what more queries would show."""
    return " ".join([*_beaten(report), *_showable(report)])


def _beaten(report: Report) -> list[str]:
    if not report.comparisons:
        return []
    alone = sum((row.difference_low or 0) > 0 for row in report.overall if row.kind != "oracle")
    total = len(report.comparisons)
    left = [one.policy for one in report.comparisons if one.low <= 0]
    said = (
        f"HierRouter beats {alone} of {total} policies one at a time and {total - len(left)} when "
        f"all {total} comparisons are to hold at once ({report.bootstrap.level:.0%}, max-t)"
    )
    return [f"{said}: all but {_names(left)}." if 0 < len(left) < total else f"{said}."]


def _names(policies: Sequence[str]) -> str:
    more = len(policies) - NAMED
    return ", ".join(policies[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _showable(report: Report) -> list[str]:
    found = report.power
    if found is None:
        return []
    return [
        f"Against {found.policy} R differs by {found.deviation:.2f} from query to query (standard "
        f"deviation): {report.overall[0].n:,} queries can show a difference of "
        f"{found.smallest_difference:.3f} (two-sided paired t test at "
        f"{1 - report.bootstrap.level:.0%}, power {found.power:.0%}), and "
        f"{found.wanted_difference:+g} takes {found.queries:,}."
    ]

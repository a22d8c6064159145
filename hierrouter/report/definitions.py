"""What every column means, one line each.

In: a `Report`, for the numbers that a definition depends on. Out: terms and plain sentences for
the page and the terminal.
"""

from __future__ import annotations

from hierrouter.report.results import Report

# What `hierrouter.scoring.accuracy` does.
ACCURACY = (
    "by the scorer `accuracy`, whatever Q is: the reference's form, number, box, letter of a "
    "choice or other text, says how answers are compared"
)


def definitions(report: Report) -> tuple[tuple[str, str], ...]:
    """Terms with their meaning, in the order in which a reader meets them."""
    level = f"{report.bootstrap.level:.0%}"
    return (
        ("Q", f"quality of the last response, scored by {report.scorer}; mean, from 0 to 1"),
        ("accuracy", f"share of queries whose last response is right; {ACCURACY}"),
        ("C", f"cost of all calls of a query, {report.cost_unit}, prompt and answer; per 1,000"),
        ("R", f"net reward Q - alpha * C with alpha = {report.alpha:g} and C not divided by 1,000"),
        (
            "interval",
            f"{level} percentile bootstrap, {report.bootstrap.n:,} resamples of whole queries",
        ),
        (
            "difference",
            "R of HierRouter minus R of the policy on the same queries; "
            "an interval that leaves out 0 is hard to put down to chance",
        ),
        (
            "gap closed",
            "(R of HierRouter - R of the best fixed route) / (R of the oracle - R of the best "
            "fixed route), the route being the best one on these very queries",
        ),
        ("fixed route", "the same models in the same order for every query, first>second"),
        ("oracle", "the best route of each query, known only afterwards: an upper bound"),
        ("pool model", "one direct call, the question alone, without stage instruction"),
        ("reference model", "the same for a larger model that the router may not call"),
        ("all", "every query counts once, whatever its dataset"),
    )

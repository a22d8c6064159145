"""After how many calls the router stops, as a table.

In: a `Report` whose router may stop early. Out: a `Table`, a row for each number of calls. Not
covered: how its figures are made (`depth_rows`); the same over a sweep, see `depth_curve`.
"""

from __future__ import annotations

from hierrouter.report.results import Report
from hierrouter.report.table import Column, Line, Table, digits_for, interval


def depth_table(report: Report) -> Table:
    """Share of the queries, Q, C and R by number of calls."""
    level = report.bootstrap.interval_title
    columns = (
        Column("Calls"),
        Column("Share of queries"),
        Column("Q"),
        Column(level),
        Column("C", digits_for(row.cost for row in report.depths if row.cost is not None)),
        Column("R", 4),
        Column(level, 4),
    )
    lines = tuple(
        Line(
            "HierRouter",
            (
                str(row.calls),
                row.share,
                row.quality,
                interval(row.quality_low, row.quality_high),
                row.cost,
                row.reward,
                interval(row.reward_low, row.reward_high),
            ),
        )
        for row in report.depths
    )
    return Table(
        title=f"Where HierRouter stops, C in {report.cost_unit}",
        columns=columns,
        rows=lines,
        note="Q, C and R are means over the queries that end there, so rows differ by their "
        "queries as well as by their calls.",
    )

"""After how many calls the router stops, as a table.

In: a `Report` whose router may stop early. Out: a `Table`, a row for each number of calls. Not
covered: the same over a sweep, see `depth_curve`.
"""

from __future__ import annotations

from hierrouter.report.results import Report
from hierrouter.report.table import Column, Line, Table, digits_for


def depth_table(report: Report, number: int) -> Table:
    """Share of the queries, Q and C by number of calls.

    Args:
        number: of the table in the report.
    """
    costs = [depth.cost for depth in report.depths if depth.cost is not None]
    columns = (
        Column("Calls"),
        Column("Share of queries"),
        Column("Q"),
        Column("C", digits_for(costs)),
    )
    lines = tuple(
        Line("HierRouter", (str(depth.calls), depth.share, depth.quality, depth.cost))
        for depth in report.depths
    )
    return Table(
        title=f"Table {number}. Where HierRouter stops, C in {report.cost_unit}",
        columns=columns,
        rows=lines,
        note="Q and C are means over the queries that end there, so rows differ by their queries "
        "as well as by their calls.",
    )

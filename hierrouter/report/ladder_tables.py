"""The bound ladder as tables.

In: a `Report` with its `Analysis`. Out: a `Table` over all queries, and one by dataset. Not
covered: what a rung is (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.report.analysis import Analysis, Measurable, RungRow
from hierrouter.report.results import Report
from hierrouter.report.table import Column, Interval, Line, Table, digits_for, interval_of

RUNGS, LEARNED = "Bounds", "HierRouter"
NOT_A_STAIR = (
    "Each bound knows more than the one before, or may do more. Still R need not rise: what was "
    "chosen on the train fold can do worse here, and direct calls are no routes of the tree."
)


def ladder_table(report: Report, analysis: Analysis) -> Table:
    """Q, C and R of each rung over all queries, and of the router."""
    rows = [rungs[-1] for rungs in _by_rung(report, analysis)]
    router = report.router
    costs = [row.cost.mean for row in rows] + ([router.cost] if router else [])
    columns = (
        Column("Bound"),
        Column("Chosen on train"),
        Column("Q"),
        Column("C", digits_for(costs)),
        Column("R", 4),
        Column(report.bootstrap.interval_title, 4),
    )
    lines = [_line(row) for row in rows]
    if router:
        reward = Interval(router.reward_low, router.reward_high)
        cells = (router.policy, None, router.quality, router.cost, router.reward, reward)
        lines.append(Line(LEARNED, cells))
    return Table(
        title=f"Bound ladder, R = Q - {report.alpha:g} C, C in {report.cost_unit}",
        columns=columns,
        rows=tuple(lines),
        note=f"{NOT_A_STAIR} {_measurable_sentence(analysis.measurable)}",
    )


def ladder_by_dataset_table(report: Report, analysis: Analysis) -> Table:
    """Mean R of each rung by dataset."""
    shown = report.shown_datasets
    lines = [
        Line(RUNGS, (rungs[0].rung, *(row.reward.mean for row in rungs[: len(shown)])))
        for rungs in _by_rung(report, analysis)
    ]
    lines += [
        Line(LEARNED, (rows[0].policy, *(row.reward for row in rows[: len(shown)])))
        for rows in report.by_policy
        if rows[0].kind == "router"
    ]
    columns = (Column("Bound"), *(Column(dataset, 4) for dataset in shown))
    note = "The best single call and the best fixed route are the same ones for every dataset."
    return Table("Bound ladder by dataset, R", columns, tuple(lines), note)


def _by_rung(report: Report, analysis: Analysis) -> list[Sequence[RungRow]]:
    """The rows of each rung, one for each dataset of the report."""
    width = len(report.datasets)
    return [analysis.ladder[at : at + width] for at in range(0, len(analysis.ladder), width)]


def _line(row: RungRow) -> Line:
    chosen = row.policy if row.policy != row.rung else None
    reward = row.reward
    return Line(
        RUNGS,
        (row.rung, chosen, row.quality.mean, row.cost.mean, reward.mean, interval_of(reward)),
    )


def _measurable_sentence(found: Measurable) -> str:
    reward = found.reward
    said = (
        f"With hindsight R is at most {reward.mean:.4f} [{reward.low:.4f}, {reward.high:.4f}] for "
        f"who sees no more than the state view {found.view} shows"
    )
    if found.looks == found.n:
        return f"{said}: every query looks different to it, so that bounds nothing."
    return f"{said}: {found.looks:,} of {found.n:,} queries look different to it at the start."

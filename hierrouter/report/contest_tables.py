"""A contest as tables.

In: `Standings`. Out: `Table`s of plain values: net reward, quality and cost, what a second hop and
what adaptivity are worth, settings. Not covered: how a table looks (`render`), and what other
programs read (`contest_rows`).
"""

from __future__ import annotations

from dataclasses import replace

from hierrouter.report.contest_rows import settings_text
from hierrouter.report.contests import Standing, Standings
from hierrouter.report.table import Cell, Column, Line, Table, digits_for, interval_of, numbered
from hierrouter.report.text import one_line

LEARNED, BOUNDS = "Learned on the tree", "Bounds: chosen knowing all answers"
BROUGHT = "Policies of your own"
SETS = {"A": "Set A: one direct call", "B": "Set B: whole routes, chosen at once"}
VALUES = {
    "second hop": "second hop: best of B - best of A",
    "adaptivity": "adaptivity: HierRouter - best of B",
    "lead": "HierRouter - best of all",
    "regret": "regret: oracle - policy",
}
VERSUS = 3  # columns of the first table that compare with the learned router
SHORT = 48  # characters of settings in a table
BLIND = (
    "For the second hop and for adaptivity only those baselines count that choose before they have "
    "seen any answer."
)
TOGETHER = (
    "The intervals all at once hold for every baseline together. The best of many baselines on "
    "the fold shown looks better than it is, so the difference to it looks smaller."
)


def contest_tables(standings: Standings) -> tuple[Table, ...]:
    """All tables that have a row, numbered by their places, the one to read first first."""
    return numbered(named_tables(standings).values())


def named_tables(standings: Standings) -> dict[str, Table]:
    """The same by name, without numbers."""
    tables = {
        "reward": reward_table(standings),
        "quality": quality_table(standings),
        "values": value_table(standings),
        "settings": settings_table(standings),
    }
    return {name: table for name, table in tables.items() if table.rows}


def reward_table(standings: Standings) -> Table:
    """Q, C and R, and the paired difference to the learned router, if there is one."""
    contest, level = standings.contest, standings.bootstrap.interval_title
    columns = [
        Column("Router"),
        Column("Q", best="highest"),
        Column("C", _cost_digits(standings), best="lowest"),
        Column("R", 4, best="highest"),
        Column(level, 4),
        Column("HierRouter - router", 4, signed=True),
        Column(level, 4, signed=True),
        Column("all at once", 4, signed=True),
    ]
    lines = [
        _line(
            row,
            row.quality.mean,
            row.cost.mean,
            row.reward.mean,
            interval_of(row.reward),
            row.difference.mean if row.difference else None,
            interval_of(row.difference),
            interval_of(row.simultaneous),
        )
        for row in standings.rows
    ]
    title = (
        f"Net reward R = Q - {contest.alpha:g} C on {standings.queries} queries "
        f"({contest.split} fold), Q is {standings.scorer}, C in {standings.cost_unit}"
    )
    if contest.router is None:
        alone = [replace(line, cells=line.cells[:-VERSUS]) for line in lines]
        return Table(title, tuple(columns[:-VERSUS]), tuple(alone), " ".join(contest.notes))
    return Table(title, tuple(columns), tuple(lines), " ".join((*contest.notes, TOGETHER)))


def quality_table(standings: Standings) -> Table:
    """Quality, right answers and cost, with intervals."""
    level = standings.bootstrap.interval_title
    digits = _cost_digits(standings)
    columns = (
        Column("Router"),
        Column("Q", best="highest"),
        Column(level),
        Column("right", best="highest"),
        Column("C", digits, best="lowest"),
        Column(level, digits),
    )
    lines = [
        _line(
            row,
            row.quality.mean,
            interval_of(row.quality),
            row.accuracy.mean,
            row.cost.mean,
            interval_of(row.cost),
        )
        for row in standings.rows
    ]
    return Table("Quality, share of right answers, cost per query", columns, tuple(lines))


def value_table(standings: Standings) -> Table:
    """The value of the second hop and of adaptivity."""
    columns = (
        Column("Value in R"),
        Column("of"),
        Column("against"),
        Column("difference", 4, signed=True),
        Column(standings.bootstrap.interval_title, 4, signed=True),
    )
    lines = [
        Line(
            BROUGHT if value.what == "regret" else f"Best as the {value.chosen_on} fold has it",
            (
                VALUES[value.what],
                value.first,
                value.second,
                value.difference.mean,
                interval_of(value.difference),
            ),
        )
        for value in standings.values
    ]
    title = "What a second hop is worth, and what seeing its first answer adds"
    return Table(title, columns, tuple(lines), BLIND)


def settings_table(standings: Standings) -> Table:
    """What the validation fold chose, and what fitting took."""
    columns = (
        Column("Router"),
        Column("R on validation", 4),
        Column("CPU s", 2),
        Column("settings"),
    )
    lines = [
        _line(
            row,
            row.entry.validation,
            row.entry.fit_seconds,
            one_line(settings_text(row.entry.settings), SHORT),
        )
        for row in standings.rows
        if row.entry.outcome.kind != "oracle"
    ]
    note = (
        f"CPU seconds of fitting and tuning; seed {standings.contest.seed}. JSON and CSV have the "
        "settings in full, and whose idea each router is."
    )
    return Table("Settings chosen on the validation fold", columns, tuple(lines), note)


def _line(row: Standing, *cells: Cell) -> Line:
    outcome = row.entry.outcome
    group = {"router": LEARNED, "oracle": BOUNDS}.get(
        outcome.kind, SETS.get(row.entry.arms, BROUGHT)
    )
    return Line(group, (outcome.name, *cells), ranked=outcome.kind != "oracle")


def _cost_digits(standings: Standings) -> int:
    return digits_for(row.cost.mean for row in standings.rows)

"""Every row of a contest, for other programs.

In: `Standings`. Out: one long table, and one object as JSON; its keys are a contract with other
people's scripts, see docs/compare.md. Not covered: tables for people (`contest_tables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from hierrouter.plain_json import json_text
from hierrouter.report.certainty import Estimate
from hierrouter.report.contests import Standing, Standings, Value
from hierrouter.report.table import Cell, Column, Line, Table

FORMAT = 1  # of the JSON; a higher number where a key is renamed, dropped or means another thing


def long_table(standings: Standings) -> Table:
    """Every field of every row, one line each: for spreadsheets and data frames."""
    rows = [_flat(row) for row in standings.rows]
    columns = tuple(Column(name, digits=9) for name in rows[0])
    lines = tuple(Line("", tuple(row.values())) for row in rows)
    return Table("Rows", columns, lines)


def as_json(standings: Standings) -> str:
    """One object, keys sorted, floats to 12 significant digits; see docs/compare.md."""
    contest = standings.contest
    found = {
        "format": FORMAT,
        "alpha": contest.alpha,
        "split": contest.split,
        "queries": standings.queries,
        "sets": contest.sets,
        "seed": contest.seed,
        "scorer": standings.scorer,
        "cost_unit": standings.cost_unit,
        "bootstrap": {**asdict(standings.bootstrap), "cluster": "query"},
        "rows": [{**_flat(row), "settings": row.entry.settings} for row in standings.rows],
        "values": [_flat_value(value) for value in standings.values],
        "notes": contest.notes,
        "provenance": standings.provenance,
    }
    return json_text(found, "comparison")


def _flat(row: Standing) -> dict[str, Cell]:
    entry = row.entry
    return {
        "router": entry.outcome.name,
        "arms": entry.arms,
        "kind": entry.outcome.kind,
        "reads_answers": entry.reads_answers,
        **_spread("accuracy", row.accuracy),
        **_spread("quality", row.quality),
        **_spread("cost", row.cost),
        **_spread("reward", row.reward),
        **_spread("difference", row.difference),
        **_spread("simultaneous", row.simultaneous),
        "validation_reward": entry.validation,
        "fit_cpu_seconds": entry.fit_seconds,
        "settings": settings_text(entry.settings),
        "source": entry.source,
    }


def _flat_value(value: Value) -> dict[str, Cell]:
    return {
        "value": value.what,
        "chosen_on": value.chosen_on,
        "first": value.first,
        "second": value.second,
        **_spread("difference", value.difference),
    }


def _spread(name: str, estimate: Estimate | None) -> dict[str, Cell]:
    mean, low, high = (estimate.mean, estimate.low, estimate.high) if estimate else (None,) * 3
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def settings_text(settings: Mapping[str, Any]) -> str:
    """`neighbours 10, weights distance`."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return settings_text(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

"""A report as JSON, byte for byte the same each time.

In: a `Report`. Out: one object as `plain_json` writes it. The keys are a contract with other
people's scripts, written down in docs/report.md and schema.json.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from hierrouter.evaluate.deferral import DeferralPoint
from hierrouter.plain_json import json_text
from hierrouter.report.results import HandingOver, Report

FORMAT = 1  # of the object; goes up where a key leaves or changes its meaning


def as_json(report: Report) -> str:
    """The contract's object as text; see `plain_json.json_text` for the errors."""
    return json_text(as_object(report), "report")


def as_object(report: Report) -> dict[str, Any]:
    """The report as dictionaries and lists, floats as they are."""
    # There only where somebody brought a policy.
    regret = {name: [asdict(row) for row in rows] for name, rows in report.policy_regret.items()}
    return {
        "format": FORMAT,
        "alpha": report.alpha,
        "cost_unit": report.cost_unit,
        "scorer": report.scorer,
        "split": report.split,
        "bootstrap": {**asdict(report.bootstrap), "cluster": "query"},
        "rows": [asdict(row) for row in report.rows],
        "gap_closed": dict(report.gap_closed),
        "gap_closed_intervals": dict(report.gap_closed_intervals),
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "power": asdict(report.power) if report.power else None,
        "frontier": [asdict(row) for row in report.frontier],
        "price_lists": [asdict(prices) for prices in report.price_lists],
        "depths": [asdict(depth) for depth in report.depths],
        "depth_curve": [asdict(point) for point in report.depth_curve],
        "deferral": _deferral(report.deferral),
        "analysis": asdict(report.analysis) if report.analysis else None,
        "route_map": asdict(report.route_map) if report.route_map else None,
        "learning": asdict(report.learning) if report.learning else None,
        "notes": list(report.notes),
        "provenance": dict(report.provenance),
        **({"policy_regret": regret} if regret else {}),
    }


def _deferral(handing: HandingOver | None) -> dict[str, Any] | None:
    """A threshold is null where no query is handed over, or each one: see its share."""
    if handing is None:
        return None
    points = [_deferral_point(point) for point in (handing.chosen, *handing.curve)]
    return {**asdict(handing), "chosen": points[0], "curve": points[1:]}


def _deferral_point(point: DeferralPoint) -> dict[str, float | None]:
    threshold = point.threshold if math.isfinite(point.threshold) else None
    return {**asdict(point), "threshold": threshold}

"""A report as JSON, byte for byte the same each time.

In: a `Report`. Out: one object as text, keys sorted, floats cut to 12 significant digits so that
the last bits of a sum do not show. The keys are a contract with other people's scripts, written
down in docs/report.md and schema.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hierrouter.evaluate.deferral import DeferralPoint
from hierrouter.report.results import HandingOver, Report
from hierrouter_cache.errors import InputError

DIGITS = 12
FORMAT = 1  # of the object; goes up where a key leaves or changes its meaning


def as_json(report: Report) -> str:
    """The contract's object as text, see `json_text`."""
    return json_text(as_object(report), "report")


def json_text(found: Mapping[str, Any], what: str) -> str:
    """An object, indented, ASCII only, with a newline at its end.

    Args:
        what: it is, for the error.

    Raises:
        InputError: it holds what JSON cannot say.
    """
    try:
        text = json.dumps(_plain(found), sort_keys=True, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"not JSON: {what}: {error}; give texts and finite numbers") from None
    return f"{text}\n"


def as_object(report: Report) -> dict[str, Any]:
    """The report as dictionaries and lists, floats as they are."""
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


def significant(value: float) -> float:
    """`value` to 12 significant digits, without a negative zero."""
    return float(f"{value:.{DIGITS}g}") + 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value

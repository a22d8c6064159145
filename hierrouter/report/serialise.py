"""A report as JSON, byte for byte the same each time.

In: a `Report`. Out: one object as text, keys sorted, floats cut to 12 significant digits so that
the last bits of a sum do not show. The keys are a contract with other people's scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hierrouter.report.results import Report
from hierrouter_cache.errors import InputError

DIGITS = 12


def as_json(report: Report) -> str:
    """The contract's object, indented, ASCII only, with a newline at its end.

    Raises:
        InputError: the provenance holds what JSON cannot say.
    """
    try:
        text = json.dumps(_plain(as_object(report)), sort_keys=True, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"not JSON: report: {error}; give texts and finite numbers") from None
    return f"{text}\n"


def as_object(report: Report) -> dict[str, Any]:
    """The report as dictionaries and lists, floats as they are."""
    return {
        "alpha": report.alpha,
        "cost_unit": report.cost_unit,
        "scorer": report.scorer,
        "split": report.split,
        "bootstrap": {**asdict(report.bootstrap), "cluster": "query"},
        "rows": [asdict(row) for row in report.rows],
        "gap_closed": dict(report.gap_closed),
        "frontier": [asdict(row) for row in report.frontier],
        "price_lists": [asdict(prices) for prices in report.price_lists],
        "depths": [asdict(depth) for depth in report.depths],
        "depth_curve": [asdict(point) for point in report.depth_curve],
        "notes": list(report.notes),
        "provenance": dict(report.provenance),
    }


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

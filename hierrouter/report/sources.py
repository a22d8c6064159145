"""Where a report comes from, as lines of the page.

In: the provenance of a report. Out: its keys and values as texts, and what some keys mean. Not
covered: what is recorded (`hierrouter.provenance`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hierrouter.report.definitions import Terms
from hierrouter.report.text import one_line

MEANINGS = {
    "test_looks": (
        "looks at the test fold",
        "different figures of the test fold that were made before, with those shown: of this "
        "router, and of all finished runs on the same data. Who looks often and keeps the best "
        "router tunes on the test fold",
    ),
}


def source_lines(provenance: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines `a.b` -> text, sorted by key."""
    lines: list[tuple[str, str]] = []
    for key, value in sorted(provenance.items()):
        if isinstance(value, Mapping):
            lines.extend(source_lines(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append((one_line(f"{prefix}{key}"), text))
    return lines


def source_terms(provenance: Mapping[str, Any]) -> Terms:
    """What keys mean that do not speak for themselves; those that occur."""
    return tuple(meaning for key, meaning in MEANINGS.items() if key in provenance)

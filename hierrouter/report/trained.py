"""How the router of a report was trained, in words.

In: the provenance of a report. Out: a sentence for below a table. Not covered: what the words mean
(`definitions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keys of the provenance, and how a sentence says them where there is something to say.
TRAINING = {
    "algo": "{}",
    "preset": "preset {}",
    "trained_alpha": "alpha {:g}",
    "view": "state view {}",
    "allow_stop": "may stop early",
    "max_cost": "at most {:g} a query",
}


def training_sentence(source: Mapping[str, Any]) -> str:
    """How the router was trained; empty where nothing was, or nobody says.

    Args:
        source: the provenance of a report.
    """
    if not source.get("algo"):
        return ""
    told = [
        said.format(value)
        for key, said in TRAINING.items()
        if (value := source.get(key)) is not None and value is not False  # alpha may be 0
    ]
    return f"HierRouter was trained by {', '.join(told)}."

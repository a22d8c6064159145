"""The report of routers that were trained for more than an alpha."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hierrouter.learn.checkpoint import save_checkpoint
from hierrouter.learn.objective import Objective
from hierrouter.learn.training import train
from hierrouter_cli.report import make_report, show, write
from tests.hierrouter.learn.runs import ALPHA, EXACT_GLIMPSE, GLIMPSE, small_tree


def reported(objective: Objective, folder: Path) -> dict[str, Any]:
    """What `report` writes of a router trained for this objective, and prints as text."""
    tree, config = small_tree(), GLIMPSE if objective.max_cost else EXACT_GLIMPSE
    save_checkpoint(train(tree, objective, config, 0), folder / "router")
    result = make_report(tree, None, folder / "cache", folder / "router", None)
    page = write(result, folder)
    show(result, "text")
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return {**found, "page": page.read_text("utf-8")}


@pytest.mark.parametrize(
    ("objective", "said", "algo"),
    [
        (Objective(ALPHA, allow_stop=True), ", may stop early.", "exact"),
        (Objective(0.02, max_cost=1.5), ", at most 1.5 a query.", "ppo"),
    ],
    ids=["stop", "limit"],
)
def test_a_report_says_what_the_router_was_trained_for(
    objective: Objective, said: str, algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reported(objective, tmp_path)
    told = {
        "algo": algo,
        "view": "context",
        "trained_alpha": objective.alpha,
        "allow_stop": objective.allow_stop,
        "max_cost": objective.max_cost,
    }
    assert {key: found["provenance"][key] for key in told} == told
    for key, value in told.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        assert f"<dt>{key}</dt><dd><code>{shown}</code></dd>" in found["page"]
    printed = " ".join(capsys.readouterr().out.split())
    start = f"HierRouter was trained by {algo}, preset default, alpha {objective.alpha:g}"
    assert f"{start}, state view context{said}" in printed
    assert ("Where HierRouter stops" in printed) == objective.allow_stop
    assert bool(found["depths"]) == objective.allow_stop
    assert any("limited to a cost of 1.5" in note for note in found["notes"]) == (algo == "ppo")

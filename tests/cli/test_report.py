"""The report: what a router was trained for, a model to hand over to, runs that are not shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hierrouter.learning.checkpoint import save_checkpoint
from hierrouter.learning.config import Objective
from hierrouter.learning.selection import select_run
from hierrouter.learning.training import train
from hierrouter.replay.tree import Tree
from hierrouter.reports.report import FinishedReport, ReportRequest
from hierrouter.reports.values import SCHEMA
from hierrouter_cli.report import show
from tests.conftest import Run, refused, works
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE, GLIMPSE, small_tree


def reported(objective: Objective, folder: Path) -> dict[str, Any]:
    """What `report` writes of a router trained for this objective, and prints as text."""
    plain, config = small_tree(), GLIMPSE if objective.max_cost else EXACT_GLIMPSE
    save_checkpoint(train(plain, objective, config, 0), folder / "router")
    parts = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    tree = Tree(**parts, root=folder / "cache")
    shown = select_run(tree, None, folder / "router")
    finished = FinishedReport.of(ReportRequest({"pool": tree}, shown, with_worst=False))
    assert finished.to_arrow().column_names == SCHEMA.names
    page = finished.write(folder)
    show(finished.result, "text")
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


@pytest.fixture(scope="module")
def place(bare: Path, hierrouter: Run) -> Path:
    """The same with a router, and a sweep that reads the question alone."""
    short = ("--algo", "exact", "--epochs", "2", "--out")
    for flags in (["train", *short, "runs/router"], ["sweep-alpha", *short, "runs/sweep"]):
        view = ["--state", "query"] if flags[0] == "sweep-alpha" else []
        works(hierrouter(*flags, *view, cwd=bare))
    return bare


def test_nothing_is_handed_over_where_there_is_no_router(bare: Path, hierrouter: Run) -> None:
    empty = bare / "empty"
    empty.mkdir()
    asked = ["report", "--cache", "../caches/default", "--defer-to", "facts"]
    done = hierrouter(*asked, cwd=empty)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: no router that could hand over to facts: ")


def test_a_model_without_direct_calls_is_refused(place: Path, hierrouter: Run) -> None:
    line = refused(hierrouter("report", "--defer-to", "fcats", cwd=place))
    assert line.startswith("error: no direct call of this model: fcats; did you mean facts")


def test_a_report_of_a_router_that_hands_over(place: Path, hierrouter: Run) -> None:
    asked = ["--defer-to", "facts", "--defer-share", "0.5", "--out", "page"]
    done = works(hierrouter("report", *asked, cwd=place))
    assert "Deferral to facts" in done.stdout
    assert "Deferral: what handing" in (place / "page" / "report.html").read_text()
    found = json.loads((place / "page" / "report.json").read_text())
    deferral, rows = found["deferral"], {}
    for row in found["rows"]:
        rows[row["kind"], row["policy"], row["dataset"]] = row
    assert (deferral["stronger"], deferral["share_allowed"]) == ("facts", 0.5)
    assert deferral["curve"][-1]["reward"] == rows["single", "facts", "all"]["reward"]
    both = rows["baseline", "hierrouter, else facts", "all"]
    assert both["reward"] == deferral["chosen"]["reward"]
    assert both["reward_low"] <= both["reward"] <= both["reward_high"]
    assert both["difference"] is not None


def test_a_sweep_that_reads_another_view_is_named_and_can_be_shown(
    place: Path, hierrouter: Run
) -> None:
    done = hierrouter("report", "--format", "csv", cwd=place)
    [line] = [line for line in done.stderr.splitlines() if "is not shown" in line]
    assert line.startswith("report: runs/sweep is not shown: it learned from this tree, ")
    assert line.endswith("add --state query to see it")
    done = hierrouter("report", "--state", "query", "--format", "json", cwd=place)
    assert json.loads(done.stdout)["provenance"]["sweep"] == "runs/sweep"
    [line] = [line for line in done.stderr.splitlines() if "is not shown" in line]
    assert "runs/router" in line and line.endswith("add --state context to see it")


def test_all_shows_the_tables_that_only_page_and_json_hold_otherwise(
    place: Path, hierrouter: Run
) -> None:
    shown = {}
    for flags in ((), ("--all",)):
        done = works(hierrouter("report", "--format", "md", *flags, cwd=place))
        shown[flags] = re.findall(r"^### (Table \d+\. .*)$", done.stdout, re.MULTILINE)
    few, all_of_them = shown.values()
    assert all_of_them[: len(few)] == few and len(all_of_them) > len(few) >= 5


def test_figures_are_files_of_the_formats_asked_for(place: Path, hierrouter: Run) -> None:
    flags = ["--format", "json", "--figures", "pdf,svg", "--out", "drawn"]
    done = works(hierrouter("report", *flags, cwd=place))
    files = sorted(path.name for path in (place / "drawn").iterdir())
    drawn = {
        suffix: [name for name in files if name.endswith(suffix)] for suffix in (".pdf", ".svg")
    }
    assert len(drawn[".pdf"]) == len(drawn[".svg"]) > 0
    assert len(files) == 2 * len(drawn[".pdf"]) + 2  # and the page and its JSON
    assert all((place / "drawn" / name).read_bytes().startswith(b"%PDF") for name in drawn[".pdf"])
    assert f"report: {2 * len(drawn['.pdf'])} figures in drawn" in done.stderr


def test_an_unknown_format_of_figures_is_refused_before_any_work(
    tmp_path: Path, hierrouter: Run
) -> None:
    done = hierrouter("report", "--figures", "svg,gif", cwd=tmp_path)  # where no cache is
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line == "error: unknown format of figures: 'gif'; choose of svg, pdf, png"


def test_the_page_has_the_report_under_every_price_list(place: Path, hierrouter: Run) -> None:
    for name, price in (("cheap", 0.001), ("dear", 0.5)):
        (place / f"{name}.toml").write_text(f"[prices]\ncalc = {price}\n")
    flags = ["--alpha", "0.1", "--prices", "cheap.toml", "--prices", "dear.toml"]
    works(hierrouter("report", *flags, "--out", "several", cwd=place))
    page = (place / "several" / "report.html").read_text("utf-8")
    assert page.count("Net reward R of HierRouter") == 2
    for name in ("cheap", "dear"):
        flags = ["--alpha", "0.1", "--prices", f"{name}.toml", "--format", "json"]
        rows = json.loads(hierrouter("report", *flags, cwd=place).stdout)["rows"]
        [router] = [row for row in rows if (row["kind"], row["dataset"]) == ("router", "all")]
        assert f"<strong>{router['reward']:.3f}</strong>" in page

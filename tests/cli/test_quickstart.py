"""The whole job through the installed command: quickstart, then the commands on what it left."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LIMIT
from tests.conftest import Run, as_json, works

ROW = {"policy", "kind", "dataset", "n", "quality", "accuracy", "cost", "reward"}
ROW |= {"reward_low", "reward_high"}
KINDS = {"single", "route", "router", "oracle", "baseline"}
INFO = {"format", "queries", "nodes", "direct", "complete_queries", "missing_nodes", "parts"}
INFO |= {"bytes", "models", "datasets", "fingerprint"}


@pytest.fixture(scope="module")
def report(home: Path, hierrouter: Run) -> dict[str, Any]:
    return as_json(hierrouter("report", "--format", "json", cwd=home))


def test_the_report_keeps_its_contract(report: dict[str, Any]) -> None:
    assert report["alpha"] == 0.005
    assert report["cost_unit"] == "base_rate*token"
    assert (report["scorer"], report["split"]) == ("token_f1", "test")
    assert report["bootstrap"] | {"seed": 0} == {
        "n": 10000,
        "level": 0.95,
        "cluster": "query",
        "seed": 0,
    }
    for row in report["rows"]:
        assert row.keys() >= ROW
        assert row["kind"] in KINDS
        assert 0 <= row["quality"] <= 1
        assert row["reward"] == pytest.approx(row["quality"] - 0.005 * row["cost"])
        assert row["reward_low"] <= row["reward"] <= row["reward_high"]
    names = {row["policy"] for row in report["rows"]}
    assert names >= {"calc", "text", "facts", "text>calc", "hierrouter", "oracle"}
    assert len({row["dataset"] for row in report["rows"]}) == 11
    assert {"cache", "checkpoint", "seed", "version"} <= report["provenance"].keys()


def test_gap_closed_is_what_the_contract_says(report: dict[str, Any]) -> None:
    overall = [row for row in report["rows"] if row["dataset"] == "all"]
    reward = {row["policy"]: row["reward"] for row in overall}
    fixed = max(row["reward"] for row in overall if row["kind"] == "route")
    expected = (reward["hierrouter"] - fixed) / (reward["oracle"] - fixed)
    assert report["gap_closed"]["all"] == pytest.approx(expected, rel=1e-9)


def test_bounds_hold(report: dict[str, Any]) -> None:
    for dataset in {row["dataset"] for row in report["rows"]}:
        rows = [row for row in report["rows"] if row["dataset"] == dataset]
        oracle = next(row["reward"] for row in rows if row["policy"] == "oracle")
        assert all(
            row["reward"] <= oracle + 1e-9 for row in rows if row["kind"] in ("route", "router")
        )


def test_cache_info_keeps_its_contract(home: Path, hierrouter: Run) -> None:
    done = hierrouter("cache", "info", "--format", "json", cwd=home)
    info = json.loads(done.stdout)
    assert info.keys() >= INFO
    assert info["queries"] == info["complete_queries"] == 10 * int(LIMIT)
    assert info["nodes"] == 12 * info["queries"]
    assert info["direct"] == 3 * info["queries"]
    assert info["missing_nodes"] == 0
    assert info["models"] == ["calc", "text", "facts"]


def test_the_cache_is_sound(home: Path, hierrouter: Run) -> None:
    works(hierrouter("cache", "verify", "--rescore", cwd=home))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("md", r"\| HierRouter"), ("latex", r"\\begin\{table\}"), ("csv", r"policy,kind,dataset,n")],
)
def test_formats(home: Path, hierrouter: Run, name: str, pattern: str) -> None:
    done = works(hierrouter("report", "--format", name, cwd=home))
    assert re.search(pattern, done.stdout)


def test_train_sweep_report_go_on_with_no_further_flag(home: Path, hierrouter: Run) -> None:
    trained = works(hierrouter("train", "--alpha", "0.005", "--epochs", "2", cwd=home))
    swept = works(hierrouter("sweep-alpha", "--alphas", "0.01,0.1,0.01", "--epochs", "2", cwd=home))
    assert "2 alphas" in swept.stderr
    shown = hierrouter("report", "--format", "json", cwd=home)
    result = json.loads(shown.stdout)
    assert result["provenance"]["checkpoint"] == trained.stdout.strip()
    learned = [row["alpha"] for row in result["frontier"] if row["kind"] == "router"]
    assert learned == [0.01, 0.1]


def test_same_seed_same_bytes(home: Path, hierrouter: Run, cold: Run, tmp_path: Path) -> None:
    found = []
    for name, run in (("one", hierrouter), ("two", cold)):
        place = shutil.copytree(home, tmp_path / name)  # a second look counts where the first did
        works(run("train", "--seed", "7", "--epochs", "2", "--out", "again", cwd=place))
        done = run("report", "--checkpoint", "again", "--format", "json", cwd=place)
        files = ("policy.json", "policy.safetensors")
        found.append([done.stdout, *((place / "again" / file).read_bytes() for file in files)])
    assert found[0] == found[1]


def test_an_interrupted_quickstart_goes_on(home: Path, hierrouter: Run) -> None:
    done = works(hierrouter("quickstart", "--limit", LIMIT, cwd=home))
    assert " 0 calls made" in done.stderr
    assert done.stderr.count("already there") >= 2


def test_the_pipe_may_close_early(home: Path) -> None:
    import subprocess

    from tests.conftest import COMMAND, environment

    process = subprocess.Popen(
        [*COMMAND, "report", "--format", "json"],
        cwd=home,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()  # the reader is gone before the first byte
    assert process.stderr is not None
    said = process.stderr.read()
    assert "error" not in said
    assert "Traceback" not in said
    assert process.wait() == 0


def test_an_output_that_exists_is_not_overwritten(home: Path, hierrouter: Run) -> None:
    (home / "taken").mkdir()
    (home / "taken" / "policy.json").write_text("mine")
    done = hierrouter("train", "--out", "taken", cwd=home)
    assert done.returncode == 2
    assert "output exists: taken" in done.stderr
    assert (home / "taken" / "policy.json").read_text() == "mine"

"""The whole job through the installed command: quickstart, then the commands on what it left."""

import os
import re
from typing import Any

import pytest

from tests.cli.conftest import LIMIT, Place, over_all
from tests.conftest import Start, as_json, run_cold, works

ROW = {"policy", "kind", "dataset", "n", "quality", "accuracy", "cost", "reward"}
ROW |= {"reward_low", "reward_high"}
KINDS = {"single", "route", "router", "oracle", "baseline"}
INFO = {"format", "queries", "nodes", "direct", "complete_queries", "missing_nodes", "parts"}
INFO |= {"bytes", "models", "datasets", "fingerprint"}


@pytest.fixture(scope="module")
def report(home: Place) -> dict[str, Any]:
    return home.tells("report")


def test_the_report_keeps_its_contract(report: dict[str, Any]) -> None:
    assert report["alpha"] == 0.4
    assert report["cost_unit"] == "money per question"
    assert (report["scorer"], report["split"]) == ("token_f1", "test")
    shown = {"n": 10000, "level": 0.95, "cluster": "query", "seed": 0}
    assert report["bootstrap"] | {"seed": 0} == shown
    for row in report["rows"]:
        assert row.keys() >= ROW
        assert row["kind"] in KINDS
        assert 0 <= row["quality"] <= 1
        assert row["reward"] == pytest.approx(row["quality"] - 0.4 * row["cost"])
        assert row["reward_low"] <= row["reward"] <= row["reward_high"]
    names = {row["policy"] for row in report["rows"]}
    assert names >= {"calc", "text", "facts", "text>calc", "hierrouter", "oracle"}
    assert len({row["dataset"] for row in report["rows"]}) == 11
    assert {"cache", "checkpoint", "seed", "version"} <= report["provenance"].keys()


def test_some_questions_end_after_the_first_answer_and_a_look_is_valued(
    report: dict[str, Any],
) -> None:
    shares = {row["calls"]: row["share"] for row in report["depths"]}
    assert 0.1 < shares[1] < 0.9
    assert sum(shares.values()) == pytest.approx(1)
    looked = {row["dataset"] for row in report["analysis"]["looks"]}
    assert looked == {row["dataset"] for row in report["rows"]}
    costs = {row["alpha"]: row["cost"] for row in report["frontier"] if row["kind"] == "router"}
    assert costs[min(costs)] > 1.5 * costs[max(costs)]  # there is something to trade


def test_gap_closed_is_what_the_contract_says_and_bounds_hold(report: dict[str, Any]) -> None:
    overall = over_all(report["rows"])
    fixed = max(row["reward"] for row in overall.values() if row["kind"] == "route")
    learned, oracle = (overall[name]["reward"] for name in ("hierrouter", "oracle"))
    assert report["gap_closed"]["all"] == pytest.approx((learned - fixed) / (oracle - fixed))
    best = {row["dataset"]: row["reward"] for row in report["rows"] if row["policy"] == "oracle"}
    for row in report["rows"]:
        if row["kind"] in ("route", "router"):
            assert row["reward"] <= best[row["dataset"]] + 1e-9


def test_the_cache_is_sound_and_its_info_keeps_the_contract(home: Place) -> None:
    home.does("verify --rescore")
    info = home.tells("cache info")
    assert info.keys() >= INFO
    assert info["queries"] == info["complete_queries"] == 10 * int(LIMIT)
    assert info["nodes"] == 12 * info["queries"]
    assert info["direct"] == 3 * info["queries"]
    assert info["missing_nodes"] == 0
    assert info["models"] == ["calc", "text", "facts"]


def test_an_interrupted_quickstart_goes_on(work: Place) -> None:
    done = work.does(f"quickstart --limit {LIMIT}")
    assert " 0 calls made" in done.stderr
    assert done.stderr.count("already there") >= 2


def test_train_sweep_report_go_on_with_no_further_flag(work: Place) -> None:
    trained = work.does("train --alpha 0.005 --epochs 2")
    assert "2 alphas" in work.does("sweep-alpha --alphas 0.01,0.1,0.01").stderr
    result = work.tells("report")
    assert result["provenance"]["checkpoint"] == trained.stdout.strip()
    assert [row["alpha"] for row in result["frontier"] if row["kind"] == "router"] == [0.01, 0.1]
    assert r"\begin{table}" in work.does("report --format latex").stdout


def test_the_same_bytes_whatever_the_hash_seed(home: Place) -> None:
    words = ("report", "--split", "validation", "--format", "json")
    told = works(run_cold(*words, cwd=home.folder))
    assert as_json(told)["split"] == "validation"
    # Tests shorten the preset, and a cold process does not know of it: there the epochs are named.
    expected = home.does(" ".join(words)).stdout
    assert re.sub(r", epochs \d+\"", '"', told.stdout) == expected


def test_the_pipe_may_close_early(home: Place, start: Start) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # the reader is gone before the first byte
    process = start("report", "--format", "json", cwd=home.folder, stdout=writing)
    os.close(writing)
    done = process.result()
    assert done.returncode == 0
    assert "error" not in done.stderr
    assert "Traceback" not in done.stderr

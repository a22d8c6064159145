"""Reports of one collected cache under several prices; no model is called for any of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, as_json, works

CHEAP = "[prices]\ncalc = 0.002\nfacts = { in = 0.001, out = 0.004 }\n"
DEAR = "[prices]\ncalc = 0.2\ntext = 0.3\nfacts = 0.1\n"


@pytest.fixture(scope="module")
def place(bare: Path, hierrouter: Run) -> Path:
    """A folder with a collected cache, two price files and a router of the pool's prices."""
    (bare / "cheap.toml").write_text(CHEAP)
    (bare / "dear.toml").write_text(DEAR)
    works(hierrouter("train", "--epochs", "2", cwd=bare))
    return bare


def report(run: Run, place: Path, *flags: str | Path) -> dict[str, Any]:
    return as_json(run("report", "--format", "json", *flags, cwd=place))


def over_all(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Cost and reward of every policy over all queries."""
    return {
        (row["kind"], row["policy"]): (row["cost"], row["reward"])
        for row in rows
        if row.get("dataset", "all") == "all"
    }


def test_two_price_lists_stand_side_by_side(place: Path, hierrouter: Run) -> None:
    both = report(hierrouter, place, "--prices", "cheap.toml", "--prices", "dear.toml")
    assert both["cost_unit"] == "price*token"
    assert [prices["name"] for prices in both["price_lists"]] == ["cheap", "dear"]
    for prices in both["price_lists"]:
        alone = report(hierrouter, place, "--prices", f"{prices['name']}.toml")
        assert over_all(prices["rows"]) == over_all(alone["rows"])
        assert prices["gap_closed"] == alone["gap_closed"]
        assert alone["price_lists"] == []
    cheap, dear = (over_all(prices["rows"]) for prices in both["price_lists"])
    assert ("router", "hierrouter") in cheap
    assert all(cheap[policy][0] < dear[policy][0] for policy in cheap)
    assert over_all(both["rows"]) == cheap
    assert both["notes"] == ["HierRouter was trained under other prices than cheap, dear."]


def test_the_text_report_has_a_table_for_them(place: Path, hierrouter: Run) -> None:
    done = works(
        hierrouter(
            "report", "--prices", "cheap.toml", "--prices", "dear.toml", "--out", "page", cwd=place
        )
    )
    assert "C, cheap" in done.stdout and "R, dear" in done.stdout
    assert "the router was trained under other prices than shown here" in done.stderr
    assert "Table 6." in (place / "page" / "report.html").read_text()


def test_csv_holds_every_list(place: Path, hierrouter: Run) -> None:
    flags = ["--prices", "cheap.toml", "--prices", "dear.toml"]
    done = hierrouter("report", "--format", "csv", *flags, cwd=place)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    dear = {row["policy"]: row for row in rows if row["prices"] == "dear"}
    listed = report(hierrouter, place, *flags)["price_lists"][1]["rows"]
    assert float(dear["oracle"]["reward"]) == over_all(listed)["oracle", "oracle"][1]
    assert (dear["oracle"]["dataset"], dear["oracle"]["quality"]) == ("all", "")
    assert float(dear["oracle"]["reward_low"]) < float(dear["oracle"]["reward"])
    assert {row["prices"] for row in rows} == {"cheap", "dear"}


def test_provenance_says_who_gave_a_price(place: Path, hierrouter: Run) -> None:
    found = report(hierrouter, place, "--prices", "cheap.toml", "--price", "calc=1:2")
    assert found["provenance"]["prices"] == {
        "calc": {"in": 1.0, "out": 2.0, "source": "--price"},
        "text": {"in": 0.02, "out": 0.02, "source": "pool"},
        "facts": {"in": 0.001, "out": 0.004, "source": "price file cheap.toml"},
    }


def test_the_pools_own_prices_find_the_router_trained_on_them(place: Path, hierrouter: Run) -> None:
    found = report(hierrouter, place)
    assert found["cost_unit"] == "base_rate*token"
    assert found["notes"] == []
    assert found["provenance"]["trained_on"] == found["provenance"]["tree"]
    assert ("router", "hierrouter") in over_all(found["rows"])


def test_a_price_by_size_is_said_aloud(place: Path, hierrouter: Run) -> None:
    from hierrouter import pools

    text = (Path(pools.__file__).parent / "testbed.toml").read_text()
    sized = text.replace(
        'parameters = "0.377M"\ndtype = "float32"\nbase_rate = 0.02\n',
        'parameters = "3B"\ndtype = "float32"\n',
    )
    assert sized != text
    (place / "sized.toml").write_text(sized)
    done = works(hierrouter("report", "--pool", "sized.toml", "--format", "json", cwd=place))
    assert (
        "price of text unknown: 0.003 per token by its size (3B); give base_rate or --price"
        in done.stderr.splitlines()
    )
    given = json.loads(done.stdout)["provenance"]["prices"]
    assert given["text"] == {"in": 0.003, "out": 0.003, "source": "size (3B)"}
    done = hierrouter("report", "--pool", "sized.toml", "--price", "text=1", cwd=place)
    assert "unknown" not in done.stderr


BAD = [
    # flags, what the line must say
    (["--price", "clac=1"], ["unknown model", "clac", "did you mean calc"]),
    (["--price", "calc"], ["not a price", "calc=0.003"]),
    (["--price", "calc=x"], ["number", "'x'"]),
    (["--price", "calc=-1"], [">= 0"]),
    (["--price", "calc=nan"], ["finite"]),
    (["--price", "calc=1:inf"], ["finite"]),
    (["--price", "calc=1", "--price", "calc=2"], ["duplicate price", "calc"]),
    (["--prices", "gone.toml"], ["price file not found", "gone.toml"]),
    (["--prices", "bad.toml"], ["not TOML", "bad.toml"]),
    (["--prices", "cheap.toml", "--prices", "cheap.toml"], ["two price files", "cheap"]),
]


@pytest.mark.parametrize(("flags", "words"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_a_bad_price_is_one_line(
    place: Path, hierrouter: Run, flags: list[str], words: list[str]
) -> None:
    (place / "bad.toml").write_text("[prices]\ncalc = 1\ncalc = 2\n")
    done = hierrouter("report", *flags, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and len(line) <= 300
    assert all(word in line for word in words)

"""`collect --dry-run` and `--yes`: what a collection takes, before it is made."""

import re

import pytest

from tests.cli.conftest import Place

COLLECT = "collect --datasets arith,mirror --cache cache"
DEEP = "[pool]\nhops = 7\n" + "".join(
    f'[[models]]\nname = "{name}"\nmodel = "testbed:{name}"\nbase_rate = 0.03\n'
    "generation = { max_new_tokens = 16 }\n"
    for name in ("calc", "text", "facts")
)


def test_nothing_is_made(place: Place) -> None:
    done = place.does(f"{COLLECT} --limit 3 --dry-run")
    assert list(place.folder.iterdir()) == []
    assert "6 queries: 72 nodes and 18 direct calls" in done.stdout
    assert "hop 2" in done.stdout
    assert "unknown" in done.stdout
    assert "--limit 10" in done.stderr


def test_after_a_pilot_it_says_what_the_run_then_takes(place: Place) -> None:
    place.does(f"{COLLECT} --limit 10")
    found = place.tells("collect --cache cache --dry-run")  # what was collected last
    assert found["queries"] == 20
    assert found["total"]["calls"] == {"expected": 0, "most": 0}
    before = place.tells(f"{COLLECT} --limit 20 --dry-run")
    assert before["notes"] == []
    said = place.does(f"{COLLECT} --limit 20").stderr
    counts = re.search(r"(\d+) calls made, (\d+) already there", said)
    assert counts
    total, made, there = before["total"], int(counts[1]), int(counts[2])
    assert total["there"] == there
    assert total["calls"]["expected"] == pytest.approx(made, rel=0.2)
    assert total["calls"]["most"] >= made
    after = place.tells(f"{COLLECT} --dry-run")  # no flags but the datasets: 300 a dataset
    assert after["total"]["there"] == made + there


def test_a_large_collection_needs_a_yes(place: Place) -> None:
    (place / "deep.toml").write_text(DEEP)
    deep = f"{COLLECT} --pool deep.toml --limit 40"
    line = place.refuses(deep)
    assert line.startswith("error: at most 262,320 model calls are due for 80 queries")
    assert "--dry-run" in line and "--yes" in line
    assert list((place / "cache").rglob("*.parquet")) == []
    place.does(f"{deep} --dry-run")

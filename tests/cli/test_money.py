"""What calls cost: what a collection spends, may spend and has spent."""

import json
import re
from typing import Any

import numpy as np
import pytest

import hierrouter as hr
from hierrouter_cache.reader import CacheReader
from tests.cli.conftest import Place
from tests.conftest import Run
from tests.hierrouter.collection.examples import save

Paid = tuple[Place, Any, str]
COLLECT = "collect --datasets mine.jsonl --pool testbed --cache"


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Paid:
    """A cache `c`, and what collecting it said, as JSON and on stderr.

    Of the thirty questions two are the same under two ids.
    """
    place = Place(tmp_path_factory.mktemp("paid"), hierrouter)
    rows = [
        {"id": f"q{n}", "question": f"compute {n % 29}+{n % 29 + 1}", "answer": f"{2 * n + 1}"}
        for n in range(30)
    ]
    save(rows, place / "mine.jsonl")
    done = place.does(f"{COLLECT} c --format json")
    return place, json.loads(done.stdout), done.stderr


def total(spent: dict[str, dict[str, float]], what: str = "cost") -> float:
    return sum(of[what] for of in spent.values())


def test_a_collection_says_what_it_spent_and_counts_each_call_once(paid: Paid) -> None:
    place, found, said = paid
    spent = found["spent"]
    assert {*spent} == {"calc", "text", "facts"}
    for what in ("calls", "tokens_in", "tokens_out"):
        assert total(spent, what) == found[what] > 0
    reader = CacheReader(place / "c")
    assert total(spent, "calls") == reader.number("SELECT count(*) FROM calls_rows")
    assert re.search(rf"^all +{found['calls']} +0 ", said, re.MULTILINE)
    again = place.does(f"{COLLECT} c --format json")
    assert json.loads(again.stdout)["spent"] == {} and "Spent now" not in again.stderr


def test_the_view_of_calls_made_sums_up_to_what_was_spent(paid: Paid) -> None:
    place, whole, _ = paid
    sums = "count(*) AS calls, sum(tokens_in) AS i, sum(tokens_out) AS o, sum(cost) AS cost"
    asked = f"SELECT model, {sums} FROM spend WHERE NOT failed GROUP BY model"
    rows = {row["model"]: row for row in place.asks_cache("--cache c", asked)}
    assert {*rows} == {*whole["spent"]}
    for name, of in whole["spent"].items():
        found = [rows[name][what] for what in ("calls", "i", "o", "cost")]
        told = [of[what] for what in ("calls", "tokens_in", "tokens_out", "cost")]
        assert found == pytest.approx(told, abs=1e-9)
    places = "SELECT DISTINCT hop, dataset, seconds > 0 AS timed, failed FROM spend ORDER BY hop"
    same = {"dataset": "mine", "timed": True, "failed": False}
    # Direct calls are those of hop 1 here.
    assert place.asks_cache("--cache c", places) == [{"hop": hop, **same} for hop in (1, 2)]


def test_a_limit_stops_and_a_higher_one_goes_on_with_nothing_called_twice(paid: Paid) -> None:
    place, whole, _ = paid
    cost, low = total(whole["spent"]), total(whole["spent"]) * 0.6
    pilot = place.tells(f"{COLLECT} d --limit 9 --max-spend {cost}")
    planned = place.tells(f"{COLLECT} d --max-spend {cost * 2} --dry-run")
    assert (planned["above_max_spend"], planned["max_spend"]) == (False, cost * 2)
    assert planned["spent_before"] == pytest.approx(total(pilot["spent"]))
    dry = place.does(f"{COLLECT} d --max-spend {low} --dry-run").stderr
    assert re.search(r"spent before \S+, due \S+, at most \S+: above --max-spend", dry)
    first = place.asks(f"{COLLECT} d --max-spend {low}")
    assert first.returncode == 130
    assert f"error: the limit is reached: --max-spend {low:g}, " in first.stderr
    assert "Spent now, in money" in first.stderr
    before = CacheReader(place / "d").number("SELECT count(*) FROM calls_rows")
    assert pilot["calls"] < before < whole["calls"]
    again = place.asks(f"{COLLECT} d --max-spend {low}")
    assert again.returncode == 130 and "Spent now" not in again.stderr
    rest = place.tells(f"{COLLECT} d --max-spend {cost * 2}")
    assert rest["calls"] + before == whole["calls"]
    rows = CacheReader(place / "d").sql("SELECT count(*) a, count(DISTINCT key) b FROM calls_rows")
    assert rows.to_pylist() == [{"a": whole["calls"], "b": whole["calls"]}]
    place.does(f"{COLLECT} d --max-spend {low}")  # nothing is due: no limit stops that


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "much"])
def test_a_limit_that_is_none_is_one_line(place: Place, given: str) -> None:
    line = place.refuses(f"collect --max-spend {given}")
    assert line.startswith("error: a cost must be") and f"--max-spend {given}" in line
    assert not (place / "caches").exists()


def test_a_report_has_the_latency_of_each_policy_and_the_best_route_in_time(paid: Paid) -> None:
    place, _, _ = paid
    shown = place.tells("report --cache c --split train --alpha 0")
    by_name = {row["policy"]: row for row in shown["latency"]["rows"]}
    tree = hr.open(place / "c").split("train")
    leaf = tree.layout.node((1, 2))
    seconds = tree.latency[:, leaf]
    p50, p95 = np.quantile(seconds, (0.5, 0.95), method="higher")
    route = by_name["text>facts"]
    assert [route["p50"], route["p95"]] == pytest.approx([p50, p95])
    first = tree.layout.node((1,))
    np.testing.assert_allclose(seconds, tree.seconds[:, first] + tree.seconds[:, leaf])
    fixed = [row for row in shown["latency"]["rows"] if row["kind"] in ("single", "route")]
    limit = sorted(row["p95"] for row in fixed)[len(fixed) // 2] * 1.000001
    quick = {row["policy"] for row in fixed if row["p95"] <= limit}
    limited = place.tells(f"report --cache c --split train --alpha 0 --p95-below {limit!r}")
    rewards = {row["policy"]: row["reward"] for row in limited["rows"] if row["dataset"] == "all"}
    best = limited["latency"]["best_in_time"]
    assert best in quick and rewards[best] == max(rewards[name] for name in quick)
    text = place.does(f"report --cache c --split train --alpha 0 --p95-below {limit!r}").stdout
    assert f"is {best}, with R" in " ".join(text.split())
    assert "a time must be finite" in place.refuses("report --cache c --p95-below nan")


def test_a_second_has_a_price_wherever_c_counts(paid: Paid) -> None:
    place, _, _ = paid
    plain, timed = (hr.open(place / "c", price_of_second=price) for price in (0.0, 50.0))
    np.testing.assert_allclose(timed.cost, plain.cost + 50 * plain.latency)
    np.testing.assert_allclose(timed.direct.cost, plain.direct.cost + 50 * plain.direct.seconds)
    assert timed.fingerprint != plain.fingerprint and timed.same_content(plain.fingerprint)
    train = "train --cache c --algo value --allow-stop --keep-anyway --alpha 0.01"
    (place / "runs").mkdir(exist_ok=True)
    place.does(f"{train} --price-of-second 50 --out runs/timed")
    said = place.does("report --cache c --split validation --format json").stderr
    assert "runs/timed was trained with another --price-of-second" in said
    for flags in ("--checkpoint runs/timed", "--price-of-second 50"):
        found = place.tells(f"report --cache c --split validation {flags}")
        assert found["cost_unit"] == "money per question, a second at 50"
        assert "hierrouter" in {row["policy"] for row in found["rows"]}
    line = place.refuses("report --cache c --checkpoint runs/timed --price-of-second 2")
    assert "trained with a second at 50, opened was 2; give --price-of-second 50" in line
    place.does(f"{train} --out runs/plain")
    assert "opened was 50" in place.refuses(
        "report --cache c --checkpoint runs/plain --price-of-second 50"
    )
    assert "tokens only" in place.refuses("explore --cache c --price-of-second 50")
    live = place.tells("route --checkpoint runs/timed 'compute 12+7'")
    rate = dict(zip(plain.models, plain.rate.tolist(), strict=True))
    for step in live["steps"]:
        tokens = np.dot(rate[step["model"]], [step["tokens_in"], step["tokens_out"]])
        assert step["cost"] == pytest.approx(tokens + 50 * step["model_s"], abs=1e-4)


def test_seconds_that_nobody_measured_have_no_price(place: Place) -> None:
    rows = [
        {"query_id": f"q{n}", "question": f"{n}?", "answer": str(n), "model": name}
        | {"response": str(n), "tokens_in": 3, "tokens_out": 1}
        for n in range(9)
        for name in ("small-1b", "large-7b")
    ]
    save(rows, place / "mine.jsonl")
    place.does("cache import mine.jsonl --cache c")
    line = place.refuses("train --cache c --price-of-second 2 --encoder hashed-ngrams")
    assert line.startswith("error: no recorded seconds of ") and "--price-of-second 2" in line

"""How an estimate reads."""

import pytest

from hierrouter.collection.estimate import Amount, Estimate, StageEstimate, exactly
from hierrouter.reports.plans import duration, estimate_object, estimate_table, short, size

ESTIMATE = Estimate(
    queries=2,
    nodes=24,
    direct=6,
    stages=(
        StageEstimate("direct a", 4, exactly(2), Amount(1500, 9000), seconds=Amount(None, None)),
        StageEstimate("hop 1 a"),
        StageEstimate("hop 2 a", 0, Amount(None, 6), Amount(None, 70), seconds=Amount(9, 61)),
    ),
    notes=("a note",),
)


def test_a_row_a_stage_that_has_something_and_two_for_all() -> None:
    table = estimate_table(ESTIMATE)
    assert [(row.group, *row.cells[:4]) for row in table.rows] == [
        ("direct", "a", "4", "2", "~1.5k"),
        ("hop 2", "a", "0", "<=6", "<=70"),
        ("all", "expected", "4", "<=8", "<=9.07k"),
        ("all", "at most", "4", "8", "9.07k"),
    ]
    assert [row.cells[5] for row in table.rows] == ["unknown", "~9 s", "unknown", "unknown"]


def test_json_has_every_amount() -> None:
    found = estimate_object(ESTIMATE)
    assert found["notes"] == ("a note",)
    assert found["stages"][2]["calls"] == {"expected": None, "most": 6}
    assert found["total"]["calls"] == {"expected": None, "most": 8}
    assert found["total"]["there"] == 4


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (12.345, "12.3"), (999.6, "1k"), (1234, "1.23k"), (2.5e6, "2.5M")],
)
def test_numbers_have_three_digits(number: float, shown: str) -> None:
    assert short(number) == shown


def test_sizes_and_times_have_units() -> None:
    assert [size(0), size(950), size(2.18e6)] == ["0 B", "950 B", "2.18 MB"]
    shown = [duration(seconds) for seconds in (0, 59.6, 599, 601, 3599, 7300, 90_000)]
    assert shown == ["0 s", "60 s", "599 s", "10 min", "60 min", "2 h 1 min", "1 d 1 h"]

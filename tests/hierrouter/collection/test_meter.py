"""What the progress of a collection says, and when."""

import json
from dataclasses import dataclass
from typing import Any

from hierrouter.collection.progress import Meter, progress_lines


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def stage(calls: int) -> list[dict[str, Any]]:
    """The lines about a stage of so many calls, one a second."""
    said: list[str] = []
    clock = Clock()
    meter = progress_lines(said.append, 10.0, clock)
    meter.on_level("hop 1 a", calls)
    for _ in range(calls):
        clock.now += 1
        meter.on_calls(1, 10, 0.5)
    return [json.loads(line) for line in said]


def test_lines_are_so_far_apart_but_for_the_end_of_a_long_stage() -> None:
    assert stage(9) == []
    assert [line["done"] for line in stage(24)] == [10, 20, 24]


def test_a_line_says_how_far_it_is() -> None:
    said: list[str] = []
    clock = Clock()
    meter = progress_lines(said.append, 10.0, clock)
    meter.on_level("direct a", 1)
    meter.on_calls(1, 5, 0.25)
    meter.on_level("hop 1 a", 900)
    clock.now += 10
    meter.on_calls(128, 8120, 3.0)
    numbers = {"done": 128, "of": 900, "failed": 0, "tokens_per_s": 812, "eta_s": 60, "spent": 3.25}
    assert [json.loads(line) for line in said] == [{"progress": "hop 1 a", **numbers}]


def test_what_is_given_up_is_done_and_failed_and_costs_nothing() -> None:
    said: list[str] = []
    meter = progress_lines(said.append, every_s=0.0)
    meter.on_level("hop 1 a", 3)
    meter.on_calls(1, 0, 0.0)
    meter.on_lost(2)
    last = json.loads(said[-1])
    assert (last["done"], last["of"], last["failed"]) == (3, 3, 2)
    assert (last["tokens_per_s"], last["spent"]) == (0, 0)


def test_the_first_of_a_hundred_is_no_ground_for_a_guess() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.on_level("hop 1 a", 300)
    assert meter.eta_s is None
    clock.now += 12
    meter.on_calls(2, 20, 0.5)
    assert meter.eta_s is None
    meter.on_calls(1, 10, 0.5)
    assert meter.eta_s == 12 * 297 / 3

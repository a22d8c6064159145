"""What the progress of a collection says, and when."""

import json
from dataclasses import dataclass

from hierrouter.collection.progress import Meter, ProgressLines


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(clock: Clock, every_s: float = 10.0) -> tuple[ProgressLines, list[str]]:
    said: list[str] = []
    return ProgressLines(said.append, every_s, clock), said


def test_nothing_is_said_of_what_ends_sooner() -> None:
    clock = Clock()
    lines, said = lines_of(clock)
    for stage in range(3):
        lines.meter.on_level(f"hop {stage} a", 3)
        for _ in range(3):
            clock.now += 1
            lines.meter.on_calls(1, 10, 0.5)
    assert said == []


def test_a_line_says_how_far_it_is() -> None:
    clock = Clock()
    lines, said = lines_of(clock)
    lines.meter.on_level("direct a", 1)
    lines.meter.on_calls(1, 5, 0.25)
    lines.meter.on_level("hop 1 a", 900)
    clock.now += 10
    lines.meter.on_calls(128, 8120, 3.0)
    assert [json.loads(line) for line in said] == [
        {
            "progress": "hop 1 a",
            "done": 128,
            "of": 900,
            "failed": 0,
            "tokens_per_s": 812,
            "eta_s": 60,
            "spent": 3.25,
        }
    ]


def test_lines_are_at_least_so_far_apart_but_for_the_end_of_a_long_stage() -> None:
    clock = Clock()
    lines, said = lines_of(clock)
    lines.meter.on_level("hop 1 a", 24)
    for _ in range(24):
        clock.now += 1
        lines.meter.on_calls(1, 10, 0.5)
    assert [json.loads(line)["done"] for line in said] == [10, 20, 24]


def test_failed_calls_are_done_and_cost_nothing() -> None:
    clock = Clock()
    lines, said = lines_of(clock)
    lines.meter.on_level("hop 1 a", 2)
    clock.now += 20
    lines.meter.on_calls(2, 0, 0.0)
    found = json.loads(said[0])
    assert (found["done"], found["tokens_per_s"], found["spent"]) == (2, 0, 0)


def test_without_an_answer_there_is_no_guess() -> None:
    meter = Meter(Clock())
    meter.on_level("hop 1 a", 2)
    assert meter.eta_s is None


def test_the_first_of_a_hundred_is_no_ground_for_a_guess() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.on_level("hop 1 a", 300)
    clock.now += 12
    meter.on_calls(2, 20, 0.5)
    assert meter.eta_s is None
    meter.on_calls(1, 10, 0.5)
    assert meter.eta_s == 12 * 297 / 3


def test_what_is_given_up_is_done_and_failed() -> None:
    lines: list[str] = []
    progress = ProgressLines(lines.append, every_s=0.0)
    progress.meter.on_level("hop 1 a", 3)
    progress.meter.on_calls(1, 9, 0.5)
    progress.meter.on_lost(2)
    last = json.loads(lines[-1])
    assert (last["done"], last["of"], last["failed"], last["spent"]) == (3, 3, 2, 0.5)

"""How far a collection is, in figures.

In: what `summary.Progress` is told. Out: speed, time left and cost so far; for a log, a line of
JSON now and then, whose keys are a contract (docs/collect.md). Not covered: bars on a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

SECONDS_PER_LINE = 10.0
EARLY = 0.01  # share of a stage


@dataclass
class Meter:
    """Counts of the stage under way, and the cost of all.

    Attributes:
        clock: seconds since any moment.
        label: model and level.
        done, of: calls, those that were given up included.
        failed: calls of all stages that were given up.
        tokens: in and out, of this stage.
        spent: cost of all calls so far, at the pool's rates.
        started: when the stage began.
    """

    clock: Callable[[], float] = perf_counter
    label: str = ""
    done: int = 0
    of: int = 0
    failed: int = 0
    tokens: int = 0
    spent: float = 0.0
    started: float = 0.0

    def on_level(self, label: str, calls: int) -> None:
        """Begin a stage of so many calls."""
        self.label, self.of = label, calls
        self.done = self.tokens = 0
        self.started = self.clock()

    def on_calls(self, calls: int, tokens: int, cost: float) -> None:
        """So many more are answered."""
        self.done += calls
        self.tokens += tokens
        self.spent += cost

    def on_lost(self, calls: int) -> None:
        """So many more are given up."""
        self.done += calls
        self.failed += calls

    @property
    def seconds(self) -> float:
        """Since the stage began; above 0."""
        return max(self.clock() - self.started, 1e-9)

    @property
    def tokens_per_s(self) -> float:
        """Of this stage."""
        return self.tokens / self.seconds

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of this stage, if it goes on so; None until a hundredth is done.

        What came first took the time in which the model was loaded, too.
        """
        if not self.done or self.done < self.of * EARLY:
            return None
        return (self.of - self.done) * self.seconds / self.done


@dataclass
class ProgressLines:
    """A line of JSON every so often, and one at the end of each stage that took that long.

    Attributes:
        put: takes a line.
        every_s: seconds between two lines, and before the first one.
        meter: what the lines say.
    """

    put: Callable[[str], None]
    every_s: float = SECONDS_PER_LINE
    meter: Meter = field(default_factory=Meter)
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.meter.clock()

    def on_calls(self, calls: int, tokens: int, cost: float) -> None:
        """Count, and say so where it is time."""
        self.meter.on_calls(calls, tokens, cost)
        self._tell()

    def on_lost(self, calls: int) -> None:
        """Count, and say so where it is time."""
        self.meter.on_lost(calls)
        self._tell()

    def _tell(self) -> None:
        ended = self.meter.done >= self.meter.of and self.meter.seconds >= self.every_s
        if ended or self.meter.clock() - self.last >= self.every_s:
            self.last = self.meter.clock()
            self.put(self.line())

    def line(self) -> str:
        """The stage as one JSON object."""
        meter = self.meter
        eta = meter.eta_s
        return json.dumps(
            {
                "progress": meter.label,
                "done": meter.done,
                "of": meter.of,
                "failed": meter.failed,
                "tokens_per_s": round(meter.tokens_per_s),
                "eta_s": None if eta is None else round(eta),
                "spent": float(f"{meter.spent:.6g}"),
            }
        )

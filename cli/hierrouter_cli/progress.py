"""How a collection shows that it goes on.

On a terminal a bar for each model at each level; elsewhere a line of JSON now and then, on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.collect.summary import Progress


@contextmanager
def progress(nodes: int, every_s: float | None = None) -> Iterator[Progress]:
    """Bars or lines, whichever suits stderr; `every_s` is the time between two lines."""
    from hierrouter.collect.meter import SECONDS_PER_LINE, ProgressLines
    from hierrouter.collect.summary import Progress

    if sys.stderr.isatty():
        with _bars(nodes) as bars:
            yield bars
        return
    lines = ProgressLines(console.say, SECONDS_PER_LINE if every_s is None else every_s)
    yield Progress(lines.meter.on_level, lines.on_calls, lines.on_lost, _say_changed)


@contextmanager
def _bars(nodes: int) -> Iterator[Progress]:
    """A bar for each model at each level, with tokens per second and what was spent."""
    from hierrouter.collect.meter import Meter
    from hierrouter.collect.summary import Progress

    meter = Meter()
    with console.progress_bars() as bars:
        current = bars.add_task("starting", total=None, note=f"{nodes:,} nodes at most")

        def on_level(label: str, calls: int) -> None:
            meter.on_level(label, calls)
            bars.reset(current, total=calls, description=label, note="")

        def on_calls(calls: int, tokens: int, cost: float) -> None:
            meter.on_calls(calls, tokens, cost)
            show(calls)

        def on_lost(calls: int) -> None:
            meter.on_lost(calls)
            show(calls)

        def show(calls: int) -> None:
            note = f"{meter.tokens_per_s:,.0f} tokens/s, spent {meter.spent:,.4g}"
            failed = f", {meter.failed:,} failed" if meter.failed else ""
            bars.update(current, advance=calls, note=note + failed)

        yield Progress(on_level, on_calls, on_lost, _say_changed)


def _say_changed(names: Sequence[str]) -> None:
    from hierrouter.collect.summary import changed_line

    console.say(changed_line(names))

"""Make the calls of a plan: here, as one shard of many, or on a cluster.

Says what is asked for, shows how it goes on, lets Ctrl-C end it well, says what was done.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from hierrouter_cli import console
from hierrouter_cli.progress import progress
from hierrouter_cli.selecting import Selected

if TYPE_CHECKING:
    from hierrouter.collect.collecting import Planned
    from hierrouter.collect.shards import Shard
    from hierrouter.collect.summary import Summary
    from hierrouter.pool import ModelSpec
    from hierrouter.replay.tree import Tree


def run_collect(found: Planned) -> Tree:
    """Collect here, embed and open the tree."""
    make_calls(found)
    return Selected(cache=found.cache).open()


def make_calls(found: Planned) -> Summary:
    """Make every missing call of the plan, or of the shard; says what is being done."""
    from hierrouter.collect.collecting import make_calls as call_models
    from hierrouter.collect.summary import require_answers

    per_query = found.pool.routes.calls + len(found.pool.everyone)
    with _finish_part_on_interrupt() as stop, _notes_are_said():
        _announce(found)
        with progress(len(found.queries) * per_query) as report:
            summary = call_models(found, report, stop, say_note)
    console.say(summary_line(summary))
    require_answers(summary)
    return summary


def _announce(found: Planned) -> None:
    pool, queries, shard = found.pool, found.queries, found.machines.shard
    share = f"shard {shard} of " if shard else ""
    console.say(
        f"collect: {share}{len(queries):,} queries x ({pool.routes.calls} nodes + "
        f"{len(pool.everyone)} direct calls), equal prompts once, into {found.cache}"
    )
    names_of = ", ".join(f"{model.name} ({_place(model)})" for model in pool.everyone)
    console.say(f"collect: {pool.hops} hops, {names_of}")
    if not any(query.split == "test" for query in queries):
        console.say("note: no test query among these, and reports need some; take a larger --limit")


def _place(model: ModelSpec) -> str:
    server = f" at {model.endpoint.address}" if model.backend == "openai" and model.endpoint else ""
    return f"{model.model}{server}"


def say_note(note: str) -> None:
    """What a mirror or a cluster has to say; nothing where that is nothing."""
    if note:
        console.say(f"note: {note}")


def say_standing(cache: Path, shard: Shard) -> None:
    """How far the shards of the plan are, and what to do when all of them are done."""
    from hierrouter.collect.shards import standing

    now = standing(cache, shard.count)
    console.say(
        f"shard {shard} is complete: {len(now.complete)} of {shard.count} shards are, "
        f"{now.found:,} of {now.wanted:,} nodes and direct calls of the whole plan are there"
    )
    if len(now.complete) == shard.count:
        console.say("all shards are complete: `hierrouter collect` without --shard embeds them")


def summary_line(summary: Summary) -> str:
    """What a collection did, in one line."""
    tokens = summary.tokens_in + summary.tokens_out
    rate = f", {tokens / summary.seconds:,.0f} tokens/s" if summary.seconds else ""
    found = f"{summary.wanted - summary.missing:,} of " if summary.missing else ""
    return (
        f"collected: {found}{summary.wanted:,} nodes and direct calls of "
        f"{summary.queries:,} queries; "
        f"{summary.calls:,} calls made, {summary.earlier:,} already there{rate}"
    )


class _Sayer(logging.Handler):
    """What the library notes while it works, such as a server that is waited for."""

    def emit(self, record: logging.LogRecord) -> None:
        console.say(f"note: {record.getMessage()}")


@contextmanager
def _notes_are_said() -> Iterator[None]:
    library = logging.getLogger("hierrouter")
    sayer = _Sayer()
    library.addHandler(sayer)
    try:
        yield
    finally:
        library.removeHandler(sayer)


@contextmanager
def _finish_part_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets what has begun be finished and committed; the second stops at once."""
    asked = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.say("interrupted: finishing and committing what has begun (again to stop at once)")

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)

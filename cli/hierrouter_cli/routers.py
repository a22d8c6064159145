"""The learned router that a command shows or uses, said aloud.

In: sentences on the router, the models it calls. Out: these on stderr, in the same words whatever
the command. Not covered: which router that is, and what is remarkable about it
(`hierrouter.shown`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.pool import Pool


def say_remarks(command: str, remarks: Iterable[str]) -> None:
    """What a reader would not expect of the router shown."""
    for remark in remarks:
        console.say(f"{command}: {remark}")


def say_called(command: str, run: Path, pool: Pool) -> None:
    """Which run routes, and whom it calls; where a server answers, a question goes there."""
    called = [
        f"{model.name} at {model.endpoint.base_url}" if model.endpoint else model.name
        for model in pool.models
    ]
    console.say(f"{command}: {run}, {', '.join(called)}")

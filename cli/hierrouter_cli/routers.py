"""The learned router that a command shows, said aloud.

In: sentences on the router. Out: these on stderr, in the same words whatever the command. Not
covered: which router that is, and what is remarkable about it (`hierrouter.shown`).
"""

from __future__ import annotations

from collections.abc import Iterable

from hierrouter_cli import console


def say_remarks(command: str, remarks: Iterable[str]) -> None:
    """What a reader would not expect of the router shown."""
    for remark in remarks:
        console.say(f"{command}: {remark}")

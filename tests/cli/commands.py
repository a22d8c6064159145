"""Every command of the command line."""

from collections.abc import Iterator
from typing import Any

from hierrouter_cli.app import root_command


def commands(group: Any = None, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by what a user types, in the order of the help, groups opened."""
    for name, command in (group or root_command()).commands.items():
        path = f"{above} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, path)
        else:
            yield path, command

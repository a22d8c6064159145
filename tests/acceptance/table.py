"""The rows of bad_inputs.toml: what is wrong, what is done, what the user reads."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("bad_inputs.toml")


@dataclass(frozen=True)
class Row:
    """One bad input: it is run, or names the tests that prove it in full.

    Attributes:
        area: what is bad, e.g. "dataset".
        id: letter of the area and number; a small letter tells variants of one input apart.
        what: the input, in words.
        setup: steps before the command, each a function in `damage` with its arguments.
        run: the command line behind `hierrouter`.
        env: environment variables of the command.
        exit: its exit code.
        says: the line with which it fails, behind `error: `; a star stands for anything.
        keep: checks afterwards, each a function in `keeps` with its arguments.
        proven: tests that show this in full, as file::name.
        why: where the behaviour differs from what one might expect, the reason.
    """

    area: str
    id: str
    what: str
    setup: list[list[Any]] = field(default_factory=list)
    run: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    exit: int = 0
    says: str = ""
    keep: list[list[Any]] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    why: str = ""

    def __post_init__(self) -> None:
        assert bool(self.run) != bool(self.proven), f"{self.id} is run, or proven elsewhere"
        assert bool(self.exit) == bool(self.says), f"{self.id} says why it fails, and only then"


def read_rows() -> list[Row]:
    """All rows, in the order of the file."""
    areas: dict[str, list[dict[str, Any]]] = tomllib.loads(FILE.read_text("utf-8"))
    return [Row(area, **entry) for area, entries in areas.items() for entry in entries]

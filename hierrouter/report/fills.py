"""Which colour stands for which policy.

In: a `Report`. Out: a `Fill` for each direct call and the router, the same in every figure: direct
calls of the pool are coloured, reference models grey, HierRouter vermilion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hierrouter.report.figure import COLOURS, GREYS, HATCHES, ROUTER_COLOUR
from hierrouter.report.results import Report, Row


@dataclass(frozen=True)
class Fill:
    """Fill of a bar or a point."""

    colour: str
    hatch: str = ""


def fills_of(report: Report) -> Mapping[tuple[str, str], Fill]:
    """One fill for each direct call and the router; a hatch where the colours are used up."""
    fills: dict[tuple[str, str], Fill] = {}
    for kind, colours in (("reference", GREYS), ("single", COLOURS), ("router", (ROUTER_COLOUR,))):
        members = [row for row in report.overall if row.kind == kind]
        for at, row in enumerate(members):
            turn, number = divmod(at, len(colours))
            fills[identity(row)] = Fill(colours[number], HATCHES[turn % len(HATCHES)])
    return fills


def identity(row: Row) -> tuple[str, str]:
    """What a policy is known by; a direct call may be called like a route."""
    return row.kind, row.policy

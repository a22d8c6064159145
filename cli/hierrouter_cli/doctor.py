"""`hierrouter doctor`: what of an installation works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hierrouter_cache.errors import HierRouterError
from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter_cli.doctor_checks import Finding


def doctor(
    cache: options.Cache = options.DEFAULT_CACHE, format: options.ShortFormat = "text"
) -> None:
    """Look at packages, devices, models, hub, disk, cache and router; say what to do.

    Nothing is changed. A note is good to know. With a problem something does not work, and the exit
    code is that of the first one; else it is 0.
    """
    from hierrouter_cli.doctor_checks import examine

    found = []
    for finding in examine(cache):
        found.append(finding)
        if format == "text":
            console.put(_line(finding))
    if format == "json":
        console.put_json(_as_object(found))
    if problems := [finding.error for finding in found if finding.error]:
        raise _together(problems)


def _together(problems: Sequence[HierRouterError]) -> HierRouterError:
    """An error of the first one's kind."""
    first, *more = problems
    return type(first)(f"{len(problems)} problems, the first: {first}") if more else first


def _line(finding: Finding) -> str:
    from hierrouter.tables import safe_text

    return safe_text(f"{finding.state:<9}{finding.subject:<16}{finding.text}") + "\n"


def _as_object(found: Sequence[Finding]) -> dict[str, Any]:
    shown = [{"subject": each.subject, "state": each.state, "text": each.text} for each in found]
    works = not any(each.error for each in found)
    return {"findings": shown, "works": works}

"""`hierrouter doctor`: what of an installation works."""

from __future__ import annotations

from hierrouter_cli import console, options


def doctor(
    cache: options.Cache = options.DEFAULT_CACHE, format: options.ShortFormat = "text"
) -> None:
    """Look at packages, devices, models, hub, disk, cache and router; say what to do.

    Nothing is changed. A note is good to know. With a problem something does not work, and the exit
    code is that of the first one; else it is 0.
    """
    from hierrouter.tables import safe_text
    from hierrouter_cli.doctor_checks import examine

    found = []
    for finding in examine(cache):
        found.append(finding)
        if format == "text":
            line = f"{finding.state:<9}{finding.subject:<16}{finding.text}"
            console.put(safe_text(line) + "\n")
    problems = [finding.error for finding in found if finding.error]
    if format == "json":
        shown = [
            {"subject": each.subject, "state": each.state, "text": each.text} for each in found
        ]
        console.put_json({"findings": shown, "works": not problems})
    if problems:
        first, *more = problems
        raise type(first)(f"{len(problems)} problems, the first: {first}") if more else first

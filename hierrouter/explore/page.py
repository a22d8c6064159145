"""One self-contained HTML page that runs, and loads nothing.

In: `Explored`. Out: the page as text: one style, one script, and the data as JSON that no parser
takes for markup. Its Content-Security-Policy names style and script by their hashes and forbids
everything else. Not covered: where the page is written.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from markupsafe import Markup

from hierrouter.evaluate.outcome import single_calls
from hierrouter.explore.data import Explored
from hierrouter.explore.payload import as_object
from hierrouter.report.html import BASE_STYLES, content_security_policy, environment

SCRIPTS = (
    "data.js",
    "routes.js",
    "value.js",
    "scene.js",
    "dom.js",
    "frontier.js",
    "tables.js",
    "shares.js",
    "list.js",
    "tree.js",
    "controls.js",
    "main.js",
)
# What ends a script element or starts a comment in it, as JSON says it otherwise.
INERT = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def as_html(explored: Explored) -> str:
    """The page, the same bytes for the same values."""
    style, script = _style(), _script()
    fold = explored.fold
    return (
        environment("hierrouter.explore")
        .get_template("explore.html.j2")
        .render(
            policy=content_security_policy(style, script),
            style=Markup(style),  # noqa: S704 - our own text, not foreign
            script=Markup(script),  # noqa: S704 - our own text
            data=Markup(inert_json(as_object(explored))),  # noqa: S704 - escaped there
            queries=len(fold),
            datasets=len(set(fold.datasets)),
            split=explored.split,
            scorer=fold.scorer,
            notes=explored.notes,
            absent=_absent(explored),
            texts=len(explored.texts),
        )
    )


def _absent(explored: Explored) -> set[str]:
    """What the legend need not name."""
    kinds = {outcome.kind for outcome in single_calls(explored.fold)}
    found = {"single", "reference"} - kinds
    found |= set() if explored.learned else {"router"}
    found |= set() if explored.brought else {"brought"}
    return found if "train" in explored.tree.splits else found | {"informed"}


def inert_json(value: Any) -> str:
    """JSON in ASCII that can stand inside a script element whatever it says."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(INERT)


def _style() -> str:
    base = resources.files("hierrouter.report").joinpath("templates")
    own = resources.files("hierrouter.explore").joinpath("templates", "explore.css")
    return "".join(base.joinpath(name).read_text("utf-8") for name in BASE_STYLES) + own.read_text(
        "utf-8"
    )


def _script() -> str:
    """All files in one function, so that nothing of it can be reached by name."""
    folder = resources.files("hierrouter.explore").joinpath("templates")
    files = "\n".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{files}\n}})();\n'

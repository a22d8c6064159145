"""What our HTML pages share: templates, style sheets, and what a page may do."""

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierrouter.reports.values import ALL
from hierrouter.tables import safe_text

BASE_STYLES = ("report.css", "tables.css")
PACKAGE = "hierrouter.reports"


def render(template: str, style: str, script: str = "", **values: Any) -> str:
    """A page that loads, frames and sends nothing; what it may do is named by its hash.

    Args:
        script: its one script; an empty one is not allowed to run either.
        values: for the template; foreign text in them is inert and visible on the page.
    """
    runs = f"script-src '{_digest(script)}'; " if script else ""
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; {runs}"
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup(style),  # noqa: S704 - our own text, not foreign
            script=Markup(script),  # noqa: S704 - our own text
            **values,
        )
    )


def template_texts(*names: str, between: str = "") -> str:
    """The text of some files beside the templates, one after the other."""
    folder = resources.files(PACKAGE).joinpath("templates")
    return between.join(folder.joinpath(name).read_text("utf-8") for name in names)


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals["ALL"] = ALL
    return found


def _visible(value: Any) -> Any:
    """What a template prints: foreign text with its control characters shown."""
    return safe_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

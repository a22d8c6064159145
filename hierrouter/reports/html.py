"""Rendering of HTML pages: templates, style sheets, and a policy that forbids loading anything."""

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierrouter.reports.estimates import ALL_DATASETS
from hierrouter.tables import safe_text

BASE_STYLES = ("report.css", "tables.css")
TEMPLATE_PACKAGE = "hierrouter.reports"


def render(template: str, style: str, script: str = "", **values: Any) -> str:
    """Render a page that loads, frames and sends nothing.

    The page's content security policy allows the style sheet and the script by their hashes, and
    nothing else.

    Args:
        template: file name of the template.
        style: the page's style sheet.
        script: its only script; an empty script is not allowed to run either.
        values: variables of the template; foreign text in them is escaped, and its control
            characters are made visible.
    """
    script_rule = f"script-src '{_digest(script)}'; " if script else ""
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; {script_rule}"
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
    """Join the text of some files of the templates folder.

    Args:
        names: file names.
        between: text between two files.
    """
    folder = resources.files(TEMPLATE_PACKAGE).joinpath("templates")
    return between.join(folder.joinpath(name).read_text("utf-8") for name in names)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(TEMPLATE_PACKAGE),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["ALL_DATASETS"] = ALL_DATASETS
    return environment


def _visible(value: Any) -> Any:
    """Make control characters visible in every text that a template prints, except in markup."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return safe_text(value)


def _digest(text: str) -> str:
    """Return the SHA-256 of a text in the notation of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""What our HTML pages share: a template environment, and what a page may do.

In: the package that holds a page's templates, its style and script. Out: a jinja2 environment that
escapes all foreign text, a Content-Security-Policy, the style sheets in common. Not covered: the
pages (`page`, `hierrouter.explore.page`).
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierrouter.report.text import safe_text

BASE_STYLES = ("report.css", "tables.css")  # of this package's templates


@cache
def environment(package: str) -> Environment:
    """Templates of a package; what they print of foreign text is inert and visible."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def content_security_policy(style: str, script: str | None = None) -> str:
    """Nothing is loaded, framed or sent; what is allowed is named by its hash.

    Args:
        style: the page's one style sheet.
        script: its one script; None runs none.
    """
    runs = "" if script is None else f"script-src '{_digest(script)}'; "
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; {runs}"
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(value: Any) -> Any:
    """What a template prints: foreign text with its control characters shown."""
    return safe_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value

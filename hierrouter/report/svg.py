"""A drawing as an SVG that fits any page.

In: a `Drawing`. Out: SVG text that is the same each time, takes the page's text colour (so it works
on light and dark), holds real text, and has no style attribute, metadata or reference to the
outside, so that a strict Content-Security-Policy lets it through. Not covered: files (`export`).
"""

from __future__ import annotations

import io
import re
from html import escape

from hierrouter.report.figure import INK, Drawing, settings

PAGE_COLOUR = "currentColor"

_TAG = re.compile(r"<[^<>]*>")
_FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def as_svg(drawing: Drawing, ink: str = PAGE_COLOUR, salt: str = "") -> str:
    """The drawing as one `<svg>` element; title and description are read out to the blind.

    Args:
        ink: colour of text and axes.
        salt: keeps its ids apart from those of the same drawing elsewhere on the page.
    """
    figure, sink = drawing.figure, io.StringIO()
    with settings(salt + drawing.name):
        figure.savefig(sink, format="svg")
    width, height = (figure.get_size_inches() * 72).round(1).tolist()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{_FONT_FAMILY}" stroke-linejoin="round" stroke-linecap="butt">\n'
        f"<title>{escape(drawing.title)}</title>\n<desc>{escape(drawing.description)}</desc>\n"
        f"{_inside(sink.getvalue(), ink)}\n"
    )


def _inside(svg: str, ink: str) -> str:
    """All that is inside of the outermost tag, and that tag's end."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style\b.*?</style>|<metadata\b.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    # In tags only: what looks like markup inside a label is text and stays as it is.
    body = _TAG.sub(lambda tag: _portable(tag[0], ink), body)
    wanted = frozenset(re.findall(r"[\"(]#([\w.-]+)", body))
    body = _TAG.sub(lambda tag: _without_idle_id(tag[0], wanted), body)
    return re.sub(r"\n\s*\n+", "\n", body).strip()


def _portable(tag: str, ink: str) -> str:
    """The tag without style attribute and XLink, in the colour `ink`."""
    plain = re.sub(r' style="([^"]*)"', _as_attributes, tag)
    return plain.replace("xlink:href=", "href=").replace(INK, ink)


def _as_attributes(match: re.Match[str]) -> str:
    """`style="fill: none; font-size: 10px"` as ` fill="none" font-size="10px"`, without fonts."""
    attributes = []
    for declaration in match[1].split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # the shorthand of older matplotlib
            name, value = "font-size", next(iter(re.findall(r"[\d.]+px", value)), "")
        if value and name != "font-family":
            attributes.append(f' {name}="{value}"')
    return "".join(attributes)


def _without_idle_id(tag: str, wanted: frozenset[str]) -> str:
    """The tag without an id that nothing refers to: two figures on a page would both have it."""
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", tag)

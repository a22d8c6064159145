"""Foreign text, made safe for where it goes.

Names of models and datasets come from files that others wrote. In: any text. Out: the same text,
inert in a terminal, in Markdown, in LaTeX or in a spreadsheet. Not covered: HTML, which the page's
template engine escapes by itself, and JSON.
"""

from __future__ import annotations

import re
import unicodedata

# Control, format (bidi, zero width, tags), surrogate, line and paragraph separator.
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
KEPT = frozenset("\n\t")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # a row that starts with [ would be read as the argument of \\
        "]": "{]}",
        "\n": " ",
        "\t": " ",
    }
)
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]|~$!])")


class _Visible(dict[int, int | str]):
    """What `safe_text` makes of each code point, worked out when it is first met."""

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        steers = unicodedata.category(character) in INVISIBLE_CATEGORIES and character not in KEPT
        self[code] = shown = _escaped(code) if steers else code
        return shown


def _escaped(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_VISIBLE = _Visible()


def safe_text(text: str) -> str:
    r"""`text` with everything that could steer a terminal made visible.

    C0 except newline and tab, DEL, C1, bidi and other format characters, line and paragraph
    separators and lone surrogates become `\x1b`, `\u202e` or `\U000e0041`. Other text, accents and
    emoji included, is left alone.
    """
    return text.translate(_VISIBLE)


def one_line(text: str, limit: int | None = None) -> str:
    """`safe_text` without line breaks and tabs, cut to `limit` characters with an ellipsis."""
    flat = " ".join(safe_text(text).split())
    if limit is None or len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def markdown_text(text: str) -> str:
    """One line of Markdown in which no character of `text` has a meaning; HTML is inert too."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def latex_text(text: str) -> str:
    """One line of LaTeX that prints `text` and runs nothing."""
    return one_line(text).translate(_LATEX)


def csv_text(text: str) -> str:
    """A text cell that no spreadsheet takes for a formula: a quote is put before it if needed."""
    safe = safe_text(text)
    looks_like_formula = text.startswith(FORMULA_STARTS) or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{safe}" if looks_like_formula else safe

"""Fold the forms that one text can have in Unicode, Markdown and LaTeX into one.

Only readers of answers use this. The paper's `token_f1` compares texts as they are.
"""

import re
import unicodedata
from functools import lru_cache

QUOTES = {**dict.fromkeys(map(ord, "‘’‚‛′ʼ＇´"), "'"), **dict.fromkeys(map(ord, "“”„‟″＂«»"), '"')}
DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−﹣－"), "-")
# Characters that are not visible: soft hyphens, joiners, marks of direction and of byte order.
INVISIBLE = dict.fromkeys(
    [0x00AD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF]
)
SEPARATORS = {ord("٫"): ".", ord("٬"): ",", ord("⁄"): "/", ord("∕"): "/"}
TRANSLATION = {**QUOTES, **DASHES, **INVISIBLE, **SEPARATORS}

# A run, and what a combining mark or a fraction may belong to.
OTHER_CHARACTERS_PATTERN = re.compile(r"(?:\d\s?|.)?[^\x00-\x7f]{1,200}", re.S)
SUPERSCRIPT_DIGITS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
SUPERSCRIPT_PATTERN = re.compile(f"[{''.join(SUPERSCRIPT_DIGITS)}]+")
SUBSCRIPT_DIGITS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
SUBSCRIPT_PATTERN = re.compile(f"[{''.join(SUBSCRIPT_DIGITS)}]+")
OTHER_DIGIT_PATTERN = re.compile(r"(?![0-9])\d")  # of another script
# One half and the like; after a digit it is the rest of a mixed number.
VULGAR_FRACTION_PATTERN = re.compile(r"(?:(?P<integer>\d)\s?)?(?P<fraction>[¼-¾⅐-⅞])")


def fold(text: str) -> str:
    """The text with one form for each character: NFKC, plain quotes, hyphens and digits.

    Accents count. Superscripts become powers, `x^{2}`, and fractions two numbers, `1/2`.
    """
    if text.isascii():
        return text
    return OTHER_CHARACTERS_PATTERN.sub(lambda match: _fold_run(match[0]), text)


@lru_cache(maxsize=4096)  # most texts have a few such characters, and the same ones
def _fold_run(text: str) -> str:
    """Fold a run of characters that are not ASCII, with the character before it."""
    text = SUPERSCRIPT_PATTERN.sub(
        lambda match: "^{" + "".join(SUPERSCRIPT_DIGITS[digit] for digit in match[0]) + "}", text
    )
    text = SUBSCRIPT_PATTERN.sub(
        lambda match: "_{" + "".join(SUBSCRIPT_DIGITS[digit] for digit in match[0]) + "}", text
    )
    text = VULGAR_FRACTION_PATTERN.sub(_fraction, text)
    text = unicodedata.normalize("NFKC", text.translate(TRANSLATION)).translate(TRANSLATION)
    return OTHER_DIGIT_PATTERN.sub(lambda match: str(unicodedata.decimal(match[0])), text)


def _fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = unicodedata.normalize("NFKC", match["fraction"]).partition("⁄")
    integer = f"{match['integer']} " if match["integer"] else ""
    return f"{integer}{numerator}/{denominator}"


# Marks around a text: **Yes**, _Yes_, `Yes`, $\text{Yes}$.
LATEX_TEXT_PATTERN = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|emph)\s*"
    r"\{((?:[^{}]|\{[^{}]*\})*)\}"
)
EMPHASIS_PATTERN = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|~~)(?=\S)([^*_~\n]+?)(?<=\S)\1(?![\w*])")


def without_emphasis(text: str) -> str:
    """The text without the Markdown and LaTeX marks that only change how it looks."""
    text = LATEX_TEXT_PATTERN.sub(r"\1", text)
    return EMPHASIS_PATTERN.sub(r"\2", text)

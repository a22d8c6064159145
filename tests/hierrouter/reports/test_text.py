"""Every family of characters that can steer a terminal, a page or a sheet."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.tables import csv_text, latex_text, markdown_text, one_line, safe_text

FAMILIES = {
    "c0": "".join(map(chr, [*range(0x09), *range(0x0B, 0x20)])),
    "del": "\x7f",
    "c1": "".join(map(chr, range(0x80, 0xA0))),
    "bidi embedding": "\u202a\u202b\u202c\u202d\u202e",
    "bidi isolate": "\u2066\u2067\u2068\u2069",
    "bidi mark": "\u200e\u200f\u061c",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    "separator": "\u2028\u2029",
    "tag": "\U000e0001\U000e0041",
    "surrogate": "\ud800\udfff",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_character_of_a_family_becomes_visible(family: str) -> None:
    for character in FAMILIES[family]:
        shown = safe_text(f"a{character}b")
        assert character not in shown
        assert shown.startswith("a\\") and shown.endswith("b")
        assert shown.isascii()


def test_escapes_name_the_code_point() -> None:
    assert safe_text("\x1b[31m\x9b\u202e\U000e0041") == "\\x1b[31m\\x9b\\u202e\\U000e0041"


def test_ordinary_text_is_left_alone() -> None:
    text = "naïve café\t中文 🙂 [/INST] [red] C:\\new\nline"
    assert safe_text(text) == text


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_invisible_survives_and_again_changes_nothing(text: str) -> None:
    shown = safe_text(text)
    left = {unicodedata.category(character) for character in shown if character not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert safe_text(shown) == shown
    shown.encode("utf-8")


def test_one_line_folds_and_cuts() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\u00a0="])
def test_csv_formula_is_neutralised(start: str) -> None:
    assert csv_text(f"{start}1+1").startswith("'")


def test_csv_leaves_names_alone() -> None:
    assert csv_text("calc>text") == "calc>text"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a_b & 5 % #1 $x$", r"a\_b \& 5 \% \#1 \$x\$"),
        ("~^<>|", r"\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"),
        ("[0.1, 0.2]", "{[}0.1, 0.2{]}"),
        ("\x1b\n\nx", r"\textbackslash{}x1b x"),
    ],
)
def test_latex_prints_the_text(text: str, expected: str) -> None:
    assert latex_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("*a* _b_ `c`", r"\*a\* \_b\_ \`c\`"),
        ("[x](http://y)", r"\[x\](http://y)"),
        ("<script>&amp;", "&lt;script>&amp;amp;"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_prints_the_text(text: str, expected: str) -> None:
    assert markdown_text(text) == expected

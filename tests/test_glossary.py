"""The words of docs/glossary.md are those of the code and of the pages."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
PACKAGES = ("hierrouter", "cache/hierrouter_cache", "cli/hierrouter_cli")
WORD_OF_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def rows() -> list[tuple[str, str, list[str], list[str]]]:
    """Word, meaning, its names in files, and words that are not used for it."""
    table = []
    for line in GLOSSARY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "word":
            word, meaning, names, avoided = cells
            names_in_files = re.findall(r"`(.+?)`", names)
            table.append((word, meaning, names_in_files, re.findall(r"\w+", avoided)))
    return table


@cache
def sources() -> str:
    """The text of all packages, with the schemas and templates in them."""
    suffixes = (".py", ".json", ".toml", ".j2")
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
    return "\n".join(path.read_text() for path in files if path.suffix in suffixes)


@cache
def words_of_names() -> frozenset[str]:
    """Each word within the names of functions, classes, arguments and variables of the code."""
    names: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            names |= names_in(path.read_text())
    return frozenset(word.lower() for name in names for word in WORD_OF_NAME.findall(name))


def names_in(code: str) -> set[str]:
    """Names that a module defines: functions, classes, arguments, variables, attributes it sets."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def test_the_page_has_each_word_once() -> None:
    words = [word for word, *_ in rows()]
    assert len(words) > 60
    assert sorted(words) == sorted(set(words))
    assert all(meaning for _, meaning, *_ in rows())


@cache
def text_of_code_and_pages() -> str:
    """In one line, in lower case, with the words of names apart."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path != GLOSSARY]
    text = "\n".join([sources(), *(path.read_text() for path in pages)]).lower()
    return text.replace("_", " ").replace("\n", " ")


@pytest.mark.parametrize(("word", "names"), [(word, names) for word, _, names, _ in rows()])
def test_a_word_is_used_and_its_names_are_there(word: str, names: list[str]) -> None:
    for term in word.lower().split(", "):
        assert re.search(rf"\b{re.escape(term)}", text_of_code_and_pages()), term
    assert [name for name in names if name not in sources()] == []


def test_no_name_in_the_code_has_a_word_that_is_not_used() -> None:
    avoided = {other: word for word, _, _, others in rows() for other in others}
    assert len(avoided) > 30
    assert {other: word for other, word in avoided.items() if other in words_of_names()} == {}


def test_words_within_names_are_found() -> None:
    code = "class OneRival:\n    def beat(self, OTHER_AGENT):\n        self.best_llm = 1\n"
    words = {word.lower() for name in names_in(code) for word in WORD_OF_NAME.findall(name)}
    assert {"rival", "agent", "llm", "beat"} <= words

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter.questions.scoring import scorer
from hierrouter_cache.errors import InputError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, where Python looks last; what it imported is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write(body: str, name: str = "mine") -> None:
    Path(f"{name}.py").write_text(body)


def test_a_function_in_the_working_directory_scores() -> None:
    write("def half(response, references):\n    return 0.5 if response in references else False")
    half = scorer("mine:half")
    assert half("a", ["a"]) == 0.5
    assert half("b", ["a"]) == 0.0
    assert half.key.startswith("mine:half@")


def test_where_python_looks_is_left_alone(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    write("def score(response, references):\n    return 0.5")
    elsewhere = [folder for folder in sys.path if folder not in ("", str(here))]
    monkeypatch.setattr(sys, "path", elsewhere.copy())
    with pytest.raises(InputError, match="cannot be imported: mine:score"):
        scorer("mine:score")
    assert sys.path == elsewhere


def test_another_source_is_another_key() -> None:
    write("def score(response, references):\n    return 0.5")
    before = scorer("mine:score").key
    assert scorer("mine:score").key == before
    del sys.modules["mine"]
    write("def score(response, references):\n    return 0.25")
    assert scorer("mine:score").key != before


def test_the_file_that_defines_the_function_counts() -> None:
    write("from deep import score", "mine")
    write("def score(response, references):\n    return 0.5", "deep")
    before = scorer("mine:score").key
    del sys.modules["mine"], sys.modules["deep"]
    write("def score(response, references):\n    return 0.25", "deep")
    assert scorer("mine:score").key != before


def test_a_file_here_cannot_stand_in_for_a_library() -> None:
    write("raise SystemExit", "colorsys")  # of the standard library, imported by nobody here
    sys.modules.pop("colorsys", None)
    with pytest.raises(InputError, match="scorer takes other arguments"):
        scorer("colorsys:rgb_to_hsv")


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ("", "nowhere:score", "cannot be imported: nowhere:score: ModuleNotFoundError"),
        ("1 / 0", "mine:score", "cannot be imported: mine:score: ZeroDivisionError"),
        ("def score(:", "mine:score", "cannot be imported: mine:score: SyntaxError"),
        ("raise SystemExit(0)", "mine:score", "cannot be imported: mine:score: SystemExit"),
        ("", "mine:score", "no function score in module mine"),
        ("score = 3", "mine:score", "no function score in module mine"),
        ("def score(response): ...", "mine:score", "takes other arguments: mine:score"),
        ("def score(a, b, c): ...", "mine:score", "takes other arguments: mine:score"),
        ("", "mine:", "not an import path"),
        ("", ":score", "not an import path"),
    ],
)
def test_what_cannot_be_used_is_refused(body: str, path: str, words: str) -> None:
    write(body)
    with pytest.raises(InputError, match=words) as refused:
        scorer(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 300


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("1.5", "scorer gave 1.5: mine:score; on the response 'seven'"),
        ("-0.1", "scorer gave -0.1"),
        ("float('nan')", "scorer gave nan"),
        ("float('inf')", "scorer gave inf"),
        ("None", "scorer gave None"),
        ("'1'", "scorer gave '1'"),
        ("10 ** 400", r"scorer gave 1000\d+\.\.\."),
        ("1 / 0", "scorer failed: mine:score: ZeroDivisionError: division by zero; on the"),
        ("exit()", "scorer failed: mine:score: SystemExit"),
    ],
)
def test_what_is_no_score_is_refused(value: str, words: str) -> None:
    write(f"def score(response, references):\n    return {value}")
    mine = scorer("mine:score")
    with pytest.raises(InputError, match=words) as refused:
        mine("seven", ["7"])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 300

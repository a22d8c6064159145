import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.questions.answers import token_f1
from hierrouter.questions.scoring import SCORERS, Scorer, score_all, scorer
from hierrouter_cache.errors import InputError
from tests.conftest import environment

# Not only any text, but what the scorers look for.
PIECES = st.sampled_from(
    ["the answer is ", r"\boxed{", "}", "#### ", "(C)", "A", "1,2", "/", "-", r"\frac", "$", "\n"]
)
TEXT = st.text(max_size=20) | st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join)
IN_PROCESS = [name for name in SCORERS if name not in ("boxed", "accuracy")]


@given(TEXT, st.lists(TEXT, min_size=1, max_size=2))
def test_any_text_gets_a_value(response: str, references: list[str]) -> None:
    for name in IN_PROCESS:
        assert 0 <= SCORERS[name](response, references) <= 1


@settings(max_examples=30, deadline=None)  # these two ask another process
@given(TEXT, TEXT)
def test_any_expression_gets_a_value(response: str, reference: str) -> None:
    for name in ("boxed", "accuracy"):
        assert SCORERS[name](response, [reference]) in (0, 1)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("token_f1", "blue whale"),
        ("exact_match", "blue whale"),
        ("numeric", "-1,234.5"),
        ("boxed", r"\boxed{\frac{x}{2}}"),
        ("boxed", r"\frac{x}{2} - 1"),
        ("choice", "C"),
        ("accuracy", "C"),
    ],
)
def test_a_reference_is_right(name: str, reference: str) -> None:
    assert SCORERS[name](reference, [reference]) == 1
    assert SCORERS[name]("no idea", [reference]) == 0


def test_a_key_names_scorer_and_version() -> None:
    assert scorer("token_f1").key == "token_f1@1"
    assert Scorer("token_f1", "2", token_f1).key != scorer("token_f1").key
    assert len({found.key for found in SCORERS.values()}) == len(SCORERS)
    assert all(found.name == name for name, found in SCORERS.items())


def test_boxed_has_the_version_of_its_library() -> None:
    assert "math-verify-" in scorer("boxed").version


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    with pytest.raises(InputError, match=r"unknown scorer: token-f1; did you mean token_f1\?"):
        scorer("token-f1")


def test_equal_pairs_are_scored_once() -> None:
    asked, told = [], []

    def length(response: str, references: tuple[str, ...], /) -> float:
        asked.append(response)
        return len(response) / 10

    values = score_all(
        Scorer("length", "1", length),
        [("ab", ["x"], ()), ("a", ["x"], ()), ("ab", ("x",), []), ("ab", ["y"], ())],
        lambda done, total: told.append((done, total)),
    )
    assert values == [0.2, 0.1, 0.2, 0.2]
    assert asked == ["ab", "a", "ab"]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_computer_algebra_is_not_imported_here() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from hierrouter.questions.scoring import scorer\n"
            r"assert scorer('boxed')(r'\boxed{x+1}', ['1+x']) == 1" + "\nprint(*sys.modules)",
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"sympy", "math_verify", "torch"} & set(done.stdout.split())

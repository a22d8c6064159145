"""Scorers by name, and choices from a question through the cache to the scorer."""

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.collection.files import export_jsonl, import_jsonl
from hierrouter.collection.plan import last_plan
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Answer, Response
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions import scoring
from hierrouter.questions.answers import boxed, choice, exact_match, numeric
from hierrouter.questions.query import Query
from hierrouter.questions.sources import query_of
from hierrouter.replay.inspection import verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import Choices
from hierrouter_cache.reader import CacheReader
from tests.conftest import environment
from tests.engines import Scripted
from tests.hierrouter.questions.real import questions

# Not only any text, but what the scorers look for.
PIECES = st.sampled_from(
    ["the answer is ", r"\boxed{", "}", "#### ", "(C)", "A", "1,2", "/", "-", r"\frac", "$", "\n"]
)
TEXT = st.text(max_size=20) | st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join)
IN_PROCESS = [name for name in scoring.SCORERS_BY_NAME if name not in ("boxed", "accuracy")]


@given(TEXT, st.lists(TEXT, min_size=1, max_size=2))
def test_any_text_gets_a_value(response: str, references: list[str]) -> None:
    for name in IN_PROCESS:
        assert 0 <= scoring.SCORERS_BY_NAME[name](response, references) <= 1


@settings(max_examples=30, deadline=None)  # these two ask another process
@given(TEXT, TEXT)
def test_any_expression_gets_a_value(response: str, reference: str) -> None:
    for name in ("boxed", "accuracy"):
        assert scoring.SCORERS_BY_NAME[name](response, [reference]) in (0, 1)


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
    assert scoring.SCORERS_BY_NAME[name](reference, [reference]) == 1
    assert scoring.SCORERS_BY_NAME[name]("no idea", [reference]) == 0


def test_a_key_names_scorer_and_version() -> None:
    assert scoring.scorer("token_f1").key == "token_f1@2"
    assert "math-verify-" in scoring.scorer("boxed").version
    assert len(scoring.scorer("accuracy").version) == len("2-") + 8  # of the others' versions
    assert {
        found.name for found in scoring.SCORERS_BY_NAME.values() if "choices" in found.reads
    } == {"choice", "accuracy"}
    assert len({found.key for found in scoring.SCORERS_BY_NAME.values()}) == len(
        scoring.SCORERS_BY_NAME
    )
    assert all(found.name == name for name, found in scoring.SCORERS_BY_NAME.items())
    with pytest.raises(InputError, match=r"unknown scorer: token-f1; did you mean token_f1\?"):
        scoring.scorer("token-f1")
    with pytest.raises(InputError, match="no score was imported with the response 'x'"):
        scoring.scorer("given ".strip())("x", ["x"])


def test_what_looks_the_same_is_scored_once() -> None:
    asked, told = [], []

    def length(response: str, references: tuple[str, ...], /) -> float:
        asked.append(response)
        return len(response) / 10

    pairs = [("ab", "x"), ("a", "x"), ("ab", "x"), ("ab", "y")]
    values = scoring.score_all(
        scoring.Scorer("length", "1", length),
        [
            scoring.ScorerInput(response, (one,), question=str(at))
            for at, (response, one) in enumerate(pairs)
        ],
        lambda done, total: told.append((done, total)),
    )
    assert values == [0.2, 0.1, 0.2, 0.2]
    assert asked == ["ab", "a", "ab"]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_computer_algebra_is_not_imported_here() -> None:
    code = (
        "import sys; from hierrouter.questions.scoring import scorer\n"
        r"assert scorer('boxed')(r'\boxed{x+1}', ['1+x']) == 1" + "\nprint(*sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], env=environment(), text=True)
    assert not {"sympy", "math_verify", "torch"} & set(said.split())


def either(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    return 0.5 if choices else 0.25


def test_choices_are_looked_at_where_there_are_some_and_the_scorer_knows_what_to_do() -> None:
    one, two = (
        scoring.Scorer("one", "1", either),
        scoring.Scorer("two", "1", either, scoring.CHOICE_ARGUMENTS),
    )
    offered = (("A", "ice"),)
    assert one("x", ["y"]) == one("x", ["y"], offered) == two("x", ["y"]) == 0.25
    assert two("x", ["y"], offered) == 0.5
    with pytest.raises(InputError, match="one needs reference answers, and a query has none"):
        one("x", [])


@pytest.mark.parametrize(
    ("reference", "judge"),
    [
        ("3 + 4 = 7\n#### 7", numeric),
        ("-1,234.5", numeric),
        ("3/4", numeric),
        (r"so it is \boxed{x+1}.", boxed),
        (r"\frac{1}{2}", boxed),
        (r"'a\nb'", exact_match),
        ("C", choice),
        ("c", exact_match),
        ("K", exact_match),
        ("7 dogs", exact_match),
        ("", exact_match),
    ],
)
def test_a_references_form_chooses_the_judge(reference: str, judge: scoring.ScoreFunction) -> None:
    assert scoring.score_function_for(reference) is judge


def test_each_reference_is_judged_by_its_own_form() -> None:
    assert scoring.accuracy("The answer is (C).", ["Paris", "C"]) == 1
    assert scoring.accuracy("paris", ["Paris", "C"]) == 1
    assert scoring.accuracy("The answer is (D).", ["Paris", "C"]) == 0


@pytest.mark.parametrize(
    ("answers", "references"),
    [
        (["about a week"], ("about a week", "7")),
        (["7"], ("7",)),
        (["3 + 4\n#### 7"], ("3 + 4\n#### 7",)),
        (["about a week", "C"], ("about a week", "C")),
        (["a week", "a week"], ("a week", "7")),
    ],
)
def test_a_result_is_one_reference_more_where_no_answer_states_it(
    answers: list[str], references: tuple[str, ...]
) -> None:
    assert scoring.with_final_answer(answers, "7") == references


@pytest.mark.parametrize(
    ("name", "judge"),
    [
        ("gsm8k", numeric),
        ("math", boxed),
        ("mmlu", choice),
        ("arc_easy", choice),
        ("arc_challenge", choice),
    ],
)
def test_real_references(name: str, judge: scoring.ScoreFunction) -> None:
    for row in questions(name):
        assert scoring.score_function_for(row["answer"]) is judge, row["answer"]
        assert scoring.accuracy(row["answer"], [row["answer"]]) == 1
        assert scoring.accuracy("", [row["answer"]]) == 0


def test_programs_have_no_accuracy_without_their_tests() -> None:
    for row in questions("mbpp"):
        assert scoring.score_function_for(row["answer"]) is exact_match
        assert math.isnan(scoring.accuracy(row["answer"], [row["answer"]]))


SAYS = {"text": "Liquid.", "label": "The answer is (B).", "wrong": "gas"}
POOL = Pool(tuple(ModelSpec(name, f"org/{name}", 1.0) for name in SAYS), 1, ("Solve.",))
ROW = {"choices": ["gas", "liquid"], "answer": "B"}
QUERIES = [
    query_of({**ROW, "question": f"Is it {fold}?", "split": fold}, "here", "mine", number)
    for number, fold in enumerate(("train", "validation", "test"))
]
# What versions stored that knew no choices: the same text, and nothing more.
AS_BEFORE = [replace(query, choices=()) for query in QUERIES]


def script(model: str, prompt: str) -> Answer:
    return Response(SAYS[model], 5, 2, "stop")


def collected(root: Path, queries: Sequence[Query] = QUERIES) -> None:
    fill_cache(POOL, queries, root, engines=Scripted(script))


def scores(root: Path, name: str) -> list[list[float]]:
    return OpenTree(cache=root, scorer=name).run().direct.score.tolist()


def test_a_choice_in_words_is_right(tmp_path: Path) -> None:
    collected(tmp_path)
    assert scores(tmp_path, "choice") == [[1, 1, 0]] * 3
    assert OpenTree(cache=tmp_path).run().direct.accuracy.tolist() == [[1, 1, 0]] * 3
    assert "scores: as computed again" in verify_cache(tmp_path, rescore=True)[-1]
    plan = last_plan(tmp_path)
    assert plan
    assert plan[1] == tuple(QUERIES)


def test_a_cache_of_before_gets_choices_without_a_call(tmp_path: Path) -> None:
    collected(tmp_path, AS_BEFORE)
    assert scores(tmp_path, "choice") == [[0, 1, 0]] * 3
    calls = CacheReader(tmp_path).responses()
    collected(tmp_path)
    assert CacheReader(tmp_path).responses() == calls
    assert scores(tmp_path, "choice") == [[1, 1, 0]] * 3
    assert scores(tmp_path, "token_f1") == [[0, pytest.approx(0.4), 0]] * 3


def test_choices_go_out_and_come_back(tmp_path: Path) -> None:
    """Not where one was changed on the way."""
    root, out = tmp_path / "cache", tmp_path / "out.jsonl"
    collected(root)
    scores(root, "choice")
    export_jsonl(root, out)
    import_jsonl(out, tmp_path / "back")
    export_jsonl(tmp_path / "back", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    assert scores(tmp_path / "back", "choice") == [[1, 1, 0]] * 3
    forged = out.read_text().replace('"text": "gas"', '"text": "air"')
    assert forged != out.read_text()
    out.write_text(forged)
    with pytest.raises(InputError, match="query is not that of the row's content"):
        import_jsonl(out, tmp_path / "forged")


def test_a_query_without_choices_is_the_line_of_before(tmp_path: Path) -> None:
    root, out = tmp_path / "cache", tmp_path / "out.jsonl"
    collected(root, AS_BEFORE)
    export_jsonl(root, out)
    assert '"choices"' not in out.read_text()
    import_jsonl(out, tmp_path / "back")
    assert CacheReader(tmp_path / "back").sql("SELECT choices FROM queries")[0].null_count == 3

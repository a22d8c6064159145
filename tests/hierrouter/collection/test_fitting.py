"""The scorer of a user's own files fits their references; that of the paper's data never moves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.collection.collect import Collect
from hierrouter.collection.plan import last_plan, scorer_for
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Response
from hierrouter.pools.files import load_pool, stored_scorer
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import fitting_scorer, scorer
from hierrouter.questions.sources import read_file
from hierrouter.replay.inspection import data_notes, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import default_scorer
from hierrouter_cache.errors import InputError
from hierrouter_cache.reader import CacheReader
from tests.engines import Scripted
from tests.hierrouter.collection.examples import POOL, sums

TESTBED = load_pool("testbed")


@pytest.mark.parametrize(
    ("references", "scorer"),
    [
        ([["17"], ["-3.5"], ["#### 4"]], "numeric"),
        ([["B"], ["(C)"], ["A"]], "choice"),
        ([["\\boxed{x+1}"], ["\\frac{1}{2}x"]], "boxed"),
        ([["17"], ["\\sqrt{2}"]], "accuracy"),
        ([["17"], ["B"]], "accuracy"),
        ([["17"], ["Paris"]], None),
        ([["Paris"], ["London"]], None),
        ([["def f(x):\n    return x"]], None),
        ([["seven", "7"], ["8"]], "numeric"),
        ([["17"], []], None),
        ([], None),
    ],
)
def test_the_scorer_that_fits(references: list[list[str]], scorer: str | None) -> None:
    assert fitting_scorer(references) == scorer


def test_labels_beyond_the_usual_ones_are_labels_of_their_choices() -> None:
    choices = [tuple(zip("ABCDEFGHIJKLM", "abcdefghijklm", strict=True))] * 2
    assert fitting_scorer([("L",), ("M",)], choices) == "choice"
    assert fitting_scorer([("L",), ("5",)], [choices[0], ()]) == "accuracy"
    assert fitting_scorer([("L",), ("M",)]) is None


def test_no_scorer_of_answers_fits_programs() -> None:
    code = "def area(r):\n    return r'\\pi' * r"
    assert fitting_scorer([(code,)]) is fitting_scorer([(code,), ("5",)]) is None


def numbers(dataset: str) -> list[Query]:
    return [Query("1", dataset, "1+1?", ("2",), "test")]


@pytest.mark.parametrize(
    ("pool", "names", "dataset", "scorer"),
    [
        ("testbed", ["mine.jsonl"], "mine", "numeric"),
        ("paper", ["mine.jsonl"], "mine", None),
        ("testbed", ["gsm8k"], "gsm8k", None),
        ("testbed", ["gsm8k.parquet"], "gsm8k", None),
        ("testbed", ["data/arc_easy.jsonl"], "arc_easy", None),
        ("testbed", ["arith"], "arith", None),
        ("testbed", ["mine.jsonl", "arith"], "mine", None),
    ],
)
def test_the_paper_s_data_and_pool_keep_the_paper_s_scorer(
    pool: str, names: list[str], dataset: str, scorer: str | None, tmp_path: Path
) -> None:
    assert scorer_for(tmp_path, load_pool(pool), names, numbers(dataset)) == scorer


def test_own_files_are_scored_by_what_fits_and_one_line_says_so(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", "question": f"compute {n}+1", "answer": str(n + 1)} for n in range(6)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cache = tmp_path / "cache"
    lines: list[str] = []
    file = str(tmp_path / "mine.jsonl")
    Collect(datasets=[file], pool="testbed", cache=cache).run(on_note=lines.append)
    [line] = [line for line in lines if "Q is" in line]
    assert line.startswith("collect: Q is numeric, as the references are numbers: mean ")
    assert "; by the paper's token_f1 " in line
    assert default_scorer(CacheReader(cache).latest_plan().pool) == "numeric"
    assert OpenTree(cache=cache).run().scorer == "numeric"
    assert OpenTree(cache=cache, scorer="token_f1").run().scorer == "token_f1"
    # The same command, and one that goes on, keep what was decided; the plan stays as it is.
    plans = CacheReader(cache).plans()
    Collect(datasets=[file], pool="testbed", cache=cache).run()
    Collect(cache=cache).run()
    assert CacheReader(cache).plans() == plans


def test_a_cache_from_before_keeps_its_scorer(tmp_path: Path) -> None:
    queries = sums(6)
    fill_cache(POOL, queries, tmp_path, engines=Scripted())
    assert scorer_for(tmp_path, POOL, ["sums.jsonl"], queries) is None
    assert scorer_for(tmp_path, POOL, ["other.jsonl"], numbers("other")) == "numeric"
    assert default_scorer(CacheReader(tmp_path).latest_plan().pool) == "token_f1"


def test_a_label_is_no_dataset_of_the_paper(tmp_path: Path) -> None:
    """Only a row that names its dataset "math" is of that one."""
    scorers = [
        scorer_for(tmp_path, POOL, ["sums.jsonl"], numbers("math"), group_by)
        for group_by in (None, "kind")
    ]
    assert scorers == [None, "numeric"]


@pytest.mark.parametrize("text", ["", "[]", '{"pool": 1}', '{"pool": {"scorer": "os:system"}}'])
def test_a_plan_of_others_names_no_other_scorer(text: str) -> None:
    assert stored_scorer(text) is None


def test_a_report_warns_where_right_answers_score_low(tmp_path: Path) -> None:
    def reasoned(model: str, prompt: str) -> Response:
        number = int(prompt.split()[2])
        answer = 2 * number if model != "b" else 1
        text = f"We add the number to itself, step by step, and so the answer is {answer}."
        return Response(text, len(prompt), 20, "stop")

    fill_cache(POOL, sums(6), tmp_path, engines=Scripted(reasoned))
    [note] = [note for note in data_notes(OpenTree(cache=tmp_path).run()) if "right" in note]
    assert note.startswith("Q is 0.083 on sums, where 66.7% of the answers are right by accuracy")
    assert note.endswith("--scorer accuracy tells right from wrong.")
    by_accuracy = OpenTree(cache=tmp_path, scorer="accuracy").run()
    assert [note for note in data_notes(by_accuracy) if "right by accuracy" in note] == []


@pytest.mark.parametrize(
    ("answer_type", "response", "reference", "verdict"),
    [
        ("", "The answer is A major.", "A", 0),  # by its look it is a label
        ("text", "A", "A", 1),
        ("text", "The answer is (A).", "(A)", 1),
        ("expression", "\\boxed{A}", "A", 1),
        ("expression", "\\boxed{2A}", "A", 0),
        ("number", "We need 12 of them", "12 boxes", 1),
        ("interval", "\\boxed{(3, 4]}", "(3,4]", 1),
        ("interval", "\\boxed{[3, 4]}", "(3,4]", 0),
        ("set", "\\boxed{\\{2, 1\\}}", "\\{1,2\\}", 1),
        ("label", "The answer is (B).", "b", 0),
        ("labels", "A, C", "A, C", 1),
        ("text", "17.0", "17", 0),  # a version, not a number
    ],
)
def test_a_declared_type_wins_over_the_look(
    answer_type: str, response: str, reference: str, verdict: int
) -> None:
    assert scorer("accuracy")(response, [reference], answer_type=answer_type) == verdict


def file_of(folder: Path, rows: list[dict[str, str]]) -> Path:
    file = folder / "mine.jsonl"
    lines = [json.dumps({"question": f"{n}?", **row}) + "\n" for n, row in enumerate(rows)]
    file.write_text("".join(lines))
    return file


def types_of(folder: Path, answers: list[str], **further: str) -> list[str]:
    rows = [{"answer": answer, **further} for answer in answers]
    return [query.answer_type for query in read_file(file_of(folder, rows))]


def test_declared_types_choose_the_scorer() -> None:
    assert fitting_scorer([["Ja"], ["Nein"]], answer_types=["label", "label"]) == "choice"
    assert fitting_scorer([["17"], ["18"]], answer_types=["text", "text"]) is None
    assert fitting_scorer([["17"], ["x"]], answer_types=["", "expression"]) == "accuracy"


def test_the_whole_file_tells_what_a_letter_is(tmp_path: Path) -> None:
    assert types_of(tmp_path, ["Paris", "London", "A"]) == ["", "", "text"]
    assert types_of(tmp_path, ["\\frac{a}{2}", "3", "B"]) == ["", "", "expression"]
    assert types_of(tmp_path, ["A", "(B)", "Paris"]) == ["", "", ""]
    assert types_of(tmp_path, ["A", "B"]) == ["", ""]
    assert types_of(tmp_path, ["Paris", "London", "A"], answer_type="label") == ["label"] * 3
    assert types_of(tmp_path, ["Paris", "London", "A"], dataset="mmlu") == ["", "", ""]


def test_an_unknown_type_is_refused_by_its_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown answer_type 'letter'") as refused:
        types_of(tmp_path, ["A"], answer_type="letter")
    assert "known: number, expression, set, interval, label, labels, text" in str(refused.value)


def test_types_are_stored_with_the_queries(tmp_path: Path) -> None:
    rows = [{"answer": "seventeen"}, {"answer": "eighteen"}, {"answer": "A"}]
    queries = [replace(query, split="test") for query in read_file(file_of(tmp_path, rows))]
    fill_cache(POOL, queries, tmp_path / "cache", engines=Scripted())
    OpenTree(cache=tmp_path / "cache").run()
    plan = last_plan(tmp_path / "cache")
    assert plan is not None
    assert [query.answer_type for query in plan[1]] == ["", "", "text"]
    assert plan[1] == tuple(queries)
    verify_cache(tmp_path / "cache", rescore=True)
    untyped = replace(queries[2], answer_type="")
    assert untyped.references != queries[2].references
    assert untyped.key != queries[2].key

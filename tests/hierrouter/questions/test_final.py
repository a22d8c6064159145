"""The final answer of a response: its forms, their order, and what real sources say is right."""

import math
import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.questions.answers import agreement_key, token_f1
from hierrouter.questions.final import ANSWER_FIELD_PATTERN, declared_text, output_text, stated_text
from hierrouter.questions.labels import stated_label
from hierrouter.questions.numbers import final_number
from hierrouter.questions.scoring import SCORERS_BY_NAME, accuracy, scorer
from tests.hierrouter.questions.real import answers

FENCED = (
    'First 12.\n```json\n{\n "reasoning": "3 boxes, the answer is 4",\n "answer": "17"\n}\n```\n'
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FENCED, "17"),
        ('{"answer": 17, "unit": "kg"}', "17"),
        ('{"answer": "17", "unit": "kg"}', "17"),
        ("{'final_answer': 'a whale'}", "a whale"),
        ('{"Final Answer": "1,234"}', "1,234"),
        ('{"answer": [1, {"a": 2}], "x": 0}', '[1, {"a": 2}]'),
        ('{"answer": true}', "true"),
        ('{"answer": ""}', ""),
        ('{"answer": "a \\"b\\" c"}', 'a "b" c'),
        ('{"answer": "["a", "b"]"}', '["a", "b"]'),  # quotes that should have been escaped
        (r'{"answer": "\frac{1}{2}"}', r"\frac{1}{2}"),  # no form feed
        (r'{"answer": "\\frac{1}{2}"}', r"\frac{1}{2}"),
        (r'{"answer": "\boxed{\text{no}}"}', r"\boxed{\text{no}}"),
        (r'{"answer": "a\nb\tc \u00e9 \sqrt{2}"}', "a\nb\tc é \\sqrt{2}"),
        ('{"answer": "1"} no, {"answer": "2"}', "2"),
        ('{"reasoning": "x", "answer": "17', "17"),  # cut short
        ('{"answer": "17\nand more', "17"),
        ('{"answer": [1, 2', "[1, 2"),
        ("[ANSWER]\nassert f([1]) == [1, 2]\n[/ANSWER]", "[1, 2]"),
        ("<answer> blue </answer> done", "blue"),
        ("[/ANSWER] [ANSWER]", None),
        ("The answer is 5.", None),
        ("", None),
    ],
)
def test_a_declared_answer(text: str, found: str | None) -> None:
    assert declared_text(text) == found


def test_a_vaguer_form_never_beats_a_clearer_one() -> None:
    forms = ['{"answer": "1"}', "<answer>2</answer>", r"\boxed{3}", "\n#### 4", "The answer is 5."]
    for at, expected in enumerate("12345"):
        for order in (forms[at:], forms[at:][::-1]):
            text = "\n".join(order)
            assert stated_text(text) == expected
            assert final_number(text) == int(expected)
    assert stated_text("It is 6") is None and final_number("It is 6") == 6
    # A field without a number is no number, whatever stands around it.
    assert final_number('The answer is 5. {"answer": "cannot be told"} So 5.') is None


@pytest.mark.parametrize(
    ("field", "label"),
    [
        ("(C) a whale", "C"),
        ("C. a whale", "C"),
        ("c", "C"),
        ("C - whale", "C"),
        ("The correct option is C", "C"),
        ("A whale", None),
        ("", None),
    ],
)
def test_a_label_in_a_field_goes_before_labels_in_the_text(field: str, label: str | None) -> None:
    assert stated_label(f'The answer is (B). {{"answer": "{field}"}}') == label


def test_what_code_gives() -> None:
    assert output_text("It returns `[1]`, not `[2]`.\nThe output is `'a b'` then.") == "'a b'"
    assert output_text("the result is: {1: 2}\nok") == "{1: 2}"
    assert output_text("nothing of the kind") is None


@given(
    st.text(st.sampled_from('{}[]"\\:,answer \n`nufx1\ud800')),
    st.sampled_from(list(SCORERS_BY_NAME)),
)
def test_broken_json_raises_nothing(text: str, name: str) -> None:
    if name not in ("boxed", "accuracy"):  # they ask another process: see test_scoring
        for response in (text, '"answer": ' + text, '{"answer": "' + text):
            assert 0 <= SCORERS_BY_NAME[name](response, ["'a'"]) <= 1


HUGE = {
    "fields": '"answer": ' * 8_000,
    "braces": '{"answer": ' + "{" * 80_000,
    "quotes": '"answer": "' + '"\\' * 40_000,
    "boxes": r"\boxed{" * 11_000,
    "cues": "the answer is " * 6_000,
    "outputs": "returns " * 10_000,
    "tags": "[answer]" * 10_000,
    "blanks": '"answer": "a"' + " " * 80_000 + "x",
    "brackets": '"answer": "' + "(" * 1_900 + '"}',
}


@pytest.mark.parametrize("name", HUGE)
def test_twenty_thousand_tokens_take_no_longer_than_plain_words(name: str) -> None:
    """In processor time, beside as many characters of prose; a quadratic rule takes minutes."""

    def taken(text: str) -> float:
        start = time.process_time()
        for reference in ("12", "'abc'", "C"):
            assert accuracy(text, [reference]) in (0, 1)
        return time.process_time() - start

    assert taken(HUGE[name]) < 10 * taken("the 12 words of a long answer " * 2_700) + 0.5


def test_every_scorer_agrees_with_the_verdicts_of_real_sources() -> None:
    """Measured: GSM8K .987, MATH .980 and .987, CRUX .987, MMLU-Pro .996."""
    found: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    own = {"gsm8k": "numeric", "math": "boxed", "crux": "exact_match"}
    for row in answers("judged_answers_450"):
        for name in (own[row["dataset"]], "accuracy"):
            for reference in ("answer", "final_answer"):
                value = scorer(name)(row["response"], [row[reference]])
                found[row["dataset"], name, reference].append(value == row["right"])
    assert len(found) == 12
    least = {"gsm8k": 0.98, "math": 0.97, "crux": 0.95}
    for (dataset, *_), agreed in found.items():
        assert sum(agreed) >= least[dataset] * len(agreed), found
    rows = answers("depth1_mmlu_pro_1500x4")
    agreed = [SCORERS_BY_NAME["choice"](row["response"], [row["final_answer"]]) for row in rows]
    same = sum(value == row["right"] for value, row in zip(agreed, rows, strict=True))
    assert same >= 0.99 * len(rows)


@pytest.mark.parametrize(
    "table", ["depth1_gsm8k_openai4_200", "depth1_mbpp_mapcoder3_100", "multihop_math_dylan_60"]
)
def test_f1_is_that_of_an_independent_implementation(table: str) -> None:
    """To the last digit of the float32 that the tables hold."""
    compared = 0
    for row in answers(table):
        for column, reference in (("f1_full", "answer"), ("f1_final", "final_answer")):
            if row[column] is None or row[reference] is None or math.isnan(row[column]):
                continue
            assert np.float32(token_f1(row["response"], [row[reference]])) == np.float32(
                row[column]
            )
            compared += 1
    assert compared >= 300


@pytest.mark.parametrize(
    "texts",
    [
        ("17", " 17. ", "17.0", "The answer is 17.", '{"answer": "17"}', r"so \boxed{17}", FENCED),
        ("C", "The answer is (C).", '{"answer": "C. a whale"}', r"\boxed{\text{C}}"),
        (r"\boxed{\frac{1}{2}}", r'{"answer": "$\frac{1}{2}$"}'),
        ("There are 3 boxes of 4 apples each, and that makes, if I am not wrong, 12 apples.", "12"),
        ("Blue whale.", "the answer is blue whale"),
    ],
)
def test_who_gives_the_same_answer_agrees(texts: tuple[str, ...]) -> None:
    assert len({agreement_key(text) for text in texts}) == 1


def test_who_gives_another_answer_does_not() -> None:
    code = (
        "```python\ndef f(x):\n    return x + {}\n```\nThis adds a number to what it is given, 7."
    )
    texts = ["17", "-17", "C", "a whale", "unknown", "", code.format(1), code.format(2)]
    assert len({agreement_key(text) for text in texts}) == len(texts)


def test_a_field_is_called_answer() -> None:
    named = ('"answer" :', "'Answer':", '"final_answer":', '"final answer": ', '"FinalAnswer":')
    assert all(ANSWER_FIELD_PATTERN.search(text) for text in named)
    assert not any(
        ANSWER_FIELD_PATTERN.search(text) for text in ('"answers":', '"the_answer":', "answer:")
    )

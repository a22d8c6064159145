"""Responses that cannot be judged, verdicts that `accuracy` does not share, doubtful counts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from hierrouter.questions.audit import (
    CUT,
    CUT_THINKING,
    EMPTY,
    ERROR_PAGE,
    MAX_AUDITED,
    MAX_DISAGREEMENTS,
    REFUSAL,
    SEVERAL,
    UNREAD,
    Response,
    audit_responses,
    draw_audited,
    kind_of,
    token_doubts,
)
from tests.hierrouter.collection.examples import DATA


def response(text: str, **changes: Any) -> Response:
    """A response to a sum whose result is 7."""
    known = Response(
        query="sums/q0",
        dataset="sums",
        model="small",
        question="What is 3 + 4?",
        references=("7",),
        choices=(),
        prompt="What is 3 + 4?",
        text=text,
        verdict=None,
        is_cut=False,
        tokens_in=8,
        tokens_out=4,
    )
    return replace(known, **changes)


KINDS = {
    ERROR_PAGE: [
        *("HTTP 404", "502 Bad Gateway", "Internal Server Error", "Error: 429 Too Many Requests"),
        *("Rate limit exceeded", "Rate limit reached for gpt-4 in organization org on tokens"),
        *("Error code: 429 - {'error': {'message': 'x'}}", "litellm.RateLimitError: slow down"),
        *("Request timed out.", "[ERROR] Connection refused", "HTTP/1.1 503 Service Unavailable"),
        "<!DOCTYPE html><html><head><title>504 Gateway Time-out</title></head></html>",
        '{"error": {"message": "Internal server error", "code": 500}}',
        "This model's maximum context length is 4097 tokens.",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443)",
    ],
    EMPTY: ["", " \n", "nan", "NULL", "<think>3 + 4 = 7</think>", "<think></think>\n"],
    CUT_THINKING: ["<think>3 + 4 is", "<think>\nThe answer is 7. Wait"],
    REFUSAL: [
        *("I'm sorry, but I can't assist with that.", "I cannot answer this question."),
        *(
            "As an AI language model, I cannot provide that.",
            "\u62b1\u6b49\uff0c\u6211\u65e0\u6cd5\u56de\u7b54",
        ),
        *("Unfortunately, I am unable to help with this.", "I must decline."),
    ],
    SEVERAL: ["The answer is 5 or 6.", r"So \boxed{5 \text{ or } 6}"],
    UNREAD: ["That is hard to say.", "The answer is seven."],
    "": [
        *("The answer is 8.", "The answer is 404.", "404 apples", "500 errors were found"),
        *("HTTP is a protocol with 7 methods", "I can't see why, but it is 8"),
        *("<think>no</think> 8", "Rate limiting allows 8 calls"),
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in KINDS for text in KINDS[kind]])
def test_a_response_that_cannot_be_judged_has_a_kind(kind: str, text: str) -> None:
    assert kind_of(response(text)) == kind


def test_what_is_right_is_an_answer_whatever_it_looks_like() -> None:
    page = response("Internal Server Error", references=("Internal Server Error",))
    assert kind_of(page) == ERROR_PAGE
    assert kind_of(page, is_right=True) == ""
    assert kind_of(response("None", references=("None",))) == ""
    assert kind_of(response("A, C", references=("B",))) == SEVERAL
    assert kind_of(response("A, C", references=("A, B",))) == ""
    assert kind_of(response("3 + 4 is 7, so", is_cut=True)) == CUT
    assert kind_of(response("<think>3", is_cut=True)) == CUT_THINKING


def test_an_audit_is_fast_on_any_text() -> None:
    texts = ["error " * 200_000, "<think>" * 100_000, "{" * 300_000, "I am sorry " * 100_000]
    assert len(audit_responses([response(text) for text in texts]).models) == 1


def quiz(count: int, reference: Any, answer: Any, **changes: Any) -> list[Response]:
    """Questions with four options, of which the first model is right in all but every fourth."""
    options = ("one", "two", "three", "four")
    lines = "".join(f"\n{label}. {text}" for label, text in zip("ABCD", options, strict=True))
    responses = []
    for number in range(count):
        right = number % 4
        is_right = number % 3 > 0
        stated = right if is_right else (right + 1) % 4
        responses.append(
            response(
                f"The answer is {answer(stated)}.",
                query=f"quiz/q{number}",
                dataset="quiz",
                question=f"Question {number}?{lines}",
                references=(str(reference(right)),),
                verdict=float(is_right),
                **changes,
            )
        )
    return responses


def label(number: int) -> str:
    """The label of an option."""
    return "ABCD"[number]


CAUSES = {
    "numbers from 0": (int, label, "references are numbers of options from 0; write their labels"),
    "numbers from 1": (
        lambda number: number + 1,
        label,
        "references are numbers of options from 1; write their labels (A for 1)",
    ),
    "texts": (
        lambda number: ("one", "two", "three", "four")[number],
        label,
        "references are texts of options and answers are labels; write the labels",
    ),
    "worked out": (
        lambda number: f"We look at all of the options and then we see that it is {label(number)}",
        label,
        "put the result alone into a column final_answer",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_low_agreement_has_its_cause(name: str) -> None:
    reference, answer, cause = CAUSES[name]
    audit = audit_responses(quiz(40, reference, answer))
    assert audit.warnings[0].startswith("quiz: accuracy agrees with the given scores on only 0.")
    assert cause in audit.warnings[0]
    assert len(audit.disagreements) == MAX_DISAGREEMENTS
    assert audit.agreement_line == ""  # the warning says it


def test_programs_are_not_compared() -> None:
    audit = audit_responses(quiz(40, lambda number: f"def f(n):\n    return {number}", label))
    assert audit.agreements == ()
    assert audit.warnings == (
        "given scores of quiz are not compared: the references are programs, which only tests "
        "judge",
    )


def test_an_audit_prints_no_warning_of_python(recwarn: pytest.WarningsRecorder) -> None:
    """Answers are read as Python literals."""
    audit_responses([response("[1and 2]", references=("[1, 2]",)) for _ in range(3)])
    assert not recwarn.list


def test_inverted_scores_are_found() -> None:
    responses = [
        replace(other, verdict=1 - float(other.verdict or 0)) for other in quiz(40, label, label)
    ]
    [warning] = audit_responses(responses).warnings
    assert "the scores seem to be 1 where the answer is wrong" in warning


def test_a_high_agreement_is_a_line() -> None:
    audit = audit_responses(quiz(40, label, label))
    assert audit.warnings == ()
    assert audit.agreement_line == "accuracy agrees with the given scores on 1.000 of 40 answers"
    [agreement] = audit.agreements
    assert (agreement.dataset, agreement.model, agreement.share) == ("quiz", "small", 1.0)
    assert audit.disagreements == ()


def test_half_of_the_verdicts_are_compared_and_graded_ones_are_not() -> None:
    responses = quiz(40, label, label)
    half = [replace(other, verdict=None) for other in responses[:20]] + responses[20:]
    assert audit_responses(half).agreements[0].n == 20
    graded = [replace(responses[0], verdict=0.5), *responses[1:]]
    assert audit_responses(graded).agreements == ()


def test_verdicts_that_are_all_equal_are_doubted() -> None:
    responses = [replace(other, verdict=0.0) for other in quiz(40, label, label)]
    warnings = audit_responses(responses).warnings
    assert (
        "all given scores are 0: they tell no answer from another; are they verdicts?" in warnings
    )


def test_an_error_page_is_named_with_its_row() -> None:
    responses = quiz(40, label, label)
    responses[5] = replace(responses[5], text="HTTP 404", where="quiz.csv: row 6", verdict=0.0)
    [warning] = audit_responses(responses).warnings
    assert warning == (
        "answers that are error messages of a server: 0.025 of small, e.g. quiz.csv: row 6: "
        "'HTTP 404'; these calls failed, make them again or take the rows out"
    )
    assert audit_responses(responses).models[0].counts == {ERROR_PAGE: 1}


def test_many_answers_with_the_largest_count_are_cut() -> None:
    responses = [
        response(f"Well, {'step ' * number}", tokens_out=min(number, 100)) for number in range(120)
    ]
    audit = audit_responses(responses)
    assert audit.models[0].counts[CUT] == 20
    assert any("cut at their cap of tokens: 0.167 of small" in line for line in audit.warnings)


def test_many_responses_are_drawn_and_always_the_same() -> None:
    names = [(f"sums/q{number}", "small") for number in range(3 * MAX_AUDITED)]
    drawn = draw_audited(names)
    assert len(drawn) == MAX_AUDITED
    assert drawn == sorted(set(drawn)) == draw_audited(names)
    assert draw_audited(names[:10]) == list(range(10))


def counted(counts: Sequence[int], words: Sequence[int], **changes: Any) -> list[Response]:
    """Responses of so many words with these numbers of tokens."""
    return [
        response("word " * length, tokens_out=count, **changes)
        for count, length in zip(counts, words, strict=True)
    ]


DOUBTS = {
    "zero": ([0] * 9, range(1, 10), "tokens_out is 0, zero tokens, on all answers"),
    "constant": ([7] * 9, range(1, 10), "the same number of tokens on every answer"),
    "too small": (range(1, 10), range(30, 300, 30), "too small for the texts"),
    "some zeros": ([0] * 5 + [9] * 9, [9] * 14, "zero tokens, on answers that have a text"),
    "words": (range(1, 10), range(1, 10), "is the number of words"),
    "characters": (range(5, 50, 5), range(1, 10), "is the number of characters"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_counts_that_no_tokenizer_gave_are_doubted(name: str) -> None:
    counts, words, reason = DOUBTS[name]
    doubts = token_doubts(counted(counts, words))
    [doubt] = [doubt for doubt in doubts if doubt.startswith("the counts of tokens_out of small")]
    assert reason in doubt
    assert "C rests on them" in doubt


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([2] * 9, [1] * 9),  # equal texts have equal counts
        ([2] * 9, [1, 2, 3] * 3),  # a word more or less
        ([0] * 4, range(1, 5)),  # too few to tell
        (range(2, 20, 2), range(1, 10)),
    ],
)
def test_counts_that_may_be_right_are_not_doubted(
    counts: Sequence[int], words: Sequence[int]
) -> None:
    assert token_doubts(counted(counts, words, prompt="")) == []


def test_an_empty_response_may_have_no_tokens() -> None:
    empty = [response("", tokens_out=0, prompt="") for _ in range(9)]
    assert token_doubts(empty) == []


@pytest.mark.skipif(not DATA.is_dir(), reason="no public tables here")
def test_agreement_on_public_answers() -> None:
    rows = pq.read_table(DATA / "judged_answers_450.parquet").to_pylist()
    responses = [
        response(
            row["response"],
            query=f"{row['dataset']}/{row['query_id']}",
            dataset=row["dataset"],
            model=row["model"],
            question=row["question"],
            references=tuple(dict.fromkeys([row["answer"], row["final_answer"]])),
            verdict=row["right"],
        )
        for row in rows
    ]
    audit = audit_responses(responses, counts_tokens=False)
    shares = {agreement.dataset: agreement.share for agreement in audit.by_dataset}
    assert shares["gsm8k"] >= 0.98
    assert shares["math"] >= 0.98
    assert shares["crux"] >= 0.98

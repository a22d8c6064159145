"""What real responses look like: thoughts, further questions, several answers, other scripts.

Each row is a response, a reference and the verdict that a person would give. Rows of one group are
neighbours: they differ in what surrounds the answer, or in one sign of it.
"""

import pytest

from hierrouter.questions.final import fold, readable_text, without_thoughts
from hierrouter.questions.reading import NO_ANSWER, Reading
from hierrouter.questions.scoring import ScorerInput, scorer

Row = tuple[str, str, str, int]  # scorer, response, reference, verdict
CHOICES = (("A", "a lever"), ("B", "a screw"), ("C", "the pulley"), ("D", "none of these"))

THOUGHTS: list[Row] = [
    ("numeric", "<think>17", "17", 0),
    ("numeric", "<think>the answer is 17.", "17", 0),
    ("accuracy", "<think>\nParis", "Paris", 0),
    ("choice", "<think>The answer is (B)", "B", 0),
    ("boxed", "<think>\\boxed{x+1}", "x+1", 0),
    ("exact_match", "<thought>Paris</thought>Paris", "Paris", 1),
    ("numeric", "[THINK]it is 5[/THINK]7", "7", 1),
    ("numeric", "<reasoning>It is 15</reasoning>\n<answer>17</answer>", "17", 1),
    (
        "numeric",
        "<|channel|>analysis<|message|>Maybe 15.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>17<|return|>",
        "17",
        1,
    ),
    ("numeric", "<|channel|>analysis<|message|>Maybe 17.", "17", 0),
    ("numeric", "analysisWe need 15?assistantfinal17", "17", 1),
    ("numeric", "\u25c1think\u25b715\u25c1/think\u25b717", "17", 1),
    ("numeric", "<THINK>15</THINK>\n17", "17", 1),
    ("numeric", "<think>a <think>15</think> b</think>17", "17", 1),
    ("numeric", "<think></think>17", "17", 1),
    ("numeric", "<think/>17", "17", 1),
    ("exact_match", "Use the `<think>` tag", "Use the `<think>` tag", 1),
    (
        "numeric",
        "<|begin_of_thought|>15<|end_of_thought|><|begin_of_solution|>17<|end_of_solution|>",
        "17",
        1,
    ),
    ("numeric", "<think>15</think>", "15", 0),
]
NEXT_QUESTIONS: list[Row] = [
    ("numeric", "The answer is 17.\n\nQuestion: Tom has 5. The answer is 5.", "17", 1),
    ("numeric", " 17\n\nQ: How many?\nA: 5", "17", 1),
    ("exact_match", "Paris\n\nQ: What is the capital of Germany?\nA: Berlin", "Paris", 1),
    ("numeric", "17<|im_end|>\n<|im_start|>user\n5", "17", 1),
    ("numeric", "Sure!\n\nQuestion: what is 8+9?\nAnswer: 17", "17", 1),
    ("choice", "B\n\nQuestion: next?\nAnswer: C", "B", 1),
    ("numeric", "#### 17\n\nQuestion: Another\n#### 5", "17", 1),
    ("numeric", "The answer is 17.\n\n### Instruction:\nWrite 5", "17", 1),
    ("numeric", "The answer is 17.\n\nHuman: and 5?\n\nAssistant: The answer is 10.", "17", 1),
]
NUMBERS: list[Row] = [
    ("numeric", "\\boxed{-\\dfrac{7}{2}}", "-3.5", 1),
    ("numeric", "\\boxed{\\dfrac{7}{2}}", "3.5", 1),
    ("numeric", "\u2212\xbd", "-0.5", 1),
    ("numeric", "2\xbd cups", "2.5", 1),
    ("numeric", "The answer is \u22123.", "-3", 1),
    ("numeric", "Answer: 5-6", "5", 0),
    ("numeric", "5 or 6", "6", 0),
    ("numeric", "either 5 or 6", "6", 0),
    ("numeric", "The answer is 5, 6, or 7.", "5", 0),
    ("numeric", "The answer is 5 and 6.", "5", 0),
    ("numeric", "\\boxed{5}, \\boxed{6}", "6", 0),
    ("numeric", "\\boxed{5} or \\boxed{6}", "6", 0),
    ("numeric", "The answer is 6, not 5.", "6", 1),
    ("numeric", "The answer is 6, not 5.", "5", 0),
    ("numeric", "The answer is 6 rather than 5.", "6", 1),
    ("numeric", "The answer is not 5.", "5", 0),
    ("numeric", "It is 5 to 7", "7", 0),
    ("numeric", "The answer is 2 and 1/2.", "2.5", 1),
    ("numeric", "The answer is $1,234.50.", "1234.5", 1),
    ("numeric", "The answer is 50%.", "50", 1),
    ("numeric", "\\boxed{45^\\circ}", "45", 1),
    ("numeric", "\\boxed{12\\text{ cm}^2}", "12", 1),
    ("numeric", "\\boxed{12 \\, \\mathrm{m}}", "12", 1),
    ("numeric", "\\boxed{\\$18}", "18", 1),
    ("numeric", "\\boxed{3x}", "3", 0),
    ("numeric", "\\boxed{\\log 3}", "3", 0),
    ("numeric", "\\boxed{3\\%}", "3", 1),
    ("numeric", "\\boxed{e^3}", "3", 0),
    ("numeric", "\\boxed{x \\ge 3}", "3", 0),
    ("numeric", "\\boxed{3, 4}", "4", 0),
    ("numeric", "x = 3, y = 4", "4", 0),
    ("numeric", "The answer is x = 3 and y = 4.", "4", 0),
    ("numeric", "\\boxed{1.5\\times10^3}", "1500", 1),
    ("numeric", "\\boxed{\\frac{22}{7}}", "22/7", 1),
    ("accuracy", "\\boxed{2\\cdot 3}", "6", 1),
    ("accuracy", "\\boxed{\\binom{4}{2}}", "6", 1),
    ("numeric", "The answer is 5!", "5", 1),
    ("numeric", '{"answer": "5 or 6"}', "5", 0),
    ("numeric", '{"answer": "7 apples"}', "7", 1),
    ("numeric", "The answer is 10,000.", "10000", 1),
    ("numeric", "\u0664\u0662", "42", 1),
    ("numeric", "The answer is approximately 3.14.", "3.14", 1),
    ("numeric", "\\boxed{\\approx 3.14}", "3.14", 1),
]
LABELS: list[Row] = [
    ("accuracy", "The answer is b.", "(B)", 1),
    ("accuracy", "[B]", "(B)", 1),
    ("accuracy", "(b)", "B", 1),
    ("accuracy", "B)", "(B)", 1),
    ("accuracy", "**B**", "(B)", 1),
    ("accuracy", "Option B", "(B)", 1),
    ("accuracy", "\\boxed{B}", "\\textbf{(B)}", 1),
    ("accuracy", "$\\text{B}$", "\\text{B}", 1),
    ("choice", "Answer: A/C", "A", 0),
    ("choice", "A & C", "A", 0),
    ("choice", "Both A and C are correct.", "C", 0),
    ("choice", "A and C", "A", 0),
    ("choice", "The answer is (A), (C).", "C", 0),
    ("choice", "Neither A nor B is right.", "B", 0),
    ("choice", "The answer is B, not A.", "B", 1),
    ("choice", "B and not A", "B", 1),
    ("choice", "The answer is D minor.", "D", 0),
    ("choice", "C# is used", "C", 0),
    ("choice", "The answer is B-cells.", "B", 0),
    ("choice", "Answer: B vitamins", "B", 0),
    ("accuracy", "B and D", "B, D", 1),
    ("accuracy", "B, D", "B and D", 1),
    ("accuracy", "(B), (D)", "B, D", 1),
    ("accuracy", "A, B, D", "B, D", 0),
    ("choice", "The correct answer is C: the pulley", "C", 1),
    ("choice", "the pulley", "C", 1),
    ("choice", "**The pulley**", "C", 1),
    ("choice", "\uff23", "C", 1),
    ("choice", "My answer: C", "C", 1),
]
TEXTS: list[Row] = [
    ("exact_match", "**Yes**", "Yes", 1),
    ("exact_match", "__Yes__", "yes", 1),
    ("exact_match", "The answer is **Yes**.", "Yes", 1),
    ("exact_match", "\\boxed{\\text{Evelyn}}", "Evelyn", 1),
    ("accuracy", "\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", 1),
    ("accuracy", "Evelyn", "\\text{Evelyn}", 1),
    ("exact_match", "\u201cParis\u201d", "Paris", 1),
    ("exact_match", "Paris\u200b", "Paris", 1),
    ("exact_match", "Pa\xadris", "Paris", 1),
    ("exact_match", "\ufb01re", "fire", 1),
    ("exact_match", "New\xa0York", "New York", 1),
    ("accuracy", "The answer is H. G. Wells.", "H. G. Wells", 1),
    ("accuracy", "The answer is George W. Bush.", "George W. Bush", 1),
    ("accuracy", "The answer is Mr. Darcy. He is rich.", "Mr. Darcy", 1),
    ("accuracy", "The answer is Washington D.C.", "Washington D.C.", 1),
    ("accuracy", "The answer is Apple Inc. It is big.", "Apple Inc.", 1),
    ("accuracy", "The answer is 5 p.m. today.", "5 p.m. today", 1),
    ("accuracy", "The answer is vitamin C. It is healthy.", "vitamin C", 1),
    ("accuracy", "The answer is no. It is not.", "no", 1),
    ("accuracy", "The answer is U.S. Senate.", "U.S. Senate", 1),
]
FORMULAS: list[Row] = [
    ("boxed", "\\boxed{p-q}", "p - q", 1),
    ("boxed", "\\boxed{x_1}", "x_{1}", 1),
    ("boxed", "\\boxed{(3,4)}", "(3, 4)", 1),
    ("boxed", "\\boxed{\\{1,2\\}}", "\\{2,1\\}", 1),
    ("boxed", "\\boxed{[1,2)}", "[1,2)", 1),
    ("boxed", "\\boxed{[1,2)}", "[1,2]", 0),
    ("boxed", "\\boxed{5\\text{ kilometers}}", "5\\text{ km}", 1),
    ("boxed", "\\boxed{5\\text{ min}}", "5\\text{ hours}", 0),
    ("boxed", "\\boxed{0.00001}", "0.00002", 0),
    ("boxed", "\\boxed{10^{-7}}", "10^{-8}", 0),
    ("boxed", "\\boxed{101_2}", "101_3", 0),
    ("boxed", "\\boxed{1/2004!}", "1/2006!", 0),
    ("boxed", "\\boxed{x>3}", "x \\ge 3", 0),
    ("boxed", "\\boxed{x>3}", "x > 3", 1),
    ("boxed", "\\boxed{\\pm 3}", "3", 0),
    ("boxed", "\\boxed{3}", "\\pm 3", 0),
    ("boxed", "The answer is $-\\frac12$.", "-\\frac{1}{2}", 1),
    ("boxed", "\\boxed{1,234}", "1234", 1),
    ("boxed", "\\boxed{5 \\text{ or } 6}", "5", 0),
    ("boxed", "\\boxed{(-\\infty, 3)}", "(-\\infty,3)", 1),
]


@pytest.mark.parametrize(
    ("name", "response", "reference", "verdict"),
    [*THOUGHTS, *NEXT_QUESTIONS, *NUMBERS, *LABELS, *TEXTS, *FORMULAS],
)
def test_a_verdict(name: str, response: str, reference: str, verdict: int) -> None:
    choices = CHOICES if name == "choice" and "pulley" in response.lower() else ()
    assert scorer(name)(response, [reference], choices) == verdict


def test_tags_of_a_pool_are_thoughts_too() -> None:
    tags = [("<<plan>>", "<</plan>>")]
    assert without_thoughts("<<plan>> 15 <</plan>> 17", tags) == "17"
    assert without_thoughts("<<plan>> 15", tags) == ""
    assert without_thoughts("<<plan>> 15") == "<<plan>> 15"


def test_nothing_is_removed_from_a_plain_text() -> None:
    for text in ("", "17", "a < b and b > c", "List<Thought> is a type.", "Let me think.\n\n17"):
        assert without_thoughts(text) == readable_text(text) == text


def test_folding_keeps_what_counts() -> None:
    assert fold("Caf\u00e9") == fold("Cafe\u0301") != fold("Cafe")
    assert fold("x\u00b2 + y\u00b9\u2070") == "x^{2} + y^{10}"
    assert fold("2\u00bd and \u00be") == "2 1/2 and 3/4"
    assert fold("\u0664\u0662\u066b\u0665") == "42.5"


HOSTILE = {
    "boxes": r"\boxed{1}" * 10_000,
    "thoughts": "<think>" * 100_000 + "</think>" * 100_000,
    "open thoughts": "<think>" * 150_000,
    "questions": "\nQuestion: " * 80_000,
    "labels": "A, " * 300_000,
    "negations": "none of A " * 100_000,
    "ends": "J. R. " * 150_000,
    "equations": "x = 3, " * 150_000,
    "accents": "e\u0301" * 300_000,
    "markup": "*" * 1_000_000,
    "braces": r"\text{" * 150_000,
    "json": '{"answer": ' * 90_000,
}


READINGS = [
    ("numeric", "<think>5 or 7</think> The answer is 5. I used 5 apples", "number", "5"),
    ("numeric", "so #### 1,234\n", "number", "1,234"),
    ("numeric", "we get \\boxed{\\frac{1}{2}} now", "number", "\\frac{1}{2}"),
    ("numeric", "we get \\boxed{3\\sqrt{2}} now", "expression", "3\\sqrt{2}"),
    ("numeric", "5 or 6", "none", None),
    ("numeric", '{"reasoning": "3 and 4", "answer": "17"}', "number", "17"),
    (
        "numeric",
        "\u00bd of \u201cit\u201d: the answer is \uff11\uff17 \u20ac and 3",
        "number",
        "\uff11\uff17",
    ),
    (
        "numeric",
        "She pays 3 dollars for each of 4 pens, and that makes 12 dollars " * 2,
        "number",
        "12",
    ),
    ("choice", "The answer is (B).", "label", "B"),
    ("choice", "B is correct, not A", "label", "B"),
    ("choice", "(B) or (C)", "none", "(B) or (C)"),
    ("choice", "The answer is a screw.", "label", "a screw"),
    ("choice", "<think>A</think>\n**B**", "label", "B"),
    ("boxed", "so $\\boxed{(3,4]}$.", "interval", "(3,4]"),
    ("boxed", "so $\\boxed{\\{1,2\\}}$.", "set", "\\{1,2\\}"),
    ("boxed", "so $\\boxed{p-q}$, a 5.", "expression", "p-q"),
    ("boxed", "Hence x = 5.", "number", "5"),
    ("exact_match", "The answer is St. Louis. It is big.", "text", "St. Louis"),
    ("exact_match", '{"answer": "say \\"no\\""}', "text", '"say \\"no\\""}'),
    ("accuracy", "<think>5", "none", None),
    ("accuracy", "I say <|channel|>final<|message|>The answer is 5<|return|>", "text", "5"),
    ("accuracy", "Paris\n\nQuestion: and of Spain?\nAnswer: Madrid", "text", "Paris"),
]


@pytest.mark.parametrize(("name", "response", "kind", "text"), READINGS)
def test_what_was_read_stands_in_the_response(
    name: str, response: str, kind: str, text: str | None
) -> None:
    reference = {"choice": "B"}.get(name, "Paris")
    row = ScorerInput(response, (reference,), choices=CHOICES)
    reading = scorer(name).reading(row)
    assert reading is not None
    assert reading.kind == kind
    span = None if reading.start is None else response[reading.start : reading.end]
    assert span == text


def test_several_labels_are_read_where_the_reference_has_several() -> None:
    reading = scorer("accuracy").reading(ScorerInput("A, C", ("A, C",)))
    assert reading == Reading("labels", 0, 4)


def test_code_is_read_as_code() -> None:
    program = "def f(x):\n    return x"
    reading = scorer("accuracy").reading(ScorerInput(f"<think>?</think>{program}", (program,)))
    assert reading == Reading("code", 16, 16 + len(program))


@pytest.mark.parametrize(
    ("name", "response", "reference", "verdict"),
    [*THOUGHTS, *NEXT_QUESTIONS, *NUMBERS, *LABELS, *TEXTS, *FORMULAS],
)
def test_every_right_answer_has_a_span(
    name: str, response: str, reference: str, verdict: int
) -> None:
    reading = scorer(name).reading(ScorerInput(response, (reference,), choices=CHOICES))
    assert reading is not None
    if verdict:
        assert reading.kind != NO_ANSWER
        assert reading.start is not None and reading.end is not None
        assert 0 <= reading.start < reading.end <= len(response)


def test_scorers_by_their_own_rules_have_no_reading() -> None:
    row = ScorerInput("17", ("17",))
    assert scorer("token_f1").reading(row) is None
    assert scorer("given").reading(row) is None


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["numeric", "choice", "boxed", "exact_match", "accuracy"])
def test_what_is_read_of_a_megabyte_is_in_it(name: str, kind: str) -> None:
    reading = scorer(kind).reading(ScorerInput(HOSTILE[name], ("12",)))
    assert reading is not None
    if reading.start is not None and reading.end is not None:
        assert 0 <= reading.start <= reading.end <= len(HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["numeric", "choice", "exact_match", "accuracy"])
def test_a_megabyte_of_marks_raises_nothing(name: str, kind: str) -> None:
    """Nor does it take long: a quadratic rule would outlast the limit of every test."""
    for reference in ("12", "C", "Paris"):
        assert scorer(kind)(HOSTILE[name], [reference]) in (0, 1)

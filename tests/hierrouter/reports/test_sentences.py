"""What a report says in words: its message in every case, three figures, sentences of tables."""

import pytest

from hierrouter.evaluation.outcome import Outcome
from hierrouter.reports.report import as_object
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import (
    claims_sentence,
    headlines,
    message,
    savings_sentence,
    verdict,
)
from tests.hierrouter.reports.examples import (
    DATASETS,
    example,
    hostile,
    outcome,
    policies,
    untrained,
)


def many(lead: float = 0.0, **fields: object) -> ReportData:
    """`example` with 40 queries, on which the router's Q is so much more than that of `a>b`."""

    def ten_times(one: Outcome) -> Outcome:
        return outcome(one.name, one.kind, [*one.quality] * 10, [*one.cost] * 10)

    others = [ten_times(one) for one in policies() if one.kind != "router"]
    fixed = next(one for one in others if one.name == "a>b")
    router = outcome("hierrouter", "router", [*(fixed.quality + lead)], [*fixed.cost])
    return example([*others, router], DATASETS * 10, **fields)


BOUND = "no router could do better than 0.900 at 1.00."
MESSAGES = {
    "HierRouter has Q 0.700 at a cost of 1.00 per question; the best fixed route, a>b, 0.500 at "
    f"1.00; {BOUND}": many(0.2),
    "HierRouter answers right in 70.0% of the questions at a cost of 1.00 USD per question; the "
    "best fixed route, a>b, in 50.0% at 1.00; no router could do better than 90.0% at 1.00.": many(
        0.2, scorer="exact_match", cost_unit="USD per question"
    ),
    "HierRouter is not shown to be better than always calling a>b here: it has Q 0.500 at a cost "
    f"of 1.00 per question; a>b 0.500 at 1.00; {BOUND}": many(),
    "HierRouter is worse than always calling a>b here: it has Q 0.400 at a cost of 1.00 per "
    f"question; a>b 0.500 at 1.00; {BOUND}": many(-0.1),
    "No router is better than always calling a>b here: that has Q 0.500 at a cost of 1.00 per "
    "question; knowing all answers, 0.900 at 1.00 is possible.": many(constant="a>b"),
    "HierRouter takes a>a for every question here: it has Q 0.400 at a cost of 1.00 per question; "
    f"the best fixed route, a>b, 0.500 at 1.00; {BOUND}": many(-0.1, fixed_route="a>a"),
    "HierRouter takes a>b for every question here: it has Q 0.500 at a cost of 1.00 per question; "
    f"{BOUND}": many(fixed_route="a>b"),
    "No router is trained here: the best fixed route, a>b, has Q 0.400 at a cost of 1.00 per "
    "question; no router could do better than 0.900 at 1.00.".replace(
        "0.400", "0.500"
    ): untrained(),
}
VERDICTS = ("better", "better", "open", "worse", "constant", "fixed", "fixed", "untrained")


@pytest.mark.parametrize(
    ("said", "expected"), zip(MESSAGES, VERDICTS, strict=True), ids=lambda text: text[:30]
)
def test_the_message_says_whether_the_router_is_any_good(said: str, expected: str) -> None:
    report = MESSAGES[said]
    assert (message(report), verdict(report)) == (said, expected)
    assert as_object(report)["message"] == said


def test_the_message_needs_no_sweep_no_oracle_and_no_second_policy() -> None:
    assert message(many(0.2, frontier=())) == message(many(0.2))
    alone = example([one for one in policies() if one.kind == "router"])
    assert message(alone) == (
        "HierRouter is not shown to be better than any fixed choice here: it has Q 0.700 at a cost "
        "of 1.00 per question."
    )
    models = [one for one in policies() if one.kind == "single"]
    assert message(example(models)).startswith("No router is trained here: the best single model, ")
    assert "\n" not in message(hostile()) and "\x1b" not in message(hostile())


def test_three_figures_of_a_trained_router_and_of_none() -> None:
    shown = {label: told for label, *told in headlines(example())}
    [lead, closed, cost] = shown.values()
    assert [*shown] == [
        "R over the best fixed choice",
        "gap to the oracle closed",
        "cost of 1,000 questions",
    ]
    assert lead[0] == "+0.200" and lead[1].endswith("] over a>b")
    assert closed == ["50.0%", "[0.0%, 87.5%] of 0.400 in R"]
    assert cost == ["1,000", "1,000 for a>b"]
    assert [value for _, value, _ in headlines(untrained())] == ["0.250", "0.400", "0.800"]


def test_sentences_below_the_tables() -> None:
    report = example()
    said = savings_sentence(report, report.savings[0])
    assert said.startswith("HierRouter saves 75.0% of the cost of big, the best single model")
    assert claims_sentence(report).startswith("HierRouter beats 2 of 5 policies")
    assert claims_sentence(untrained()) == ""

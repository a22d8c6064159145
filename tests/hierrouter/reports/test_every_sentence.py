"""Random reports: no sentence contradicts the figures, and a wrong sentence does not pass."""

import pytest

from benchmarks import sentence_checker as checker
from benchmarks.random_reports import TRAININGS

SEEDS = range(40)


def test_no_sentence_of_random_reports_contradicts_their_figures() -> None:
    tally = checker.check_many(SEEDS)
    assert tally.contradictions == []
    assert tally.reports.total() >= len(SEEDS) and tally.sentences > 20 * len(SEEDS)
    assert set(tally.reports) >= {*TRAININGS} - {"best"}  # which takes long
    # Claims of every kind were made, so that all of them were checked.
    assert min(tally.claims[kind] for kind in KINDS) > 5


KINDS = (
    *("number", "name", "count", "formula", "quantity", "action set", "oracle", "best", "reason"),
    *("better", "open", "worse", "complete"),
)
# Words or figures of true sentences, and what makes them false.
FALSE_WORDS = (
    ("is not shown to be better than", "is worse than"),
    ("is worse than", "is barely worse than"),
    ("HierRouter is worse than always", "HierRouter is not shown to be better than always"),
    ("that of the oracle", "that of the split oracle"),
    ("that makes all its calls", "that may stop early"),
    ("that may stop early", "that makes all its calls"),
    ("can have more than R 0.", "can have more than R 1."),
    ("can have more than R", "can have more than Q"),
    ("has Q 0.", "has Q 0.9"),
    ("net reward R = Q - ", "net reward R = Q - 1"),
    ("always taking model-", "always taking model-9"),
    ("always calling", "always taking"),
    ("The policy best route per dataset ", "The policy random "),
    ("is ahead, and not shown to be better", "is better"),
    ("is better than every fixed choice", "is better than each fixed choice"),
    ("HierRouter beats ", "HierRouter beats 9"),
    ("in R above model-0", "in R above model-1"),
    ("HierRouter beats 0 of", "HierRouter beats 1 of"),
    ("the model with the highest Q", "the dearest model"),
    ("of each query has R 0.", "of each query has R 1."),
    (" for every question.", " for most questions."),
)


@pytest.fixture(scope="module")
def told() -> list[tuple[checker.Figures, list[str]]]:
    """The figures of reports and what they say, until all words of `FALSE_WORDS` are there."""
    reports = []
    missing = {true for true, _ in FALSE_WORDS}
    for seed in range(100, 200):
        case = checker.draw_case(seed)
        report = checker.report_of(case)
        texts = list(filter(None, checker.texts_of_report(report)))
        if any(true in text for true in missing for text in texts):
            missing = {true for true in missing if not any(true in text for text in texts)}
            reports.append((checker.figures_of(case, report), texts))
        if not missing:
            break
    return reports


@pytest.mark.parametrize(("true", "false"), FALSE_WORDS, ids=lambda words: words[:40])
def test_a_wrong_word_or_figure_is_a_contradiction(
    told: list[tuple[checker.Figures, list[str]]], true: str, false: str
) -> None:
    altered = [
        (figures, text.replace(true, false, 1))
        for figures, texts in told
        for text in texts
        if true in text
    ]
    assert altered, true
    for figures, text in altered:
        tally = checker.Tally()
        tally.read(text, figures)
        assert tally.contradictions, text


def test_a_message_that_leaves_out_the_highest_reward_is_a_contradiction(
    told: list[tuple[checker.Figures, list[str]]],
) -> None:
    """The choice by data set was left out once, above a table in which it had the highest R."""
    ahead = 0
    for figures, (first, *_) in told:
        before, separator, after = first.partition(" The policy best route per dataset ")
        assert checker.is_complete(first, figures)
        if separator:
            ahead += 1
            rest = after.partition("No router that ")[2]
            assert not checker.is_complete(f"{before} No router that {rest}", figures)
    assert ahead > 0

import json
from pathlib import Path

import pytest

from hierrouter.questions import testbed
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.folds import near_line, near_pairs
from hierrouter.questions.query import Query
from tests.conftest import SOURCES
from tests.hierrouter.questions.files import write

STORY = (
    "A baker fills {n} trays with {m} rolls each, sells half of all rolls before noon and gives "
    "the rest to a school across the river. How many rolls does the school get?"
)
OTHERS = [
    "Which gas do green plants take up from the air to make sugar in sunlight?",
    "A cyclist rides up a hill at a steady pace and coasts down twice as fast. Compare the times.",
    "Write a function that removes every second element of a list of names.",
    "What follows for the price of bread when the harvest of wheat fails in a closed market?",
]


def asked(question: str, split: str) -> Query:
    return Query(question[:9] + split, "mine", question, ("a",), split)


@pytest.mark.parametrize(
    "twin",
    [
        STORY.format(n=4, m=12).upper(),
        STORY.format(n=4, m=12).replace(" ", "\u00a0"),
        "Please think about it. " + STORY.format(n=4, m=12),
        STORY.format(n=4, m=12).replace("river", "road"),
    ],
)
def test_a_question_that_is_hardly_changed_is_found(twin: str) -> None:
    others = [asked(text, "train") for text in OTHERS]
    here, there = asked(twin, "test"), asked(STORY.format(n=4, m=12), "validation")
    (pair,) = near_pairs([here, there, *others])
    assert (pair.test, pair.other) == (here, there)
    assert 0.8 <= pair.similarity <= 1


def test_other_numbers_make_another_question() -> None:
    queries = [asked(STORY.format(n=4, m=12), "train"), asked(STORY.format(n=5, m=10), "test")]
    assert near_pairs(queries + [asked(text, "train") for text in OTHERS]) == []


def test_two_questions_of_one_fold_leak_nothing() -> None:
    twins = [asked(STORY.format(n=4, m=12), "test"), asked(STORY.format(n=4, m=12) + "!", "test")]
    assert near_pairs(twins) == []
    assert near_pairs(twins + [asked(text, "train") for text in OTHERS]) == []


def test_distinct_questions_are_not_near() -> None:
    assert near_pairs([asked(OTHERS[0], "test"), *(asked(x, "train") for x in OTHERS[1:])]) == []


def test_real_questions_raise_no_false_alarm() -> None:
    queries = []
    for path in (SOURCES.parent / "shared" / "data").glob("questions_*.jsonl"):
        texts = [json.loads(line)["question"] for line in path.read_text().splitlines()]
        queries += [asked(text, "test" if n % 3 else "train") for n, text in enumerate(texts)]
    if not queries:
        pytest.skip("the questions are not on this machine")
    assert near_pairs(queries) == []


def test_more_questions_than_one_block_are_compared() -> None:
    drawn = testbed.questions("story", seed=1, limit=1000)
    queries = [asked(query.question, "test") for query in drawn]
    twins = [asked(query.question + " ?", "train") for query in drawn]
    assert len(queries) > 900
    found = near_pairs([*queries, *twins])
    assert [pair.similarity > 0.95 for pair in found] == [True] * len(queries)
    assert {pair.test for pair in found} == set(queries)


def test_loading_says_how_many_there_are(tmp_path: Path) -> None:
    texts = [*OTHERS, STORY.format(n=4, m=12), STORY.format(n=4, m=12).upper()]
    splits = ["train"] * 5 + ["test"]
    content = [
        {"id": n, "question": text, "answer": "a", "split": split}
        for n, (text, split) in enumerate(zip(texts, splits, strict=True))
    ]
    notes: list[str] = []
    load_queries([str(write(tmp_path / "mine.jsonl", content))], None, 0, tmp_path, notes.append)
    assert notes == [
        "1 question of test is nearly the same as one in another fold: mine/5 ~ mine/4 (1.00); "
        "`hierrouter datasets --near` shows them"
    ]


def test_the_line_names_the_first_three() -> None:
    texts = [STORY.replace("baker", trade).format(n=4, m=12) for trade in ("cook", "monk", "host")]
    texts += [text + " Explain." for text in OTHERS]
    twins = [asked(text.upper(), "test") for text in texts]
    line = near_line(near_pairs([*(asked(text, "train") for text in texts), *twins]))
    assert line.startswith("7 questions of test are nearly the same as one in another fold: mine/")
    assert line.count("~") == 3
    assert line.endswith(", ...")

"""Queries that are nearly the same in two folds are found, and different ones are left alone."""

import json
import random
import string
import time
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.questions import duplicates
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.duplicates import find_near_duplicates, near_duplicates_note
from hierrouter.questions.query import Query
from hierrouter.questions.shipped import GROUP_BY_FAMILY, questions
from hierrouter.questions.sources import choice_lines, read_file
from tests.hierrouter.questions.real import DATA

PLANTED = 300
SYLLABLES = ("ba", "cé", "di", "fo", "gu", "ha", "ki", "lo", "mi", "nu", "pe", "ra", "so", "tu")


def query(text: str, split: str, id: str = "1") -> Query:
    return Query(id, "mine", text, ("a",), split)


def train(*texts: str) -> list[Query]:
    return [query(text, "train", f"train-{number}") for number, text in enumerate(texts)]


def held_out(text: str, split: str = "test") -> Query:
    return query(text, split, "copy")


def random_questions(count: int) -> list[str]:
    """Questions of 14 to 30 random words, some with a number and a clause."""
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(2_000)]
    texts = []
    for number in range(count):
        words = rng.choices(vocabulary, k=rng.randint(14, 30))
        if number % 2:
            words[3] = str(rng.randint(2, 99))
        words[7] += ","
        texts.append(f"{words[0].title()} {' '.join(words[1:])}?")
    return texts


def without_punctuation(text: str) -> str:
    return text.translate(str.maketrans("", "", string.punctuation))


def with_one_word_changed(text: str) -> str:
    words = text.split()
    words[9] = "almost" if words[9] != "almost" else "nearly"
    return " ".join(words)


@pytest.mark.parametrize(
    ("edit", "is_recased"),
    [
        (str.upper, True),
        (str.swapcase, True),
        (without_punctuation, True),
        (lambda text: "  " + text.replace(" ", " \n "), True),
        (lambda text: unicodedata.normalize("NFD", text), True),
        (lambda text: text.replace(" ", "\u200b\u00a0"), True),
        (with_one_word_changed, False),
        (lambda text: f"Please answer: {text}", False),
        (lambda text: " ".join(reversed(text.split())), False),
    ],
    ids=[
        "upper",
        "swapped case",
        "no punctuation",
        "spaces",
        "NFD",
        "invisible",
        "word",
        "prefix",
        "order",
    ],
)
def test_every_planted_copy_is_found(edit: Callable[[str], str], is_recased: bool) -> None:
    originals = train(*random_questions(PLANTED))
    copies = [
        replace(original, id=f"copy-{original.id}", split="test", question=edit(original.question))
        for original in originals
    ]
    pairs = find_near_duplicates([*copies, *originals])
    assert [(pair.query, pair.earlier) for pair in pairs] == list(
        zip(copies, originals, strict=True)
    )
    assert {pair.is_recased for pair in pairs} == {is_recased}
    assert all((pair.similarity == 1) or not is_recased for pair in pairs)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("compute 12+7", "compute 13+7"),
        ("compute 12+7", "compute 12-7"),
        ("compute 12 - 7", "compute 7 - 12"),
        ("compute 12+7", "compute 12 * 7"),
        ("What is 1.5 of 10?", "What is 15 of 10?"),
        ("What is 5!?", "What is 5?"),
        ("reverse the word munas", "reverse the word fenu"),
        (
            "Tom has three apples and buys some more at the market on Sunday morning.",
            "Tom has seven apples and buys some more at the market on Sunday morning.",
        ),
        ("", "?!"),
        ("¿?", "..."),
    ],
)
def test_other_content_is_another_question(text: str, other: str) -> None:
    assert find_near_duplicates([*train(text), held_out(other)]) == []


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        ("Compute 12 + 7.", "compute 12+7"),
        ("It costs 1,000 dollars. Don't ask!", "it costs 1000 dollars; don’t ask"),
        ("From 1980–1990, who reigned?", "from 1980-1990 who reigned"),
        ("Ｗｈｏ ｒｅｉｇｎｅｄ?", "Who reigned?"),
        ("Straße nach Rom", "STRASSE NACH ROM"),
        ("日本の首都はどこですか。", "日本の首都は どこですか？"),
    ],
)
def test_spelling_is_no_content(text: str, copy: str) -> None:
    (pair,) = find_near_duplicates([*train(text), held_out(copy)])
    assert pair.is_recased


def test_choices_in_another_order_make_the_same_question() -> None:
    choices = [("A", "5 km"), ("B", "17 km"), ("C", "2 km")]

    def with_choices(order: list[int], split: str) -> Query:
        ordered = tuple(zip("ABC", (choices[position][1] for position in order), strict=True))
        text = f"How far is it from Rome to the sea?{choice_lines(ordered)}"
        return replace(query(text, split), choices=ordered)

    (pair,) = find_near_duplicates(
        [with_choices([0, 1, 2], "train"), with_choices([2, 0, 1], "test")]
    )
    assert not pair.is_recased
    assert pair.similarity == 1


def test_only_pairs_of_different_folds_count() -> None:
    text = "Who painted the ceiling of the chapel in Rome?"
    assert find_near_duplicates(train(text, text.upper())) == []
    validation = query(text.lower(), "validation", "v")
    test = query(text.upper(), "test", "t")
    (pair,) = find_near_duplicates([test, validation])
    assert (pair.query.id, pair.earlier.id) == ("t", "v")
    pairs = find_near_duplicates([test, validation, *train(text)])
    assert [(pair.query.id, pair.earlier.id) for pair in pairs] == [
        ("t", "train-0"),
        ("v", "train-0"),
    ]


def test_the_folds_of_the_shipped_questions_raise_no_alarm() -> None:
    everything = [query for family in GROUP_BY_FAMILY for query in questions(family, limit=90)]
    assert find_near_duplicates(everything) == []
    for family in GROUP_BY_FAMILY:
        assert near_duplicates_note(questions(family, limit=300)) is None


@pytest.mark.skipif(not DATA.is_dir(), reason="no public questions on this machine")
def test_public_questions_raise_no_alarm_and_their_copies_do() -> None:
    """Of 240 different questions of six datasets none is flagged, however the folds are cut."""
    files = sorted(DATA.glob("questions_*_40.jsonl"))
    public = [query for file in files for query in read_file(file)]
    assert len(public) == 240
    for seed in range(5):
        rng = random.Random(seed)
        folds = [replace(query, split=rng.choice(("train", "test"))) for query in public]
        assert find_near_duplicates(folds) == []
    originals = [replace(query, split="train") for query in public]
    recased = [
        replace(query, id=f"copy-{query.id}", split="test", question=query.question.upper())
        for query in public
    ]
    assert len(find_near_duplicates([*originals, *recased])) == 240


def test_the_time_grows_with_the_number_of_queries() -> None:
    """2,000 queries take a fraction of a second; the bound is wide for a busy machine."""
    texts = random_questions(2_000)
    folds = [
        query(text, "test" if number % 3 == 0 else "train", str(number))
        for number, text in enumerate(texts)
    ]
    start = time.process_time()
    assert find_near_duplicates(folds) == []
    assert time.process_time() - start < 2


def test_of_very_many_queries_only_recased_pairs_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "MAX_REWORDED_QUERIES", 2)
    text, other = random_questions(2)
    queries = [*train(text, other), held_out(with_one_word_changed(text))]
    note = near_duplicates_note(queries)
    assert note == (
        "near-duplicates across folds: pairs with a few words changed are looked for in at most 2 "
        "queries, not in 3"
    )
    assert near_duplicates_note(queries[1:]) is None
    monkeypatch.setattr(duplicates, "MAX_RECASED_QUERIES", 3)
    recased = held_out(other.upper())
    assert "1 query repeats one" in (near_duplicates_note([*queries[1:], recased]) or "")
    assert near_duplicates_note([*queries, recased]) == (
        "near-duplicates across folds: they are looked for in at most 3 queries, not in 4"
    )


def test_the_note_counts_names_and_says_what_to_do(tmp_path: Path) -> None:
    text = "How many squares has a common chessboard of the usual kind, if all sizes count?"
    rows = [
        {"id": "pond", "question": text, "answer": "1", "split": "train"},
        {"id": "lake", "question": text.upper(), "answer": "1", "split": "test"},
        {"id": "sea", "question": f"Tell me: {text}", "answer": "1", "split": "test"},
        {"id": "moon", "question": "Which planet has most moons?", "answer": "1", "split": "train"},
        {"id": "sun", "question": "Who was queen of Spain?", "answer": "1", "split": "validation"},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    load_queries([str(file), "arith"], None, 0, tmp_path, notes.append)
    assert notes == [
        "near-duplicates across folds: 1 query repeats one of another fold up to case, punctuation "
        "and spaces, e.g. mine/lake (test) and mine/pond (train); 1 query repeats one of another "
        "fold up to a few words, e.g. mine/sea (test) and mine/pond (train); remove one of each "
        "pair, or give both the same split"
    ]

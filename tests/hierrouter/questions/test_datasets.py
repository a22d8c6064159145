"""Datasets by name, their folds, and questions that are nearly the same."""

import json
from pathlib import Path

import pytest

from hierrouter.questions import testbed
from hierrouter.questions.datasets import known_datasets, load_queries, near_line, near_pairs
from hierrouter.questions.query import Query
from hierrouter.questions.sources import PAPER_DATASETS
from hierrouter_cache.errors import InputError
from tests.conftest import SOURCES
from tests.hierrouter.questions.files import rows, write


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_paper_dataset_is_looked_for_by_name(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"gsm8k.{kind}", rows(50))
    assert len(load_queries(["gsm8k"], limit=20, seed=0, data=tmp_path)) == 20
    with pytest.raises(InputError, match=r"math\.jsonl; put the questions there"):
        load_queries(["math"], limit=20, seed=0, data=tmp_path)


def test_both_kinds_of_file_hold_the_same_queries(tmp_path: Path) -> None:
    content = [dict(row, choices={"A": "2", "B": row["answer"]}, answer="B") for row in rows(9)]
    del content[3]["choices"]
    files = [str(write(tmp_path / f"mine.{kind}", content)) for kind in ("jsonl", "parquet")]
    first, second = (load_queries([file], None, 0, tmp_path) for file in files)
    assert first == second
    assert first[3].choices == ()


def test_a_file_of_ones_own_is_taken_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(400))
    assert len(load_queries([str(path)], None, 0, tmp_path)) == 400
    path.rename(tmp_path / "math.jsonl")
    assert len(load_queries(["math"], None, 0, tmp_path)) == 300


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["gsm9k"], "unknown dataset: gsm9k; did you mean gsm8k"),
        (["gsm8k", "", "math"], "empty dataset name"),
        (["mine.csv"], "unknown dataset: mine.csv; .*or give a .jsonl or .parquet file"),
    ],
)
def test_names_are_checked_first(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_queries(names, 1, 0, tmp_path)


def test_the_testbed_group_is_all_its_families(tmp_path: Path) -> None:
    notes: list[str] = []
    queries = load_queries(["testbed"], 10, 0, tmp_path, notes.append)
    assert len({query.dataset for query in queries}) == 10
    assert len(queries) == 100
    assert notes == []


def test_every_name_has_an_origin(tmp_path: Path) -> None:
    write(tmp_path / "mmlu.jsonl", rows(7))
    write(tmp_path / "arc-easy.parquet", rows(5))
    known = {dataset.name: dataset for dataset in known_datasets(tmp_path)}
    assert list(known)[-6:] == list(PAPER_DATASETS)
    assert (known["mmlu"].origin, known["mmlu"].questions) == ("file", 7)
    assert (known["arc-easy"].origin, known["arc-easy"].questions) == ("file", 5)
    assert (known["gsm8k"].origin, known["gsm8k"].questions) == ("hub", 1_319)
    assert known["gsm8k"].place == "openai/gsm8k main test"
    assert (known["riddle"].origin, known["riddle"].questions) == ("testbed", None)


def test_a_file_of_another_kind_is_told_what_to_become(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("question,answer\n1+1,2\n")
    with pytest.raises(
        InputError, match=r"not a kind of file that is read: .*mine.csv; make it .js"
    ):
        load_queries([str(tmp_path / "mine.csv")], None, 0, tmp_path)


def test_a_file_is_cut_into_folds_by_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(100))
    queries = load_queries([str(path)], limit=300, seed=1, data=tmp_path)
    folds = [query.split for query in queries]
    assert {query.dataset for query in queries} == {"mine"}
    assert (folds.count("test"), folds.count("validation"), folds.count("train")) == (30, 14, 56)
    assert queries == load_queries([str(path)], limit=300, seed=1, data=tmp_path)
    assert queries != load_queries([str(path)], limit=300, seed=2, data=tmp_path)


def test_three_rows_have_three_folds(tmp_path: Path) -> None:
    queries = load_queries([str(write(tmp_path / "n.jsonl", rows(4)))], None, 0, tmp_path)
    assert {query.split for query in queries} == {"train", "validation", "test"}


def test_a_larger_draw_holds_the_smaller_one(tmp_path: Path) -> None:
    path = str(write(tmp_path / "mine.jsonl", rows(100)))
    small, large = (load_queries([path], limit, 0, tmp_path) for limit in (10, 30))
    assert {query.id for query in small} < {query.id for query in large}
    assert len(small) == 10
    assert {query.id for query in small} != {
        query.id for query in load_queries([path], 10, 1, tmp_path)
    }


def test_an_edited_question_moves_hardly_any_other_to_another_fold(tmp_path: Path) -> None:
    content = rows(100)
    before = load_queries([str(write(tmp_path / "e.jsonl", content))], None, 0, tmp_path)
    content[50]["question"] = "a first word that sorts elsewhere"
    after = load_queries([str(write(tmp_path / "e.jsonl", content))], None, 0, tmp_path)
    moved = [a.id for a, b in zip(before, after, strict=True) if a.split != b.split]
    assert len(set(moved) - {"q50"}) <= 2  # one to keep the size of each cut


def test_equal_questions_share_a_fold(tmp_path: Path) -> None:
    twice = [dict(row, id=f"{row['id']}-{copy}") for row in rows(40) for copy in "ab"]
    queries = load_queries([str(write(tmp_path / "t.jsonl", twice))], 300, 0, tmp_path)
    fold = {query.question: query.split for query in queries}
    assert len(queries) == 80
    assert all(query.split == fold[query.question] for query in queries)


def test_given_splits_are_kept_and_validation_comes_out_of_train(tmp_path: Path) -> None:
    content = [dict(row, split="test" if i < 3 else "train") for i, row in enumerate(rows(13))]
    queries = load_queries([str(write(tmp_path / "s.jsonl", content))], 300, 0, tmp_path)
    assert [query.split for query in queries[:3]] == ["test"] * 3
    assert [query.split for query in queries].count("validation") == 2


@pytest.mark.parametrize("other", ["train", "validation"])
def test_a_question_of_test_in_another_fold_is_refused(tmp_path: Path, other: str) -> None:
    content = [
        {"id": "1", "question": "same", "answer": "a", "split": other},
        {"id": "2", "question": "same", "answer": "a", "split": "test"},
    ]
    with pytest.raises(InputError, match=f"both {other} and test"):
        load_queries([str(write(tmp_path / "l.jsonl", content))], 300, 0, tmp_path)


def test_rows_named_twice_are_not_counted_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows())
    twice = [str(path), str(tmp_path / "." / "x" / ".." / "mine.jsonl")]
    (tmp_path / "x").mkdir()
    with pytest.raises(
        InputError, match=r"duplicate id q\d in dataset mine: it comes from 2 places"
    ):
        load_queries(twice, 300, 0, tmp_path)


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

"""Datasets by name, their folds, nearly the same questions, and a query by what a person types."""

from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query, find_query, full_names
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import SPLITS
from tests.hierrouter.collection.examples import Rows, questions, save
from tests.hierrouter.trees import random_tree


def load(content: Rows, folder: Path, limit: int | None = None, seed: int = 0) -> list[Query]:
    """The queries of a file of one's own with these rows."""
    return load_queries([str(save(content, folder / "mine.jsonl"))], limit, seed, folder)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_paper_dataset_is_looked_for_by_name(tmp_path: Path, kind: str) -> None:
    """At most 300 questions are drawn from it, and all from a file of one's own."""
    path = save(questions(400), tmp_path / f"gsm8k.{kind}")
    assert len(load_queries(["gsm8k"], 20, 0, tmp_path)) == 20
    assert len(load_queries(["gsm8k"], None, 0, tmp_path)) == 300
    assert len(load_queries([str(path)], None, 0, tmp_path)) == 400


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.csv", "unknown dataset: none.csv; .*or give a .jsonl or .parquet file"),
        ("mine.csv", "not a kind of file that is read: mine.csv; make it .jsonl, one"),
    ],
)
def test_a_file_of_another_kind_is_told_what_to_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("question,answer\n1+1,2\n")
    with pytest.raises(InputError, match=message):
        load_queries([name], None, 0, tmp_path)


def test_the_testbed_group_is_all_its_families(tmp_path: Path) -> None:
    notes: list[str] = []
    queries = load_queries(["testbed"], 10, 0, tmp_path, notes.append)
    assert len({query.dataset for query in queries}) == 10
    assert len(queries) == 100
    assert notes == []


def test_a_file_is_cut_into_folds_by_the_seed(tmp_path: Path) -> None:
    queries = load(questions(100), tmp_path, seed=1)
    folds = [query.split for query in queries]
    assert {query.dataset for query in queries} == {"mine"}
    assert (folds.count("test"), folds.count("validation"), folds.count("train")) == (30, 14, 56)
    assert queries == load(questions(100), tmp_path, seed=1)
    assert queries != load(questions(100), tmp_path, seed=2)
    assert {query.split for query in load(questions(4), tmp_path)} == {*SPLITS}


def test_a_larger_draw_holds_the_smaller_one(tmp_path: Path) -> None:
    small, large, other = (
        {query.id for query in load(questions(100), tmp_path, limit, seed)}
        for limit, seed in ((10, 0), (30, 0), (10, 1))
    )
    assert small < large
    assert len(small) == 10
    assert small != other


def test_an_edited_question_moves_hardly_any_other_to_another_fold(tmp_path: Path) -> None:
    content = questions(100)
    before = load(content, tmp_path)
    content[50]["question"] = "a first word that sorts elsewhere"
    after = load(content, tmp_path)
    moved = [a.id for a, b in zip(before, after, strict=True) if a.split != b.split]
    assert len(set(moved) - {"q50"}) <= 2  # one to keep the size of each cut


def test_equal_questions_share_a_fold(tmp_path: Path) -> None:
    twice = [dict(row, id=f"{row['id']}-{copy}") for row in questions(40) for copy in "ab"]
    queries = load(twice, tmp_path)
    assert len(queries) == 80
    assert len({(query.question, query.split) for query in queries}) == 40


def test_given_splits_are_kept_and_validation_comes_out_of_train(tmp_path: Path) -> None:
    content = [dict(row, split="test" if i < 3 else "train") for i, row in enumerate(questions(13))]
    folds = [query.split for query in load(content, tmp_path)]
    assert folds[:3] == ["test"] * 3
    assert sorted(folds[3:]) == ["train"] * 8 + ["validation"] * 2


def test_a_question_of_test_in_another_fold_is_refused(tmp_path: Path) -> None:
    same = [
        {"id": split, "question": "same", "answer": "a", "split": split}
        for split in ("test", "validation")
    ]
    with pytest.raises(InputError, match="both validation and test"):
        load(same, tmp_path)


def test_rows_named_twice_are_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    twice = [str(save(questions(), tmp_path / "mine.jsonl")), f"{tmp_path}/x/../mine.jsonl"]
    said = r"duplicate id q\d in dataset mine: it comes from 2 places"
    with pytest.raises(InputError, match=said):
        load_queries(twice, 300, 0, tmp_path)


IDS = ("fact-1", "fact-10", "fact-2", "7", "7", "riddle-5")
DATASETS = ("fact", "fact", "fact", "left", "right", "riddle")
TREE = replace(random_tree(Layout.full(2, 1), len(IDS), 0), query_ids=IDS, datasets=DATASETS)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("fact-10", 1),
        ("fact-1", 0),  # the beginning of another one, too
        ("fact/fact-1", 0),
        ("fact/fact-10", 1),
        ("right/7", 4),
        ("rid", 5),
        ("riddle/", 5),
        ("left", 3),
    ],
)
def test_a_query_is_found_by_id_full_name_or_beginning(name: str, row: int) -> None:
    assert find_query(TREE, name) == row


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("7", "2 queries are meant by '7': left/7, right/7; give more of the name"),
        ("fact", "3 queries are meant by 'fact': fact/fact-1, fact/fact-10, fact/fact-2;"),
        ("", "6 queries are meant by '': .*, …; give"),
        ("fcat-10", r"no such query in this tree: fcat-10; did you mean fact-10\?"),
        ("facts/fact-2", r"facts/fact-2; did you mean fact/fact-2\?"),
        ("zzz", "no such query in this tree: zzz; names look like fact/fact-1$"),
    ],
)
def test_what_is_not_one_query_is_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_query(TREE, name)


def test_full_names_are_those_of_the_tree() -> None:
    assert full_names(TREE)[3:] == ["left/7", "right/7", "riddle/riddle-5"]

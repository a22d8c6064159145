from pathlib import Path

import pytest

from hierrouter.questions.datasets import load_queries
from hierrouter_cache.errors import InputError
from tests.hierrouter.questions.files import rows, write


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

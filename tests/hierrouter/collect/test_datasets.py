import json
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collect.datasets import load_queries, read_jsonl
from hierrouter_cache.errors import InputError


def rows(count: int = 6) -> list[dict[str, Any]]:
    return [
        {"id": f"q{i}", "question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(count)
    ]


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def test_a_file_is_a_dataset(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(100))
    queries = load_queries([str(path)], limit=300, seed=1, data=tmp_path)
    folds = [query.split for query in queries]
    assert {query.dataset for query in queries} == {"mine"}
    assert (folds.count("test"), folds.count("validation"), folds.count("train")) == (30, 14, 56)
    assert queries == load_queries([str(path)], limit=300, seed=1, data=tmp_path)
    assert queries != load_queries([str(path)], limit=300, seed=2, data=tmp_path)


def test_a_paper_dataset_is_looked_for_by_name(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k.jsonl", rows(50))
    assert len(load_queries(["gsm8k"], limit=20, seed=0, data=tmp_path)) == 20
    with pytest.raises(InputError, match=r"math\.jsonl; put the questions there"):
        load_queries(["math"], limit=20, seed=0, data=tmp_path)


def test_a_number_is_an_answer_and_three_rows_have_three_folds(tmp_path: Path) -> None:
    content = [{"question": f"{n}+1", "answer": n + 1} for n in range(4)]
    queries = load_queries([str(write(tmp_path / "n.jsonl", content))], None, 0, tmp_path)
    assert [query.answers for query in queries] == [("1",), ("2",), ("3",), ("4",)]
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
    assert all(query.split == fold[query.question] for query in queries)


def test_given_splits_are_kept_and_validation_comes_out_of_train(tmp_path: Path) -> None:
    content = [dict(row, split="test" if i < 3 else "train") for i, row in enumerate(rows(13))]
    queries = load_queries([str(write(tmp_path / "s.jsonl", content))], 300, 0, tmp_path)
    assert [query.split for query in queries[:3]] == ["test"] * 3
    assert [query.split for query in queries].count("validation") == 2


def test_choices_become_part_of_the_question(tmp_path: Path) -> None:
    content = [{"question": "Pick", "choices": {"A": "x", "B": "y"}, "answers": ["B", "y"]}]
    (query,) = read_jsonl(write(tmp_path / "c.jsonl", content))
    assert query.question == "Pick\nA. x\nB. y"
    assert query.answers == ("B", "y")
    assert query.id == "1"


def test_byte_order_mark_and_carriage_returns_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", rows())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_jsonl(path)) == 6


def test_lone_surrogates_are_replaced_before_anything_is_paid_for(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_text('{"id": "1", "question": "a\\ud83d", "answer": "b"}\n')
    assert read_jsonl(path)[0].question == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (3, '{"id": "q3", ', r"\.jsonl:3.*"),
        (1, "[1, 2]", r"not a JSON object: .*:1; one JSON object per line"),
        (2, '{"id": "x", "question": "q", "anwser": "a"}', r"answer is missing: .*:2"),
        (2, '{"id": "x", "question": "  ", "answer": "a"}', r"question is empty.*:2"),
        (2, '{"id": "x", "question": "q", "answers": []}', r"answers is empty.*:2"),
        (2, '{"id": "x", "question": "q", "answer": NaN}', r"answer is empty or not a text: .*:2"),
        (4, '{"id": "q1", "question": "q", "answer": "a"}', r"duplicate id q1: .*:2 and .*:4"),
        (2, '{"question": "q", "answer": "a", "split": "dev"}', r"unknown split 'dev'.*:2"),
        (
            2,
            '{"question": "q", "answer": "a", "dataset": 5}',
            r"dataset is empty or not a text.*:2",
        ),
        (2, '{"id": null, "question": "q", "answer": "a"}', r"id must be a text or a number.*:2"),
        (2, "[" * 100_000, r"not JSON: .*:2"),
        (2, '{"question": "' + "x" * 1_000_001 + '", "answer": "a"}', r"too long: .*:2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: int, change: str, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", rows())
    lines = path.read_text().splitlines()
    lines[line - 1] = change
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no rows"),
        (b'{"id": "1", "question": "q", "answer": "a"}\n\xff\xfe', r"not UTF-8: .*:2"),
        (b"\x1f\x8b\x08\x00\xff", r"not UTF-8: .*:1"),
    ],
)
def test_a_file_that_is_no_dataset(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["gsm9k"], "unknown dataset: gsm9k; did you mean gsm8k"),
        (["gsm8k", "", "math"], "empty dataset name"),
    ],
)
def test_names_are_checked_first(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_queries(names, 1, 0, tmp_path)


def test_a_question_in_train_and_test_is_refused(tmp_path: Path) -> None:
    content = [
        {"id": "1", "question": "same", "answer": "a", "split": "train"},
        {"id": "2", "question": "same", "answer": "a", "split": "test"},
    ]
    with pytest.raises(InputError, match="both train and test"):
        load_queries([str(write(tmp_path / "l.jsonl", content))], 300, 0, tmp_path)


def test_rows_named_twice_are_not_counted_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows())
    twice = [str(path), str(tmp_path / "." / "x" / ".." / "mine.jsonl")]
    (tmp_path / "x").mkdir()
    with pytest.raises(
        InputError, match=r"duplicate id q\d in dataset mine: it comes from 2 places"
    ):
        load_queries(twice, 300, 0, tmp_path)


def test_a_file_of_ones_own_is_taken_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(400))
    assert len(load_queries([str(path)], None, 0, tmp_path)) == 400
    path.rename(tmp_path / "math.jsonl")
    assert len(load_queries(["math"], None, 0, tmp_path)) == 300


def test_the_testbed_group_is_all_its_families(tmp_path: Path) -> None:
    queries = load_queries(["testbed"], limit=10, seed=0, data=tmp_path)
    assert len({query.dataset for query in queries}) == 10
    assert len(queries) == 100

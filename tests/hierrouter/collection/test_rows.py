"""Files that are no table of ours are refused in one line."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hierrouter.collection.files import whole_folder
from hierrouter.collection.tables import gather, read_rows, read_table
from hierrouter.collection.transfer import guess_format
from hierrouter_cache.errors import InputError, WorldError
from tests.hierrouter.collection.examples import Rows, answers_of, save, single_answers

Spoil = Callable[[Rows], object]

BAD_ROWS: dict[str, tuple[Spoil, str]] = {
    "no tokens_out": (lambda rows: [row.pop("tokens_out") for row in rows], "tokens_out is miss"),
    "no model": (lambda rows: rows[3].update(model=" "), "model is blank: {file}: row 4"),
    "NaN tokens": (lambda rows: rows[0].update(tokens_in=float("nan")), "finite number, got nan"),
    "null tokens": (lambda rows: rows[0].update(tokens_in=None), "whole number from 0"),
    "negative tokens": (lambda rows: rows[1].update(tokens_in=-1), "got -1"),
    "half a token": (lambda rows: rows[1].update(tokens_out=0.5), "got 0.5"),
    "too many tokens": (lambda rows: rows[1].update(tokens_out=2**31), "got 2147483648"),
    "tokens in words": (lambda rows: rows[1].update(tokens_out="few"), "got 'few'"),
    "score of 2": (lambda rows: rows[2].update(score=2.0), "score must be from 0 to 1"),
    "no response": (lambda rows: rows[2].update(response=None), "response must be a text"),
    "a list": (lambda rows: rows[2].update(question=["a"]), "question must be a text"),
    "unknown split": (lambda rows: rows[2].update(split="tset"), "did you mean test?"),
    "a hop too deep": (
        lambda rows: rows[1].update(hop=10**6) or rows[0].update(hop=0),
        "hop 1000001 is beyond the limit",
    ),
    "hops from 2": (lambda rows: [row.update(hop=2) for row in rows], "hop must start at 0 or 1"),
    "no first hop": (
        lambda rows: rows[0].update(hop=0) or rows[1].update(hop=1),
        "hop 2 without its earlier hop",
    ),
    "another path": (lambda rows: rows[0].update(path="a>b"), "path a>b does not end at"),
    "twice": (lambda rows: rows.append(rows[0]), "duplicate answer of lab/tiny 1b to query q0"),
    "two questions": (lambda rows: rows[1].update(question="?"), "query q0 has two questions"),
    "test is seen": (
        lambda rows: [
            row.update(question="Same?", split="test" if row["query_id"] == "q0" else "train")
            for row in rows
        ],
        "question in both train and test",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_table_is_one_line(tmp_path: Path, name: str) -> None:
    spoil, message = BAD_ROWS[name]
    rows = single_answers()
    spoil(rows)
    file = save(rows, tmp_path / "sums.jsonl")
    with pytest.raises(InputError) as error:
        gather(read_table(file), 42)
    assert message.format(file=file) in str(error.value)
    assert "\n" not in str(error.value)


BAD_FILES = {
    "empty.parquet": (b"", "file is empty"),
    "text.parquet": (b"no parquet at all", "not readable as parquet"),
    "binary.csv": (b"a,b\n\xff\xfe,1\n", "not readable as csv"),
    "ragged.csv": (b"a,b\n1,2,3\n", "not readable as csv"),
    "long.csv": (b"a,b\n1,2,3\n", r"long.csv: Expected 2 columns, got 3|Row #2: Exp"),
    "latin.csv": (b"a,b\n\xe9,1\n", "not UTF-8"),
    "wide.csv": ("a,b\n1,2\n".encode("utf-16"), "not UTF-8 but UTF-16"),
    "semicolon.csv": (b"a;b\n1,5;2\n", "separator looks like ;"),
    "tab.csv": (b"a\tb\n1\t2\n", "separator looks like a tab"),
    "twice.csv": (b"a,b,a\n1,2,3\n", "column 'a' stands twice"),
    "headless.jsonl": (b'{"kind": "query", "query_id": "q"}\n', "header line .* is gone"),
    "all": (b"{}\n", "a cache of ours: --format jsonl"),
    "header.csv": (b"query_id,question\n", "no rows"),
    "torn.jsonl": (b'{"query_id": 1}\n{"a": ', "torn.jsonl:2"),
    "array.jsonl": (b"[1, 2]\n", "not a JSON object"),
    "deep.jsonl": (b"[" * 100_000, "not JSON"),
    "latin.jsonl": (b'{"a": "\xe9"}\n', "not UTF-8"),
    "frame.pkl": (b"\x80\x04.", "a pickle can run any code"),
    "frame.xlsx": (b"PK", "unknown kind of file"),
    "other.jsonl": (b'{"name": "x"}\n', "columns of no known format"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        guess_format(file)
        list(read_rows(file))
    assert "\n" not in str(error.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        list(read_rows(tmp_path))


def test_every_kind_of_file_says_the_same(tmp_path: Path) -> None:
    first, *others = (
        [
            (answer.query, answer.path, answer.response, answer.tokens_in, answer.score)
            for answer in read_table(save(single_answers(), tmp_path / f"sums.{kind}"))
        ]
        for kind in ("parquet", "csv", "jsonl")
    )
    assert len(first) == 20
    assert others == [first, first]


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    rows = single_answers(2)
    for row in rows:
        row["question"] += "\ud800"
    rows[0]["response"] = "\udfff"
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = next(iter(read_table(file)))
    assert first.query.question.endswith("\ufffd")
    assert first.response == "\ufffd"


def test_a_table_may_be_called_by_any_bytes(tmp_path: Path) -> None:
    """Its name is that of the dataset; half a character of it can be in no key."""
    file = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    rows = [{**row, "dataset": None} for row in single_answers(3)]
    query = gather(read_table(save(rows, file)), 42).queries[0]
    assert query.dataset == "caf\N{REPLACEMENT CHARACTER}"
    assert query.key


def test_folds_are_cut_by_question_unless_the_table_says(tmp_path: Path) -> None:
    cut = [query.split for query in answers_of(single_answers(), tmp_path).queries]
    assert sorted(set(cut)) == ["test", "train", "validation"]
    rows = [
        {**row, "split": "test" if row["query_id"] == "q3" else "train"} for row in single_answers()
    ]
    said = answers_of(rows, tmp_path).queries
    assert [query.id for query in said if query.split == "test"] == ["q3"]


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EACCES, "choose another --out"), (errno.ENOSPC, "make room")]
)
def test_a_failed_write_is_hinted_by_its_cause(tmp_path: Path, number: int, hint: str) -> None:
    with pytest.raises(WorldError, match=hint), whole_folder(tmp_path / "out"):
        raise OSError(number, "failed")

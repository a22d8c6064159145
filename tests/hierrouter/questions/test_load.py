from pathlib import Path

import pytest

from hierrouter.questions.datasets import known_datasets, load_queries
from hierrouter.questions.sources import PAPER_DATASETS
from hierrouter_cache.errors import InputError
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

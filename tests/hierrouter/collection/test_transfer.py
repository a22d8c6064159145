"""Imports and exports as declared jobs: what they note, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.transfer import Export, Import, import_
from hierrouter.pools.pool import Pool
from hierrouter_cache.errors import InputError
from tests.hierrouter.collection.examples import save, single_answers

REPEATED_QUESTION = "Which river flows through the old town of Basel?"


def with_folds(question: str) -> list[dict[str, Any]]:
    """Rows of six queries with folds; the last one, of test, has this question."""
    rows = single_answers(queries=6)
    for row in rows:
        row["split"] = "train"
        if row["query_id"] == "q0":
            row["question"] = REPEATED_QUESTION
        if row["query_id"] == "q4":
            row["split"] = "validation"
        if row["query_id"] == "q5":
            row["split"] = "test"
            row["question"] = question
    return rows


def test_an_import_notes_near_duplicates_across_folds(tmp_path: Path) -> None:
    repeated = save(with_folds(REPEATED_QUESTION.upper()), tmp_path / "repeated.jsonl")
    result = import_(repeated, tmp_path / "cache", format="table")
    (note,) = [note for note in result.notes if "near-duplicates" in note]
    assert note.startswith("near-duplicates across folds: 1 query repeats one of another fold")
    assert "sums/q5 (test) and sums/q0 (train)" in note

    different = save(with_folds("Who painted the ceiling?"), tmp_path / "different.jsonl")
    result = import_(different, tmp_path / "other", format="table")
    assert result.duplicates_note is None
    assert not any("near-duplicates" in note for note in result.notes)


def test_prices_of_flags_count_more_than_those_of_python(tmp_path: Path) -> None:
    file = save(single_answers(), tmp_path / "sums.jsonl")
    importing = Import(
        file=file,
        cache=tmp_path / "cache",
        price=["lab-large-10b=3"],
        prices={"lab-large-10b": 1.0, "small-1b": 2.0},
    )
    assert {name: rate.tokens_in for name, rate in importing.rates.items()} == {
        "lab-large-10b": 3.0,
        "small-1b": 2.0,
    }


@pytest.mark.parametrize("settings", [{"hops": 2}, {"price": ["a=1"]}])
def test_an_exported_cache_has_its_own_hops_and_prices(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    importing = Import(file=tmp_path / "all.jsonl", format="jsonl", **settings)
    with pytest.raises(InputError, match="jsonl holds a whole cache: no --hops, no --price"):
        importing.run()


def test_an_export_refuses_a_file_that_exists_and_another_suffix(tmp_path: Path) -> None:
    taken = tmp_path / "taken.jsonl"
    taken.write_text("{}")
    with pytest.raises(InputError, match=r"taken\.jsonl"):
        Export(out=taken).check()
    with pytest.raises(InputError, match=r"jsonl is written as \.jsonl"):
        Export(out=tmp_path / "all.csv").check()


def test_a_table_without_sizes_in_its_names_is_noted_as_unpriced(tmp_path: Path) -> None:
    rows = [{**row, "model": row["model"].rpartition(" ")[0]} for row in single_answers()]
    result = import_(save(rows, tmp_path / "sums.jsonl"), tmp_path / "cache", format="table")
    assert result.unpriced
    assert isinstance(result.pool, Pool)
    assert "prices unknown: 1 per token for every model; reprice with --prices" in result.notes

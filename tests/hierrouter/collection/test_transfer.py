"""Imports and exports as declared jobs: what they note, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.transfer import Export, Import, import_
from hierrouter.pools.files import stored_import
from hierrouter.pools.pool import Pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import default_scorer
from hierrouter_cache.errors import InputError
from hierrouter_cache.reader import CacheReader
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


def scorer_of(rows: list[dict[str, Any]], folder: Path) -> str:
    """What Q is by default, if a table of these rows is imported."""
    import_(save(rows, folder / "sums.jsonl"), folder / "cache")
    return OpenTree(cache=folder / "cache").run().scorer


def test_given_scores_are_q_if_all_answers_have_one(tmp_path: Path) -> None:
    assert scorer_of(single_answers(), tmp_path) == "given"
    notes: list[str] = []
    tree = OpenTree(cache=tmp_path / "cache").run(on_note=notes.append)
    assert tree.given_by_default
    assert any(note.startswith("note: Q is the scores that came with") for note in notes)
    named = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    assert not named.given_by_default
    assert named.fingerprint == tree.fingerprint
    assert OpenTree(cache=tmp_path / "cache", scorer="token_f1").run().scorer == "token_f1"


def test_scores_of_some_answers_are_not_q(tmp_path: Path) -> None:
    rows = [{**row, "score": None if row["query_id"] > "q4" else 1} for row in single_answers()]
    assert scorer_of(rows, tmp_path) == "token_f1"


def test_scores_that_are_all_the_same_are_not_q(tmp_path: Path) -> None:
    rows = [{**row, "score": 0} for row in single_answers()]
    assert scorer_of(rows, tmp_path) == "token_f1"
    notes = import_(tmp_path / "sums.jsonl", tmp_path / "cache").notes
    assert any("all given scores are 0: they tell no answer from another" in note for note in notes)


def test_booleans_are_scores(tmp_path: Path) -> None:
    rows = [{**row, "score": bool(row["score"])} for row in single_answers()]
    for suffix in ("jsonl", "csv", "parquet"):
        import_(save(rows, tmp_path / f"sums.{suffix}"), tmp_path / suffix)
        tree = OpenTree(cache=tmp_path / suffix).run()
        assert (tree.scorer, tree.direct.score.mean(axis=0).tolist()) == ("given", [0.5, 1.0])


def test_a_plan_can_name_no_other_scorer_than_the_given_scores(tmp_path: Path) -> None:
    """Plans may come from others, and a scorer can be any function."""
    import_(save(single_answers(), tmp_path / "sums.jsonl"), tmp_path / "cache")
    pool = CacheReader(tmp_path / "cache").latest_plan().pool
    assert stored_import(pool) == {"scorer": "given"}
    assert default_scorer(pool) == "given"
    assert default_scorer(pool.replace('"given"', '"os:system"')) == "token_f1"
    assert default_scorer(pool.replace('"import"', '"other"')) == "token_f1"  # an earlier version's
    assert default_scorer("[") == default_scorer("[]") == "token_f1"


def test_an_import_warns_of_references_that_are_option_numbers(tmp_path: Path) -> None:
    options = "".join(f"\n{label}. {label * 3}" for label in "ABCD")
    rows = [
        {
            **row,
            "question": row["question"] + options,
            "answer": str(number // 2 % 4),
            "final_answer": None,
            "response": f"The answer is {'ABCD'[(number // 2 + int(row['score'] == 0)) % 4]}.",
        }
        for number, row in enumerate(single_answers(20))
    ]
    [warning] = [
        note
        for note in import_(save(rows, tmp_path / "quiz.jsonl"), tmp_path / "cache").notes
        if "agrees" in note
    ]
    assert warning.startswith("sums: accuracy agrees with the given scores on only ")
    assert "references are numbers of options from 0; write their labels (A for 0)" in warning


def test_an_import_doubts_counts_of_tokens(tmp_path: Path) -> None:
    rows = [
        {
            **row,
            "question": f"{'So, ' * int(row['query_id'][1:])}{row['question']}",
            "tokens_in": 40,
        }
        for row in single_answers()
    ]
    result = import_(save(rows, tmp_path / "sums.jsonl"), tmp_path / "cache")
    assert result.audit is not None
    [doubt] = result.audit.warnings
    assert doubt == (
        "the counts of tokens_in of lab-tiny-1b (40 for 5 to 14 words), lab-large-10b (40 for 5 to "
        "14 words) look made up: tokens_in is the same number of tokens on every answer, though "
        "the texts differ; C rests on them, so count tokens with the models' own tokenizers"
    )
    assert doubt in result.notes

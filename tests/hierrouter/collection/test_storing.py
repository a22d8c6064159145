"""What trees become of tables, and what is said of questions that stand in two folds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.collection import transfer
from hierrouter.collection.storing import pool_names, pool_of, priced, store_answers
from hierrouter.collection.transfer import leak_line, receive
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.keys import next_context
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate
from tests.hierrouter.collection.examples import (
    MODELS,
    Rows,
    answers_of,
    chains,
    keys,
    save,
    single_answers,
    stored,
)


def test_later_hops_carry_the_models_own_answers(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    stored(answers_of(single_answers(), tmp_path), root)
    tree = open_tree(root, Selection(scorer="accuracy"))
    assert tree.context_free
    assert tree.hops == 2
    assert tree.models == ("lab-tiny-1b", "lab-large-10b")
    for node in range(1, tree.routes.nodes):
        action = tree.routes.action(node)
        assert np.array_equal(tree.score[:, node], tree.direct.score[:, action])
        assert np.array_equal(tree.tokens_in[:, node], tree.direct.tokens_in[:, action])
    assert tree.direct.score.mean(axis=0).tolist() == [0.5, 1.0]


def test_contexts_are_chained_as_if_they_had_been_shown(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    stored(answers_of(single_answers(1), tmp_path), root)
    rows = CacheReader(root).sql("SELECT * FROM calls").to_pylist()
    outcomes = {row["outcome"] for row in rows}
    assert len(rows) == 6
    assert sum(row["context"] in outcomes for row in rows) == 4
    assert all(row["outcome"] == next_context(row["context"], row["response"]) for row in rows)
    assert {row["prompt"] for row in rows} == {"What is 0 + 1?"}  # no answer was ever shown


def test_prices_come_from_sizes_flags_or_are_one(tmp_path: Path) -> None:
    pool = pool_of(answers_of(single_answers(1), tmp_path), None)
    assert [price.rate.tokens_in for price in priced(pool, {}).prices().values()] == [0.001, 0.01]
    given = {"lab-tiny-1b": Rate(2, 3), "lab-large-10b": Rate(4, 5)}
    assert priced(pool, given).rates() == given
    unknown = replace(pool, models=(replace(pool.models[0], name="x", model="x"),))
    assert priced(unknown, {}).rates() == {"x": Rate(1, 1)}
    with pytest.raises(InputError, match="unknown model: lab-tiny; did you mean lab-tiny-1b"):
        priced(pool, {"lab-tiny": Rate(1, 1)})
    sizeless = replace(pool, models=(*pool.models, unknown.models[0]))
    with pytest.raises(InputError, match="no price for x"):
        priced(sizeless, given)


def test_a_price_of_one_that_was_given_is_known(tmp_path: Path) -> None:
    rows = [{**row, "model": row["model"].split()[0]} for row in single_answers(1)]
    answers = answers_of(rows, tmp_path)
    pool = pool_of(answers, 1)
    assert store_answers(answers, pool, {}, tmp_path / "unknown").unpriced
    given = {"lab-tiny": Rate(1, 1), "lab-large": Rate(1, 1)}
    assert not store_answers(answers, pool, given, tmp_path / "given").unpriced


def test_names_become_names_of_ours() -> None:
    assert pool_names(["lab/a b", "lab-a-b", "random", "()"]) == {
        "lab/a b": "lab-a-b",
        "lab-a-b": "lab-a-b-2",
        "random": "random-2",
        "()": "model",
    }


def test_trees_that_are_too_large_are_refused(tmp_path: Path) -> None:
    answers = answers_of(single_answers(1), tmp_path)
    for hops in (13, 10**9):
        with pytest.raises(InputError, match="take fewer --hops"):
            pool_of(answers, hops)
    with pytest.raises(InputError, match="the longest chain has 2 hops"):
        pool_of(answers_of(chains(), tmp_path), 3)


def test_a_chain_stands_at_its_own_path_only(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    stored(answers_of(chains(), tmp_path), root)
    with pytest.raises(IncompleteTree, match="lack 12 nodes"):
        open_tree(root)
    tree = open_tree(root, Selection(models=["lab-tiny-1b"], scorer="accuracy"))
    assert not tree.context_free
    assert tree.score[:, 1].mean() == 0.5
    assert tree.score[:, 2].mean() == 1.0


def test_a_path_column_makes_whole_trees(tmp_path: Path) -> None:
    rows = [{**row, "hop": 1, "path": row["model"]} for row in single_answers(4)]
    rows += [
        {
            **row,
            "hop": 2,
            "path": f"{first} > {row['model']}",
            "response": f"{first} {row['model']}",
        }
        for row in single_answers(4)
        for first in MODELS
    ]
    root = tmp_path / "cache"
    stored(answers_of(rows, tmp_path), root)
    tree = open_tree(root)
    assert (tree.hops, len(tree), tree.context_free) == (2, 4, False)
    responses = set(CacheReader(root).responses().values())
    assert {f"{first} {second}" for first in MODELS for second in MODELS} <= responses


def test_a_missing_answer_leaves_its_query_out(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    answers = answers_of(single_answers()[1:], tmp_path)
    assert answers.lacking == 1
    stored(answers, root)
    with pytest.raises(IncompleteTree):
        open_tree(root)
    assert open_tree(root, Selection(allow_incomplete=True)).left_out == 1


def test_the_final_answer_counts_where_the_answer_does_not_state_it(tmp_path: Path) -> None:
    (query,) = answers_of(single_answers(1), tmp_path).queries
    assert query.answers == ("0 and one make 1", "1")
    rows = [{**row, "answer": "0 + 1 = \\boxed{1}"} for row in single_answers(1)]
    (query,) = answers_of(rows, tmp_path).queries
    assert query.answers == ("0 + 1 = \\boxed{1}",)


def test_given_scores_are_the_tables(tmp_path: Path) -> None:
    rows = single_answers()
    for row in rows:
        row["score"] = 0.25 if row["model"] == MODELS[0] else 0.75
    root = tmp_path / "cache"
    stored(answers_of(rows, tmp_path), root)
    tree = open_tree(root, Selection(scorer="given"))
    assert tree.direct.score.mean(axis=0).tolist() == [0.25, 0.75]
    assert np.array_equal(tree.accuracy, tree.score)


def test_a_score_that_was_not_given_is_not_made_up(tmp_path: Path) -> None:
    rows = single_answers()
    rows[0]["score"] = None
    root = tmp_path / "cache"
    stored(answers_of(rows, tmp_path), root)
    with pytest.raises(InputError, match="no score was imported with the response"):
        open_tree(root, Selection(scorer="given"))


def other_answers() -> Rows:
    """As `single_answers`, of the same models under another prompt, and all of them right."""
    return [
        {
            **row,
            "prompt": f"Think first. {row['question']}",
            "response": f"{row['model']} thinks it is {row['final_answer']}",
            "score": 1.0,
        }
        for row in single_answers()
    ]


def test_the_same_names_in_another_file_are_other_models(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    stored(answers_of(single_answers(), tmp_path), root)
    merge = stored(answers_of(other_answers(), tmp_path), root)
    assert (merge.present.total(), merge.different.total()) == (0, 0)
    tree = open_tree(root, Selection(scorer="given"))
    assert tree.models == ("lab-tiny-1b", "lab-large-10b")
    assert tree.score[:, 1:].min() == 1.0  # the first file's are 0 at odd sums
    prompts = ask_cache(root, "SELECT DISTINCT prompt FROM nodes")["prompt"].to_pylist()
    assert all(prompt.startswith("Think first.") for prompt in prompts)
    stored(answers_of(single_answers(), tmp_path), root)  # and the first ones are still there
    assert open_tree(root, Selection(scorer="given")).direct.score.mean() == 0.75


@pytest.mark.parametrize(
    "change",
    [{"response": "6"}, {"prompt": "?"}, {"tokens_in": 1}, {"tokens_out": 1}, {"score": 0.5}],
    ids=lambda change: next(iter(change)),
)
def test_one_other_value_is_another_source(tmp_path: Path, change: dict[str, object]) -> None:
    root = tmp_path / "cache"
    stored(answers_of(single_answers(2), tmp_path), root, hops=1)
    rows = single_answers(2)
    rows[0] |= change
    merge = stored(answers_of(rows, tmp_path), root, hops=1)
    assert merge.added["calls"] == 2  # the other model's two answers are the same
    assert merge.present["calls"] == 2


def test_the_order_of_rows_and_the_folds_make_no_other_source(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    stored(answers_of(single_answers(), tmp_path), root)
    rows = [{**row, "split": "train"} for row in reversed(single_answers())]
    merge = stored(answers_of(rows, tmp_path), root)
    assert merge.added.total() == 0
    assert merge.another_plan


def test_an_import_can_be_repeated(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    answers = answers_of(single_answers(), tmp_path)
    stored(answers, root)
    before = keys(root), len(CacheReader(root).parts)
    again = stored(answers, root)
    assert again.added.total() == 0
    assert (keys(root), len(CacheReader(root).parts)) == before


def test_the_report_of_many_queries_tells_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    answers = answers_of(single_answers(3), tmp_path)
    pool = pool_of(answers, 1)
    store_answers(answers, pool, {}, tmp_path / "cache", lambda *now: seen.append(now))
    assert seen == [("import", 1, 3), ("import", 2, 3), ("import", 3, 3)]


def imported(folder: Path, questions: list[str]) -> Path:
    """A cache of these questions, the first one of test and the others of train."""
    rows = single_answers(len(questions))
    for place, row in enumerate(rows):
        asked = place // len(MODELS)
        row |= {"question": questions[asked], "split": "train" if asked else "test"}
    table = save(rows, folder / "table.parquet")
    receive(table, folder / "cache", "table")
    return folder / "cache"


OTHERS = ["Name the river that runs through Paris.", "Which planet has the most moons?"]


def test_a_question_in_two_folds_is_named(tmp_path: Path) -> None:
    asked = "How many squares has a common chessboard?"
    line = leak_line(imported(tmp_path, [asked, asked.upper(), *OTHERS]))
    assert line.startswith("1 question of test is nearly the same as one in another fold: ")
    assert "(1.00)" in line


def test_nothing_is_said_where_folds_differ(tmp_path: Path) -> None:
    assert leak_line(imported(tmp_path, ["How many squares has a chessboard?", *OTHERS])) == ""


def test_too_many_questions_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MOST", 2)
    line = leak_line(imported(tmp_path, ["How many?", *OTHERS]))
    assert "were not looked for" in line

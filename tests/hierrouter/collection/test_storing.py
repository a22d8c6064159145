"""What trees become of tables, public ones too, and what is said of questions in two folds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hierrouter.collection.storing import pool_names, pool_of, store_answers, with_prices
from hierrouter.collection.tables import gather, read_table
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.keys import next_context
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate
from tests.hierrouter.collection import examples


def test_later_hops_carry_the_models_own_answers(tmp_path: Path) -> None:
    root = examples.cache_of(examples.single_answers(), tmp_path)
    tree = OpenTree(cache=root, scorer="accuracy").run()
    assert (tree.context_free, tree.hops) == (True, 2)
    assert tree.models == ("lab-tiny-1b", "lab-large-10b")
    for node in range(1, tree.layout.nodes):
        action = tree.layout.action[node]
        assert np.array_equal(tree.score[:, node], tree.direct.score[:, action])
        assert np.array_equal(tree.tokens_in[:, node], tree.direct.tokens_in[:, action])
    assert tree.direct.score.mean(axis=0).tolist() == [0.5, 1.0]
    # Contexts are chained as if the answers had been shown.
    rows = CacheReader(root).sql("SELECT * FROM calls").to_pylist()
    outcomes = {row["outcome"] for row in rows}
    assert len(rows) == 60
    assert sum(row["context"] in outcomes for row in rows) == 40
    assert all(row["outcome"] == next_context(row["context"], row["response"]) for row in rows)
    assert {row["prompt"] for row in rows} == {f"What is {n} + 1?" for n in range(10)}


def test_prices_come_from_sizes_flags_or_are_one(tmp_path: Path) -> None:
    pool = pool_of(examples.answers_of(examples.single_answers(1), tmp_path), None)
    prices = with_prices(pool, {}).prices().values()
    assert [price.rate.tokens_in for price in prices] == [0.001, 0.01]
    given = {"lab-tiny-1b": Rate(2, 3), "lab-large-10b": Rate(4, 5)}
    assert with_prices(pool, given).rates() == given
    unknown = replace(pool, models=tuple(replace(pool.models[0], name=name) for name in "xy"))
    assert with_prices(unknown, {}).rates() == {"x": Rate(1, 1), "y": Rate(1, 1)}
    with pytest.raises(InputError, match="unknown model: lab-tiny; did you mean lab-tiny-1b"):
        with_prices(pool, {"lab-tiny": Rate(1, 1)})
    with pytest.raises(InputError, match="no price for y"):
        with_prices(unknown, {"x": Rate(1, 1)})


def test_names_become_names_of_ours() -> None:
    assert pool_names(["lab/a b", "lab-a-b", "random", "()"]) == {
        "lab/a b": "lab-a-b",
        "lab-a-b": "lab-a-b-2",
        "random": "random-2",
        "()": "model",
    }


def test_trees_that_are_too_large_are_refused(tmp_path: Path) -> None:
    answers = examples.answers_of(examples.single_answers(1), tmp_path)
    for hops in (13, 10**9):
        with pytest.raises(InputError, match="take fewer --hops"):
            pool_of(answers, hops)
    with pytest.raises(InputError, match="the longest chain has 2 hops"):
        pool_of(examples.answers_of(examples.chains(), tmp_path), 3)


def test_a_path_column_makes_whole_trees(tmp_path: Path) -> None:
    rows = [{**row, "hop": 1, "path": row["model"]} for row in examples.single_answers(4)]
    rows += [
        {
            **row,
            "hop": 2,
            "path": f"{first} > {row['model']}",
            "response": f"{first} {row['model']}",
        }
        for row in examples.single_answers(4)
        for first in examples.MODELS
    ]
    root = examples.cache_of(rows, tmp_path)
    tree = OpenTree(cache=root).run()
    assert (tree.hops, len(tree), tree.context_free) == (2, 4, False)
    both = {f"{first} {second}" for first in examples.MODELS for second in examples.MODELS}
    assert both <= set(CacheReader(root).responses().values())


def test_a_missing_answer_leaves_its_query_out(tmp_path: Path) -> None:
    rows = examples.single_answers()[1:]
    root = examples.cache_of(rows, tmp_path)
    assert examples.answers_of(rows, tmp_path).lacking == {"lab/tiny 1b": 1}
    with pytest.raises(IncompleteTree):
        OpenTree(cache=root).run()
    assert OpenTree(cache=root, allow_incomplete=True).run().left_out == 1


def test_a_score_that_was_not_given_is_not_made_up(tmp_path: Path) -> None:
    rows = examples.single_answers()
    rows[0]["score"] = None
    with pytest.raises(InputError, match="no score was imported with the response"):
        OpenTree(cache=examples.cache_of(rows, tmp_path), scorer="given").run()


@pytest.mark.parametrize(
    "change",
    [{"response": "6"}, {"prompt": "?"}, {"tokens_in": 1}, {"tokens_out": 1}, {"score": 0.5}],
    ids=lambda change: next(iter(change)),
)
def test_one_other_value_is_another_source(tmp_path: Path, change: dict[str, object]) -> None:
    root = tmp_path / "cache"
    examples.stored(examples.answers_of(examples.single_answers(2), tmp_path), root, hops=1)
    rows = examples.single_answers(2)
    rows[0] |= change
    merge = examples.stored(examples.answers_of(rows, tmp_path), root, hops=1)
    assert merge.added["calls"] == 2  # the other model's two answers are the same
    assert merge.present["calls"] == 2


def test_an_import_in_another_order_with_other_folds_is_the_same_source(tmp_path: Path) -> None:
    root, seen = tmp_path / "cache", []
    answers = examples.answers_of(examples.single_answers(), tmp_path)
    pool = with_prices(pool_of(answers, None), {})
    store_answers(answers, pool, root, lambda *now: seen.append(now))
    assert seen == [("import", number, 10) for number in range(1, 11)]
    before = examples.keys(root), len(CacheReader(root).parts)
    assert examples.stored(answers, root).added.total() == 0
    assert (examples.keys(root), len(CacheReader(root).parts)) == before
    rows = [{**row, "split": "train"} for row in reversed(examples.single_answers())]
    merge = examples.stored(examples.answers_of(rows, tmp_path), root)
    assert (merge.added.total(), merge.another_plan) == (0, True)


public = pytest.mark.skipif(not examples.DATA.is_dir(), reason="no tables beside the sources")
SINGLE = {"depth1_gsm8k_openai4_200": 4, "depth1_mbpp_mapcoder3_100": 3}


def test_an_answer_that_ended_its_chain_stands_whoever_is_called_next(tmp_path: Path) -> None:
    rows = [{**row, "hop": 1, "path": row["model"]} for row in examples.single_answers()]
    first, second = examples.MODELS
    for row in list(rows):
        row["ended"] = row["model"] == second
        if row["model"] == first:
            for model in (first, second):
                later = {**row, "hop": 2, "model": model, "path": f"{first}>{model}", "score": 0.25}
                rows.append({**later, "ended": None})
    tree = OpenTree(cache=examples.cache_of(rows, tmp_path), scorer="given").run()
    ended, routes = tree.layout.node((1,)), tree.layout
    assert (len(tree), tree.left_out, tree.context_free) == (10, 0, False)
    for model in (0, 1):
        leaf = routes.child(ended, model)
        assert np.array_equal(tree.cost[:, leaf], tree.cost[:, ended])
        assert tree.score[:, leaf].tolist() == tree.score[:, ended].tolist() == [1.0] * 10
        assert tree.score[:, routes.node((0, model))].tolist() == [0.25] * 10
        assert {texts.answers[leaf] == texts.answers[ended] for texts in tree.texts} == {True}
    rows[0]["ended"] = True
    with pytest.raises(InputError, match="hop 2 after one that ended: "):
        examples.answers_of(rows, tmp_path)
    odd = [{**row, "ended": "perhaps"} for row in rows]
    with pytest.raises(InputError, match=r"ended must be true or false, got 'perhaps': .*row 1"):
        examples.answers_of(odd, tmp_path)


@public
@pytest.mark.parametrize("name", SINGLE)
def test_single_answers_keep_the_sources_verdict(tmp_path: Path, name: str) -> None:
    file = examples.DATA / f"{name}.parquet"
    examples.stored(gather(read_table(file), 42), tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    rows = pq.read_table(file).to_pylist()
    assert len(tree.models) == SINGLE[name]
    assert tree.context_free
    assert tree.direct.score.sum() == sum(row["score"] for row in rows)
    assert tree.direct.tokens_out.sum() == sum(row["tokens_out"] for row in rows)
    if "gsm8k" in name:
        assert np.array_equal(
            OpenTree(cache=tmp_path / "cache").run().direct.accuracy, tree.direct.accuracy
        )


@public
def test_real_chains_open_one_model_at_a_time(tmp_path: Path) -> None:
    file = examples.DATA / "multihop_math_dylan_60.parquet"
    examples.stored(gather(read_table(file), 42), tmp_path / "cache")
    rows = pq.read_table(file).to_pylist()
    for agent in range(3):
        selection = OpenTree(models=[f"gpt-3.5-turbo-agent{agent}"], scorer="given")
        tree = replace(selection, cache=tmp_path / "cache").run()
        assert (len(tree), tree.context_free) == (60, False)
        for hop in (0, 1):
            wanted = sum(row["score"] for row in rows if (row["agent"], row["hop"]) == (agent, hop))
            assert tree.score[:, hop + 1].sum() == wanted

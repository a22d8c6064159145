"""Opening a part of a cache: fewer models, hops or queries, another scorer, holes."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.collection.transfer import receive
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Price
from hierrouter.questions.scoring import scorer
from hierrouter.questions.sources import dataset_called
from hierrouter.replay.opening import Selection, open_tree, training_tree
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate, RouteTree
from tests.hierrouter.trees import planted_tree
from tests.holes import drop_five_leaves_of_three_queries


@pytest.fixture
def cache(tmp_path: Path, testbed_cache: Path) -> Path:
    return Path(shutil.copytree(testbed_cache, tmp_path / "cache"))


@pytest.fixture
def ragged(cache: Path) -> Path:
    drop_five_leaves_of_three_queries(cache)
    return cache


def test_fewer_models_are_a_sub_tree(cache: Path) -> None:
    whole = open_tree(cache)
    part = open_tree(cache, Selection(models=("facts", "calc")))
    assert part.models == ("facts", "calc")
    assert np.array_equal(
        part.score[:, part.routes.node((0, 1))], whole.score[:, whole.routes.node((2, 0))]
    )
    assert part.direct.models == ("facts", "calc")


def test_fewer_hops_are_a_sub_tree(cache: Path) -> None:
    whole = open_tree(cache)
    part = open_tree(cache, Selection(hops=1))
    assert np.array_equal(part.score, whole.score[:, :4])


def test_a_pool_file_of_fewer_models_opens_the_same_tree_as_the_flag(
    cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "two.toml"
    prompts = '[pool]\nhops = 2\nstage_prompts = [""]\n'
    settings = {model.name: model for model in load_pool("testbed").models}
    entries = "".join(
        f'[[models]]\nname = "{name}"\nmodel = "testbed:{name}"\n'
        f'dtype = "float32"\nbase_rate = {settings[name].base_rate}\n'
        f"generation = {{ max_new_tokens = {settings[name].generation.max_new_tokens} }}\n"
        for name in ("calc", "text")
    )
    file.write_text(prompts + entries)
    by_file = open_tree(cache, Selection(pool=str(file)))
    by_flag = open_tree(cache, Selection(models=("calc", "text")))
    assert by_file.fingerprint == by_flag.fingerprint


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(models=("calcc",)), "unknown model: calcc; did you mean calc"),
        (Selection(models=("calc", "calc")), "duplicate model calc"),
        (Selection(hops=3), "hops must be 1 to 2"),
        (Selection(scorer="numerik"), "numerik"),
        (Selection(datasets=("nope",)), "dataset not in the cache: nope"),
    ],
)
def test_what_is_not_there_is_named(cache: Path, selection: Selection, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_tree(cache, selection)


def test_another_scorer_is_computed_from_stored_responses_and_kept(cache: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def on_done(what: str, done: int, total: int) -> None:
        told.append((what, done, total))

    first = open_tree(cache, Selection(scorer="numeric"), on_done)
    assert any(what == "score" for what, _, _ in told)
    told.clear()
    again = open_tree(cache, Selection(scorer="numeric"), on_done)
    assert told == []
    assert again.fingerprint == first.fingerprint
    assert first.scorer == "numeric"
    assert first.fingerprint != open_tree(cache).fingerprint
    key = scorer("numeric").key
    stored = CacheReader(cache).sql("SELECT count(*) AS n FROM scores WHERE scorer = ?", [key])
    calls = CacheReader(cache).sql("SELECT count(*) AS n FROM calls")
    assert stored["n"][0].as_py() >= calls["n"][0].as_py()


def test_prices_replace_those_of_the_pool(cache: Path) -> None:
    tree = open_tree(cache, Selection(prices={"calc": Price(Rate(1.0, 3.0), "a test")}))
    node = tree.routes.node((0,))
    expected = tree.tokens_in[:, node] + 3 * tree.tokens_out[:, node]
    assert np.array_equal(tree.cost[:, node], expected)
    assert tree.fingerprint != open_tree(cache).fingerprint


def test_holes_are_refused_with_their_number(ragged: Path) -> None:
    with pytest.raises(IncompleteTree, match=r"3 of 200 queries lack 5 nodes.*--allow-incomplete"):
        open_tree(ragged)


def test_holes_can_be_left_out_and_are_counted(ragged: Path) -> None:
    tree = open_tree(ragged, Selection(allow_incomplete=True))
    assert (len(tree), tree.left_out) == (197, 3)
    part = open_tree(ragged, Selection(allow_incomplete=True, hops=1))
    assert (len(part), part.left_out) == (200, 0)


def test_a_changed_setting_is_named(cache: Path, tmp_path: Path) -> None:
    text = Path(load_pool.__code__.co_filename).with_name("testbed.toml")
    pool = text.read_text().replace("max_new_tokens = ", "max_new_tokens = 9")
    (tmp_path / "changed.toml").write_text(pool)
    with pytest.raises(IncompleteTree, match=r"not collected with this configuration.*max_new_tok"):
        open_tree(cache, Selection(pool=str(tmp_path / "changed.toml")))


def arrays(value: object) -> Iterator[np.ndarray]:
    """Every array that a value leads to, views and what they are views of, cached ones too."""
    if isinstance(value, np.ndarray):
        yield value
        yield from arrays(value.base)
    elif isinstance(value, tuple):
        for item in value:
            yield from arrays(item)
    elif is_dataclass(value):
        for item in (
            *(getattr(value, field.name) for field in fields(value)),
            *vars(value).values(),
        ):
            yield from arrays(item)


def marked(tree: RouteTree, mark: float) -> RouteTree:
    """The tree with a mark in place of every measured number of the test fold."""
    test = np.array(tree.splits) == "test"

    def of(values: np.ndarray) -> np.ndarray:
        return np.where(test[:, None], np.array(mark, values.dtype), values)

    names = ("score", "accuracy", "tokens_in", "tokens_out")
    direct = replace(tree.direct, **{name: of(getattr(tree.direct, name)) for name in names})
    return replace(tree, direct=direct, **{name: of(getattr(tree, name)) for name in names})


def test_a_training_reaches_nothing_of_the_test_fold() -> None:
    whole = marked(planted_tree(per_family=(4, 2, 3)), 12345.0)
    assert whole.cost.max() > 1 and any((found == 12345).any() for found in arrays(whole))
    part = training_tree(whole)
    assert (part.splits.count("train"), part.splits.count("validation")) == (20, 10)
    assert "test" not in part.splits and len(part) == 30
    part.cost, part.direct.cost  # noqa: B018 - computed on demand, and kept
    assert not any((found == 12345).any() for found in arrays(part))
    assert part.fingerprint == whole.fingerprint
    assert all(
        np.array_equal(getattr(part.split(fold), name), getattr(whole.split(fold), name))
        for fold in ("train", "validation")
        for name in ("score", "cost", "embedding")
    )


@pytest.mark.parametrize("fold", ["train", "validation"])
def test_a_training_needs_both_folds(fold: str) -> None:
    tree = planted_tree(per_family=(2, 2, 2))
    without = tree.select(np.flatnonzero(np.array(tree.splits) != fold))
    with pytest.raises(InputError, match=f"too few queries to train on: .*\\b0 {fold}"):
        training_tree(without)


def test_no_score_is_computed_twice_where_accuracy_is_q(cache: Path) -> None:
    open_tree(cache, Selection(scorer="accuracy"))
    stored = CacheReader(cache)
    key = [scorer("accuracy").key]
    rows = stored.sql("SELECT * FROM scores_rows WHERE scorer = ?", key).num_rows
    assert rows == stored.sql("SELECT * FROM scores WHERE scorer = ?", key).num_rows > 0


@pytest.mark.parametrize("name", ["mine.parquet", "folder/mine.jsonl", "arc_easy.jsonl", "mine"])
def test_a_dataset_is_opened_by_the_name_it_was_collected_by(tmp_path: Path, name: str) -> None:
    asked = Path(name).stem
    rows = [
        {
            "query_id": str(number),
            "dataset": dataset_called(asked),
            "question": f"question {number}",
            "answer": "a",
            "model": "one-1b",
            "response": "a",
            "tokens_in": 1,
            "tokens_out": 1,
        }
        for number in range(20)
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    receive(file, tmp_path / "cache", "table", seed=0)
    assert len(open_tree(tmp_path / "cache", Selection(datasets=(name,)))) == 20

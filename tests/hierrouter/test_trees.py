"""Opening a part of a cache: fewer models, hops or queries, another scorer, holes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hierrouter.pool_file import load_pool
from hierrouter.pricing import Price
from hierrouter.scoring import scorer
from hierrouter.trees import Selection, open_tree
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.pricing import Rate
from hierrouter_cache.reader import CacheReader
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
    text = Path(load_pool.__code__.co_filename).with_name("pools") / "testbed.toml"
    pool = text.read_text().replace("max_new_tokens = ", "max_new_tokens = 9")
    (tmp_path / "changed.toml").write_text(pool)
    with pytest.raises(IncompleteTree, match=r"not collected with this configuration.*max_new_tok"):
        open_tree(cache, Selection(pool=str(tmp_path / "changed.toml")))

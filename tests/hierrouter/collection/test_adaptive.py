"""What may matter is called; what is left out is known as left out, and never guessed."""

import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hierrouter.collection.adaptive import MIN_CHANCE, PILOT_QUERIES, Adaptive, fill_adaptively
from hierrouter.collection.scheduler import fill_cache
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.value import fit
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Pool
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import cache_info, data_notes
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import InputError, Interrupted
from hierrouter_cache.reader import CacheReader
from tests.conftest import Run, Start, refused, works
from tests.engines import Counting
from tests.hierrouter.trees import planted_tree, showing_leaves

MAY = Adaptive((0.005, 1.6))
fill = partial(fill_adaptively, engines=Counting())
LEFT = "SELECT key FROM decisions WHERE NOT made"


def asked(limit: int = 30) -> tuple[Pool, list[Query]]:
    """The testbed's pool, and questions of four of its datasets."""
    return load_pool("testbed"), load_queries(
        ["arith", "copies", "fact", "story"], limit, 5, Path()
    )


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that was collected adaptively."""
    root = tmp_path_factory.mktemp("grown") / "cache"
    fill(*asked(), root, MAY)
    return root


def test_the_judged_folds_are_whole_and_what_was_left_out_is_known(grown: Path) -> None:
    _, queries = asked()
    tree = OpenTree(cache=grown).run()
    assert tree.pruned is not None
    folds = [query.split for query in queries]
    assert tree.folds == {
        "train": PILOT_QUERIES,
        "validation": folds.count("validation"),
        "test": folds.count("test"),
    }
    assert set(tree.pruned.splits) == {"train"}
    assert len(tree.pruned) == folds.count("train") - PILOT_QUERIES
    assert not np.isnan(tree.score).any()
    holes, routes = np.isnan(tree.pruned.score), tree.layout
    for node in range(1, routes.nodes):  # below what was not called nothing is
        assert (holes[:, node] >= holes[:, routes.parent[node]]).all()
    assert 0.2 < holes[:, 1:].mean() < 0.9
    assert not holes[:, routes.level(1)].all(axis=1).any()  # something is always called
    info = cache_info(grown)
    assert (info["missing_nodes"], info["left_out"]) == (0, holes.sum())
    assert info["holes"].keys() == {"pruned"}
    assert f"{holes.sum():,} of" in data_notes(tree)[0]


def test_what_is_there_is_what_full_trees_hold(grown: Path, tmp_path: Path) -> None:
    """Going on without --adaptive makes the other calls, and no hole is left."""
    root = Path(shutil.copytree(grown, tmp_path / "cache"))
    left = CacheReader(root).sql(LEFT)["key"].to_pylist()
    before, counting = OpenTree(cache=root).run(), Counting()
    made = fill_cache(*asked(), root, engines=counting).calls
    assert made == len(counting.asked) and made >= len(left)
    whole = OpenTree(cache=root).run()
    assert whole.pruned is None and len(whole) == len(before) + len(before.pruned or ())
    assert before.pruned is not None
    place = {
        name: row for row, name in enumerate(zip(whole.datasets, whole.query_ids, strict=True))
    }
    names = zip(before.pruned.datasets, before.pruned.query_ids, strict=True)
    same = whole.select(np.array([place[name] for name in names]))
    called = ~np.isnan(before.pruned.score)
    for name in ("score", "accuracy", "tokens_in", "tokens_out"):
        there, here = getattr(same, name), getattr(before.pruned, name)
        assert np.array_equal(there[called], here[called])
    assert whole.fingerprint != before.fingerprint


def test_decisions_are_kept_with_their_chances(grown: Path) -> None:
    rows = CacheReader(grown).sql("SELECT * FROM decisions").to_pylist()
    assert {tuple(row["alphas"]) for row in rows} == {MAY.alphas}
    # One of three models is always likely.
    assert all(row["made"] == (row["chance"] >= MIN_CHANCE) for row in rows)
    stored = CacheReader(grown).responses()
    assert all(row["key"] in stored for row in rows if row["made"])


@pytest.mark.parametrize("limit", [1, 400, 700, 900])
def test_an_interrupted_collection_goes_on_to_the_same_end(
    grown: Path, tmp_path: Path, limit: int
) -> None:
    """Ended during the first calls, in the first round, in later ones; no call is made twice."""
    counting = Counting()
    with pytest.raises(Interrupted):
        fill(*asked(), tmp_path, MAY, engines=counting, stop=lambda: len(counting.asked) > limit)
    fill(*asked(), tmp_path, MAY, engines=counting)
    assert set(counting.asked.values()) == {1}
    assert fill(*asked(), tmp_path, MAY, engines=counting).calls == 0
    assert OpenTree(cache=tmp_path).run().fingerprint == OpenTree(cache=grown).run().fingerprint


def test_a_killed_collection_goes_on(tmp_path: Path, start: Start, hierrouter: Run) -> None:
    words = "collect --datasets arith,copies --limit 60 --adaptive --alphas 0.005,1.6 --cache"
    whole = works(hierrouter(*words.split(), "whole", cwd=tmp_path))
    assert "left out" in whole.stderr
    running = start(*words.split(), "killed", cwd=tmp_path)
    while not list((tmp_path / "killed/parts").glob("decisions-*")):
        assert running.poll() is None, running.said()
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.result()
    works(hierrouter(*words.split(), "killed", cwd=tmp_path))
    killed, other = (OpenTree(cache=tmp_path / name).run() for name in ("killed", "whole"))
    assert killed.fingerprint == other.fingerprint
    said = hierrouter("train", "--alpha", "1.6", "--epochs", "2", "--cache", "whole", cwd=tmp_path)
    assert f"from the {PILOT_QUERIES} whole trees of the train fold" in works(said).stderr


def test_a_model_learns_the_same_from_whole_trees_that_stand_apart() -> None:
    tree = planted_tree(families=3, per_family=(30, 6, 10), seed=3)
    train = np.flatnonzero(np.array(tree.splits) == "train")
    apart = replace(
        tree.select(np.setdiff1d(np.arange(len(tree)), train[20:])), pruned=tree.select(train[20:])
    )
    one, other = (fit(each, [0.1], Objective(0.1), ValueConfig()) for each in (tree, apart))
    test = tree.split("test")
    assert np.allclose(one.predictions(test), other.predictions(test), atol=1e-5)


@pytest.mark.parametrize(
    "may", [Objective(0.1), Objective(0.1, True), Objective(0.1, allow_return=True)]
)
def test_a_model_learns_from_holes(may: Objective) -> None:
    """Nearly what whole trees teach, and much more than the whole ones among them."""
    tree = showing_leaves(planted_tree(luck=0, noise=0.5))
    routes, train = tree.layout, np.flatnonzero(np.array(tree.splits) == "train")
    few, fold = tree.select(np.delete(np.arange(len(tree)), train[12:])), tree.split("test")
    few = few.select(
        np.array([row for row, split in enumerate(few.splits) if split != "validation"])
    )
    holes, rng = tree.select(train[12:]), np.random.default_rng(0)
    for node in range(1, routes.nodes):
        gone = np.isnan(holes.score[:, routes.parent[node]]) | (rng.random(len(holes)) < 0.3)
        holes.score[gone, node] = np.nan
    ways = tree, replace(few, pruned=holes), few
    full, apart, alone = (
        train_sweep(way, [0.1], may, ValueConfig(), 0).at(0.1).outcome(fold).reward(0.1).mean()
        for way in ways
    )
    assert full - 0.02 < apart and alone + 0.1 < apart


def test_no_further_question_is_asked_where_nothing_more_is_learned(tmp_path: Path) -> None:
    notes: list[str] = []
    pool, queries = asked(60)
    may = Adaptive((0.005,), until=0.5)
    found = fill(pool, queries, tmp_path, may, on_note=notes.append)
    assert found.queries < len(queries)
    assert notes == [
        f"adaptive: {len(queries) - found.queries} questions are not asked: from half of the "
        "others a router learns the same, within 0.5 of R"
    ]
    tree = OpenTree(cache=tmp_path).run()
    assert len(tree) == found.queries and tree.pruned is None
    assert fill(pool, queries, tmp_path, may).calls == 0


def test_a_new_model_is_tried_where_it_may_win(tmp_path: Path) -> None:
    pool, queries = asked()
    fill(replace(pool, models=pool.models[:2]), queries, tmp_path, MAY)
    before = OpenTree(cache=tmp_path).run()
    assert before.pruned is not None
    fill(pool, queries, tmp_path, MAY)
    tree = OpenTree(cache=tmp_path).run()
    assert tree.pruned is not None and tree.models == (*before.models, pool.models[2].name)
    called = ~np.isnan(tree.pruned.score[:, 3])  # the new one, first
    assert 0 < called.mean() < 1
    again = OpenTree(cache=tmp_path, models=before.models).run().pruned
    assert again is not None and again.query_ids == before.pruned.query_ids
    assert (np.isnan(again.score) <= np.isnan(before.pruned.score)).all()


def test_prices_of_nothing_and_far_apart(tmp_path: Path) -> None:
    """Nothing is divided by what they are, and something is always called."""
    pool, queries = asked(20)
    for name, rates in (("nothing", (0, 0, 0)), ("apart", (1e-6, 1.0, 1e6))):
        models = tuple(
            replace(model, base_rate=None, rate_in=rate, rate_out=rate)
            for model, rate in zip(pool.models, rates, strict=True)
        )
        fill(replace(pool, models=models), queries, tmp_path / name, MAY)
        assert len(OpenTree(cache=tmp_path / name).run()) >= PILOT_QUERIES


def test_what_does_not_fit_is_refused(tmp_path: Path, hierrouter: Run) -> None:
    pool, queries = asked(3)
    fill(pool, queries, tmp_path / "cache", MAY)
    others = load_queries(["riddle"], 3, 5, Path())
    with pytest.raises(InputError, match=r"another plan: .* other questions"):
        fill(pool, others, tmp_path / "cache", MAY)
    with pytest.raises(InputError, match=r"another plan: .* other models or hops"):
        fill(replace(pool, hops=1), queries, tmp_path / "cache", MAY)
    for words, said in (
        ("--adaptive", "--adaptive needs the alphas"),
        ("--adaptive --alphas 1 --until 0", "out of range: --until 0"),
        ("--adaptive --alphas 1 --shard 1/2", "leave --shard"),
        ("--alphas 1", "are for --adaptive"),
    ):
        found = hierrouter("collect", *words.split(), "--cache", "no", cwd=tmp_path)
        assert said in refused(found)
        assert not (tmp_path / "no").exists()

"""What the page holds: positions of the slider, endings, texts, packed arrays."""

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierrouter.evaluation.bounds import split_regret
from hierrouter.learning.config import Objective
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import TrainedRouter, train
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Texts
from hierrouter.reports import explore
from hierrouter.reports.explore import (
    EndingSeries,
    Exploration,
    as_html,
    as_object,
    explore_fold,
    slider_alphas,
)
from hierrouter.runs.selection import SelectedRun
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import oracle_break_points
from tests.hierrouter.learning import trainings
from tests.hierrouter.trees import planted_tree
from tests.hostile import HARM, collect_hostile

RUN, SWEEP = Path("runs/router"), Path("runs/sweep")


def shown(trained: TrainedRouter | None = None, sweep: TrainedSweep | None = None) -> SelectedRun:
    """As `select_run` finds them: without a run the sweep's router stands for it."""
    if trained or not sweep:
        return SelectedRun(
            RUN if trained else None, trained, trainings.ALPHA, sweep and SWEEP, sweep
        )
    return SelectedRun(SWEEP, sweep.at(trainings.ALPHA), trainings.ALPHA, SWEEP, sweep)


def explored_of(
    tree: RouteTree,
    trained: TrainedRouter | None = None,
    sweep: TrainedSweep | None = None,
    **more: Any,
) -> Exploration:
    """What the page of a tree holds that is in no cache."""
    return explore_fold(Path(), tree, "test", shown(trained, sweep), texts=0, **more)


def data_of(page: str) -> dict[str, Any]:
    """What a page holds, unpacked."""
    packed = page.split('id="data">')[1].split("</script>")[0]
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed, validate=True)))
    return data


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return trainings.small_tree()


@pytest.fixture(scope="module")
def sweep(tree: RouteTree) -> TrainedSweep:
    return trainings.sweep_glimpse(tree)


def test_positions_hold_the_alphas_asked_for_and_all_changes(
    tree: RouteTree, sweep: TrainedSweep
) -> None:
    alphas = slider_alphas(
        tree, "test", sweep, replace(trainings.glimpse(tree), objective=Objective(0.0123))
    )
    assert {0.0, trainings.ALPHA, 0.0123, *trainings.GRID} <= set(alphas)
    assert list(alphas) == sorted(alphas) and 90 < len(alphas) < 115
    assert alphas[-1] > np.quantile(oracle_break_points(tree.split("train")), 0.99)
    # They are not chosen on the fold shown.
    test = np.array(tree.splits) == "test"
    other = replace(tree, score=np.where(test[:, None], 0.5, tree.score))
    assert slider_alphas(other, "test", sweep, None) == slider_alphas(tree, "test", sweep, None)


def ends(series: EndingSeries, position: int) -> np.ndarray:
    """int64[queries]: the node where each query ends at one alpha of the grid."""
    nodes = series.start.copy()
    for changed, node in list(zip(series.changed, series.node, strict=True))[: position + 1]:
        nodes[changed] = node
    return nodes


def test_endings_are_those_of_the_router_of_each_alpha(
    tree: RouteTree, sweep: TrainedSweep
) -> None:
    exploration = explored_of(tree, trainings.glimpse(tree), sweep)
    swept, alone = exploration.routers
    fold = tree.split("test")
    seen = set()
    for position, alpha in enumerate(exploration.alphas):
        expected = sweep.at(alpha).endings(fold).argmax(axis=1)
        np.testing.assert_array_equal(ends(swept, position), expected)
        seen.add(tuple(expected))
    assert len(seen) > 1
    np.testing.assert_array_equal(
        ends(alone, 50), trainings.glimpse(tree).endings(fold).argmax(axis=1)
    )
    assert sum(map(len, alone.changed)) == 0
    assert exploration.alphas[exploration.start] == trainings.ALPHA


def test_an_empty_fold_is_refused(tree: RouteTree) -> None:
    kept = tree.select(np.flatnonzero(np.array(tree.splits) != "test"))
    with pytest.raises(InputError, match="test fold is empty"):
        explored_of(kept)


def test_texts_are_those_of_the_largest_regrets_and_long_ones_are_cut(testbed_cache: Path) -> None:
    tree = OpenTree(cache=testbed_cache).run()
    trained = train(tree, Objective(trainings.ALPHA), trainings.EXACT_GLIMPSE, 0)
    exploration = explore_fold(testbed_cache, tree, "validation", shown(trained), texts=3)
    fold = tree.split("validation")
    regret = split_regret(fold, trainings.ALPHA, trained.endings(fold)).sum(axis=1)
    assert len(exploration.texts) == 3
    assert (
        regret[list(exploration.texts)].min()
        >= np.delete(regret, list(exploration.texts)).max() - 1e-9
    )
    everything = explore_fold(testbed_cache, tree, "validation", shown(), texts=10_000)
    assert list(everything.texts) == list(range(len(fold)))
    assert everything.texts[0].question and len(everything.texts[0].answers) == fold.layout.nodes
    long = replace(
        exploration.texts[min(exploration.texts)], question="x" * (explore.MAX_TEXT_LENGTH + 1)
    )
    [texts] = as_object(replace(exploration, texts={0: long}))["texts"].values()
    assert texts["question"] == "x" * explore.MAX_TEXT_LENGTH + explore.TRUNCATION_MARK


def test_a_large_tree_has_the_answers_on_somebodys_way() -> None:
    tree = planted_tree(models=6, hops=3, per_family=(6, 2, 4), dim=8)
    tree = replace(tree, encoder="planted")
    exploration, fold = explored_of(tree, sweep=trainings.sweep_glimpse(tree)), tree.split("test")
    texts = Texts("q", ("r",), tuple(map(str, range(fold.layout.nodes))))
    data = as_object(replace(exploration, texts={3: texts, 5: texts}))["texts"]
    for row, of in ((3, data["3"]), (5, data["5"])):
        said = set(map(int, of["answers"]))
        wanted = {
            int(ends(exploration.routers[0], at)[row]) for at in range(len(exploration.alphas))
        }
        for alpha in exploration.alphas:
            reward = fold.score[row] - alpha * fold.cost[row]
            wanted.add(int(fold.layout.leaves.start + reward[fold.layout.leaves].argmax()))
        assert wanted <= said and len(said) < fold.layout.nodes / 2
        assert {fold.layout.parent[node] for node in said - {0}} <= said | {0}


@pytest.mark.parametrize("largest", [0, 255, 256, 65_536, 2**32 - 1, 2**40])
def test_whole_numbers_come_back(largest: int) -> None:
    values = np.array([[0, largest], [largest // 2, 1]])
    packed = explore.whole_numbers(values)
    back = np.frombuffer(base64.b64decode(packed["data"]), packed["type"])
    np.testing.assert_array_equal(back.reshape(2, 2).astype(np.int64), values)


def test_numbers_come_back_to_the_last_bit() -> None:
    values = np.random.default_rng(0).random((300, 4)).round(2) / 3
    packed = explore.numbers(values)
    parts = [packed["values"], packed["code"]]
    distinct, code = (np.frombuffer(base64.b64decode(one["data"]), one["type"]) for one in parts)
    assert (distinct[code].reshape(300, 4) == values).all()
    assert code.itemsize == 1


def test_a_router_may_stop_where_it_was_trained_to_and_other_prices_are_said(
    tree: RouteTree, sweep: TrainedSweep
) -> None:
    stopping = train(tree, Objective(trainings.ALPHA, allow_stop=True), trainings.EXACT_GLIMPSE, 0)
    [router] = as_object(explored_of(tree, stopping))["routers"]
    assert router["stop"] is True
    assert explored_of(tree, trainings.glimpse(tree), sweep).notes == ()
    [said] = explored_of(replace(tree, rate=2 * tree.rate), trainings.glimpse(tree), sweep).notes
    assert said == "The router was trained under other prices than shown here."


def test_no_text_can_end_the_data(tmp_path: Path) -> None:
    collect_hostile(tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache").run()
    page = as_html(explore_fold(tmp_path / "cache", tree, "train", shown(), texts=50))
    assert page.count("<script") == page.count("</script>") == 2
    told = json.dumps(data_of(page), ensure_ascii=False)
    assert all(sign not in told for sign in "\x1b\u202e\u2066\x07")
    assert HARM[0] in data_of(page)["queries"]["id"][0]


def test_the_same_values_give_the_same_page(tree: RouteTree, sweep: TrainedSweep) -> None:
    assert as_html(explored_of(tree, None, sweep)) == as_html(explored_of(tree, None, sweep))

"""What the page holds: positions of the slider, endings, texts, packed arrays."""

import base64
import gzip
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierrouter.collection.transfer import import_
from hierrouter.evaluation import bounds
from hierrouter.evaluation.bounds import split_regret
from hierrouter.evaluation.outcome import RouteMeans, fixed_routes, is_plain, single_calls
from hierrouter.learning.config import Objective
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Texts
from hierrouter.reports import explore
from hierrouter.reports.explore import (
    EndingSeries,
    Exploration,
    Series,
    as_html,
    as_object,
    explore_fold,
    slider_alphas,
)
from hierrouter.reports.page import template_texts
from hierrouter.runs.selection import SelectedRun
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.collection.examples import save
from tests.hierrouter.evaluation.enumeration import oracle_break_points
from tests.hierrouter.learning import trainings
from tests.hierrouter.trees import lucky_tree, planted_tree, ragged_tree, random_tree
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


def ends(series: Series, position: int) -> np.ndarray:
    """int64[queries]: the node where each query ends at one alpha of the grid."""
    assert isinstance(series, EndingSeries)
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
    assert isinstance(alone, EndingSeries)
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
    distinct, codes = (np.frombuffer(base64.b64decode(one["data"]), one["type"]) for one in parts)
    code = codes.view(np.uint8)
    assert (distinct[code].reshape(300, 4) == values).all()
    assert codes.itemsize == 1


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


# Trees of other shapes: draws of a call, and calls that some queries lack.

FIGURES_SCRIPT = """
const [data, scripts] = require("fs").readFileSync(0, "utf8").split("\\u0000");
new Function("data", "show", scripts + `
  inflated(data).then((text) => {
    const cache = readCache(text), last = cache.datasets.length;
    const choice = { factors: new Map(), kept: cache.models.map(() => true), router: 0 };
    const priced = pricedScene(cache, choice), scene = sceneAt(cache, priced, cache.start);
    const figures = (one) => ({ name: one.name, ...figuresOf(cache, one.sums, scene.alpha, last) });
    const policies = policiesOf(priced, scene);
    show({
      policies: policies.map(figures),
      routes: priced.routes.map(figures),
      best: bestFixed(cache, priced, scene, last)?.name ?? null,
      queries: policies.filter(({ at }) => at).map(({ name, at }) =>
        ({ name, at: cache.ids.map((_, query) => at(query)) })),
    });
  });
`)(data, (value) => console.log(JSON.stringify(value)));
"""


def figures_of(page: str) -> dict[str, Any]:
    """What the page's own scripts work out, at the alpha shown first."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to run the page's scripts")
    packed = page.split('id="data">')[1].split("</script>")[0]
    scripts = template_texts("data.js", "routes.js", "value.js", "scene.js", between="\n")
    done = subprocess.run(
        [node, "-e", FIGURES_SCRIPT],
        input=f"{packed}\0{scripts}",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def staged_tree() -> RouteTree:
    """Two planners, then one of two solvers, or at once the second solver: full for no M and L."""
    layout = Layout.grown(4, lambda path: {(): (0, 1, 3), (0,): (2, 3), (1,): (2, 3)}.get(path, ()))
    return random_tree(layout, 30, 3)


def with_folds(tree: RouteTree) -> RouteTree:
    """A tree whose queries take turns in the folds."""
    folds = [("train", "validation", "test")[number % 3] for number in range(len(tree))]
    return replace(tree, splits=tuple(folds), encoder="made")


DRAWN = Layout.grown(2, lambda path: (0, 1) if len(path) < 2 else (), lambda action: 2)
OTHER_TREES = {
    "draws": with_folds(lucky_tree(3, 60, 2, 1)),
    "holes": with_folds(ragged_tree(DRAWN, 60, 3, missing=0.15)),
    "unjudged": with_folds(ragged_tree(DRAWN, 60, 5, missing=0.05, unjudged=0.3)),
    "stages": with_folds(staged_tree()),
    "full": with_folds(random_tree(Layout.full(2, 2), 30, 4)),
}
# A call of the first model has a price, too.
PRICED = OTHER_TREES["draws"]
OTHER_TREES["prices"] = replace(
    PRICED, rate=np.column_stack([PRICED.rate[:, [0, 1, 0, 1]], [0.02, 0.0]])
)


@pytest.mark.parametrize("stop", [False, True], ids=["whole", "stop"])
@pytest.mark.parametrize("name", OTHER_TREES)
def test_the_page_works_out_the_exact_figures_of_any_tree(name: str, stop: bool) -> None:
    tree = OTHER_TREES[name]
    alpha = 0.7
    trained = train(tree, Objective(alpha, allow_stop=stop), trainings.EXACT_GLIMPSE, 0)
    page = as_html(explore_fold(Path(), tree, "test", SelectedRun(RUN, trained, alpha), texts=0))
    figures = figures_of(page)
    fold = tree.split("test")
    routes = fixed_routes(fold, stop)
    means = RouteMeans(fold, stop)
    offered = {means.outcome(column).name for column in means.everywhere.tolist()}
    assert {route["name"] for route in figures["routes"]} == offered
    expected = {
        outcome.name: outcome
        for outcome in (
            *single_calls(fold),
            *(route for route in routes if route.name in offered),
            bounds.random_policy(fold, stop),
            bounds.oracle(fold, alpha, stop),
            replace(trained.outcome(fold), name="HierRouter, one alpha"),
        )
    }
    fixed = bounds.best_fixed_route(tree.split("train"), alpha, fold, stop)
    fixed_name = "best fixed route (train)"
    if not is_plain(fold):
        fixed_name += f", {fixed.name}"
    expected[fixed_name] = fixed
    compared = set()
    for figure in (*figures["policies"], *figures["routes"]):
        outcome = expected.get(figure["name"])
        if outcome is None:
            assert figure["name"] == "best route per dataset"
            continue
        compared.add(figure["name"])
        assert figure["quality"] == pytest.approx(outcome.quality.mean(), abs=1e-9)
        assert figure["cost"] == pytest.approx(outcome.cost.mean(), abs=1e-9)
        assert figure["reward"] == pytest.approx(outcome.reward(alpha).mean(), abs=1e-9)
    assert compared == set(expected)
    for policy in figures["queries"]:
        if policy["name"] in expected:
            outcome = expected[policy["name"]]
            quality, _, cost = np.array(policy["at"], dtype=np.float64).T
            np.testing.assert_allclose(quality, outcome.quality, atol=1e-9)
            np.testing.assert_allclose(cost, outcome.cost, atol=1e-9)


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """Numbers as the page holds them."""
    if "values" in packed:
        return unpacked(packed["values"])[unpacked(packed["code"])]
    return np.frombuffer(base64.b64decode(packed["data"]), packed["type"])


@pytest.mark.parametrize("name", ["draws", "holes"])
def test_the_page_holds_each_draw_with_its_weight_and_no_absent_call(name: str) -> None:
    tree = OTHER_TREES[name]
    fold = tree.split("test")
    assert fold.weight is not None
    data = data_of(as_html(explored_of(tree)))
    layout = data["layout"]
    parent, action, draw = (unpacked(layout[key]) for key in ("parent", "action", "draw"))
    weight = unpacked(layout["weight"]).reshape(len(parent), len(fold))
    score = unpacked(data["nodes"]["score"]).reshape(weight.shape)
    rows = np.flatnonzero(np.array(tree.splits) == "test")
    for query, row in enumerate(rows.tolist()):
        totals: dict[tuple[int, int], float] = {}
        for node in range(1, len(parent)):
            place = int(parent[node]), int(action[node])
            totals[place] = totals.get(place, 0.0) + float(weight[node, query])
            assert weight[node, query] == tree.weight[row, node]  # type: ignore[index]
            assert score[node, query] == tree.score[row, node]
        assert all(total == pytest.approx(1) or total == 0 for total in totals.values())
    assert int(draw.max()) == fold.layout.draws - 1


def test_the_data_of_the_papers_tree_have_no_layout(tree: RouteTree) -> None:
    assert "layout" not in data_of(as_html(explored_of(tree)))


def test_a_log_without_a_route_for_all_has_a_page(tmp_path: Path) -> None:
    rows = [
        {
            "query_id": f"q{number}",
            "question": f"{HARM[0]} {number}?",
            "action": "</script" if number % 2 else "<!--",
            "path": None,
            "response": f"</script><script>{number}",
            "score": number % 3 / 2,
            "split": "test",
        }
        for number in range(6)
    ]
    import_(save(rows, tmp_path / "log.jsonl"), tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()
    exploration = explore_fold(tmp_path / "cache", tree, "test", SelectedRun(None, None, 0.1), 10)
    page = as_html(exploration)
    assert page.count("<script") == page.count("</script>") == 2
    assert len(data_of(page)["texts"]) == 6
    figures = figures_of(page)
    assert figures["best"] is None
    oracle = {policy["name"]: policy for policy in figures["policies"]}["oracle"]
    assert oracle["quality"] == pytest.approx(0.5)

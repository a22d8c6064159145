"""The page of `explore` in a real browser: the report's figures, quick, quiet, inert, readable."""

import csv
import io
import itertools
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierrouter.evaluation.policies import OwnPolicy, own_policies, policy_endings
from hierrouter.learning.baselines.answers import answers_for
from hierrouter.learning.baselines.contest import contest
from hierrouter.learning.baselines.registry import baselines
from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.explain import explain_queries, worst_queries
from hierrouter.reports.explore import (
    EndingSeries,
    ExpectationSeries,
    as_html,
    explore_fold,
    policy_series,
)
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.report import as_object
from hierrouter.tables import one_line
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.browser.conftest import CONTRASTS, OPEN_ALL, SIZES, barriers, faint, opened, settle
from tests.conftest import Run
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE, sweep_glimpse
from tests.hierrouter.reports.test_explore import data_of, explored_of, shown
from tests.hierrouter.trees import planted_tree
from tests.hostile import HARM, collect_hostile

FRAME = 100  # milliseconds of processor time
MANY = 1_200  # queries
MOST_BYTES = 6_000_000
EXACT = {"rel_tol": 1e-9, "abs_tol": 1e-12}
# The figures of every policy on the chosen dataset, as whole as they are; then the gaps.
FIGURES = """() => {
  const rows = table => [...document.querySelectorAll(`#${table} tbody tr`)].map(row => [
    row.dataset.name, row.className, ...[...row.querySelectorAll('data')].map(
      datum => datum.value === '' ? null : Number(datum.value))])
  return {policies: [...rows('policies'), ...rows('routes')], datasets: rows('datasets'),
          alpha: document.querySelector('#alpha-value').textContent}
}"""
# One position of the slider, until its frame has been drawn.
MOVE = """async at => {
  const slider = document.querySelector('#alpha'), next = () => new Promise(requestAnimationFrame)
  slider.value = at
  slider.dispatchEvent(new Event('input'))
  await next()
  await next()
  return document.querySelector('#alpha-value').textContent
}"""

Write = Callable[[str], Path]
Stopping = tuple[RouteTree, Any]
Brought = tuple[Path, tuple[OwnPolicy, ...]]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """A page as a file of its own."""

    def written(page: str) -> Path:
        file = tmp_path_factory.mktemp("page") / "explore.html"
        file.write_text(page, "utf-8")
        return file

    return written


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, testbed_cache: Path, hierrouter: Run) -> Path:
    """A folder with a cache, a sweep, and the page that the command makes of them."""
    folder = tmp_path_factory.mktemp("explore") / "work"
    folder.mkdir()
    shutil.copytree(testbed_cache, folder / "caches" / "default")
    sweep = ("--alphas", "0,0.05,0.5,1.5,3", "--out", "runs/sweep")
    for command in (("sweep-alpha", *sweep), ("explore", "--out", "page.html")):
        done = hierrouter(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def many(write: Write) -> Path:
    """The page of more than a thousand queries."""
    tree = planted_tree(per_family=(9, 3, MANY // 5), dim=8)
    tree = replace(tree, encoder="planted")
    sweep = sweep_glimpse(tree)
    return write(as_html(explored_of(tree, sweep=sweep)))


@pytest.fixture(scope="module")
def stopping(testbed_cache: Path) -> Stopping:
    """A tree, and a router that may stop early."""
    tree = OpenTree(cache=testbed_cache).run()
    config = ExactConfig(epochs=6, queries=40, steps=10, hidden=16)
    return tree, train(tree, Objective(ALPHA, allow_stop=True), config, 0)


@pytest.fixture(scope="module")
def page_of_run(stopping: Stopping, testbed_cache: Path, write: Write) -> Path:
    """The page of that router, with all texts."""
    tree, trained = stopping
    return write(as_html(explore_fold(testbed_cache, tree, "test", shown(trained), 500)))


def thrifty(observation: Mapping[str, Any]) -> str:
    """Asks for less where cost counts for more."""
    if observation["alpha"] > ALPHA:
        return "text>stop" if observation["stage"] == 0 else "text"
    return "facts" if observation["answers"] and observation["answers"][0] else "calc"


def chance(observation: Mapping[str, Any]) -> np.ndarray:
    """Any model, and never a stop."""
    return np.array([0.25, 0.5, 0.25])


def steady(observation: Mapping[str, Any]) -> str:
    """The same at every alpha."""
    return "facts" if observation["stage"] else "text"


@pytest.fixture(scope="module")
def brought(stopping: Stopping, testbed_cache: Path, write: Write) -> Brought:
    """The page of that router with policies of the user's own and baselines."""
    tree, trained = stopping
    own = own_policies([thrifty, chance, steady])
    found = explore_fold(
        *(testbed_cache, tree, "test", shown(trained), 20),
        policies=own,
        baselines=baselines(["knn", "cascade", "agreement-cascade"]),
    )
    assert isinstance(found.others[0], EndingSeries) and isinstance(
        found.others[1], ExpectationSeries
    )
    return write(as_html(found)), own


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory, write: Write) -> Path:
    """A page in which every foreign text means harm."""
    cache = tmp_path_factory.mktemp("hostile") / "cache"
    collect_hostile(cache)
    tree = OpenTree(cache=cache).run()
    tree = replace(tree, splits=("train",) * len(tree))
    trained = train(OpenTree(cache=cache).run(), Objective(ALPHA), EXACT_GLIMPSE, 0)
    found = explore_fold(cache, tree, "train", shown(trained), texts=50)
    names = ("<script>window.harmed = 1</script>", "</script><img src=x onerror='harmed = 1'>")
    harmful = replace(
        tree,
        models=names,
        datasets=tuple(names[row % 2] for row in range(len(tree))),
        direct=replace(tree.direct, models=names),
    )
    return write(as_html(replace(found, tree=harmful)))


def report_at(tree: RouteTree, alpha: float, trained: Any = None, **more: Any) -> dict[str, Any]:
    return as_object(
        report_on_fold(tree, alpha, trained, None, {}, "test", Bootstrap(n=100), **more)
    )


def until(page: Any, expression: str, wanted: object) -> None:
    """Until the page says so; waiting inside of it is forbidden by its policy."""
    for _ in range(200):
        if page.evaluate(expression) == wanted:
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"{expression} is {page.evaluate(expression)}, not {wanted}")


def go(page: Any, alpha: float) -> None:
    file = Path(page.url.split("#")[0].removeprefix("file://"))
    assert float(page.evaluate(MOVE, alphas_of(file).index(alpha))) == alpha


def alphas_of(file: Path) -> list[float]:
    found: list[float] = data_of(file.read_text("utf-8"))["alphas"]
    return found


def told(page: Any, dataset: str) -> dict[str, Any]:
    page.locator("#dataset").select_option(label=dataset)
    settle(page)
    found: dict[str, Any] = page.evaluate(FIGURES)
    return found


def check(page: Any, report: Mapping[str, Any], router: str | None) -> int:
    """Every figure of a report stands on the page; returns how many were compared."""
    compared = 0
    for dataset in {row["dataset"] for row in report["rows"]}:
        found = told(page, dataset)
        policies = {(name, kind): figures for name, kind, *figures in found["policies"]}
        for row in report["rows"]:
            name = router if row["kind"] == "router" else row["policy"]
            if row["dataset"] != dataset or name is None:
                continue
            figures = policies[name, row["kind"]]
            wanted = [row[key] for key in ("quality", "accuracy", "cost", "reward")]
            for here, there in zip(figures, wanted, strict=True):
                assert math.isclose(here, there, **EXACT), (row, figures)
                compared += 1
        if router:
            [gap] = [row[6] for row in found["datasets"] if row[0] == dataset]
            wanted = report["gap_closed"][dataset]
            assert gap == wanted or math.isclose(gap, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return compared


def test_the_figures_are_those_of_report(work: Path, browser: Any, hierrouter: Run) -> None:
    alphas = alphas_of(work / "page.html")
    between = [alpha for alpha in alphas if 0.1 < alpha < 2 and alpha not in (0.5, 1.5)]
    with opened(browser, work / "page.html") as (page, log):
        for alpha in (0.0, 0.5, between[0], between[-1], 3.0):
            flags = ("--alpha", repr(alpha), "--format", "json")
            done = hierrouter("report", *flags, cwd=work)
            assert done.returncode == 0, done.stderr
            go(page, alpha)
            assert check(page, json.loads(done.stdout), "HierRouter, sweep") > 500
        assert [line for line in log if not line.startswith("request: file:")] == []


def test_a_router_that_stops_has_the_figures_of_report(
    page_of_run: Path, stopping: Stopping, browser: Any
) -> None:
    tree, trained = stopping
    with opened(browser, page_of_run) as (page, _):
        for alpha in alphas_of(page_of_run)[:: len(alphas_of(page_of_run)) // 2]:
            report = report_at(tree, alpha, trained)
            go(page, alpha)
            assert check(page, report, "HierRouter, one alpha") > 500


def test_another_price_has_the_figures_of_report(
    page_of_run: Path, stopping: Stopping, browser: Any
) -> None:
    tree, trained = stopping
    with opened(browser, page_of_run) as (page, _):
        page.locator("#price-1").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        alpha = alphas_of(page_of_run)[60]
        go(page, alpha)
        assert "old prices" in page.locator("#router-note").inner_text()
        rates = {
            name: Rate(*(rate * (10**0.4 if name == tree.models[1] else 1)))
            for name, rate in zip(tree.direct.models, tree.direct.rate, strict=True)
        }
        under = reprice(tree, rates)
        assert check(page, report_at(under, alpha, trained), None) > 500
        kept = trained.endings(tree.split("test"))
        cost = float((kept * under.split("test").cost).sum(axis=1).mean())
        [router] = [row for row in told(page, "all")["policies"] if row[1] == "router"]
        assert math.isclose(router[4], cost, **EXACT)
        page.locator("#reset").click()
        settle(page)
        assert "old prices" not in page.locator("#router-note").inner_text()


def test_a_dropped_model_leaves_the_figures_of_a_smaller_pool(
    page_of_run: Path, stopping: Stopping, testbed_cache: Path, browser: Any
) -> None:
    tree, _ = stopping
    with opened(browser, page_of_run) as (page, _log):
        page.locator("#kept-0").uncheck()
        alpha = alphas_of(page_of_run)[40]
        go(page, alpha)
        part = OpenTree(cache=testbed_cache, models=tree.models[1:]).run()
        # Fixed routes and bounds may stop early as long as the router that was chosen may.
        report = report_at(part, alpha)
        calls = [row for row in report["rows"] if row["kind"] in ("single", "reference")]
        assert check(page, {**report, "rows": calls}, None) == 4 * len(calls) > 50
        found = told(page, "all")
        routes = {row[0] for row in found["policies"] if row[1] == "route"}
        assert not any(tree.models[0] in name.split(">") for name in routes)
        assert "router" not in {row[1] for row in found["policies"]}
        assert "needs training again" in page.locator("#card-router").inner_text()
        page.locator("#kept-1").uncheck()
        assert page.locator("#kept-2").is_disabled()


def test_bounds_without_a_router_are_those_of_a_smaller_pool(
    testbed_cache: Path, write: Write, browser: Any
) -> None:
    tree = OpenTree(cache=testbed_cache).run()
    file = write(as_html(explored_of(tree)))
    alpha = alphas_of(file)[45]
    part = OpenTree(cache=testbed_cache, models=(tree.models[0], tree.models[2])).run()
    with opened(browser, file) as (page, _):
        page.locator("#kept-1").uncheck()
        go(page, alpha)
        assert check(page, report_at(part, alpha), None) > 300


def worked(session: Any) -> float:
    """Processor time of the page's thread so far, in milliseconds: whatever it has done."""
    [found] = [
        metric["value"]
        for metric in session.send("Performance.getMetrics")["metrics"]
        if metric["name"] == "TaskDuration"
    ]
    return 1_000 * float(found)


def test_every_frame_of_a_drag_is_quick_and_another_one(many: Path, browser: Any) -> None:
    alphas = alphas_of(many)
    with opened(browser, many) as (page, log):
        session = page.context.new_cdp_session(page)
        # Processor time: what else the machine does is not the page's.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        frames, before = [], worked(session)
        for position, alpha in enumerate(alphas):
            assert float(page.evaluate(MOVE, position)) == alpha
            now = worked(session)
            frames.append(now - before)
            before = now
        assert log == [f"request: {many.as_uri()}"]
    assert len(frames) > 90 and min(frames) > 0
    assert max(frames) < FRAME
    assert many.stat().st_size < MOST_BYTES


@pytest.mark.parametrize(
    ("models", "hops", "folds", "free"),
    [
        (1, 1, (3, 1, 3), False),
        (2, 1, (3, 1, 3), False),
        (2, 4, (0, 0, 4), False),
        (2, 2, (3, 1, 3), True),
    ],
)
def test_trees_of_every_shape_are_drawn(
    models: int, hops: int, folds: tuple[int, int, int], free: bool, browser: Any, write: Write
) -> None:
    tree = planted_tree(families=2, per_family=folds, models=models, hops=hops, dim=8)
    if free:
        direct = replace(tree.direct, rate=0 * tree.direct.rate)
        tree = replace(tree, rate=0 * tree.rate, direct=direct)
    file = write(as_html(explored_of(tree)))
    with opened(browser, file) as (page, log):
        for key in ("End", "Home"):
            page.locator("#alpha").focus()
            page.keyboard.press(key)
            page.locator("#log").click()
            settle(page)
        assert page.locator("#frontier .mark").count() >= models**hops
        assert not {"NaN", "undefined"} & set(re.findall(r"\w+", page.inner_html("main")))
        assert page.locator("#chosen-tree li").count() == tree.layout.calls
        assert check(page, report_at(tree, 0.0), None) > 10
        assert log == [f"request: {file.as_uri()}"]


def test_hostile_text_is_read_and_does_nothing(hostile_page: Path, browser: Any) -> None:
    with opened(browser, hostile_page) as (page, log):
        seen, answers = "", ""
        page.locator("#list").focus()
        for _ in range(2 * len(HARM)):
            seen += " ".join(page.evaluate("document.body.innerText").split())
            answers += " ".join(page.locator("q").all_inner_texts())
            page.keyboard.press("ArrowDown")
            settle(page)
        for text in HARM:
            assert one_line(text) in seen
        assert sum(one_line(text) in answers for text in HARM) == len(HARM)
        assert page.evaluate("window.harmed") is None
        assert page.locator("script").count() == 2
        assert page.locator("iframe, img, object, embed, form, link, base").count() == 0
        assert page.locator("style").count() == 1
        assert page.evaluate("getComputedStyle(document.body).backgroundImage") == "none"
        assert log == [f"request: {hostile_page.as_uri()}"]


def test_the_policy_of_the_page_stops_scripts_that_are_not_its_own(
    page_of_run: Path, write: Write, browser: Any
) -> None:
    harm = "<script>window.harmed = 1</script><img src='http://127.0.0.1:9/'></body>"
    file = write(page_of_run.read_text("utf-8").replace("</body>", harm))
    with opened(browser, file) as (page, log):
        assert page.evaluate("window.harmed") is None
        assert any("Content Security Policy" in line for line in log)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(scheme: str, browser: Any, page_of_run: Path) -> None:
    with opened(browser, page_of_run, scheme=scheme) as (page, _):
        go(page, alphas_of(page_of_run)[50])
        assert len(page.evaluate(CONTRASTS)) > 300 and faint(page) == []


@pytest.mark.parametrize("name", ["page_of_run", "hostile_page"])
def test_a_phone_scrolls_down_only(name: str, browser: Any, request: pytest.FixtureRequest) -> None:
    with opened(browser, request.getfixturevalue(name), "phone") as (page, _):
        settle(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        plot = page.locator("#frontier").bounding_box()
    assert width <= SIZES["phone"]["width"]
    assert 200 < plot["width"] <= SIZES["phone"]["width"] and plot["height"] > 290


def test_the_keyboard_moves_alpha_and_walks_the_queries(page_of_run: Path, browser: Any) -> None:
    alphas = alphas_of(page_of_run)
    with opened(browser, page_of_run) as (page, _):
        slider = page.locator("#alpha")
        slider.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        settle(page)
        assert float(page.locator("#alpha-value").inner_text()) == alphas[1]
        assert slider.get_attribute("aria-valuetext") == f"alpha {alphas[1]!r}"
        page.locator("#list").focus()
        names = set()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
            settle(page)
            names.add(page.locator("#chosen-name").inner_text())
            chosen = page.locator("[role=option][aria-selected=true]")
            assert chosen.get_attribute("id") == page.locator("#list").get_attribute(
                "aria-activedescendant"
            )
        assert len(names) == 3


def test_policies_and_baselines_have_the_figures_of_report_and_compare(
    brought: Brought, stopping: Stopping, testbed_cache: Path, browser: Any
) -> None:
    (file, own), (tree, trained) = brought, stopping
    alphas = alphas_of(file)
    with opened(browser, file) as (page, _):
        for alpha in (0.0, ALPHA, alphas[60]):
            go(page, alpha)
            report = report_at(tree, alpha, trained, policies=own)
            assert check(page, report, "HierRouter, one alpha") > 500
        chosen = baselines(["knn", "cascade", "agreement-cascade"])
        answers = answers_for(testbed_cache, tree, chosen, ("A", "B"))
        held = contest(tree, ALPHA, chosen, answers=answers)
        go(page, ALPHA)
        rows = {row[0]: row[2:] for row in told(page, "all")["policies"]}
        for one in (entry for entry in held.entries if entry.outcome.kind == "baseline"):
            outcome = one.outcome
            wanted = outcome.quality, outcome.accuracy, outcome.cost, outcome.reward(ALPHA)
            for here, there in zip(rows[f"{outcome.name} ({one.arms})"], wanted, strict=True):
                assert math.isclose(here, there.mean(), **EXACT)
        moved = page.locator("#frontier .brought-curve").count()
        assert moved == 1 and page.locator("#frontier .brought").count() == 9
        who = page.locator("#chosen-table tbody th").all_inner_texts()
        assert sum("direct call of" in name for name in who) == 3
        assert any(name.startswith("steady: text>facts") for name in who)
        page.locator("#price-1").focus()
        page.keyboard.press("ArrowLeft")
        direct, factors = tree.direct, {tree.models[1]: 10**-0.1}
        named = zip(direct.models, direct.rate, strict=True)
        under = reprice(tree, {name: Rate(*(rate * factors.get(name, 1))) for name, rate in named})
        for row in told(page, "all")["policies"]:
            for one in (one for one in own if one.name == row[0]):
                ends = policy_endings(under.split("test"), one, ALPHA, True)
                cost = (ends * under.split("test").cost).sum(axis=1).mean()
                assert math.isclose(row[4], cost, **EXACT)
        for name in ("steady", "fixed routes", "oracle"):
            page.locator(".legend label", has_text=re.compile(f"^ *{name}$")).click()
        settle(page)
        assert (
            page.locator("#policies [data-name=steady], #policies [data-name=oracle]").count() == 0
        )
        assert page.locator("#frontier .mark:is(.route, .oracle)").count() == 0
        assert page.locator(".badge", has_text=re.compile("^(steady|oracle)$")).count() == 0
        page.locator("#kept-0").uncheck()
        settle(page)
        assert page.locator("#frontier .brought").count() == 0


def test_what_draws_at_some_alphas_only_is_drawn_at_all(stopping: Stopping) -> None:
    tree = stopping[0]

    def sometimes(observation: Mapping[str, Any]) -> Any:
        return chance(observation) if observation["alpha"] > ALPHA else "text"

    [own] = own_policies([sometimes])
    found = policy_series(own, tree.split("test"), (0.0, ALPHA, 2 * ALPHA), False)
    assert isinstance(found, ExpectationSeries) and found.step.tolist() == [0, 1, 2]
    for at, alpha in enumerate((0.0, ALPHA, 2 * ALPHA)):
        ends = policy_endings(tree.split("test"), own, alpha, False)
        wanted = (ends * tree.split("test").score).sum(axis=1)
        np.testing.assert_allclose(found.quality[at], wanted)


def test_costs_far_apart_are_drawn_on_a_logarithm_and_labels_apart(
    browser: Any, write: Write
) -> None:
    tree = planted_tree(models=5, per_family=(6, 2, 6), dim=8, spread=90.0)
    tree = replace(tree, encoder="planted")
    file = write(as_html(explored_of(tree, sweep=sweep_glimpse(tree))))
    boxes = "all => all.map(one => one.getBoundingClientRect().toJSON())"
    with opened(browser, file) as (page, _):
        assert page.locator("#log").is_checked()
        frame = page.locator("#frontier").bounding_box()
        marks, labels = (
            page.locator(f"#frontier {kind}").evaluate_all(boxes) for kind in (".mark", ".label")
        )
    assert len(marks) > 30 and len(labels) > 5
    centre = np.array([mark["x"] + mark["width"] / 2 for mark in marks]) - frame["x"]
    assert np.ptp(np.quantile(centre, (0.1, 0.5))) > 60 and centre.max() < frame["width"]
    for one, other in itertools.combinations(labels, 2):
        across = min(one["right"], other["right"]) - max(one["left"], other["left"])
        down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
        assert min(across, down) < 3


def test_keys_work_anywhere_and_are_told(page_of_run: Path, browser: Any) -> None:
    alphas = alphas_of(page_of_run)
    with opened(browser, page_of_run) as (page, _):

        def told_after(*keys: str) -> tuple[int, str]:
            for key in keys:
                page.keyboard.press(key)
            settle(page)
            value = float(page.locator("#alpha-value").inner_text())
            return alphas.index(value), page.locator("#chosen-name").inner_text()

        at, first = told_after()
        assert told_after("ArrowRight", "ArrowRight") == (at + 2, first)
        assert told_after("Shift+ArrowRight", "ArrowLeft") == (at + 11, first)
        assert told_after("j")[1] != first == told_after("k")[1]
        told_after("/", "j", "?")
        assert page.locator("#search").input_value() == "j?"
        page.locator("#list").focus()
        told_after("?")
        assert page.locator("#keys").is_visible() and page.locator("kbd").count() > 10
        assert told_after("j", "ArrowRight") == told_after()
        page.locator("#signs").uncheck()
        told_after("Escape", "?")
        assert not page.locator("#keys").is_visible()


def test_every_control_is_reached_by_tab_and_shows_it(page_of_run: Path, browser: Any) -> None:
    focused = """() => {
      const it = document.activeElement, style = getComputedStyle(it)
      it.dataset.reached = true
      return [it.localName, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]
    }"""
    controls = "a, button, input, select, summary, [tabindex='0']"
    with opened(browser, page_of_run) as (page, _):
        for _ in range(200):
            page.keyboard.press("Tab")
            name, outlined = page.evaluate(focused)
            if name == "body":
                break
            assert outlined, page.evaluate("document.activeElement.outerHTML")
        reached = page.locator(f":is({controls}):visible:not([data-reached]):not(:disabled)")
        assert name == "body" and reached.all_inner_texts() == []


VIEW = """() => [...document.querySelectorAll('input, select')].map(
  it => it.type === 'checkbox' ? it.checked : it.value)"""


def test_all_that_is_set_is_in_the_address(brought: Brought, browser: Any) -> None:
    file, address = brought[0], "location.hash"
    with opened(browser, file) as (page, _):
        before = page.evaluate("history.length")
        fresh = page.evaluate(VIEW)
        page.locator("#price-1").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.locator("#kept-0").uncheck()
        for key in ("policy chance", "route"):
            page.locator(f"[data-key='{key}']").uncheck()
        page.locator("#log").click()
        page.locator("#dataset").select_option(label="story")
        page.locator("#order").select_option("collected")
        page.locator("#search").fill("1")
        go(page, alphas_of(file)[40])
        page.locator("[role=option]").nth(2).click()
        settle(page)
        wanted = page.locator("#chosen-name").inner_text()
        until(page, "new URLSearchParams(location.hash.slice(1)).get('query')", wanted)
        seen = (
            page.evaluate(FIGURES),
            page.evaluate(VIEW),
            page.locator("#chosen-name").inner_text(),
        )
        assert page.evaluate("history.length") == before
        link = page.evaluate(address)
    with opened(browser, file) as (page, log):
        page.goto(f"{file.as_uri()}{link}")
        page.reload()
        page.wait_for_selector("[role=option]", state="attached")
        page.evaluate(OPEN_ALL)
        until(page, "document.querySelector('#chosen-name').textContent", wanted)
        settle(page)
        assert seen == (
            *(page.evaluate(FIGURES), page.evaluate(VIEW)),
            page.locator("#chosen-name").inner_text(),
        )
        assert not page.locator("#address-note").is_visible()
        bad = (
            "alpha=-1&alpha=x&query=nobody&models=&price=calc:7&price=%3Cb%3E&order=toString&x=%E0"
        )
        page.goto(f"{file.as_uri()}#{bad}")
        until(page, "document.querySelector('#address-note').hidden", False)
        settle(page)
        assert page.evaluate(VIEW) == fresh  # what an address does not name is as at first
        said = page.locator("#address-note").inner_text()
        assert said.count("=") == 8 and "price=<b>" in said and "\n" not in said
        assert not any(line.startswith(("console", "error")) for line in log)


def test_what_is_seen_is_saved(brought: Brought, browser: Any, write: Write) -> None:
    with opened(browser, brought[0]) as (page, _):

        def saved(name: str) -> str:
            with page.expect_download() as found:
                page.locator(f"#save-{name}").click()
            text: str = found.value.path().read_text("utf-8")
            return text

        def rows_of(name: str) -> list[dict[str, str]]:
            return list(csv.DictReader(io.StringIO(saved(name))))

        found = told(page, "story")
        figures = [[one["policy"], one["kind"], *map(float, list(one.values())[5:])]
                   for one in rows_of("figures")]  # fmt: skip
        assert figures == found["policies"] and len(figures) > 20
        page.locator("#search").fill("1")
        settle(page)
        queries, listed = rows_of("queries"), page.locator("#found").inner_text()
        assert listed.startswith(f"{len(queries)} of ") and {q["dataset"] for q in queries} == {
            "story"
        }
        assert {one["steady: route"] for one in queries} == {"text>facts"}
        regret = [float(one["oracle: reward"]) - float(one["HierRouter, one alpha: reward"])
                  for one in queries]  # fmt: skip
        np.testing.assert_allclose(regret, [float(one["regret"]) for one in queries], atol=1e-12)
        drawing, marks = saved("frontier"), page.locator("#frontier .mark").count()
    file = write(drawing).rename(brought[0].with_suffix(".svg"))
    with opened(browser, file) as (page, log):
        assert page.locator("path[fill='rgb(213, 94, 0)']").count() == 1  # the router
        assert page.locator("[class], [style], style, script").count() == 0
        assert page.locator("circle, path:has(title)").count() == marks
        assert log == [f"request: {file.as_uri()}"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_keeps_people_from_using_it(
    size: str, scheme: str, browser: Any, axe: str, brought: tuple[Path, Any]
) -> None:
    with opened(browser, brought[0], size, scheme) as (page, _):
        assert barriers(page, axe) == []
        hidden = page.locator(".wide:has(table):visible").evaluate_all(
            "all => all.map(one => one.scrollWidth - one.clientWidth)"
        )
        assert size == "phone" or max(hidden) <= 0
        page.keyboard.press("?")
        assert barriers(page, axe) == []


def test_queries_are_found_by_text_and_sorted_by_regret(page_of_run: Path, browser: Any) -> None:
    with opened(browser, page_of_run) as (page, _):
        regrets = [float(text) for text in page.locator(".regret").all_inner_texts()]
        assert regrets == sorted(regrets, reverse=True) and len(set(regrets)) > 1
        question = page.locator("#chosen-question").inner_text()
        page.locator("#search").fill(question.upper())
        settle(page)
        assert 1 <= page.locator("[role=option]").count() < 10
        page.locator("#search").fill("no such question anywhere")
        settle(page)
        assert page.locator("[role=option]").count() == 0
        page.locator("#search").fill("")
        page.locator("#dataset").select_option(label="story")
        settle(page)
        assert {text.strip() for text in page.locator("[role=option] .of").all_inner_texts()} <= {
            "story",
            "",
        }


def test_the_tree_of_a_query_says_who_chose_what(
    page_of_run: Path, stopping: Stopping, testbed_cache: Path, browser: Any
) -> None:
    tree, trained = stopping
    [row] = worst_queries(tree, "test", ALPHA, trained, 1)
    [found] = explain_queries(testbed_cache, tree, [row], ALPHA, trained)
    with opened(browser, page_of_run) as (page, _):
        go(page, ALPHA)
        page.goto(f"{page_of_run.as_uri()}#alpha={ALPHA}&query={found.name}")
        settle(page)
        settle(page)
        assert page.locator("#chosen-name").inner_text() == found.name
        assert page.locator("#chosen-tree li").count() == len(found.nodes)
        answers = page.locator("#chosen-tree q").all_text_contents()
        assert sorted(answers) == sorted(node.answer or "(empty answer)" for node in found.nodes)
        rows = page.evaluate(FIGURES.replace("rows('policies')", "rows('chosen-table')"))
        chosen = {name: figures for name, _, *figures in rows["policies"]}
        assert found.router and found.regret and found.fixed
        regret = chosen[f"HierRouter: {found.node(found.router.node).route}"][3]
        assert math.isclose(regret, found.regret, **EXACT)
        assert chosen[f"oracle: {found.node(found.best).route}"][3] == 0
        assert f"best fixed route (train): {found.node(found.fixed).route}" in chosen


def test_an_answer_that_is_partly_right_is_not_called_right(browser: Any, write: Write) -> None:
    tree = planted_tree(per_family=(3, 1, 1), dim=8)
    accuracy = np.full_like(tree.accuracy, 0.3)
    accuracy[:, 1], accuracy[:, 2] = 1, 0
    file = write(as_html(explored_of(replace(tree, accuracy=accuracy))))
    with opened(browser, file) as (page, _):
        said = page.locator("#chosen-tree .numbers").all_text_contents()
        words = Counter(text.split(", ")[1] for text in said)
    assert words == {"right": 1, "wrong": 1, "0.30 right": tree.layout.calls - 2}


def test_a_query_without_texts_says_so(many: Path, browser: Any) -> None:
    with opened(browser, many) as (page, _):
        assert page.locator("#chosen-lacking").is_visible()
        assert not page.locator("#chosen-texts").is_visible()
        assert page.locator("#chosen-tree li").count() == 12
        assert page.locator("[role=option]").count() < 40  # of 1,200: what is in sight

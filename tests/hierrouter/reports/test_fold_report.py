"""What a report compares, with routers that were really trained."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hierrouter.evaluation.budget import optimum_at_mean_cost
from hierrouter.evaluation.outcome import FixedRoutes, RouteMeans
from hierrouter.learning.config import (
    ClustersConfig,
    ExactConfig,
    GroupsConfig,
    Objective,
    PPOConfig,
    TrainConfig,
    ValueConfig,
)
from hierrouter.learning.deferral import calibrate
from hierrouter.learning.router import Constant, TrainedRouter
from hierrouter.learning.sweep import TrainedSweep, train_sweep
from hierrouter.learning.training import train
from hierrouter.replay.inspection import cost_notes
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.fold_report import DeferralTarget, report_on_fold
from hierrouter.reports.report import as_object
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import headlines, message
from hierrouter.reports.tables import named_tables
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.hierrouter.trees import lucky_tree, planted_tree, ragged_tree

ALPHA = 0.05
GRID = (0.0, ALPHA)
EXACT = ExactConfig(epochs=16, hidden=32, evaluate_every=4)
PPO = PPOConfig(epochs=40, rollouts=256, minibatches=8, hidden=32, patience=0)
QUICK = Bootstrap(n=50)
NUMBER = r"[+-]?\d+\.?\d*"


@cache
def half_easy() -> RouteTree:
    """Of four families, two are answered by the first call of their right route."""
    tree = planted_tree(families=4, per_family=(30, 10, 25), dim=16, noise=0.3)
    score = tree.score.copy()
    easy = np.isin(tree.datasets, ["family-0", "family-1"])
    below = score[:, tree.layout.leaves].reshape(len(tree), 3, 3)
    score[easy, tree.layout.level(1)] = below.max(axis=2)[easy]
    return replace(tree, score=score, encoder="planted")


@cache
def router(config: TrainConfig = PPO, allow_stop: bool = False) -> TrainedRouter:
    return train(half_easy(), Objective(ALPHA, allow_stop), config, 1)


@cache
def sweep(allow_stop: bool = False) -> TrainedSweep:
    objective = Objective(ALPHA, allow_stop)
    return train_sweep(half_easy(), GRID, objective, ValueConfig(), 0)


def shown(
    trained: TrainedRouter | None,
    swept: TrainedSweep | None = None,
    alpha: float = ALPHA,
    tree: RouteTree | None = None,
    **more: Any,
) -> ReportData:
    return report_on_fold(tree or half_easy(), alpha, trained, swept, {}, bootstrap=QUICK, **more)


def test_routers_of_the_frontier_that_may_do_more_or_less_are_said() -> None:
    assert shown(router(), sweep()).notes == ()
    assert shown(router(), sweep(allow_stop=True)).notes == (
        "The routers of the frontier may stop early, the one of the tables may not.",
    )
    assert shown(router(allow_stop=True), sweep()).notes == (
        "The router of the tables may stop early, those of the frontier may not.",
    )


@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_budget_is_reported_with_what_it_comes_to_on_the_fold(split: str) -> None:
    chosen, fold = replace(router(EXACT), budget=1.5), half_easy().split(split)
    (note,) = shown(chosen, split=split).notes
    reached = chosen.outcome(fold)
    cost = reached.cost.mean()
    best = optimum_at_mean_cost(fold, cost).quality.mean()
    expected = [1.5, cost, reached.quality.mean(), best, cost]
    told = [float(number.rstrip(".")) for number in re.findall(NUMBER, note)]
    assert told == pytest.approx(expected, abs=5e-3)
    assert reached.quality.mean() <= best
    # The bound is at the cost on this fold, whatever the budget was.
    (other,) = shown(replace(router(EXACT), budget=0.01), split=split).notes
    assert other.partition(";")[2] == note.partition(";")[2]


@pytest.mark.parametrize("share", [None, 0.2])
def test_a_router_that_hands_over_is_one_more_baseline(share: float | None) -> None:
    tree, trained = half_easy(), router(EXACT)
    report = shown(trained, defer=DeferralTarget("large", share))
    deferral, fold = calibrate(trained, tree, "large", share), tree.split("test")
    [row] = [row for row in report.overall if row.policy == "hierrouter, else large"]
    assert row.kind == "baseline"
    assert row.reward == pytest.approx(deferral.outcome(fold).reward(ALPHA).mean())
    alone = trained.outcome(fold).reward(ALPHA).mean()
    assert row.difference == pytest.approx(alone - row.reward)
    summary = report.deferral
    assert summary is not None and (summary.chosen_on, summary.share_allowed) == (
        "validation",
        share,
    )
    assert summary.chosen.reward == pytest.approx(row.reward)
    assert summary.chosen.share == pytest.approx(deferral.on_fold(fold).share(deferral.threshold))
    single = next(row for row in report.overall if row.policy == "large")
    assert report.router is not None
    assert (summary.curve[0].share, summary.curve[-1].share) == (0, 1)
    assert summary.curve[0].reward == pytest.approx(report.router.reward)
    assert summary.curve[-1].reward == pytest.approx(single.reward)
    assert shown(trained).deferral is None


def test_the_same_threshold_hands_over_under_every_price_list() -> None:
    tree, trained = half_easy(), router(EXACT)
    rates = zip(tree.direct.models, (2 * tree.direct.rate).tolist(), strict=True)
    lists = {"own": tree, "dear": reprice(tree, {name: Rate(*rate) for name, rate in rates})}
    report = shown(trained, price_lists=lists, defer=DeferralTarget("large", 0.3))
    deferral = calibrate(trained, tree, "large", 0.3)
    for priced in report.price_lists:
        [row] = [row for row in priced.rows if row.policy == "hierrouter, else large"]
        expected = deferral.outcome(lists[priced.name].split("test")).cost.mean()
        assert row.cost == pytest.approx(expected)


def test_a_router_that_always_takes_one_route_is_said_to() -> None:
    """Not only where it is a constant choice: the paper's preset keeps every router."""
    tree = half_easy()
    score = np.zeros_like(tree.score)
    score[:, tree.layout.node((1, 2))] = 0.9
    simple = replace(tree, score=score)
    trained = train(simple, Objective(ALPHA), replace(EXACT, keep_anyway=True), 1)
    report = shown(trained, tree=simple)
    assert trained.constant is None
    assert report.constant == "" and report.fixed_route == "model-1>model-2"
    note = (
        "HierRouter is one fixed route here: its policy takes model-1>model-2 for every question."
    )
    assert note in report.notes
    assert as_object(report)["fixed_route"] == "model-1>model-2"
    several = shown(router(EXACT))
    assert several.fixed_route == "" and as_object(several)["fixed_route"] is None


def test_a_constant_choice_is_one_fixed_route_by_its_name() -> None:
    chosen = replace(router(EXACT), constant=Constant(5, 0.0, -0.1, 0.1, 900, 40))
    report = shown(chosen)
    assert report.fixed_route == report.constant == chosen.constant_route
    assert sum("one fixed route" in note for note in report.notes) == 1


def test_a_constant_choice_makes_the_choices_of_its_route() -> None:
    """No interval is made of differences that are 0 on any question."""
    chosen = replace(router(EXACT), constant=Constant(5, 0.0, -0.1, 0.1, 900, 40))
    report = shown(chosen)
    route = chosen.constant_route
    rows = [row for row in report.rows if (row.kind, row.policy) == ("route", route)]
    assert len(rows) == len(report.datasets)
    assert all((row.difference, row.difference_low) == (0.0, None) for row in rows)
    assert all(row.reward_low is not None for row in rows)
    assert route not in [row.policy for row in report.comparisons if row.kind == "route"]
    [cells] = [line for line in named_tables(report)["summary"].cell_texts() if line[0] == route]
    assert cells[5:7] == ["+0.0000", "same choices"]
    others = [row for row in report.overall if row.kind == "route" and row.policy != route]
    assert others and all(row.difference_low is not None for row in others)


@pytest.mark.parametrize(
    ("config", "start"),
    [
        (GroupsConfig(), "a route for each group: family-0: "),
        (ClustersConfig(), "a route for each of "),
    ],
)
def test_a_router_that_is_a_table_is_said_to_be_one(config: TrainConfig, start: str) -> None:
    report = shown(router(config))
    [note] = [note for note in report.notes if "table of routes" in note]
    assert note.startswith(f"HierRouter is a table of routes: {start}")
    assert not any("table of routes" in note for note in shown(router(EXACT)).notes)


def test_a_router_that_happened_to_take_one_route_keeps_its_interval() -> None:
    score = np.zeros_like(half_easy().score)
    score[:, half_easy().layout.node((1, 2))] = 0.9
    simple = replace(half_easy(), score=score)
    trained = train(simple, Objective(ALPHA), replace(EXACT, keep_anyway=True), 1)
    report = shown(trained, tree=simple)
    [row] = [row for row in report.overall if row.policy == report.fixed_route]
    assert row.difference == 0
    assert row.difference_low < 0 < row.difference_high


@pytest.mark.parametrize(
    ("config", "title"),
    [
        (EXACT, "learned by enumeration, epochs 16, evaluate_every 4, hidden 32"),
        (ValueConfig(), "value model"),
    ],
)
def test_the_training_of_the_router_is_said(config: TrainConfig, title: str) -> None:
    report = shown(router(config))
    assert report.training == as_object(report)["training"] == title
    assert as_object(shown(None))["training"] is None


def with_direct(lead: float) -> RouteTree:
    """`half_easy` where one direct call of model-1 earns so much more R than the router."""
    tree = half_easy()
    score = router().outcome(tree).reward(ALPHA)[:, None] + ALPHA * tree.direct.cost
    score[:, 1] += lead
    return replace(tree, direct=replace(tree.direct, score=score))


def test_a_direct_call_that_earns_more_is_said() -> None:
    (note,) = shown(router(), tree=with_direct(0.25)).notes
    assert note.startswith("One direct call of model-1 earns +0.250 R more than HierRouter here,")
    assert "--allow-stop" in note
    (note,) = shown(router(allow_stop=True), tree=with_direct(0.9)).notes
    assert note.startswith("One direct call of model-1 earns +")
    assert "--allow-stop" not in note
    assert shown(router(), tree=with_direct(0.0)).notes == ()


def test_an_alpha_too_small_for_the_prices_is_said() -> None:
    dollars = reprice(half_easy(), dict.fromkeys(half_easy().direct.models, Rate(1e-7, 1e-7)))
    (note,) = cost_notes(dollars, 0.005)
    assert note.startswith("At alpha 0.005 cost decides next to nothing")
    counts = float(note.partition("by 0.1 at alpha ")[2].partition(";")[0])
    cost = dollars.cost[:, dollars.layout.leaves]
    moves = counts * (cost.max(axis=1) - cost.min(axis=1)).mean()
    assert moves == pytest.approx(0.1, rel=0.4)  # alpha has one digit
    assert cost_notes(dollars, counts) == cost_notes(dollars, 0.0) == []
    assert cost_notes(half_easy(), ALPHA) == []


def test_a_dataset_called_as_the_total_and_an_alpha_that_is_none_are_refused() -> None:
    tree = half_easy()
    with pytest.raises(InputError, match="a dataset is called 'all'"):
        shown(None, tree=replace(tree, datasets=("all",) * len(tree)))
    with pytest.raises(InputError, match=r"alpha must be (finite|>= 0)"):
        shown(None, alpha=float("nan"))


@pytest.mark.parametrize("give_backs", [(), (NEWEST,)])
def test_a_tree_with_draws_and_holes_has_a_report(give_backs: tuple[int, ...]) -> None:
    layout = Layout.grown(2, lambda path: [0, 1] if len(path) < 2 else [], lambda action: 2)
    tree = ragged_tree(layout.with_give_backs(give_backs), 40, 1, missing=0.1)
    tree = replace(tree, splits=("train", "test") * 20)
    report = shown(None, tree=tree)
    lines = report.estimates
    routes = [
        line for line in lines if (line["section"], line.get("kind")) == ("policies", "route")
    ]
    rungs = {line["rung"] for line in lines if line["section"] == "ladder"}
    assert {"random", "one-hop oracle", "tree oracle", "anytime oracle"} <= rungs
    count = 6 if give_backs else 4
    assert len({line["policy"] for line in routes}) == len(FixedRoutes(tree.split("test")).listed)
    assert {"best fixed route", "best route per dataset"} <= rungs
    lacking = count - len(RouteMeans(tree.split("test")).everywhere)
    assert lacking > 0
    assert (
        f"{lacking} of {count} fixed routes are not offered for all of these questions; where one "
        "is not, the next best one is taken."
    ) in report.notes


def test_with_several_draws_the_headline_names_both_bounds_and_regret_has_luck() -> None:
    tree = lucky_tree(4, 80, 2, 1)
    tree = replace(tree, splits=("train", "validation", "test", "test") * 20)
    trained = train(tree, Objective(1.0), EXACT, 0)
    report = shown(trained, alpha=1.0, tree=tree)
    labels = [headline.label for headline in headlines(report)]
    assert labels[1:3] == ["gap to the oracle closed", "gap to the split oracle closed"]
    written = as_object(report)["luck"]
    assert written["split_gap"]["gap"] < report.gap("all")
    for row in written["regret"]:
        terms = ("luck", "adaptivity", "plan", "generalisation")
        assert row["whole"]["mean"] == pytest.approx(sum(row[term]["mean"] for term in terms))
        assert all(row[term]["low"] <= row[term]["high"] for term in terms)
    assert "luck" in named_tables(report)
    assert "that of the oracle, which knows what each call draws. Without luck R 0." in message(
        report
    )


def test_with_one_draw_at_a_temperature_it_is_said_once_that_luck_cannot_be_told() -> None:
    plain = shown(None)
    one_draw = shown(None, tree=replace(half_easy(), sampled=(True, False, False)))
    assert one_draw.notes == plain.notes
    assert message(one_draw) == (
        f"{message(plain)} Luck cannot be told from skill with one draw of each call at a "
        "temperature above 0, so part of the gap to the oracle is luck."
    )
    certain = shown(None, tree=replace(half_easy(), sampled=(False,) * 3))
    assert as_object(certain) == as_object(plain)
    assert "luck" not in as_object(plain)

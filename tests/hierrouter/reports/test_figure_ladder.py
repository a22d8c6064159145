"""The ladder as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import ROUTER_COLOUR, figures, ladder_figure
from hierrouter.reports.results import Report
from hierrouter.reports.values import Bootstrap, Estimate, Estimates
from tests.hierrouter.reports.examples import DATASETS, example, policies

REWARDS = {"random": 0.3, "best single call": 0.7, "best fixed route": 0.4, "tree oracle": 0.8}


def climbed(trained: bool = True) -> Report:
    """Four rungs over two datasets and all; the router of `example` has R = .6 over all."""
    found = Estimates(DATASETS, Bootstrap(n=50))
    for rung, over_all in REWARDS.items():
        for dataset, reward in (("gsm8k", -9.0), ("mbpp", -9.0), ("all", over_all)):
            estimate = Estimate(reward, reward - 0.1, reward + 0.1)
            found.state("ladder", {"reward": estimate}, rung=rung, policy=rung, dataset=dataset)
    chosen = [policy for policy in policies() if trained or policy.kind != "router"]
    return example(chosen, found=found)


def labels(report: Report) -> list[str]:
    root = ET.fromstring(as_svg(ladder_figure(report)))
    return [element.text or "" for element in root.iter() if "text" in element.tag]


def test_rungs_rise_from_chance_and_the_router_stands_above_all_it_beats() -> None:
    names = [text for text in labels(climbed()) if text in (*REWARDS, "hierrouter")]
    assert names == ["random", "best single call", "best fixed route", "hierrouter", "tree oracle"]


def test_only_the_router_has_its_colour() -> None:
    assert ROUTER_COLOUR in as_svg(ladder_figure(climbed()))
    untrained = climbed(trained=False)
    assert ROUTER_COLOUR not in as_svg(ladder_figure(untrained))
    assert "hierrouter" not in labels(untrained)


def test_rewards_are_those_over_all_queries() -> None:
    figure = ladder_figure(climbed()).figure
    low, high = figure.axes[0].get_xlim()
    assert 0 < low < 0.2 and 0.9 < high < 1.1


def test_the_ladder_is_drawn_where_there_is_an_analysis() -> None:
    drawn = figures(climbed())
    assert [drawing.name for drawing in drawn] == ["net-reward", "frontier", "ladder"]

"""Figures that are the same each time and carry nothing but themselves."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import matplotlib as mpl
import pytest

from hierrouter.evaluation.outcome import Outcome
from hierrouter.reports.drawing import INK, Drawing, as_svg
from hierrouter.reports.figures import ROUTER_COLOUR, figures, frontier_figure, reward_figure
from hierrouter.reports.results import Report
from tests.hierrouter.reports.examples import (
    but,
    deferring,
    example,
    hostile,
    outcome,
    policies,
    stopping,
    with_frontier,
)

Draw = Callable[[Report], str]


def of(draw: Callable[[Report], Drawing]) -> Draw:
    return lambda report: as_svg(draw(report))


FIGURES = [of(reward_figure), of(frontier_figure)]
drawn_frontier = of(frontier_figure)


FRONTIER = stopping().frontier
SPREAD = FRONTIER[0].spread
assert SPREAD


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag]


@pytest.mark.parametrize("draw", FIGURES)
def test_svg_is_deterministic(draw: Draw) -> None:
    first = draw(example())
    with mpl.rc_context(
        {"font.size": 30, "axes.linewidth": 5, "svg.hashsalt": "other", "text.parse_math": True}
    ):
        assert draw(example()) == first


@pytest.mark.parametrize("draw", FIGURES)
def test_global_settings_are_left_as_they_were(draw: Draw) -> None:
    before = dict(mpl.rcParams)
    draw(example())
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("report", [example(), hostile()], ids=["plain", "hostile"])
def test_svg_is_self_contained(draw: Draw, report: Report) -> None:
    root = ET.fromstring(draw(report))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {
        "svg",
        "title",
        "desc",
        "defs",
        "g",
        "path",
        "use",
        "text",
        "clipPath",
        "rect",
        "pattern",
    }
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        assert "style" not in element.attrib
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert INK not in value
            if name == "href":
                assert value[1:] in ids
            if reference := re.search(r"url\((.*?)\)", value):
                assert reference[1].removeprefix("#") in ids


def test_two_figures_share_no_id() -> None:
    first, second = (set(re.findall(r' id="([^"]+)"', draw(example()))) for draw in FIGURES)
    assert first and second and not first & second


@pytest.mark.parametrize("draw", FIGURES)
def test_names_are_text_of_the_figure(draw: Draw) -> None:
    labels = texts(draw(example()))
    assert {"a", "big", "hierrouter"} <= set(labels)
    hostile_labels = texts(draw(hostile()))
    assert "<script>alert(1)</script>" in hostile_labels
    assert " _under" in hostile_labels
    assert "a|b*c_d`e$f$" in hostile_labels


def test_frontier_draws_sweeps_routes_and_chance() -> None:
    labels = set(texts(drawn_frontier(example())))
    assert {"fixed routes", "hierrouter over alpha", "oracle over alpha", "random"} <= labels
    assert "mean cost C per query (base_rate*token / 1,000)" in labels


def test_reward_figure_says_its_alpha() -> None:
    assert "net reward R = Q − 0.1 C" in texts(FIGURES[0](example()))


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize(
    "outcomes",
    [
        [policy for policy in policies() if policy.kind != "router"],
        [outcome("a>a", "route", [0.5] * 4)],
        [outcome("free", "single", [0.0] * 4, [0.0] * 4), *policies()],
        [outcome(f"m{number}", "single", [0.5] * 4) for number in range(12)],
        [outcome("模型", "single", [0.5] * 4)],
    ],
    ids=["no router", "routes only", "free model", "many models", "foreign script"],
)
def test_odd_reports_are_drawn_without_a_warning(draw: Draw, outcomes: list[Outcome]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ET.fromstring(draw(example(outcomes)))


def test_models_beyond_the_palette_differ_by_hatch() -> None:
    many = example([outcome(f"m{number}", "single", [0.5] * 4) for number in range(12)])
    assert "pattern" in FIGURES[0](many)
    assert "pattern" not in FIGURES[0](example())


def test_seeds_are_bars_of_the_frontier() -> None:
    bare = with_frontier(stopping(), *(but(row, spread=None) for row in FRONTIER))
    assert svg_lines(drawn_frontier(stopping())) - svg_lines(drawn_frontier(bare)) == 2
    wide = but(FRONTIER[0], spread=but(SPREAD, cost=(0.0, 1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ET.fromstring(drawn_frontier(with_frontier(stopping(), wide)))


def svg_lines(svg: str) -> int:
    """Straight lines in the colour of the router: bars, and nothing where there are none."""
    paths = [element for element in ET.fromstring(svg).iter() if element.tag.endswith("path")]
    found = [path for path in paths if path.get("stroke") == ROUTER_COLOUR]
    return sum(path.get("d", "").count("L") == 1 for path in found)


def test_the_band_is_for_other_seeds_where_there_are_several() -> None:
    def drawn(**changes: object) -> str:
        return drawn_frontier(with_frontier(stopping(), *[but(FRONTIER[0], **changes)] * 2))

    crossed = FRONTIER[0].crossed
    assert crossed is not None
    assert drawn(crossed=but(crossed, quality=(0.1, 0.9))) != drawn()
    assert drawn(quality_low=0.1) == drawn()
    assert drawn(crossed=None, quality_low=0.1) != drawn(crossed=None)


def test_a_bound_has_no_band() -> None:
    bound = but(FRONTIER[0], policy="oracle", kind="oracle", spread=None, crossed=None)
    wide = but(bound, quality_low=0.0, quality_high=1.0)
    shown = {drawn_frontier(with_frontier(stopping(), one, one)) for one in (bound, wide)}
    assert len(shown) == 1


def test_a_sweep_is_drawn_in_the_order_of_alpha() -> None:
    rows = [
        but(FRONTIER[0], alpha=alpha, quality=1 - alpha, cost=1 / alpha, crossed=None)
        for alpha in (0.1, 0.2, 0.4)
    ]
    drawn = {
        drawn_frontier(with_frontier(example(), *(rows[at] for at in order)))
        for order in ((0, 1, 2), (1, 0, 2), (2, 0, 1))
    }
    assert len(drawn) == 1


def names(report: Report) -> list[str]:
    return [drawing.name for drawing in figures(report)]


def test_there_is_a_figure_for_what_the_report_holds() -> None:
    assert names(example()) == ["net-reward", "frontier"]
    assert names(stopping()) == ["net-reward", "frontier", "depth-curve"]
    assert names(deferring()) == ["net-reward", "frontier", "deferral"]


def test_one_point_is_no_curve() -> None:
    short = replace(stopping(), depth_curve=stopping().depth_curve[:1])
    assert names(short) == names(example())


def test_costs_are_written_without_powers_of_ten() -> None:
    cheap = [outcome(f"m{at}", "single", [0.5] * 4, [0.002 * 30**at] * 4) for at in range(3)]
    labels = texts(drawn_frontier(example(cheap)))
    assert "0.00001" in labels
    assert not [label for label in labels if re.fullmatch(r"[\d.]+e-\d+", label)]


def test_the_same_figure_can_stand_on_a_page_twice() -> None:
    drawing = frontier_figure(example())
    first, second = (
        set(re.findall(r' id="([^"]+)"', as_svg(drawing, salt=salt))) for salt in ("1-", "2-")
    )
    assert first and second and not first & second

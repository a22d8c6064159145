"""Figures are the same each time, carry nothing but themselves, and go to files."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from hierrouter.evaluation.outcome import Outcome
from hierrouter.reports.drawing import INK, Drawing, as_svg
from hierrouter.reports.figures import (
    DEEPEST,
    FORMATS,
    ROUTER_COLOUR,
    check_formats,
    depth_curve_figure,
    export_figures,
    figures,
    frontier_figure,
    ladder_figure,
    reward_figure,
    route_map_figure,
    save,
)
from hierrouter.reports.results import MOST_ROUTES, OTHER, Report, RouteMap, RouteShares, route_map
from hierrouter.reports.values import Bootstrap, Estimate, Estimates
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.reports.examples import (
    DATASETS,
    HOSTILE,
    but,
    deferring,
    example,
    hostile,
    outcome,
    policies,
    stopping,
    with_frontier,
)
from tests.hierrouter.trees import random_tree

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


MAP = RouteMap(
    routes=("a>b", "b>stop", OTHER),
    rows=(
        RouteShares("gsm8k", (0.75, 0.25, 0.0), (1.0, 0.0, 0.0)),
        RouteShares("mbpp", (0.0, 0.0, 1.0), (0.0, 0.1, 0.9)),
        RouteShares("all", (0.996, 0.0, 0.004), (0.5, 0.0, 0.5)),
    ),
)


def endings(tree: RouteTree, nodes: list[int]) -> np.ndarray:
    return np.eye(tree.routes.nodes)[nodes]


def columns(*rows: list[int]) -> dict[str, np.ndarray]:
    names = [f"d{at}" for at in range(len(rows) - 1)] + ["all"]
    return {name: np.array(found) for name, found in zip(names, rows, strict=True)}


def test_shares_are_those_of_each_dataset() -> None:
    tree = random_tree(Routes(2, 2), queries=4, seed=0)
    router = endings(tree, [3, 3, 4, 1])
    oracle = np.array([3, 4, 4, 4])
    found = route_map(tree, router, oracle, columns([0, 1], [2, 3], [0, 1, 2, 3]))
    a, b = tree.models
    assert found.routes == (f"{a}>{b}", f"{a}>{a}", f"{a}>stop")
    assert [row.dataset for row in found.rows] == ["d0", "d1", "all"]
    assert [row.router for row in found.rows] == [(0, 1, 0), (0.5, 0, 0.5), (0.25, 0.5, 0.25)]
    assert [row.oracle for row in found.rows] == [(0.5, 0.5, 0), (1, 0, 0), (0.75, 0.25, 0)]


def test_rare_routes_share_a_column() -> None:
    tree = random_tree(Routes(4, 2), queries=13, seed=0)
    nodes = list(range(5, 18))  # 13 of the 16 leaves, once each
    every = list(range(13))
    found = route_map(tree, None, np.array(nodes), columns(every))
    assert len(found.routes) == MOST_ROUTES + 1 and found.routes[-1] == OTHER
    [row] = found.rows
    assert row.router is None
    assert row.oracle == pytest.approx([1 / 13] * MOST_ROUTES + [3 / 13])


def test_a_cell_says_its_share_in_per_cent() -> None:
    drawn = texts(as_svg(route_map_figure(MAP)))
    assert [text for text in drawn if text.isdigit() or text == "<1"] == [
        *("75", "25", "100", "100", "<1"),
        *("100", "10", "90", "50", "50"),
    ]
    assert {"gsm8k", "all", "a>b", "b>stop", OTHER, "hierrouter", "oracle"} <= set(drawn)


def test_one_dataset_needs_no_total() -> None:
    alone = replace(MAP, rows=(MAP.rows[0], MAP.rows[-1]))
    drawn = texts(as_svg(route_map_figure(alone)))
    assert "gsm8k" in drawn and "all" not in drawn


def test_a_long_route_has_a_line_for_each_call() -> None:
    long = "a-model-of-20-letter>another-of-20-letters"
    drawn = texts(as_svg(route_map_figure(replace(MAP, routes=(long, "a>b", OTHER)))))
    assert drawn.count("a-model-of-20-letter>") == drawn.count("another-of-20-letters") == 2
    assert long not in drawn and "a>b" in drawn


@pytest.mark.parametrize("letter", ["m", "W", "界"])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_the_widest_names_leave_room_for_the_map(letter: str, hops: int) -> None:
    routes = tuple(">".join([letter * 27] * (hops - 1) + [name * 26]) for name in (letter, "n"))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*axes sizes collapsed")
        as_svg(route_map_figure(RouteMap((*routes, OTHER), MAP.rows)))


def test_without_a_router_there_is_one_panel() -> None:
    alone = replace(MAP, rows=tuple(replace(row, router=None) for row in MAP.rows))
    svg = as_svg(route_map_figure(alone))
    assert "hierrouter" not in texts(svg) and ROUTER_COLOUR not in svg
    assert ROUTER_COLOUR in as_svg(route_map_figure(MAP))


def test_hostile_names_are_text() -> None:
    share = 1 / len(HOSTILE)
    rows = tuple(
        RouteShares(name, (share,) * len(HOSTILE), (share,) * len(HOSTILE)) for name in HOSTILE
    )
    svg = as_svg(route_map_figure(RouteMap(HOSTILE, rows)))
    assert "<script>alert(1)</script>" in texts(svg)
    assert "<script" not in svg and "\x1b" not in svg


def luminance(colour: np.ndarray) -> float:
    """WCAG 2.2, relative luminance of parts from 0 to 1."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_numbers_stand_out_from_the_deepest_cells(scheme: int) -> None:
    css = (resources.files("hierrouter.reports") / "templates" / "report.css").read_text("utf-8")

    def named(name: str) -> np.ndarray:
        return parts(re.findall(rf"--{name}: (#\w{{6}});", css)[scheme])

    def parts(colour: str) -> np.ndarray:
        return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])

    ink, panel = named("ink"), named("panel")
    for filled in (ink, parts(ROUTER_COLOUR)):
        cell = DEEPEST * filled + (1 - DEEPEST) * panel
        low, high = sorted((luminance(ink), luminance(cell)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def drawn_depth() -> str:
    return as_svg(depth_curve_figure(stopping()))


def test_the_depth_curve_is_deterministic() -> None:
    assert drawn_depth() == drawn_depth()


def test_axes_say_what_they_are() -> None:
    labels = set(texts(drawn_depth()))
    assert {
        "share of queries with more than one call",
        "mean quality Q (token_f1)",
        "hierrouter over alpha",
    } <= labels


def test_points_have_the_name_of_their_alpha_where_there_is_room() -> None:
    labels = texts(drawn_depth())
    assert "0.1" in labels and "0" in labels
    assert "0.05" not in labels


def test_every_figure_is_written_in_every_format(tmp_path: Path) -> None:
    written = export_figures(example(), tmp_path, ["pdf", "svg", "pdf"])
    names = ["net-reward.pdf", "net-reward.svg", "frontier.pdf", "frontier.svg"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_figure_is_the_same_bytes(tmp_path: Path, format: str) -> None:
    first = save(frontier_figure(example()), tmp_path / f"a.{format}").read_bytes()
    with mpl.rc_context({"font.size": 30, "pdf.fonttype": 3, "savefig.facecolor": "black"}):
        second = save(frontier_figure(example()), tmp_path / f"b.{format}").read_bytes()
    assert first == second
    assert b"Date" not in first


@pytest.mark.parametrize("formats", [[], ["jpg"], ["svg", "../x"], ["PDF"]])
def test_unknown_formats_are_refused_before_anything_is_written(
    tmp_path: Path, formats: list[str]
) -> None:
    with pytest.raises(InputError, match=r"^unknown format of figures: .*svg, pdf, png$") as error:
        export_figures(example(), tmp_path, formats)
    assert "\n" not in str(error.value) and len(str(error.value)) <= 300
    assert list(tmp_path.iterdir()) == []


def test_known_formats_are_accepted() -> None:
    check_formats(FORMATS)


def test_a_pdf_holds_vectors_and_whole_fonts(tmp_path: Path) -> None:
    data = save(frontier_figure(example()), tmp_path / "a.pdf").read_bytes()
    assert data.startswith(b"%PDF") and b"/FontFile2" in data
    assert b"/Type3" not in data and b"/Subtype /Image" not in data


def test_a_png_is_for_print_on_white(tmp_path: Path) -> None:
    drawing = reward_figure(example())
    image = imread(save(drawing, tmp_path / "a.png"))
    height, width = image.shape[:2]
    assert width == pytest.approx(300 * drawing.figure.get_figwidth(), abs=1)
    assert height > 1000
    assert image[0, 0].tolist() == [1, 1, 1, 1]
    assert image[..., :3].max(axis=2).min() < 0.1  # ink


def test_an_svg_stands_alone(tmp_path: Path) -> None:
    text = save(frontier_figure(example()), tmp_path / "a.svg").read_text()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert INK in text and "currentColor" not in text
    assert re.search(r'fill="#ffffff"', text)


def test_what_the_page_shows_is_not_changed_by_saving(tmp_path: Path) -> None:
    drawing = frontier_figure(example())
    before = as_svg(drawing)
    for format in FORMATS:
        save(drawing, tmp_path / f"a.{format}")
    assert as_svg(drawing) == before


def test_hostile_names_are_saved_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in export_figures(hostile(), tmp_path, FORMATS):
            assert path.stat().st_size > 1000
            assert b"<script" not in path.read_bytes()

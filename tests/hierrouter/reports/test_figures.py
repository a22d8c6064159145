"""Figures are the same each time, carry nothing but themselves, and go to files."""

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from hierrouter.evaluation.outcome import Outcome
from hierrouter.reports import figures, results
from hierrouter.reports.drawing import INK, as_svg
from hierrouter.reports.estimates import Row
from hierrouter.reports.page import as_html
from tests.hierrouter.reports.examples import (
    deferring,
    example,
    hostile,
    outcome,
    policies,
    stopping,
)


def frontier(report: results.ReportData) -> str:
    return as_svg(figures.frontier_figure(report))


def net_reward(report: results.ReportData) -> str:
    return as_svg(figures.net_reward_figure(report))


BOTH = pytest.mark.parametrize("draw", [frontier, net_reward])


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag]


def ids(svg: str) -> set[str]:
    ids = re.findall(r' id="([^"]+)"', svg)
    assert ids and len(ids) == len(set(ids))
    return set(ids)


@BOTH
def test_svg_is_deterministic_whatever_the_settings_which_are_left_as_they_were(
    draw: Callable[[results.ReportData], str],
) -> None:
    before, first = dict(mpl.rcParams), draw(example())
    assert dict(mpl.rcParams) == before
    odd = {"font.size": 30, "axes.linewidth": 5, "svg.hashsalt": "other", "text.parse_math": True}
    with mpl.rc_context(odd):
        assert draw(example()) == first


@BOTH
@pytest.mark.parametrize("report", [example(), hostile()], ids=["plain", "hostile"])
def test_svg_is_self_contained(
    draw: Callable[[results.ReportData], str], report: results.ReportData
) -> None:
    svg = draw(report)
    root, known = ET.fromstring(svg), ids(svg)
    allowed = "svg title desc defs g path use text clipPath rect pattern"
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= set(allowed.split())
    for element in root.iter():
        assert "style" not in element.attrib
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert INK not in value
            if name == "href":
                assert value[1:] in known
            if reference := re.search(r"url\((.*?)\)", value):
                assert reference[1].removeprefix("#") in known


def test_names_are_text_of_the_figure() -> None:
    assert {"a", "big", "HierRouter", "oracle"} <= set(texts(frontier(example())))
    report = hostile()
    for at, row in enumerate(report.overall):  # apart from each other: there is room for a name
        row.cost, row.quality = 1 + at % 2, at // 2
    assert {"<script>alert(1)</script>", " _under", "a|b*c_d`e$f$"} <= set(texts(frontier(report)))


def test_axes_and_marks_say_what_they_are_in_letters_of_seven_points_or_more() -> None:
    drawing = figures.frontier_figure(example())
    svg = as_svg(drawing)
    kinds = {"fixed routes", "pool models", "reference models", "baselines"}
    assert {*kinds, "random", "mean cost C (money per question)"} <= set(texts(svg))
    assert "lines: over a sweep" in drawing.caption
    assert drawing.figure.get_figwidth() == 5.5
    shown = [text for text in drawing.figure.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in shown) >= 7


def test_no_name_covers_another_or_a_mark_and_a_legend_stays_short() -> None:
    spread = [
        outcome(f"model {at}", "single", [at % 7 / 7] * 4, [at % 5 + 1] * 4) for at in range(30)
    ]
    figure = figures.frontier_figure(example([*spread, *policies()])).figure
    figure.draw_without_rendering()
    axes, [keys] = figure.axes[0], figure.legends
    assert len(keys.get_texts()) <= 10
    names = [text.get_window_extent() for text in axes.texts]
    assert len(names) > 10
    marks = np.concatenate(
        [
            axes.transData.transform(drawn.get_offsets())
            for drawn in axes.collections
            if drawn.get_label()
        ]
    )
    for at, name in enumerate(names):
        assert not any(name.overlaps(other) for other in names[:at])
        assert not name.count_contains(marks)
        assert axes.bbox.padded(2).count_contains(name.corners()) == 4


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
@BOTH
def test_odd_reports_are_drawn_without_a_warning(
    draw: Callable[[results.ReportData], str], outcomes: list[Outcome]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ET.fromstring(draw(example(outcomes)))


def bars(report: results.ReportData) -> dict[str, list[Any]]:
    """The bars of the net reward by the name of their policy, in the order of the datasets."""
    [axes] = figures.net_reward_figure(report).figure.axes
    return {str(bars.get_label()): list(bars) for bars in axes.containers if len(bars)}


def test_the_net_reward_has_a_bar_for_each_policy_of_the_papers_and_dataset() -> None:
    report = example()
    drawn = {
        name: [bar.get_height() for bar in bars]
        for name, bars in bars(report).items()
        if not name.startswith("_")
    }
    expected = {"big": [0.1, -0.1], "a": [0.35, 0.15], "HierRouter": [0.5, 0.7]}
    assert list(drawn) == list(expected)
    for name, heights in expected.items():
        assert drawn[name] == pytest.approx(heights)
    assert {"GSM8K", "MBPP"} <= set(texts(net_reward(report)))


@pytest.mark.parametrize(
    "datasets",
    [
        ["gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge"],
        ["a_very_long_name_of_a_dataset", "another-name-that-is-as-long", "c"] * 3,
        [f"dataset-{number}" for number in range(14)],
    ],
    ids=["papers", "long", "many"],
)
def test_names_of_datasets_are_in_the_figure_and_meet_no_other(datasets: list[str]) -> None:
    outcomes = [outcome("a", "single", [0.5] * len(datasets))]
    figure = figures.net_reward_figure(example(outcomes, datasets)).figure
    figure.draw_without_rendering()
    [axes] = figure.axes
    names = axes.get_xticklabels()
    assert len(names) == len(set(datasets))
    if not names[0].get_rotation():
        boxes = [name.get_window_extent() for name in names]
        assert not any(left.overlaps(right) for left, right in pairwise(boxes))
    for text in [*names, axes.yaxis.label]:
        assert figure.bbox.padded(1).count_contains(text.get_window_extent().corners()) == 4
    assert axes.get_window_extent().height / figure.dpi > 1.5


def test_no_two_bars_of_a_dataset_look_alike_or_meet() -> None:
    kinds = [("reference", 4), ("single", 8), ("router", 1)]
    many = [
        outcome("hierrouter" if kind == "router" else f"{kind} {at}", kind, [0.5, 0.4, 0.6, 0.2])
        for kind, count in kinds
        for at in range(count)
    ]
    drawn = [bars for name, bars in bars(example(many)).items() if not name.startswith("_")]
    looks = {(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in drawn}
    assert len(looks) == len(drawn) == 13
    edges = [(bar.get_x(), bar.get_x() + bar.get_width()) for bars in drawn for bar in bars]
    edges.sort()
    for (_, end), (start, _) in pairwise(edges):
        assert end <= start + 1e-9


def test_costs_have_no_powers_of_ten() -> None:
    cheap = [outcome(f"m{at}", "single", [0.5] * 4, [0.000002 * 30**at] * 4) for at in range(3)]
    labels = texts(frontier(example(cheap)))
    assert "0.00001" in labels
    assert not [label for label in labels if re.fullmatch(r"[\d.]+e-\d+", label)]


POINT = stopping().frontier[0]


def swept(*changes: dict[str, Any]) -> str:
    """The frontier where a sweep has its point again and again, but for some fields."""
    report = stopping()
    vars(report)["frontier"] = tuple(Row(**{**vars(POINT), **change}) for change in changes)
    return frontier(report)


def test_a_sweep_is_in_the_order_of_alpha() -> None:
    rows = [{"alpha": alpha, "quality": 1 - alpha, "cost": 1 / alpha} for alpha in (0.1, 0.2, 0.4)]
    orders = ((0, 1, 2), (1, 0, 2), (2, 0, 1))
    assert len({swept(*(rows[at] for at in order)) for order in orders}) == 1


def test_the_band_is_for_the_router_and_not_for_bounds() -> None:
    def drawn(**changes: object) -> str:
        return swept(changes, changes)

    assert drawn(quality_low=0.1) != drawn()
    bound = {"policy": "oracle", "kind": "oracle"}
    assert drawn(**bound, quality_low=0.0, quality_high=1.0) == drawn(**bound)


def test_hostile_names_of_who_takes_over_are_text() -> None:
    page = as_html(deferring("<script><img src=x>\x1b"))
    assert "<script" not in page and "<img" not in page and "\x1b" not in page


# --- files


def test_every_figure_is_written_in_every_format(tmp_path: Path) -> None:
    written = figures.export_figures(
        figures.report_figures(example()), tmp_path, ["pdf", "svg", "pdf"]
    )
    names = ["net-reward.pdf", "net-reward.svg", "frontier.pdf", "frontier.svg"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("format", figures.FIGURE_FORMATS)
def test_a_figure_is_the_same_bytes_and_stays_what_is_shown(tmp_path: Path, format: str) -> None:
    drawing = figures.frontier_figure(example())
    before = as_svg(drawing)
    first = figures.save(drawing, tmp_path / f"a.{format}").read_bytes()
    assert as_svg(drawing) == before
    with mpl.rc_context({"font.size": 30, "pdf.fonttype": 3, "savefig.facecolor": "black"}):
        again = figures.frontier_figure(example())
        second = figures.save(again, tmp_path / f"b.{format}").read_bytes()
    assert first == second
    assert b"Date" not in first


def test_a_pdf_holds_vectors_a_png_is_for_print_and_an_svg_stands_alone(tmp_path: Path) -> None:
    data = figures.save(figures.frontier_figure(example()), tmp_path / "a.pdf").read_bytes()
    assert data.startswith(b"%PDF") and b"/FontFile2" in data
    assert b"/Type3" not in data and b"/Subtype /Image" not in data
    drawing = figures.frontier_figure(example())
    image = imread(figures.save(drawing, tmp_path / "a.png"))
    height, width = image.shape[:2]
    assert width == pytest.approx(300 * drawing.figure.get_figwidth(), abs=1)
    assert height > 1000
    assert image[0, 0].tolist() == [1, 1, 1, 1]
    assert image[..., :3].max(axis=2).min() < 0.1  # ink
    text = figures.save(figures.frontier_figure(example()), tmp_path / "a.svg").read_text()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert INK in text and "currentColor" not in text
    assert re.search(r'fill="#ffffff"', text)


def test_hostile_names_are_saved_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in figures.export_figures(
            figures.report_figures(hostile()), tmp_path, figures.FIGURE_FORMATS
        ):
            assert path.stat().st_size > 1000
            assert b"<script" not in path.read_bytes()

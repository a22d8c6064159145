"""Figures as files: known formats, the same bytes each time, dark ink on white."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.image import imread

from hierrouter.reports.drawing import INK, as_svg
from hierrouter.reports.figures import (
    FORMATS,
    check_formats,
    export_figures,
    frontier_figure,
    reward_figure,
    save,
)
from hierrouter_cache.errors import InputError
from tests.hierrouter.reports.examples import example, hostile


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

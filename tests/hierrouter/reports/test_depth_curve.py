"""The curve of a sweep whose routers may stop."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import depth_curve_figure
from tests.hierrouter.reports.examples import stopping


def drawn() -> str:
    return as_svg(depth_curve_figure(stopping()))


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag]


def test_svg_is_deterministic() -> None:
    assert drawn() == drawn()


def test_axes_say_what_they_are() -> None:
    labels = set(texts(drawn()))
    assert {
        "share of queries with more than one call",
        "mean quality Q (token_f1)",
        "hierrouter over alpha",
    } <= labels


def test_points_have_the_name_of_their_alpha_where_there_is_room() -> None:
    labels = texts(drawn())
    assert "0.1" in labels and "0" in labels
    assert "0.05" not in labels

"""A router with a stronger model behind it, in every form of a report."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.reports.drawing import as_svg
from hierrouter.reports.evaluated import pair_figures
from hierrouter.reports.figures import deferral_figure
from hierrouter.reports.headline import definitions
from hierrouter.reports.page import as_html
from hierrouter.reports.results import HandingOver, Report, as_json
from hierrouter.reports.tables import deferral_table, report_tables
from tests.hierrouter.reports.examples import HOSTILE, deferring, example


def handing(report: Report) -> HandingOver:
    assert report.deferral is not None
    return report.deferral


def test_the_table_has_each_nearest_share_once_then_the_one_chosen() -> None:
    table = report_tables(deferring())[-1]
    assert table.title == "Table 6. Deferral to big, R = Q - 0.1 C, C in base_rate*token"
    assert table.shown() == [
        ["0%", "0.000", "0.700", "1.000", "0.6000", "0.6000", "0.6000"],
        ["10%", "0.050", "0.740", "1.200", "0.6200", "0.5900", "0.6500"],
        ["25%", "0.400", "0.800", "2.000", "0.6000", "0.4400", "0.6600"],
        ["75%", "1.000", "0.400", "4.000", "0.2000", "0.2000", "0.2000"],
        ["by validation", "0.300", "0.770", "1.700", "0.6000", "0.4800", "0.6700"],
    ]


def test_it_says_what_the_threshold_is_for() -> None:
    report = deferring()
    assert "highest R at the router's alpha on the validation" in report_tables(report)[-1].note
    kept = replace(handing(report), share_allowed=0.1, chosen_on="train")
    assert "greatest share up to 10.0% on the train fold" in deferral_table(report, kept).note


def point(share: float, quality: float) -> DeferralPoint:
    return DeferralPoint(share, share, quality, 1.0, 0.0, 0.0, 0.0)


def test_apgr_and_cpt_by_hand() -> None:
    """PGR is 0, 0.5, 1 at shares of 0, 0.2, 1: the area is 0.05 + 0.6; 0.8 lies at 0.2 + 0.48."""
    found = pair_figures([point(0.0, 0.4), point(0.2, 0.5), point(1.0, 0.6)])
    assert (found.apgr, found.cpt_50, found.cpt_80) == pytest.approx((0.65, 0.2, 0.68))
    report = replace(deferring(), deferral=replace(handing(deferring()), pair=found))
    note = report_tables(report)[-1].note
    assert "APGR is 0.650 (chance 0.5)" in note and "20.0%" in note and "68.0%" in note


def test_a_stronger_model_that_is_no_better_has_no_pair_figures() -> None:
    found = pair_figures([point(0.0, 0.6), point(1.0, 0.4)])
    assert (found.apgr, found.cpt_50, found.cpt_80) == (None, None, None)
    assert "APGR and CPT are left out" in report_tables(deferring())[-1].note


def test_json_has_the_curve_and_no_infinite_number() -> None:
    found = json.loads(as_json(deferring()))["deferral"]
    assert (found["stronger"], found["chosen_on"], found["share_allowed"]) == (
        "big",
        "validation",
        None,
    )
    assert found["chosen"] == {
        "threshold": -0.2,
        "share": 0.3,
        "quality": 0.77,
        "cost": 1.7,
        "reward": 0.6,
        "chance": 0.48,
        "oracle": 0.67,
    }
    assert [point["threshold"] for point in found["curve"]] == [None, -0.5, -0.1, 0.9, None]
    assert json.loads(as_json(example()))["deferral"] is None


def test_the_figure_says_what_its_lines_are() -> None:
    svg = as_svg(deferral_figure(deferring(), handing(deferring())))
    words = {element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag}
    assert {
        "share of queries handed over to big",
        "hierrouter in doubt",
        "chance",
        "oracle",
        "chosen by validation",
    } <= words


def test_the_page_has_table_figure_and_terms_only_where_something_is_handed_over() -> None:
    page = as_html(deferring())
    assert "Deferral to big" in page and "Deferral: what handing" in page
    assert page.count("<figure>") == as_html(example()).count("<figure>") + 1
    assert "deferral" in dict(definitions(deferring()))
    assert "deferral" not in as_html(example()).lower()


def test_a_hostile_name_of_the_model_is_shown_not_obeyed() -> None:
    for name in HOSTILE:
        page = as_html(deferring(name))
        assert "<script" not in page and "<img" not in page and "\x1b" not in page

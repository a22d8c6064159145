"""Which routes are taken where: shares by hand, and their picture."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import DEEPEST, ROUTER_COLOUR, route_map_figure
from hierrouter.reports.results import MOST_ROUTES, OTHER, RouteMap, RouteShares, route_map
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.reports.examples import HOSTILE
from tests.hierrouter.trees import random_tree

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


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag]


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

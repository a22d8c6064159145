"""Where the router stops, with intervals, on a tree that can be worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.reports.build import add_depths
from hierrouter.reports.values import Bootstrap, Estimates, Row, pivot
from tests.hierrouter.reports.tiny import AB, ALPHA, tiny


def depths(at: list[int]) -> tuple[Row, ...]:
    """What a router answers whose episodes end at these nodes."""
    fold = tiny().split("test")
    found = Estimates(fold.datasets, Bootstrap(n=50))
    add_depths(found, fold, ends(at), ALPHA)
    return pivot(found.table(), "depths", "hop")


def ends(at: list[int]) -> np.ndarray:
    endings = np.zeros((2, 7))
    endings[[0, 1], at] = 1
    return endings


def test_means_are_those_of_the_queries_that_end_there() -> None:
    """The first query ends right at a>b for 3, the second wrong after one call of a for 1."""
    first, second = depths([AB, 1])
    assert (first.hop, first.share, first.quality, first.cost) == (1, 0.5, 0, 1)
    assert (second.hop, second.share, second.quality, second.cost) == (2, 0.5, 1, 3)
    assert (first.reward, second.reward) == pytest.approx((-0.1, 0.7))


def test_the_share_has_ends_where_the_means_have_none() -> None:
    """Of two queries drawn twice every fourth resample holds the second one only."""
    _, second = depths([AB, 1])
    assert (second.share_low, second.share_high) == (0, 1)
    assert second.quality_low is second.cost_high is second.reward_low is None


def test_what_all_queries_share_has_no_width() -> None:
    none, all_of_them = depths([AB, 3])
    assert (none.share, none.quality, none.reward_low) == (0, None, None)
    assert (all_of_them.share_low, all_of_them.share_high) == (1, 1)
    assert all_of_them.quality_low == 0 and all_of_them.quality_high == 1

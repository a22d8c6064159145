"""Where the router stops, with intervals, on a tree that can be worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.reports.build import depth_rows
from hierrouter.reports.results import Bootstrap
from tests.hierrouter.reports.tiny import AB, ALPHA, tiny

QUICK = Bootstrap(n=50)


def ends(at: list[int]) -> np.ndarray:
    endings = np.zeros((2, 7))
    endings[[0, 1], at] = 1
    return endings


def test_means_are_those_of_the_queries_that_end_there() -> None:
    """The first query ends right at a>b for 3, the second wrong after one call of a for 1."""
    first, second = depth_rows(tiny().split("test"), ends([AB, 1]), ALPHA, QUICK, 2)
    assert (first.calls, first.share, first.quality, first.cost) == (1, 0.5, 0, 1)
    assert (second.calls, second.share, second.quality, second.cost) == (2, 0.5, 1, 3)
    assert (first.reward, second.reward) == pytest.approx((-0.1, 0.7))


def test_the_share_has_ends_where_the_means_have_none() -> None:
    """Of two queries drawn twice every fourth resample holds the second one only."""
    _, second = depth_rows(tiny().split("test"), ends([AB, 1]), ALPHA, QUICK, 2)
    assert (second.share_low, second.share_high) == (0, 1)
    assert second.quality_low is second.cost_high is second.reward_low is None


def test_what_all_queries_share_has_no_width() -> None:
    none, all_of_them = depth_rows(tiny().split("test"), ends([AB, 3]), ALPHA, QUICK, 2)
    assert (none.share, none.quality, none.reward_low) == (0, None, None)
    assert (all_of_them.share_low, all_of_them.share_high) == (1, 1)
    assert all_of_them.quality_low == 0 and all_of_them.quality_high == 1

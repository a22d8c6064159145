"""Whatever a baseline computes, it computes on one thread."""

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from hierrouter.learning.baselines.arms import Tuned
from hierrouter.learning.baselines.contest import contest
from hierrouter.learning.baselines.registry import one_thread
from hierrouter.learning.baselines.simple import BestStatic
from tests.hierrouter.trees import planted_tree


def threads() -> set[int]:
    return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}


class Counting(BestStatic):
    """Notes how many threads there are when it is fitted and when it plays."""

    name = "counting"

    def fit(self, train, validation, alpha, rng):
        found = [threads()]
        tuned = super().fit(train, validation, alpha, rng)

        def play(seen):
            found.append(threads())
            return tuned.play(seen)

        return Tuned(play, {"threads": found})


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    with threadpool_limits(2):
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_fitting_and_playing_are_on_one_thread():
    found = contest(planted_tree(per_family=(4, 2, 2)), 0.005, (Counting(),), sets=("A",))
    assert found.entries[0].settings["threads"] == [{1}, {1}, {1}]


@pytest.mark.usefixtures("two_threads")
def test_afterwards_all_is_as_before_also_after_an_error():
    before = threads()
    with pytest.raises(ValueError, match="a test"), one_thread():
        raise ValueError("a test")
    assert threads() == before != {1}

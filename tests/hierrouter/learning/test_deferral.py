"""A router that knows when to hand over."""

import numpy as np
import pytest

from hierrouter.evaluation.outcome import single_calls
from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.deferral import calibrated
from hierrouter.learning.training import TrainedRouter, train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import ALPHA, VALUE, glimpse, small_tree
from tests.hierrouter.trees import LARGE, doubtful_tree


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return doubtful_tree()


@pytest.fixture(scope="module", params=[ExactConfig(epochs=6), VALUE], ids=["exact", "value"])
def router(tree: RouteTree, request: pytest.FixtureRequest) -> TrainedRouter:
    return train(tree, Objective(ALPHA), request.param, 0)


def test_handing_over_in_doubt_beats_both_models_and_chance(
    tree: RouteTree, router: TrainedRouter
) -> None:
    deferral = calibrated(router, tree, LARGE)
    test = tree.split("test")
    alone = router.outcome(test).reward(ALPHA).mean()
    large = single_calls(test)[-1].reward(ALPHA).mean()
    assert deferral.outcome(test).reward(ALPHA).mean() > max(alone, large) + 0.05
    assert deferral.point is not None
    assert deferral.point.reward > deferral.point.chance + 0.05
    shown = tree.select(np.flatnonzero(np.array(tree.splits) != "test"))
    assert calibrated(router, shown, LARGE).point == deferral.point


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_a_share_holds_on_validation(tree: RouteTree, router: TrainedRouter, share: float) -> None:
    deferral = calibrated(router, tree, LARGE, share=share)
    reached = deferral.on(tree.split("validation")).share(deferral.threshold)
    assert share - 0.02 < reached <= share + 1e-9
    if not share:
        assert deferral.outcome(tree).quality == pytest.approx(router.outcome(tree).quality)


@pytest.mark.parametrize(
    ("stronger", "share", "named"),
    [("huge", None, "no direct call"), (LARGE, 1.5, "0 to 1"), (LARGE, -0.1, "0 to 1")],
)
def test_unknown_models_and_shares_fail(stronger: str, share: float | None, named: str) -> None:
    tree = small_tree()
    with pytest.raises(InputError, match=named):
        calibrated(glimpse(tree), tree, stronger, share)


def test_a_router_that_always_stops_at_once_may_still_hand_over() -> None:
    tree = small_tree()
    router = train(tree, Objective(ALPHA, allow_stop=True), ExactConfig(epochs=1), 0)
    router.router.weights["policy.bias"][len(tree.models) :] = 10
    deferral = calibrated(router, tree, LARGE, share=0.5)
    assert not deferral.on(tree).deciding[:, 1:].any()
    assert np.isfinite(deferral.on(tree).confidence).all()
    assert 0 < deferral.on(tree.split("validation")).share(deferral.threshold) <= 0.5

"""Routers that may give any answer they have seen, and those that hand over when in doubt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.evaluation.bounds import best_fixed_route
from hierrouter.evaluation.outcome import single_calls
from hierrouter.learning.config import ExactConfig, Objective, PPOConfig, TrainConfig
from hierrouter.learning.deferral import calibrate, gain_of_going_on
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.runs import checkpoint
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, StatePart
from tests.hierrouter.learning import trainings
from tests.hierrouter.trees import LARGE, doubtful_tree, planted_tree, showing_leaves

ALPHA = 0.01
MAY = Objective(ALPHA, allow_return=True)
EXACT = ExactConfig(epochs=10, queries=16, steps=20, hidden=32)
PPO = PPOConfig(epochs=24, rollouts=256, minibatches=8, hidden=32)


@pytest.fixture(scope="module")
def spoiling() -> RouteTree:
    """The second call is right where the first was wrong, and the other way round; it says so."""
    plain = planted_tree(per_family=(16, 8, 8), models=2, dim=8, families=3)
    routes, right = plain.layout, np.random.default_rng(0).random(len(plain)) < 0.5
    score = np.zeros((len(plain), routes.nodes))
    score[:, 1:3], score[:, 3:] = right[:, None], ~right[:, None]
    # What is seen of a leaf: whether its answer is right. Before, nothing is.
    row = np.where(np.arange(routes.nodes) >= routes.inner, 1 + (score == 1), 0)
    vectors = np.eye(3, dtype=np.float32)
    return replace(plain, score=score, accuracy=score, parts=(StatePart(vectors, row),))


@pytest.fixture(scope="module")
def trained(spoiling: RouteTree) -> TrainedRouter:
    return train(spoiling, MAY, EXACT, seed=0)


def reward(router: TrainedRouter, fold: RouteTree) -> float:
    return float(router.outcome(fold).reward(ALPHA).mean())


@pytest.mark.parametrize("config", [EXACT, PPO, trainings.VALUE], ids=["exact", "ppo", "value"])
@pytest.mark.parametrize("stop", [False, True])
def test_what_a_second_call_spoils_is_given_all_the_same(
    spoiling: RouteTree, config: TrainConfig, stop: bool
) -> None:
    fold = spoiling.split("test")
    found = train(spoiling, replace(MAY, allow_stop=stop), config, seed=0)
    outcome = found.outcome(fold)
    assert outcome.accuracy.mean() == 1
    fixed = best_fixed_route(spoiling.split("train"), ALPHA, fold, allow_stop=True)
    assert reward(found, fold) > fixed.reward(ALPHA).mean() + 0.2
    at = fold.layout.with_returns.ending_node
    gives = fold.layout.with_returns.answer_node
    ends = found.endings(fold).argmax(axis=1)
    assert (at[ends] >= fold.layout.inner).all()  # a first answer does not say whether it is right
    assert (gives[ends] != at[ends]).any()
    if not found.holds_out:
        assert max(found.history) == pytest.approx(reward(found, spoiling.split("validation")))


def test_one_model_for_every_alpha(spoiling: RouteTree, tmp_path: Path) -> None:
    swept = train_sweep(spoiling, (0.0, ALPHA), MAY, trainings.VALUE, seed=0)
    fold = spoiling.split("test")
    assert swept.at(ALPHA).outcome(fold).accuracy.mean() == 1
    save_checkpoint(swept, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.objective == MAY
    assert swept.at(1.0).outcome(fold).cost.mean() < swept.at(0.0).outcome(fold).cost.mean()


def test_there_and_back_and_as_before(
    spoiling: RouteTree, trained: TrainedRouter, tmp_path: Path
) -> None:
    save_checkpoint(trained, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert loaded.objective == MAY
    np.testing.assert_array_equal(loaded.endings(spoiling), trained.endings(spoiling))
    # Without it a description is what it was before, and a tree may show more than is read.
    plain = trainings.glimpse(trainings.small_tree())
    assert checkpoint.describe(plain)["objective"].keys() == {"alpha", "allow_stop"}
    leaves = showing_leaves(trainings.small_tree())
    np.testing.assert_array_equal(plain.endings(leaves), plain.endings(trainings.small_tree()))


def test_what_it_does_not_go_with(spoiling: RouteTree, trained: TrainedRouter) -> None:
    with pytest.raises(InputError, match="cannot hand over"):
        calibrate(trained, spoiling, "model-0")
    with pytest.raises(InputError, match="open the cache with allow_return"):
        train(trainings.small_tree(), MAY, EXACT, 0)


# --- a router that knows when to hand over


@pytest.fixture(scope="module")
def doubtful() -> RouteTree:
    return doubtful_tree()


@pytest.fixture(
    scope="module", params=[ExactConfig(epochs=6), trainings.VALUE], ids=["exact", "value"]
)
def router(doubtful: RouteTree, request: pytest.FixtureRequest) -> TrainedRouter:
    return train(doubtful, Objective(trainings.ALPHA), request.param, 0)


def test_handing_over_in_doubt_beats_both_models_and_chance(
    doubtful: RouteTree, router: TrainedRouter
) -> None:
    tree, deferral = doubtful, calibrate(router, doubtful, LARGE)
    test = tree.split("test")
    alone = router.outcome(test).reward(trainings.ALPHA).mean()
    large = single_calls(test)[-1].reward(trainings.ALPHA).mean()
    assert deferral.outcome(test).reward(trainings.ALPHA).mean() > max(alone, large) + 0.05
    assert deferral.point is not None
    assert deferral.point.reward > deferral.point.chance + 0.05
    shown = tree.select(np.flatnonzero(np.array(tree.splits) != "test"))
    assert calibrate(router, shown, LARGE).point == deferral.point


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_a_share_holds_on_validation(
    doubtful: RouteTree, router: TrainedRouter, share: float
) -> None:
    tree, deferral = doubtful, calibrate(router, doubtful, LARGE, share=share)
    reached = deferral.on_fold(tree.split("validation")).share(deferral.threshold)
    assert share - 0.02 < reached <= share + 1e-9
    if not share:
        assert deferral.outcome(tree).quality == pytest.approx(router.outcome(tree).quality)


def test_the_gain_at_the_root_is_what_the_whole_policy_gains() -> None:
    tree = trainings.small_tree()
    router = trainings.glimpse(tree, alpha=0.1)
    handed = single_calls(tree)[-1].reward(0.1)
    gain = gain_of_going_on(router, tree, LARGE)
    assert gain[:, 0] == pytest.approx(router.outcome(tree).reward(0.1) - handed)
    leaf = np.array([tree.layout.child(1, action) for action in range(3)])
    last = router.probabilities(tree)[:, 1].argmax(axis=1)
    onward = tree.node_reward(0.1)[np.arange(len(tree)), leaf[last]]
    assert gain[:, 1] == pytest.approx(onward - (handed - 0.1 * tree.cost[:, 1]))


@pytest.mark.parametrize(
    ("stronger", "share", "named"),
    [("huge", None, "no direct call"), (LARGE, 1.5, "0 to 1"), (LARGE, -0.1, "0 to 1")],
)
def test_unknown_models_and_shares_fail(stronger: str, share: float | None, named: str) -> None:
    tree = trainings.small_tree()
    with pytest.raises(InputError, match=named):
        calibrate(trainings.glimpse(tree), tree, stronger, share)


def test_a_router_that_always_stops_at_once_may_still_hand_over() -> None:
    tree = trainings.small_tree()
    router = train(tree, Objective(trainings.ALPHA, allow_stop=True), ExactConfig(epochs=1), 0)
    router.router.network.weights["policy.bias"][len(tree.models) :] = 10
    deferral = calibrate(router, tree, LARGE, share=0.5)
    assert not deferral.on_fold(tree).deciding[:, 1:].any()
    assert np.isfinite(deferral.on_fold(tree).confidence).all()
    assert 0 < deferral.on_fold(tree.split("validation")).share(deferral.threshold) <= 0.5

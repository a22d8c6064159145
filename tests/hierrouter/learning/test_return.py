"""Routers that may give any answer they have seen: trained, put away, and what refuses them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.evaluation.bounds import best_fixed_route
from hierrouter.evaluation.outcome import pairs
from hierrouter.learning import checkpoint
from hierrouter.learning.checkpoint import load_checkpoint, save_checkpoint
from hierrouter.learning.config import ExactConfig, Objective, PPOConfig, TrainConfig
from hierrouter.learning.deferral import calibrated
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import TrainedRouter, train
from hierrouter.reports.evaluated import report_on
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, StatePart
from tests.hierrouter.learning import runs
from tests.hierrouter.trees import planted_tree, showing_leaves

ALPHA = 0.01
MAY = Objective(ALPHA, allow_return=True)
EXACT = ExactConfig(epochs=10, queries=16, steps=20, hidden=32)
PPO = PPOConfig(epochs=24, rollouts=256, minibatches=8, hidden=32)


@pytest.fixture(scope="module")
def spoiling() -> RouteTree:
    """The second call is right where the first was wrong, and the other way round; it says so."""
    plain = planted_tree(per_family=(16, 8, 8), models=2, dim=8, families=3)
    routes, right = plain.routes, np.random.default_rng(0).random(len(plain)) < 0.5
    score = np.zeros((len(plain), routes.nodes))
    score[:, 1:3], score[:, 3:] = right[:, None], ~right[:, None]
    # What is seen of a leaf: whether its answer is right. Before, nothing is.
    row = np.where(np.arange(routes.nodes) >= routes.states, 1 + (score == 1), 0)
    vectors = np.eye(3, dtype=np.float32)
    return replace(plain, score=score, accuracy=score, parts=(StatePart(vectors, row),))


@pytest.fixture(scope="module")
def trained(spoiling: RouteTree) -> TrainedRouter:
    return train(spoiling, MAY, EXACT, seed=0)


def reward(router: TrainedRouter, fold: RouteTree) -> float:
    return float(router.outcome(fold).reward(ALPHA).mean())


@pytest.mark.parametrize("config", [EXACT, PPO, runs.VALUE], ids=["exact", "ppo", "value"])
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
    at, gives, _ = pairs(fold.routes)
    ends = found.endings(fold).argmax(axis=1)
    assert (at[ends] >= fold.routes.states).all()  # a first answer does not say whether it is right
    assert (gives[ends] != at[ends]).any()
    if not found.holds_out:
        assert max(found.history) == pytest.approx(reward(found, spoiling.split("validation")))


def test_a_seed_is_a_router(spoiling: RouteTree, trained: TrainedRouter, tmp_path: Path) -> None:
    again = train(spoiling, MAY, EXACT, seed=0)
    assert runs.digest(again, tmp_path / "a") == runs.digest(trained, tmp_path / "b")
    other = replace(PPO, epochs=2)
    pair = [train(spoiling, replace(MAY, allow_stop=True), other, seed=1) for _ in range(2)]
    assert runs.digest(pair[0], tmp_path / "c") == runs.digest(pair[1], tmp_path / "d")


def test_one_model_for_every_alpha(spoiling: RouteTree, tmp_path: Path) -> None:
    swept = train_sweep(spoiling, (0.0, ALPHA), MAY, runs.VALUE, seed=0)
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
    plain = runs.glimpse(runs.small_tree())
    assert checkpoint.describe(plain)["objective"].keys() == {"alpha", "allow_stop"}
    leaves = showing_leaves(runs.small_tree())
    np.testing.assert_array_equal(plain.endings(leaves), plain.endings(runs.small_tree()))


def test_a_report_counts_calls_and_answers_apart(
    spoiling: RouteTree, trained: TrainedRouter
) -> None:
    found = report_on(spoiling, ALPHA, trained, None, {}, split="test")
    outcome = trained.outcome(spoiling.split("test"))
    assert found.router is not None
    assert found.router.quality == pytest.approx(outcome.quality.mean())
    assert [row.share for row in found.depths] == [0, 1]  # all questions get two calls
    assert found.depths[1].quality == pytest.approx(1)
    regret = found.regret[-1]
    assert regret.whole == pytest.approx(
        found.best("oracle").reward - found.router.reward  # type: ignore[union-attr]
    )


def test_what_it_does_not_go_with(spoiling: RouteTree, trained: TrainedRouter) -> None:
    with pytest.raises(InputError, match="cannot hand over"):
        calibrated(trained, spoiling, "model-0")
    with pytest.raises(InputError, match="open the cache with allow_return"):
        train(runs.small_tree(), MAY, EXACT, 0)

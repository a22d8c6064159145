"""What a view does not show, no training finds.

The bound of a view is the best that any policy does which sees no more than the view shows, on
the queries it is valued on. It holds in every fold for the policy of any training, because that
policy is one of those it is the best of: for each fold the bound is computed on that very fold.
Here all folds hold the same queries, so the bound of one is the bound of all.
"""

from __future__ import annotations

import pytest

from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.calls import measurable_optimum, observations
from hierrouter.learning.config import ExactConfig, Objective, PPOConfig, TrainConfig
from hierrouter.learning.training import train
from tests.hierrouter.trees import FOLDS, two_step_tree

# Every route costs the same here.
QUALITY = Objective(0.0)
# Of three models: 1, 2 / (M + 1) and 2 / (M * (M + 1)).
BOUNDS = {"context": 1.0, "query+answer": 1.0, "query": 1 / 2, "stage": 1 / 6}


@pytest.mark.parametrize(
    "config",
    [PPOConfig(epochs=16, rollouts=256, hidden=32), ExactConfig(epochs=24)],
    ids=["ppo", "exact"],
)
@pytest.mark.parametrize(("view", "expected"), BOUNDS.items())
def test_a_training_reaches_the_bound_of_its_view_and_no_more(
    config: TrainConfig, view: str, expected: float
) -> None:
    tree = two_step_tree(view=view)
    trained = train(tree, QUALITY, config, seed=0)
    for name in FOLDS:
        fold = tree.split(name)
        bound = measurable_optimum(fold, observations(fold), QUALITY.alpha).reward(0.0).mean()
        reached = trained.outcome(fold).reward(0.0).mean()
        assert bound == pytest.approx(expected)
        assert 0.95 * bound <= reached <= bound + 1e-9
        assert oracle(fold, 0.0).reward(0.0).mean() == 1

"""PPO learns what can be learned."""

from __future__ import annotations

from dataclasses import replace

from hierrouter.evaluation.bounds import (
    best_fixed_route,
    best_route_per_dataset,
    gap_closed,
    oracle,
)
from hierrouter.learning.config import PPOConfig
from hierrouter.learning.training import train
from tests.hierrouter.learning.runs import ALPHA, OBJECTIVE
from tests.hierrouter.trees import planted_tree


def test_ppo_closes_the_gap_that_only_a_second_look_can_close() -> None:
    tree = planted_tree()
    chosen_on, fold = tree.split("train"), tree.split("test")
    trained = train(tree, OBJECTIVE, replace(PPOConfig(), epochs=12), seed=0)
    reward = trained.outcome(fold).reward(ALPHA).mean()
    fixed = best_fixed_route(chosen_on, ALPHA, fold).reward(ALPHA).mean()
    closed = gap_closed(reward, fixed, oracle(fold, ALPHA).reward(ALPHA).mean())
    assert closed is not None
    assert closed >= 0.9
    blind = best_route_per_dataset(chosen_on, ALPHA, fold).reward(ALPHA).mean()
    assert reward > blind + 0.05

"""Learning by enumeration: its fixed point, and what it reaches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hierrouter.evaluation.calls import measurable_optimum, observations
from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective, preset, training_config
from hierrouter.learning.network import NEVER
from hierrouter.learning.training import improvement_loss, train
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.learning.runs import ALPHA, OBJECTIVE
from tests.hierrouter.trees import random_tree, two_step_tree

PAYS = 0.05  # alpha on random trees
TEMPERATURE = 0.2
some_actions = [Actions(Routes(3, 2)), Actions(Routes(2, 3)), Actions(Routes(2, 3), True)]
each_actions = pytest.mark.parametrize("actions", some_actions, ids=["3x2", "2x3", "2x3 stop"])


def settled(actions: Actions, legal: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """The policy that is softmax(Q / temperature) of its own Q, state by state from the leaves."""
    routes = actions.routes
    policy = np.zeros((len(reward), routes.states, actions.count))
    value = reward.copy()  # of a node that is gone on from, its policy's
    for state in reversed(range(routes.states)):
        models = actions.model(np.arange(actions.count))
        child = routes.child(state, models)
        ends = actions.stops(np.arange(actions.count))
        worth = np.where(ends, reward[:, child], value[:, child]) / TEMPERATURE
        weight = np.where(legal[state], np.exp(worth - worth.max(axis=1, keepdims=True)), 0)
        policy[:, state] = weight / weight.sum(axis=1, keepdims=True)
        value[:, state] = (policy[:, state] * worth).sum(axis=1) * TEMPERATURE
    return policy


def problem(actions: Actions) -> tuple[Tensor, Tensor, np.ndarray]:
    """Mask and rewards of four queries, and the policy that improvement leads to."""
    reward = random_tree(actions.routes, 4, seed=1).node_reward(PAYS)
    legal = actions.legal()
    mask = torch.from_numpy(np.broadcast_to(legal, (4, *legal.shape)).copy())
    return mask, torch.from_numpy(reward), settled(actions, legal, reward)


@each_actions
def test_the_loss_of_a_table_falls_to_that_of_the_settled_policy(actions: Actions) -> None:
    legal, reward, policy = problem(actions)
    free = torch.zeros(legal.shape, dtype=torch.float64, requires_grad=True)
    adam, losses = torch.optim.Adam([free], lr=0.05), []
    for _ in range(400):
        logged = torch.log_softmax(free.masked_fill(~legal, NEVER), dim=2)
        loss = improvement_loss(actions, logged, legal, reward, TEMPERATURE)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    found = torch.softmax(free.masked_fill(~legal, NEVER), dim=2).detach().numpy()
    np.testing.assert_allclose(found, policy, atol=2e-3)
    chances = policy[policy > 0]
    entropy = -(chances * np.log(chances)).sum() / np.prod(policy.shape[:2])
    assert losses[0] > losses[100] > losses[-1] == pytest.approx(entropy, abs=1e-3)


@each_actions
def test_the_settled_policy_does_not_move(actions: Actions) -> None:
    legal, reward, policy = problem(actions)
    logits = torch.from_numpy(np.where(legal, np.log(np.where(policy > 0, policy, 1)), NEVER))
    logits.requires_grad_()
    logged = torch.log_softmax(logits, dim=2)
    improvement_loss(actions, logged, legal, reward, TEMPERATURE).backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-12, rtol=0)


def test_enumeration_reaches_what_sampling_reaches(planted: RouteTree) -> None:
    fold = planted.split("test")
    exact, sampled = (
        train(planted, OBJECTIVE, training_config("default", algo, 12), seed=0).outcome(fold)
        for algo in ("exact", "ppo")
    )
    one_query = 1 / len(fold)  # what another processor's rounding may decide
    assert exact.reward(ALPHA).mean() >= sampled.reward(ALPHA).mean() - one_query


def test_where_queries_look_alike_the_mean_decides() -> None:
    """One first model is right in 40 % of queries, the other always by 0.3; nothing tells which."""
    tree = two_step_tree(view="stage", models=2)
    right = np.arange(len(tree)) % 5 < 2
    score = np.full_like(tree.score, 0.3)
    score[:, [1, 3, 4]] = right[:, None]
    tree = replace(tree, score=score)
    trained = train(tree, Objective(0.0), preset("default", "exact"), seed=0)
    reached = trained.outcome(tree).reward(0.0).mean()
    best = measurable_optimum(tree, observations(tree), 0.0).reward(0.0).mean()
    assert best == pytest.approx(0.4)
    assert reached == pytest.approx(best)

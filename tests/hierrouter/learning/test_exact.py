"""Every gradient step of learning by enumeration, beside the same written out by hand."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.network import RouterNetwork
from hierrouter.learning.training import train
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.ppo_by_hand import ByHand, Weights
from tests.hierrouter.trees import planted_tree

ALPHA = 0.05
SEED = 3
CONFIG = ExactConfig(
    epochs=3,
    queries=4,
    steps=7,
    temperature=0.3,
    return_weight=0.6,
    learning_rate=0.02,
    embedding_noise=0.0,
    hidden=10,
    stage_dim=3,
    patience=0,
)
OBJECTIVES = {"calls": Objective(ALPHA), "stop": Objective(ALPHA, allow_stop=True)}


@dataclass(repr=False)  # a test that fails would print every weight
class ExactStep:
    """One gradient step.

    Attributes:
        embedding: float32[states, dim], what the router read.
        weights: by name, before the step.
        gradient: by name.
    """

    embedding: np.ndarray
    weights: Weights
    gradient: Weights


@dataclass(frozen=True)
class Recording:
    """A training, its gradient steps, and what they should be."""

    fold: RouteTree
    objective: Objective
    config: ExactConfig
    steps: list[ExactStep]

    @property
    def by_hand(self) -> ByHand:
        return ByHand(self.fold, self.objective, self.config)

    def batches(self) -> list[np.ndarray]:
        """The queries of each step: whole passes, until an epoch has its least number of steps."""
        rng = np.random.default_rng(SEED)
        passes = math.ceil(self.config.steps * self.config.queries / len(self.fold))
        batches = []
        for _ in range(self.config.epochs):
            order = np.concatenate([rng.permutation(len(self.fold)) for _ in range(passes)])
            size = self.config.queries
            batches += [order[start : start + size] for start in range(0, len(order), size)]
        return batches


def record(tree: RouteTree, objective: Objective, config: ExactConfig) -> Recording:
    """Train, and record each gradient step."""
    steps: list[ExactStep] = []
    read: list[tuple[RouterNetwork, np.ndarray]] = []
    features = RouterNetwork.features

    def watch(router: RouterNetwork, states: Any) -> Tensor:
        read[:] = [(router, states.embedding.numpy().copy())]
        return features(router, states)

    def before_step(*_: object) -> None:
        [(router, embedding)] = read
        parameters = dict(router.named_parameters())
        steps.append(
            ExactStep(
                embedding,
                {name: value.detach().clone() for name, value in parameters.items()},
                # The value head has no part in this algorithm.
                {
                    name: value.grad.clone()
                    for name, value in parameters.items()
                    if value.grad is not None
                },
            )
        )

    hook = register_optimizer_step_pre_hook(before_step)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RouterNetwork, "features", watch)
            train(tree, objective, config, SEED)
    finally:
        hook.remove()
    return Recording(tree.split("train"), objective, config, steps)


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    """Nine queries to learn from, of three hops."""
    return planted_tree(families=3, per_family=(3, 2, 1), models=2, hops=3, dim=6)


@pytest.fixture(scope="module", params=OBJECTIVES.values(), ids=OBJECTIVES)
def recorded(tree: RouteTree, request: pytest.FixtureRequest) -> Recording:
    return record(tree, request.param, CONFIG)


def test_each_step_reads_whole_trees_of_queries_in_the_order_of_the_seed(
    recorded: Recording,
) -> None:
    batches = recorded.batches()
    assert len(batches) == len(recorded.steps) > CONFIG.epochs * CONFIG.steps
    for query, step in zip(batches, recorded.steps, strict=True):
        expected = recorded.fold.embedding[query].reshape(len(step.embedding), -1)
        np.testing.assert_array_equal(step.embedding, expected)


def test_each_gradient_is_that_of_the_loss(recorded: Recording) -> None:
    """At first towards better actions, later more and more of the expected return."""
    batches = recorded.batches()
    for number, (query, step) in enumerate(zip(batches, recorded.steps, strict=True)):
        weights = {name: value.requires_grad_() for name, value in step.weights.items()}
        share = number / len(batches)
        improvement, value = terms(recorded, query, weights)
        loss = (1 - share) * improvement - share * CONFIG.return_weight * value
        expected = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, expected, strict=True):
            if gradient is None:
                assert name not in step.gradient
            else:
                assert torch.allclose(
                    step.gradient[name], gradient.float(), rtol=1e-3, atol=1e-6
                ), name


def terms(recorded: Recording, query: np.ndarray, weights: Weights) -> tuple[Tensor, Tensor]:
    """Cross-entropy from the improved policy to the policy, and the expected return: means."""
    by_hand = recorded.by_hand
    fold = recorded.fold
    actions = by_hand.actions
    states = actions.states
    state = (query[:, None] * states + np.arange(states)).ravel()
    logs, _ = by_hand.router(weights, state, fold.embedding[query].reshape(len(state), -1))
    logs = logs.reshape(len(query), states, -1)
    chances = logs.exp()
    reward = standardised(recorded)
    legal = actions.legal()

    def value(row: int, node: int) -> Tensor:
        """Expected reward from a state on."""
        return sum(
            (
                chances[row, node, action] * after(row, node, action)
                for action in np.flatnonzero(legal[node])
            ),
            start=torch.tensor(0.0).double(),
        )

    def after(row: int, node: int, action: int) -> Tensor:
        """Expected reward after an action."""
        child, ending, is_over = actions.transition(node, action)
        if is_over:
            return torch.tensor(reward[query[row], ending])
        return value(row, int(child))

    losses = []
    for row in range(len(query)):
        for node in range(states):
            options = np.flatnonzero(legal[node])
            with torch.no_grad():
                worth = torch.stack([after(row, node, action) for action in options])
            target = torch.softmax(worth / CONFIG.temperature, dim=0)
            losses.append(-(target * logs[row, node, options]).sum())
    values = [value(row, 0) for row in range(len(query))]
    return torch.stack(losses).mean(), torch.stack(values).mean()


def standardised(recorded: Recording) -> np.ndarray:
    """float64[queries, nodes]: R less its query's mean, over the standard deviation of the fold."""
    if not recorded.config.standardise_reward:
        return recorded.fold.node_reward(ALPHA)
    reward = recorded.fold.node_reward(ALPHA)
    possible = reward[:, recorded.by_hand.actions.endings]
    mean = possible.mean(axis=1, keepdims=True)
    return (reward - mean) / (possible - mean).std()


def test_without_standardising_the_reward_is_as_it_is(tree: RouteTree) -> None:
    plain = record(tree, OBJECTIVES["calls"], replace(CONFIG, standardise_reward=False, epochs=1))
    query = plain.batches()[0]
    step = plain.steps[0]
    weights = {name: value.requires_grad_() for name, value in step.weights.items()}
    improvement, _ = terms(plain, query, weights)
    [expected] = torch.autograd.grad(improvement, [weights["policy.weight"]])
    gradient = step.gradient["policy.weight"]
    assert torch.allclose(gradient, expected.float(), rtol=1e-3, atol=1e-6)


def test_noise_is_drawn_anew_for_each_step(tree: RouteTree) -> None:
    """Of the given length, on every state."""
    noisy = record(tree, OBJECTIVES["calls"], replace(CONFIG, embedding_noise=0.8, epochs=1))
    fold = noisy.fold
    plain = fold.embedding.reshape(len(fold), -1)
    noises = []
    for step in noisy.steps:
        embedding = step.embedding.reshape(-1, fold.layout.inner, fold.dim)
        distance = np.linalg.norm(
            embedding.reshape(len(embedding), 1, -1) - plain.reshape(1, len(fold), -1), axis=2
        )
        query = distance.argmin(axis=1)
        noises.append(embedding - fold.embedding[query])
    sizes = np.concatenate([(noise**2).sum(axis=2).ravel() for noise in noises])
    assert np.sqrt(sizes.mean()) == pytest.approx(0.8, rel=0.1)
    assert len({float(noise[0, 0, 0]) for noise in noises}) == len(noises)

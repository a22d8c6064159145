"""A recording of a training by PPO, and the same training written out by hand.

`record` watches Tianshou's own classes while a training runs: the batch of each update, and of each
gradient step its mini-batch, loss, gradient before and after clipping, learning rate and weights.
`ByHand` computes what each of these should be from the settings, by the formulas of the papers: the
router (HierRouter, section 4), the advantage (GAE, arXiv:1506.02438), the loss (PPO,
arXiv:1707.06347) and Adam (arXiv:1412.6980). It reads nothing of `hierrouter.learning` but the
settings, so that a fault there is not repeated here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from torch import Tensor

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective, PPOConfig
from hierrouter.learning.network import RouterNetwork
from hierrouter_cache.tree import RouteTree

Weights = dict[str, Tensor]
Floats = NDArray[np.float64]
ADAM_BETAS = (0.9, 0.999)  # Adam's paper, and torch's defaults
TINY = 1e-8  # Tianshou's guard against a division by 0


@dataclass(repr=False)  # a test that fails would print every weight
class GradientStep:
    """One gradient step.

    Attributes:
        state: int64[n], numbers of the states of the mini-batch.
        action: int64[n].
        advantage: float32[n], before they are normalised.
        target: float32[n], returns that the values should be.
        old_log: float32[n], log-probability of the action when the update began.
        loss: the number that was minimised.
        gradient: of the loss, by name of the weights.
        clipped: the gradient that the optimiser was given.
        rate: the learning rate of this step.
        before: the weights before the step.
        after: and after it.
    """

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    advantage: Tensor
    target: Tensor
    old_log: Tensor
    loss: float
    gradient: Weights
    clipped: Weights
    rate: float
    before: Weights
    after: Weights


@dataclass(repr=False)
class Update:
    """One update: rollouts, and the gradient steps on them.

    Attributes:
        algorithm: Tianshou's.
        embeddings: float32[dim] for each state that the rollouts visited, as they read it.
        weights: when the update began, which are those of the rollouts.
        state: int64[n], states of all transitions, episode after episode.
        action: int64[n].
        reward: float64[n].
        terminated: bool[n].
        value: float64[n], values of the states.
        advantage: float64[n].
        target: float64[n], returns.
        old_log: float64[n], log-probabilities of the actions.
        steps: the gradient steps.
    """

    algorithm: PPO
    embeddings: dict[int, NDArray[np.float32]]
    weights: Weights
    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: Floats
    terminated: NDArray[np.bool_]
    value: Floats
    advantage: Floats
    target: Floats
    old_log: Floats
    steps: list[GradientStep] = field(default_factory=list)

    @property
    def episodes(self) -> list[slice]:
        """The transitions of each episode."""
        ends = np.flatnonzero(self.terminated) + 1
        return [slice(*both) for both in zip([0, *ends[:-1]], ends, strict=True)]


class EnoughUpdates(Exception):
    """As many updates were recorded as were asked for; the training goes no further."""


class _Recorder:
    """Takes the place of four functions, calls them, and keeps what they were given."""

    def __init__(self, at_most: int | None) -> None:
        self.updates: list[Update] = []
        self._at_most = at_most
        self._embeddings: dict[int, NDArray[np.float32]] = {}
        self._visited: NDArray[np.int64] | None = None  # states that the policy was just asked
        self._update: Update | None = None  # the update that is under way
        self._minibatch: Any = None

    def forward(self, original: Callable[..., Any], policy: Any, batch: Any, *rest: Any) -> Any:
        """The policy is asked: in rollouts, and in updates."""
        self._minibatch = batch
        self._visited = np.asarray(batch.obs)
        return original(policy, batch, *rest)

    def features(self, original: Callable[..., Any], router: Any, states: Any) -> Any:
        """The router reads the states that the policy was asked."""
        if self._update is None and self._visited is not None:
            for state, embedding in zip(self._visited, states.embedding.numpy(), strict=True):
                self._embeddings[int(state)] = embedding.copy()
        self._visited = None
        return original(router, states)

    def update_with_batch(self, original: Callable[..., Any], ppo: Any, **batches: Any) -> Any:
        """An update begins."""
        if len(self.updates) == self._at_most:
            raise EnoughUpdates
        batch = batches["batch"]
        self._update = Update(
            algorithm=ppo,
            embeddings=self._embeddings,
            weights=_copies(dict(_router(ppo).named_parameters())),
            state=np.array(batch.obs),
            action=batch.act.numpy().astype(np.int64),
            reward=np.array(batch.rew),
            terminated=np.array(batch.terminated),
            value=batch.v_s.double().numpy(),
            advantage=batch.adv.double().numpy(),
            target=batch.returns.double().numpy(),
            old_log=batch.logp_old.double().numpy(),
        )
        self.updates.append(self._update)
        try:
            return original(ppo, **batches)
        finally:
            self._update = None
            self._embeddings = {}

    def step(self, original: Callable[..., Any], optimizer: Any, loss: Tensor) -> None:
        """A gradient step."""
        assert self._update is not None
        batch = self._minibatch
        parameters = dict(_router(self._update.algorithm).named_parameters())
        gradient = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
        steps = self._update.steps
        before = steps[-1].after if steps else self._update.weights
        original(optimizer, loss)
        clipped = {}
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            clipped[name] = parameter.grad.clone()
        steps.append(
            GradientStep(
                state=np.array(batch.obs),
                action=batch.act.numpy().astype(np.int64),
                advantage=batch.adv.clone(),
                target=batch.returns.clone(),
                old_log=batch.logp_old.clone(),
                loss=loss.item(),
                gradient=dict(zip(parameters, gradient, strict=True)),
                clipped=clipped,
                rate=optimizer._optim.param_groups[0]["lr"],
                before=before,
                after=_copies(parameters),
            )
        )


def _router(algorithm: PPO) -> RouterNetwork:
    [router] = [part for part in algorithm.modules() if isinstance(part, RouterNetwork)]
    return router


def _copies(weights: Weights) -> Weights:
    return {name: value.detach().clone() for name, value in weights.items()}


@contextmanager
def record(at_most: int | None = None) -> Iterator[list[Update]]:
    """Record the updates of all trainings by PPO within it.

    Args:
        at_most: the number of updates after which `EnoughUpdates` ends the training; None: no end.
    """
    recorder = _Recorder(at_most)
    watched = [
        (DiscreteActorPolicy, "forward", recorder.forward),
        (RouterNetwork, "features", recorder.features),
        (PPO, "_update_with_batch", recorder.update_with_batch),
        (Algorithm.Optimizer, "step", recorder.step),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, watch in watched:
            patch.setattr(owner, name, _watching(getattr(owner, name), watch))
        yield recorder.updates


def _watching(original: Callable[..., Any], watch: Callable[..., Any]) -> Callable[..., Any]:
    def method(*arguments: Any, **keywords: Any) -> Any:
        return watch(original, *arguments, **keywords)

    return method


@dataclass(frozen=True)
class ByHand:
    """The computations of a training on a fold.

    Attributes:
        fold: the queries it learns from.
        objective: decides which actions are legal.
        config: the settings.
    """

    fold: RouteTree
    objective: Objective
    config: PPOConfig

    @property
    def actions(self) -> Actions:
        """The actions of the policy."""
        return self.objective.actions(self.fold.layout)

    def router(
        self, weights: Weights, state: NDArray[np.int64], embedding: NDArray[np.floating]
    ) -> tuple[Tensor, Tensor]:
        """The router: two layers on text, stage and cost; two heads.

        Args:
            weights: by name, as the recorded ones.
            state: int64[n].
            embedding: float[n, dim], as the rollouts read it.

        Returns:
            Log-probabilities float64[n, A], and values float64[n].
        """
        tree = self.fold
        config = self.config
        actions = self.actions
        query, node = np.divmod(state, actions.states)
        cost = tree.cost[query, node]
        text = np.asarray(embedding, np.float64)
        stage = node
        if config.scale_cost:
            spent = tree.cost[:, 1 : actions.states]
            cost = cost / np.sqrt((spent**2).mean())
        if config.scale_embedding:
            text = text * np.sqrt(tree.dim)
        if not config.knows_route:
            stage = tree.layout.depth()[node]
        double = {name: value.double() for name, value in weights.items()}
        inputs = [torch.from_numpy(text), double["stage.weight"][torch.from_numpy(stage)]]
        inputs.append(torch.from_numpy(cost)[:, None])
        first = torch.cat([double["context.weight"], double["progress.weight"]], dim=1)
        hidden = torch.tanh(torch.cat(inputs, dim=1) @ first.T + double["progress.bias"])
        hidden = torch.tanh(hidden @ double["second.weight"].T + double["second.bias"])
        scores = hidden @ double["policy.weight"].T + double["policy.bias"]
        legal = torch.from_numpy(actions.legal()[node])
        logs = torch.log_softmax(scores.where(legal, torch.tensor(-1e9).double()), dim=1)
        return logs, (hidden @ double["value.weight"].T + double["value.bias"])[:, 0]

    def advantages(self, update: Update, value: Floats) -> Floats:
        """float64[n]: generalised advantages of whole episodes, from the rewards and values."""
        gamma = self.config.gamma
        lamda = self.config.gae_lambda
        advantage = np.zeros(len(value))
        for episode in update.episodes:
            rows = range(len(value))[episode]
            for row in rows:
                later = range(row, rows[-1] + 1)
                following = [value[number + 1] if number < rows[-1] else 0.0 for number in later]
                errors = [
                    update.reward[number] + gamma * after - value[number]
                    for number, after in zip(later, following, strict=True)
                ]
                advantage[row] = sum(
                    (gamma * lamda) ** age * error for age, error in enumerate(errors)
                )
        return advantage

    def terms(
        self, step: GradientStep, embeddings: dict[int, NDArray[np.float32]], weights: Weights
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The three terms of the loss: clipped policy loss, value loss, and entropy.

        Args:
            step: the mini-batch.
            embeddings: of each state, as the rollouts read it.
            weights: those before the step; they may require gradients.
        """
        embedding = np.stack([embeddings[int(state)] for state in step.state])
        logs, value = self.router(weights, step.state, embedding)
        rows = torch.arange(len(logs))
        advantage = step.advantage.double()
        advantage = (advantage - advantage.mean()) / (advantage.std() + TINY)
        ratio = (logs[rows, torch.from_numpy(step.action)] - step.old_log.double()).exp()
        near = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
        policy = -torch.minimum(ratio * advantage, near * advantage).mean()
        return (
            policy,
            (value - step.target.double()).square().mean(),
            -(logs.exp() * logs).sum(dim=1).mean(),
        )

    def entropy_weight(self, number: int) -> float:
        """The weight of the entropy bonus in update `number`, from 0."""
        config = self.config
        share = number / (config.epochs * config.iterations)
        fall = config.entropy_coefficient - config.entropy_end
        return config.entropy_coefficient - share * fall

    def rate(self, number: int) -> float:
        """The learning rate of gradient step `number`, from 0."""
        config = self.config
        updates = config.epochs * config.iterations
        total = updates * config.update_epochs * config.minibatches
        rising = min(1.0, (number + 1) / max(config.warmup_steps, 1))
        return config.learning_rate * rising * (1 - number / total if config.decay else 1.0)


def length(gradient: Weights) -> float:
    """The Euclidean length of all its numbers together."""
    return float(torch.cat([value.ravel() for value in gradient.values()]).double().norm())


def adam(steps: list[GradientStep], epsilon: float) -> Iterator[Weights]:
    """The weights after each step, by Adam from the clipped gradients and learning rates."""
    early, late = ADAM_BETAS
    mean = {name: torch.zeros_like(value).double() for name, value in steps[0].before.items()}
    square = {name: torch.zeros_like(value).double() for name, value in steps[0].before.items()}
    for number, step in enumerate(steps, start=1):
        weights = {}
        for name, gradient in step.clipped.items():
            mean[name] = early * mean[name] + (1 - early) * gradient
            square[name] = late * square[name] + (1 - late) * gradient**2
            root = (square[name] / (1 - late**number)).sqrt()
            moved = mean[name] / (1 - early**number) / (root + epsilon)
            weights[name] = step.before[name] - step.rate * moved
        yield weights

"""Epoch after epoch: the loop around every training, its folds and its optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.engines.devices import torch_threads
from hierrouter.evaluation.outcome import Actions, ending_reward, greedy
from hierrouter.learning.config import NetworkConfig, Objective
from hierrouter.learning.network import Router, StateTable, action_probabilities, state_table
from hierrouter.replay.env import walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

# Epochs done, epochs in all, value on the train fold, value on validation.
OnEpoch = Callable[[int, int, float, float], None]
Fold = TypeVar("Fold")
Network = TypeVar("Network", bound=nn.Module)
Network_co = TypeVar("Network_co", bound=nn.Module, covariant=True)


def nobody(done: int, total: int, train: float, validation: float) -> None:
    """The `OnEpoch` of a training that nobody watches."""


class Learner(Protocol[Network_co]):
    """Improves a router, one epoch after the other."""

    @property
    def router(self) -> Network_co:
        """What is trained, in place."""

    def epoch(self) -> None:
        """Train for one epoch.

        Raises FloatingPointError: the router's numbers are not finite any more.
        """


def best_iterate(
    start: Callable[[], Learner[Network]],
    value: Callable[[Network, Fold], float],
    folds: tuple[Fold, Fold],
    config: NetworkConfig,
    seed: int,
    on_epoch: OnEpoch = nobody,
) -> tuple[Network, Best]:
    """The network of a whole training, frozen, with the weights that are best on validation.

    Raises InputError: the training diverged.

    Args:
        start: makes the network and its learner; torch's generator is seeded then.
        folds: to learn from, and to choose the iterate on. Where they are one it is valued once.
        seed: of everything random.
    """
    learn_from, choose_on = folds
    with _reproducible(seed):
        learner = start()
        network = learner.router
        best = Best(_weights_of(network))
        for done in range(1, config.epochs + 1):
            _run_epoch(learner, done)
            if done == config.epochs or done % config.evaluate_every == 0:
                train = value(network, learn_from)
                validation = train if choose_on is learn_from else value(network, choose_on)
                best.offer(network, train, validation, config.min_gain)
                on_epoch(done, config.epochs, train, validation)
            if config.patience and best.since >= config.patience:
                break
    network.load_state_dict(best.weights)
    return network.requires_grad_(False).eval(), best


def _run_epoch(learner: Learner[nn.Module], number: int) -> None:
    """One epoch; a network that is lost is neither valued nor kept."""
    try:
        learner.epoch()
        finite = all(bool(value.isfinite().all()) for value in learner.router.state_dict().values())
    except FloatingPointError:
        finite = False
    if not finite:
        raise InputError(
            f"training diverged in epoch {number}: the network's numbers are not finite (NaN); "
            "lower learning_rate"
        )


@dataclass
class Best:
    """The best iterate so far; before the first evaluation, the one at the start.

    Attributes:
        history: value on validation at each evaluation.
        since: evaluations since the value on validation last rose by the least gain that counts.
        risen: that value.
    """

    weights: dict[str, Tensor]
    train: float = -math.inf
    validation: float = -math.inf
    history: list[float] = field(default_factory=list)
    since: int = 0
    risen: float = -math.inf

    def offer(
        self, module: nn.Module, train: float, validation: float, min_gain: float = 0.0
    ) -> None:
        """Keep the weights of `module` if they are better, by however little."""
        self.history.append(validation)
        self.since += 1
        if validation > self.risen + min_gain:
            self.risen, self.since = validation, 0
        if (validation, train) > (self.validation, self.train):
            self.train, self.validation = train, validation
            self.weights = _weights_of(module)


def _weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights."""
    return {name: value.clone() for name, value in module.state_dict().items()}


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Seed the global generators of torch and numpy, on one thread; restore both after.

    New layers draw from torch's, and so do Tianshou's policies; its mini-batches come from numpy's.
    One thread, because sums are added up in another order on another number of threads.
    """
    before = np.random.get_state()
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(before)


@dataclass(frozen=True)
class TrainingFold:
    """One fold of a tree."""

    tree: RouteTree
    actions: Actions
    table: StateTable

    @classmethod
    def of(cls, tree: RouteTree, objective: Objective) -> TrainingFold:
        """The fold `tree`."""
        actions = Actions(tree.routes, objective.allow_stop, objective.allow_return)
        return cls(tree, actions, state_table(tree, objective))

    def episode_reward(self, alpha: float, standardise: bool) -> NDArray[np.float64]:
        """float64[queries, endings]: what an episode pays that ends so.

        `standardise`: take from each reward the mean of its query over all endings that can be, and
        divide by the standard deviation over all of them.
        """
        reward = ending_reward(self.tree, alpha, self.actions.width)
        if not standardise:
            return reward
        ends = self.actions.endings
        centred = reward - reward[:, ends].mean(axis=1, keepdims=True)
        return centred / (centred[:, ends].std() or 1.0)

    def value(self, router: Router, alpha: float) -> float:
        """Exact mean R of the greedy policy; only states that it comes to are looked at."""

        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            chances = action_probabilities(router, self.table, torch.from_numpy(state))
            table = greedy(chances, self.tree.base_rate, self.actions.returns)
            return table.argmax(axis=1)

        reward = ending_reward(self.tree, alpha, self.actions.width)
        walked = walk(self.actions, reward, np.arange(len(self.tree)), act)
        return float(walked.reward.sum(axis=1).mean())


def fold_pair(
    trees: tuple[RouteTree, RouteTree], objective: Objective
) -> tuple[TrainingFold, TrainingFold]:
    """What `training_folds` gave, as tensors; the same fold twice where one does both."""
    learn_from, choose_on = trees
    fold = TrainingFold.of(learn_from, objective)
    if choose_on is learn_from:
        return fold, fold
    return fold, TrainingFold.of(choose_on, objective)


def make_adam(
    parameters: Iterable[nn.Parameter], config: NetworkConfig, steps: int
) -> torch.optim.Adam:
    """Adam whose learning rate follows `config` over `steps` gradient steps."""
    adam = torch.optim.Adam(
        list(parameters), lr=config.learning_rate, eps=config.adam_eps, fused=True
    )

    def schedule(*_: object) -> None:
        step = steps_made(adam)
        rising = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        falling = 1 - step / steps if config.decay else 1.0
        factor = rising * max(falling, 0.0)
        for group in adam.param_groups:
            group["lr"] = config.learning_rate * factor

    adam.register_step_pre_hook(schedule)
    return adam


def steps_made(adam: torch.optim.Adam) -> int:
    """Gradient steps so far, as Adam itself counts them."""
    first = adam.param_groups[0]["params"][0]
    return int(adam.state[first]["step"]) if first in adam.state else 0

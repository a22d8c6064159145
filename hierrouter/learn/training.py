"""Train a router on the cached tree.

In: a `RouteTree` with its folds, an `Objective`, a configuration, a seed. Out: the iterate with the
best exact value on the validation fold. The test fold is never looked at. Same seed, same bits,
also when the training was interrupted and resumed. Not covered: what an epoch does (`ppo`,
`exact`), files (`checkpoint`, `resume`), all alphas at once (`conditioned`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.actions import Actions
from hierrouter.evaluate.ceilings import Ceilings
from hierrouter.evaluate.exact import greedy
from hierrouter.learn.config import ExactConfig, PPOConfig, TrainConfig
from hierrouter.learn.exact import ExactLearner
from hierrouter.learn.learner import Learner, TrainFold
from hierrouter.learn.objective import Objective
from hierrouter.learn.ppo import PPOLearner
from hierrouter.learn.router import Router, action_probabilities, shape_for
from hierrouter.learn.states import StateTable, state_table
from hierrouter.learn.trained import Origin, TrainedRouter
from hierrouter.replay.rollouts import walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

# Epochs done, epochs in all, value on the train fold, value on validation.
OnEpoch = Callable[[int, int, float, float], None]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Halfway:
    """A training between two epochs: all that the rest of it depends on.

    Attributes:
        epoch: epochs done.
        tensors: weights now and at the best evaluation, and what the learner needs.
        counters: the rest, as JSON values.
    """

    epoch: int
    tensors: dict[str, Tensor]
    counters: dict[str, Any]


@dataclass(frozen=True)
class Watch:
    """Who is told of a training in progress.

    Attributes:
        on_epoch: called after each evaluation.
        on_halfway: called every `checkpoint_every` epochs.
    """

    on_epoch: OnEpoch = lambda done, total, train, validation: None
    on_halfway: Callable[[Halfway], None] = lambda halfway: None


def train(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    watch: Watch | None = None,
    resumed: Halfway | None = None,
) -> TrainedRouter:
    """Train on the fold "train", keep the iterate that is best on the fold "validation".

    Where two iterates are equally good on validation, the better one on train is kept, then the
    earlier one. Without a validation fold the train fold chooses.

    Args:
        tree: all folds.
        objective: what to train for.
        config: see `config.PRESETS`.
        seed: of everything random.
        watch: who is told.
        resumed: where to go on; everything else must be as it was.

    Raises:
        InputError: there is nothing to train on.
    """
    learn_from, choose_on = training_folds(tree)
    ceilings = None if objective.max_cost is None else Ceilings.of(learn_from)
    actions = Actions(tree.routes, objective.allow_stop)
    folds = [
        ValuedFold(fold, state_table(fold, objective, ceilings), actions, objective.alpha)
        for fold in (learn_from, choose_on)
    ]
    with reproducible(seed):
        router = Router(shape_for(learn_from, actions, config))
        fold = TrainFold(learn_from, actions, folds[0].table)
        learner = _learner(router, fold, objective.alpha, config, np.random.default_rng(seed))
        best = run_epochs(
            learner, config, lambda: [fold.value(router) for fold in folds], watch, resumed
        )
    router.load_state_dict(best.weights)
    return TrainedRouter(
        router=router.requires_grad_(False).eval(),
        objective=objective,
        origin=Origin.of(tree, config, seed),
        history=tuple(best.history),
        ceilings=ceilings,
    )


def _learner(
    router: Router, fold: TrainFold, alpha: float, config: TrainConfig, rng: np.random.Generator
) -> Learner:
    if isinstance(config, PPOConfig):
        return PPOLearner(router, fold, alpha, config, rng)
    assert isinstance(config, ExactConfig)
    return ExactLearner(router, fold, alpha, config, rng)


@dataclass(frozen=True)
class ValuedFold:
    """One fold of the tree, its states as tensors, and what is paid on it."""

    tree: RouteTree
    table: StateTable
    actions: Actions
    alpha: float

    def value(self, router: Router) -> float:
        """Exact mean R of the greedy policy; only states that it comes to are looked at."""

        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            chances = action_probabilities(router, self.table, torch.from_numpy(state))
            choice: NDArray[np.int64] = greedy(chances, self.tree.base_rate).argmax(axis=1)
            return choice

        reward = self.tree.node_reward(self.alpha)
        walked = walk(self.actions, reward, np.arange(len(self.tree)), act)
        return float(walked.reward.sum(axis=1).mean())


@dataclass
class Best:
    """The best iterate so far; before the first evaluation, the one at the start."""

    weights: Weights
    train: float = -math.inf
    validation: float = -math.inf
    history: list[float] = field(default_factory=list)
    since: int = 0  # evaluations without a better one

    def offer(self, module: nn.Module, train: float, validation: float) -> None:
        """Keep the weights of `module` if they are better."""
        self.history.append(validation)
        self.since += 1
        if (validation, train) > (self.validation, self.train):
            self.train, self.validation, self.since = train, validation, 0
            self.weights = weights_of(module)


def weights_of(module: nn.Module) -> Weights:
    """A copy of the weights."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def run_epochs(
    learner: Learner,
    config: TrainConfig,
    values: Callable[[], list[float]],
    watch: Watch | None = None,
    resumed: Halfway | None = None,
) -> Best:
    """Epoch after epoch, with evaluations in between; returns the best iterate.

    Args:
        values: exact values of the learner's router as it is, on train and on validation.
    """
    watch = watch or Watch()
    best = Best(weights_of(learner.router))
    done = _go_on(learner, best, resumed) if resumed else 0
    while done < config.epochs and not (config.patience and best.since >= config.patience):
        learner.epoch()
        done += 1
        last = done == config.epochs
        if last or done % config.evaluate_every == 0:
            train, validation = values()
            best.offer(learner.router, train, validation)
            watch.on_epoch(done, config.epochs, train, validation)
        if not last and done % config.checkpoint_every == 0:
            watch.on_halfway(_halfway(learner, best, done))
    return best


def _halfway(learner: Learner, best: Best, epoch: int) -> Halfway:
    tensors = {f"learner.{name}": value.clone() for name, value in learner.tensors().items()}
    tensors |= {f"now.{name}": value for name, value in weights_of(learner.router).items()}
    tensors |= {f"best.{name}": value for name, value in best.weights.items()}
    kept = {"train": best.train, "validation": best.validation} if best.history else {}
    counters = {
        "learner": learner.counters(),
        "best": {**kept, "history": list(best.history), "since": best.since},
    }
    return Halfway(epoch, tensors, counters)


def _go_on(learner: Learner, best: Best, halfway: Halfway) -> int:
    """Put everything back where it was; returns the epochs done."""

    def part(name: str) -> dict[str, Tensor]:
        start = f"{name}."
        return {
            key.removeprefix(start): value
            for key, value in halfway.tensors.items()
            if key.startswith(start)
        }

    learner.router.load_state_dict(part("now"))
    learner.restore(part("learner"), halfway.counters["learner"])
    best.weights = part("best")
    for name, value in deepcopy(halfway.counters["best"]).items():
        setattr(best, name, value)
    return halfway.epoch


def training_folds(tree: RouteTree) -> tuple[RouteTree, RouteTree]:
    """The fold to learn from and the one that chooses the iterate.

    Raises:
        InputError: there is nothing to train on.
    """
    learn_from, choose_on = tree.split("train"), tree.split("validation")
    if not len(learn_from):
        raise InputError("no query to train on: the train fold is empty; collect more queries")
    return learn_from, choose_on if len(choose_on) else learn_from


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed the global generators that torch and Tianshou use, on one thread; restore after.

    One thread, because sums are added up in another order on another number of threads.
    """
    threads = torch.get_num_threads()
    numpy_state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            np.random.set_state(numpy_state)

"""Epoch after epoch: the loop around every training.

In: a `Learner`, a configuration, a function that values its network exactly. Out: the iterate that
is best on validation. Same seed, same bits, also when a training was interrupted and goes on from a
`Snapshot`. Not covered: what an epoch does (`ppo`, `enumeration`, `conditioned`, `dynamic`), files
(`resume`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from hierrouter.learn.config import TrainConfig
from hierrouter.threads import torch_threads
from hierrouter_cache.errors import InputError

# Epochs done, epochs in all, value on the train fold, value on validation.
OnEpoch = Callable[[int, int, float, float], None]
Weights = dict[str, Tensor]
Fold = TypeVar("Fold")
Network = TypeVar("Network", bound=nn.Module)
Network_co = TypeVar("Network_co", bound=nn.Module, covariant=True)


class Learner(Protocol[Network_co]):
    """Improves a router, one epoch after the other; can be put away and taken up again."""

    @property
    def router(self) -> Network_co:
        """What is trained, in place."""
        ...

    def epoch(self) -> None:
        """Train for one epoch.

        Raises:
            FloatingPointError: the router's numbers are not finite any more.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that the next epoch depends on, but for the router's weights."""
        ...

    def counters(self) -> dict[str, Any]:
        """The rest of it, as JSON values: the states of random generators."""
        ...

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Put back what `tensors` and `counters` gave; the next epoch is then the same one."""
        ...


@dataclass(frozen=True)
class Snapshot:
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
        on_snapshot: called every `checkpoint_every` epochs.
    """

    on_epoch: OnEpoch = lambda done, total, train, validation: None
    on_snapshot: Callable[[Snapshot], None] = lambda snapshot: None


def best_iterate(
    start: Callable[[], Learner[Network]],
    value: Callable[[Network, Fold], float],
    folds: tuple[Fold, Fold],
    config: TrainConfig,
    seed: int,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> tuple[Network, Best]:
    """The network of a whole training, frozen, with the weights that are best on validation.

    Args:
        start: makes the network and its learner; torch's generator is seeded then.
        value: of a network on a fold, exactly.
        folds: to learn from, and to choose the iterate on. Where they are one it is valued once.
        config: the numbers.
        seed: of everything random.
        watch: who is told.
        resumed: where to go on.

    Raises:
        InputError: the training diverged.
    """

    def values() -> tuple[float, float]:
        learn_from, choose_on = folds
        train = value(network, learn_from)
        return train, train if choose_on is learn_from else value(network, choose_on)

    with reproducible(seed):
        learner = start()
        network = learner.router
        best = run_epochs(learner, config, values, watch, resumed)
    network.load_state_dict(best.weights)
    return network.requires_grad_(False).eval(), best


def run_epochs(
    learner: Learner[nn.Module],
    config: TrainConfig,
    values: Callable[[], tuple[float, float]],
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> Best:
    """Epoch after epoch, with evaluations in between; returns the best iterate.

    Args:
        values: exact values of the learner's router as it is, on train and on validation.

    Raises:
        InputError: the training diverged.
    """
    watch = watch or Watch()
    best = Best(weights_of(learner.router))
    done = _restore(learner, best, resumed) if resumed else 0
    while done < config.epochs and not (config.patience and best.since >= config.patience):
        done += 1
        _run_epoch(learner, done)
        last = done == config.epochs
        if last or done % config.evaluate_every == 0:
            train, validation = values()
            best.offer(learner.router, train, validation)
            watch.on_epoch(done, config.epochs, train, validation)
        if not last and done % config.checkpoint_every == 0:
            watch.on_snapshot(_snapshot(learner, best, done))
    return best


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


def _snapshot(learner: Learner[nn.Module], best: Best, epoch: int) -> Snapshot:
    tensors = {f"learner.{name}": value.clone() for name, value in learner.tensors().items()}
    tensors |= {f"now.{name}": value for name, value in weights_of(learner.router).items()}
    tensors |= {f"best.{name}": value for name, value in best.weights.items()}
    kept = {}
    if best.history:
        kept = {"train": best.train, "validation": best.validation, "kept": best.kept}
    counters = {
        "learner": learner.counters(),
        "best": {**kept, "history": list(best.history), "since": best.since},
    }
    return Snapshot(epoch, tensors, counters)


def _restore(learner: Learner[nn.Module], best: Best, snapshot: Snapshot) -> int:
    """Put everything back where it was; returns the epochs done."""
    learner.router.load_state_dict(part_of(snapshot.tensors, "now"))
    learner.restore(part_of(snapshot.tensors, "learner"), snapshot.counters["learner"])
    best.weights = part_of(snapshot.tensors, "best")
    for name, value in deepcopy(snapshot.counters["best"]).items():
        setattr(best, name, value)
    return snapshot.epoch


def part_of(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Those that are called `name.` and something; by that."""
    start = f"{name}."
    return {
        key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)
    }


@dataclass
class Best:
    """The best iterate so far; before the first evaluation, the one at the start.

    Attributes:
        weights: its weights.
        train, validation: its values.
        history: value on validation at each evaluation.
        since: evaluations without a better one.
        kept: index in `history` of its own; None before the first, and where a training went on
            from a snapshot that does not tell.
    """

    weights: Weights
    train: float = -math.inf
    validation: float = -math.inf
    history: list[float] = field(default_factory=list)
    since: int = 0
    kept: int | None = None

    def offer(self, module: nn.Module, train: float, validation: float) -> None:
        """Keep the weights of `module` if they are better."""
        self.history.append(validation)
        self.since += 1
        if (validation, train) > (self.validation, self.train):
            self.train, self.validation, self.since = train, validation, 0
            self.kept = len(self.history) - 1
            self.weights = weights_of(module)


def weights_of(module: nn.Module) -> Weights:
    """A copy of the weights."""
    return {name: value.clone() for name, value in module.state_dict().items()}


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which new layers draw from, on one thread; restore after.

    One thread, because sums are added up in another order on another number of threads.
    """
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(seed)
        yield

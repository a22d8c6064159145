"""Train a router by PPO on the cached tree.

In: a `RouteTree` with its folds, alpha, a `PPOConfig`, a seed. Out: the iterate with the best
exact value on the validation fold. The test fold is never looked at. Same seed, same bits.
Not covered: several alphas, see `sweep`; files, see `checkpoint`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor

import hierrouter
from hierrouter.evaluate.exact import greedy, policy_outcome
from hierrouter.learn.algorithm import SharedTrunk, build_algorithm
from hierrouter.learn.config import PPOConfig
from hierrouter.learn.router import (
    Router,
    StateTable,
    action_probabilities,
    shape_for,
    state_table,
)
from hierrouter.learn.trained import TrainedRouter
from hierrouter.replay.bridge import to_buffer
from hierrouter.replay.rollouts import QueryStream, walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

# Iterations done, iterations in all, exact greedy R on the train fold, the same on validation.
Progress = Callable[[int, int, float, float], None]
Weights = dict[str, Tensor]


def train(
    tree: RouteTree,
    alpha: float,
    config: PPOConfig,
    seed: int,
    on_progress: Progress | None = None,
    on_checkpoint: Callable[[TrainedRouter], None] | None = None,
    *,
    encoder: str = "",
) -> TrainedRouter:
    """Train on the fold "train", keep the iterate that is best on the fold "validation".

    Where two iterates are equally good on validation, the better one on train is kept, then the
    earlier one. Without a validation fold the train fold chooses.

    Args:
        tree: all folds.
        alpha: cost penalty of the reward R = Q - alpha * C.
        config: see `config.PRESETS`.
        seed: of everything random.
        on_progress: called after each evaluation.
        on_checkpoint: called every `config.checkpoint_every` epochs with the best so far.
        encoder: name of the encoder that made the tree's embeddings, for the record.

    Raises:
        InputError: alpha is not a number >= 0, or there is nothing to train on.
    """
    if not math.isfinite(alpha) or alpha < 0:
        raise InputError(f"alpha must be a finite number >= 0, got {alpha}")
    folds = _folds(tree, alpha)
    with _reproducible(seed):
        router = Router(shape_for(folds[0].tree, config))
        best = _Best(router)

        def snapshot() -> TrainedRouter:
            return TrainedRouter(
                router=best.router(),
                models=tree.models,
                base_rate=tuple(tree.base_rate.tolist()),
                encoder=encoder,
                alpha=alpha,
                config=config,
                seed=seed,
                fingerprint=tree.fingerprint,
                history=tuple(best.history),
                version=hierrouter.__version__,
            )

        for epoch in _epochs(router, folds[0], config, np.random.default_rng(seed)):
            last = epoch == config.epochs
            if last or epoch % config.evaluate_every == 0:
                values = [fold.value(router) for fold in folds]
                best.offer(*values)
                if on_progress:
                    on_progress(epoch * config.iterations, config.total_iterations, *values)
            if on_checkpoint and not last and epoch % config.checkpoint_every == 0:
                on_checkpoint(snapshot())
        return snapshot()


@dataclass(frozen=True)
class _Fold:
    """One fold of the tree, and its states as tensors."""

    tree: RouteTree
    table: StateTable
    alpha: float

    def value(self, router: Router) -> float:
        """Exact mean R of the greedy policy."""
        probabilities = action_probabilities(router, self.table)
        by_query = probabilities.reshape(len(self.tree), -1, len(self.tree.models))
        choice = greedy(by_query, self.tree.base_rate)
        return float(policy_outcome(self.tree, choice, "", "router").reward(self.alpha).mean())


class _Best:
    """The best iterate so far; before the first evaluation, the one at hand."""

    def __init__(self, router: Router) -> None:
        self._current = router
        self._weights: Weights = router.state_dict()
        self._key = (-math.inf, -math.inf)
        self.history: list[float] = []

    def offer(self, train: float, validation: float) -> None:
        self.history.append(validation)
        if (validation, train) > self._key:
            self._key = (validation, train)
            self._weights = {
                name: value.clone() for name, value in self._current.state_dict().items()
            }

    def router(self) -> Router:
        """A frozen copy."""
        copy = Router(self._current.shape)
        copy.load_state_dict(self._weights)
        return copy.requires_grad_(False).eval()


def _folds(tree: RouteTree, alpha: float) -> tuple[_Fold, _Fold]:
    """Train and validation."""
    train = tree.split("train")
    if not len(train):
        raise InputError("no query to train on: the train fold is empty; collect more queries")
    validation = tree.split("validation")
    chooser = validation if len(validation) else train
    return _Fold(train, state_table(train), alpha), _Fold(chooser, state_table(chooser), alpha)


def _epochs(
    router: Router, fold: _Fold, config: PPOConfig, rng: np.random.Generator
) -> Iterator[int]:
    """Improve `router` in place; yields after each epoch, counted from 1."""
    seen = replace(fold.table, embedding=fold.table.embedding.clone())
    algorithm = build_algorithm(SharedTrunk(router, seen), config)
    leaf_reward = _leaf_reward(fold, config)
    queries = QueryStream(len(fold.tree), rng)
    minibatch = max(2, config.rollouts * fold.tree.hops // config.minibatches)

    def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
        _disturb(seen, fold.table, state, config.embedding_noise, rng)
        return _sample(router, seen, state, rng)

    for iteration in range(1, config.total_iterations + 1):
        query = queries.draw(config.rollouts)
        buffer = to_buffer(walk(fold.tree.routes, leaf_reward, query, act))
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer, minibatch, config.update_epochs)
        if iteration % config.iterations == 0:
            yield iteration // config.iterations


def _leaf_reward(fold: _Fold, config: PPOConfig) -> NDArray[np.float64]:
    """float64[queries, leaves]: what an episode pays at its end."""
    reward = fold.tree.reward(fold.alpha)
    if not config.standardise_reward:
        return reward
    centred = reward - reward.mean(axis=1, keepdims=True)
    standard: NDArray[np.float64] = centred / (centred.std() or 1.0)
    return standard


def _disturb(
    seen: StateTable,
    table: StateTable,
    state: NDArray[np.int64],
    length: float,
    rng: np.random.Generator,
) -> None:
    """Draw new noise for some states; what was seen stays so until they are visited again.

    Rollouts and the updates on them so read the same numbers, as PPO's ratio demands.
    """
    if not length:
        return
    dim = table.embedding.shape[1]
    noise = rng.standard_normal((len(state), dim), dtype=np.float32)
    noise *= np.float32(length / math.sqrt(dim))
    seen.embedding.numpy()[state] = table.embedding.numpy()[state] + noise


@torch.no_grad()
def _sample(
    router: Router, table: StateTable, state: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw actions, int64[n]: the largest of logit + Gumbel noise."""
    logits, _ = router(*table.rows(torch.from_numpy(state)))
    action: NDArray[np.int64] = (logits.numpy() + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return action


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
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

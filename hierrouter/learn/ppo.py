"""Learning by PPO from sampled episodes (paper appendix B).

In: the train fold, alpha, a `PPOConfig`. Out: `PPOLearner`: rollouts of all episodes of
an iteration together, updates by Tianshou's PPO. Not covered: the loop around it, see `loop`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor

from hierrouter.learn.algorithm import SharedTrunk, build_algorithm
from hierrouter.learn.config import PPOConfig
from hierrouter.learn.folds import TrainingFold
from hierrouter.learn.loop import part_of
from hierrouter.learn.optimiser import adam_tensors, restore_adam, steps_made
from hierrouter.learn.router import Router
from hierrouter.learn.states import NoisyTable
from hierrouter.replay.bridge import to_buffer
from hierrouter.replay.rollouts import QueryStream, walk


class PPOLearner:
    """PPO on the replayed tree; an epoch is `config.iterations` rounds of rollouts and updates.

    Args:
        router: trained in place.
        fold: what it learns from.
        alpha: cost penalty of the reward.
        config: the numbers.
        rng: source of the queries, the actions and the noise.
        shuffle: source of the mini-batches, see `EpisodePPO`.
    """

    def __init__(
        self,
        router: Router,
        fold: TrainingFold,
        alpha: float,
        config: PPOConfig,
        rng: np.random.Generator,
        shuffle: np.random.RandomState,
    ) -> None:
        self.router = router
        self._fold = fold
        self._config = config
        self._rng = rng
        self._shuffle = shuffle
        self._reward = fold.episode_reward(alpha, config.standardise_reward)
        self._queries = QueryStream(len(fold.tree), rng)
        self._seen = NoisyTable(fold.table, config.embedding_noise, rng)
        self._steps = config.epochs * config.iterations * config.update_epochs * config.minibatches
        trunk = SharedTrunk(router, self._seen)
        self._algorithm = build_algorithm(trunk, config, self._steps, shuffle)

    def epoch(self) -> None:
        """Collect and update `config.iterations` times.

        Raises:
            FloatingPointError: logits are not finite.
        """
        for _ in range(self._config.iterations):
            self._iterate()

    def _iterate(self) -> None:
        config = self._config
        self._seen.begin()
        query = self._queries.draw(config.rollouts)
        buffer = to_buffer(walk(self._fold.actions, self._reward, query, self._act))
        self._algorithm.ent_coef = self._entropy_coefficient()
        minibatch = max(2, len(buffer) // config.minibatches)
        with policy_within_training_step(self._algorithm.policy):
            self._algorithm.update(buffer, minibatch, config.update_epochs)

    def _entropy_coefficient(self) -> float:
        done, config = steps_made(self._adam) / self._steps, self._config
        return (1 - done) * config.entropy_coefficient + done * config.entropy_end

    @torch.no_grad()
    def _act(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw actions, int64[n]: the largest of logit + Gumbel noise."""
        logits, _ = self.router(self._seen.visit(torch.from_numpy(state)))
        if not logits.isfinite().all():  # Tianshou's own complaint would name no cause
            raise FloatingPointError("logits are not finite")
        chances = logits.numpy() + self._rng.gumbel(size=logits.shape)
        action: NDArray[np.int64] = chances.argmax(axis=1)
        return action

    def tensors(self) -> dict[str, Tensor]:
        """Adam's moments, the queries still to be drawn, and the state of the shuffles."""
        return {
            **{f"adam.{name}": value for name, value in adam_tensors(self._adam).items()},
            "queries.waiting": torch.from_numpy(self._queries.waiting),
            "random.numpy": torch.from_numpy(self._shuffle.get_state(legacy=False)["state"]["key"]),
        }

    def counters(self) -> dict[str, Any]:
        """The states of the generators, but for their long arrays."""
        return {
            "random": self._rng.bit_generator.state,
            "numpy.position": self._shuffle.get_state(legacy=False)["state"]["pos"],
        }

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Put everything back."""
        restore_adam(self._adam, part_of(tensors, "adam"))
        self._queries.waiting = tensors["queries.waiting"].numpy()
        held = {"key": tensors["random.numpy"].numpy(), "pos": counters["numpy.position"]}
        self._shuffle.set_state({**self._shuffle.get_state(legacy=False), "state": held})
        self._rng.bit_generator.state = counters["random"]

    @property
    def _adam(self) -> torch.optim.Adam:
        adam = self._algorithm.optim._optim
        assert isinstance(adam, torch.optim.Adam)
        return adam

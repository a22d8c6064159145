"""Tianshou's PPO, wired to the router.

In: a `Router`, the states it trains on, a `PPOConfig`. Out: `EpisodePPO`, Tianshou's algorithm
with its own loss and update loop. Observations are state numbers; the frozen table stands inside
the network. Not covered: rollouts and the training loop, see `ppo`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import OptimizerFactory, ParamsType
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.learn.config import PPOConfig
from hierrouter.learn.router import Router, StateTable

# Rows that Tianshou evaluates at once before an update.
LARGEST_BATCH = 65_536


class SharedTrunk:
    """Features of states, computed once for both heads.

    Tianshou asks the actor and then the critic about the very same array; the second answer
    comes from the first one's features.
    """

    def __init__(self, router: Router, table: StateTable) -> None:
        self.router = router
        self.table = table
        self._pending: tuple[object, bool, Tensor] | None = None

    def __call__(self, state: NDArray[np.int64]) -> Tensor:
        """float32[n, hidden] of the states with these numbers, int64[n]."""
        pending, self._pending = self._pending, None
        if pending and pending[0] is state and pending[1] == torch.is_grad_enabled():
            return pending[2]
        features = self.router.features(*self.table.rows(torch.from_numpy(state)))
        self._pending = state, torch.is_grad_enabled(), features
        return features


class Actor(nn.Module):
    """State numbers to logits, with Tianshou's signature."""

    def __init__(self, trunk: SharedTrunk) -> None:
        super().__init__()
        self.router = trunk.router
        self.trunk = trunk

    def forward(
        self, obs: NDArray[np.int64], state: Any = None, info: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits float32[n, M], not probabilities: the distribution must be told so."""
        return self.router.policy(self.trunk(obs)), state


class Critic(nn.Module):
    """State numbers to values, with Tianshou's signature."""

    def __init__(self, trunk: SharedTrunk) -> None:
        super().__init__()
        self.router = trunk.router
        self.trunk = trunk

    def forward(self, obs: NDArray[np.int64]) -> Tensor:
        """float32[n, 1]."""
        value: Tensor = self.router.value(self.trunk(obs))
        return value


class RouterPolicy(DiscreteActorPolicy):  # type: ignore[misc]
    """Tianshou's categorical policy, made without starting Tianshou's compiler."""

    @staticmethod
    def _compile() -> None:
        """Nothing: `EpisodePPO` runs none of the loops that would be compiled, for seconds."""


class EpisodePPO(PPO):  # type: ignore[misc]
    """Tianshou's PPO for complete episodes of L steps each."""

    def __init__(self, hops: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.hops = hops

    def compute_episodic_return(
        self,
        batch: Any,
        buffer: Any,
        indices: NDArray[np.int64],
        v_s_: NDArray[np.float64],
        v_s: NDArray[np.float64],
        gamma: float,
        gae_lambda: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns and advantages, float64[transitions] each (arXiv:1506.02438).

        The same numbers as Tianshou's, all episodes at once: its own loop over single steps
        needs a compiler that takes longer to start than a training here takes.
        """
        shape = (-1, self.hops)
        value, following = v_s.reshape(shape), v_s_.reshape(shape)
        reward = batch.rew.reshape(shape)
        advantage = np.zeros(reward.shape)
        carried = np.zeros(len(reward))
        for hop in reversed(range(self.hops)):
            ahead = 0.0 if hop == self.hops - 1 else following[:, hop]
            carried = reward[:, hop] + gamma * (ahead + gae_lambda * carried) - value[:, hop]
            advantage[:, hop] = carried
        return (advantage + value).ravel(), advantage.ravel()


class ScheduledAdam(OptimizerFactory):  # type: ignore[misc]
    """Adam whose learning rate follows the configuration, gradient step by gradient step."""

    def __init__(self, config: PPOConfig) -> None:
        super().__init__()
        self.config = config

    def _create_optimizer_for_params(self, params: ParamsType) -> torch.optim.Optimizer:
        config = self.config
        adam = torch.optim.Adam(params, lr=config.learning_rate, eps=config.adam_eps, fused=True)
        scheduler = torch.optim.lr_scheduler.LambdaLR(adam, self._factor)
        adam.register_step_post_hook(lambda *_: scheduler.step())
        return adam

    def _factor(self, step: int) -> float:
        config = self.config
        rising = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        falling = 1 - step / config.gradient_steps if config.decay else 1.0
        return rising * max(falling, 0.0)


def build_algorithm(trunk: SharedTrunk, config: PPOConfig) -> EpisodePPO:
    """PPO for the trunk's router with the numbers of `config`."""
    policy = RouterPolicy(
        actor=Actor(trunk),
        action_space=Discrete(trunk.router.shape.models),
        dist_fn=lambda logits: Categorical(logits=logits, validate_args=False),
    )
    return EpisodePPO(
        hops=trunk.router.shape.hops,
        policy=policy,
        critic=Critic(trunk),
        optim=ScheduledAdam(config),
        eps_clip=config.clip,
        vf_coef=config.value_coefficient,
        ent_coef=config.entropy_coefficient,
        max_grad_norm=config.max_grad_norm,
        gae_lambda=config.gae_lambda,
        gamma=config.gamma,
        max_batchsize=LARGEST_BATCH,
    )

"""Tianshou's PPO on the replayed tree (paper appendix B)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import OptimizerFactory, ParamsType
from tianshou.data import ReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.learning import loop
from hierrouter.learning.collector import TreeCollector
from hierrouter.learning.config import PPOConfig
from hierrouter.learning.network import NoisyTable, Router, States
from hierrouter.replay.env import QueryStream

# Rows that Tianshou evaluates at once before an update.
LARGEST_BATCH = 65_536


class Trunk(nn.Module):
    """Features of states by number.

    Tianshou's updates ask the actor and then the critic, with the same array. The actor's features
    are held for that next question and for no other: weights that fused Adam has changed do not
    show it (`Tensor._version` stays), so what is held longer could be stale.

    Args:
        look: how states are looked up by number.
    """

    def __init__(self, router: Router, look: Callable[[Tensor], States]) -> None:
        super().__init__()
        self.router = router
        self.look = look
        self._held: tuple[object, bool, tuple[Tensor, Tensor]] | None = None

    def forward(self, obs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features float32[n, hidden] and legality bool[n, A] of these states, int64[n]."""
        held, self._held = self._held, None
        if held and held[0] is obs and held[1] == torch.is_grad_enabled():
            return held[2]
        states = self.look(torch.as_tensor(obs))
        return self.router.features(states), states.legal

    def hold(self, obs: object, found: tuple[Tensor, Tensor]) -> None:
        """Keep what was found for `obs`: the critic asks for it next."""
        self._held = obs, torch.is_grad_enabled(), found


class Actor(nn.Module):
    """State numbers to logits, with Tianshou's signature."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(
        self, obs: NDArray[np.int64], state: Any = None, info: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits float32[n, A], not probabilities: the distribution must be told so.

        Raises FloatingPointError: they are not finite.
        """
        found = self.trunk(obs)
        self.trunk.hold(obs, found)
        logits = self.trunk.router.logits(*found)
        if not logits.detach().sum().isfinite():  # Tianshou's own complaint would name no cause
            raise FloatingPointError("logits are not finite")
        return logits, state


class Critic(nn.Module):
    """State numbers to values float32[n, 1], with Tianshou's signature."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, obs: NDArray[np.int64]) -> Tensor:
        """float32[n, 1]."""
        return self.trunk.router.value(self.trunk(obs)[0])


class ActorPolicy(DiscreteActorPolicy):  # type: ignore[misc]
    """Tianshou's categorical policy, made without starting its compiler, which takes seconds."""

    @staticmethod
    def _compile() -> None:
        """Nothing: `uncompiled` runs the same loops as the Python they are written in."""


def uncompiled(function: Any) -> Any:
    """Tianshou's own `function`, calling its compiled loops as the Python they are written in.

    On the short episodes here that takes about a millisecond an update, and compiling takes longer
    than a training. Nothing else in the process is changed: this is the same code with other names
    in sight.
    """
    seen = {
        name: getattr(function.__globals__[name], "py_func", function.__globals__[name])
        for name in function.__code__.co_names
        if name in function.__globals__
    }
    return FunctionType(
        function.__code__,
        {**function.__globals__, **seen},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


class AdamFactory(OptimizerFactory):  # type: ignore[misc]
    """Adam of `loop.make_adam`, as Tianshou asks for it; remembers which it made."""

    adam: torch.optim.Adam

    def __init__(self, config: PPOConfig, steps: int) -> None:
        super().__init__()
        self.config = config
        self.steps = steps

    def _create_optimizer_for_params(self, params: ParamsType) -> torch.optim.Optimizer:
        self.adam = loop.make_adam(cast(Iterable[nn.Parameter], params), self.config, self.steps)
        return self.adam


def build_ppo(trunk: Trunk, config: PPOConfig, optim: AdamFactory) -> Any:
    """Tianshou's PPO on a router, its own in all that it computes."""
    actor: Any = Actor(trunk)  # it has what Tianshou calls, but not its base class
    algorithm = PPO(
        policy=ActorPolicy(
            actor=actor,
            action_space=Discrete(trunk.router.shape.actions),
            dist_fn=lambda logits: Categorical(logits=logits, validate_args=False),
        ),
        eps_clip=config.clip,
        critic=Critic(trunk),
        optim=optim,
        vf_coef=config.value_coefficient,
        ent_coef=config.entropy_coefficient,
        max_grad_norm=config.max_grad_norm,
        gae_lambda=config.gae_lambda,
        gamma=config.gamma,
        max_batchsize=LARGEST_BATCH,
    )
    algorithm.compute_episodic_return = uncompiled(PPO.compute_episodic_return)
    return algorithm


class PPOLearner:
    """Tianshou's PPO on the replayed tree, driven by our loop.

    An epoch is `config.iterations` rounds of rollouts and updates. Tianshou draws actions from
    torch's global generator and mini-batches from numpy's.
    """

    def __init__(
        self,
        router: Router,
        fold: loop.TrainingFold,
        alpha: float,
        config: PPOConfig,
        rng: np.random.Generator,
    ) -> None:
        self.router = router
        self._config = config
        self._seen = NoisyTable(fold.table, config.embedding_noise, rng)
        self._trunk = Trunk(router, self._seen.visit)
        self._gradients = config.update_epochs * config.minibatches
        self._steps = config.epochs * config.iterations * self._gradients
        self._optim = AdamFactory(config, self._steps)
        self.algorithm = build_ppo(self._trunk, config, self._optim)
        self.collector = TreeCollector(
            self.algorithm,
            fold.tree,
            alpha,
            fold.actions.allow_stop,
            allow_return=fold.actions.allow_return,
            buffer=ReplayBuffer(config.rollouts * fold.actions.steps),
            draw=QueryStream(len(fold.tree), rng).draw,
            reward=fold.episode_reward(alpha, config.standardise_reward),
        )

    def epoch(self) -> None:
        """Collect and update `config.iterations` times.

        Raises FloatingPointError: logits are not finite.
        """
        for _ in range(self._config.iterations):
            self._seen.begin()
            self._trunk.look = self._seen.visit
            with policy_within_training_step(self.algorithm.policy):
                self.collector.collect(n_episode=self._config.rollouts)
                self._learn()

    def _learn(self) -> None:
        """Update on what was collected, seen as it was then, and drop it."""
        config, algorithm, buffer = self._config, self.algorithm, self.collector.buffer
        self._trunk.look = self._seen.rows
        done = loop.steps_made(self._optim.adam) / self._steps
        start, end = config.entropy_coefficient, config.entropy_end
        algorithm.ent_coef = (1 - done) * start + done * end
        minibatch = max(2, len(buffer) // config.minibatches)
        algorithm.update(buffer, minibatch, config.update_epochs)
        self.collector.reset_buffer()

"""The paper's PPO by others: Tianshou as it comes, Stable-Baselines3, plain torch.

In: a tree and a `PPOConfig`. Out: for each way its rollouts, its update, and the logits of its
policy at every state of the tree. Observations are float vectors (`features`), as first-time users
of an environment have them; plain torch holds the tree's vectors. All have two layers of `hidden`
units under both heads. Not covered: what is timed, see `training.py`.
"""

from functools import cache
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import DtypeObservation, FlattenObservation
from stable_baselines3 import PPO as StablePPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.learning.config import PPOConfig
from hierrouter.learning.forward import RouterShape
from hierrouter.learning.network import RouterNetwork, States, StateTable
from hierrouter.replay.env import ReplayEnv, Rollouts
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree


def flat_env(tree: RouteTree, alpha: float) -> gymnasium.Env[Any, Any]:
    """The environment with one float32 vector as observation."""
    return DtypeObservation(FlattenObservation(ReplayEnv(tree, alpha)), np.float32)


def features(table: StateTable, routes: Layout) -> Tensor:
    """float32[states, dim + L + 2]: what `flat_env` shows at every state of the tree."""
    stage = nn.functional.one_hot(torch.from_numpy(routes.depth())[table.node], routes.hops + 1)
    return torch.cat([table.cost[:, None], table.embedding(slice(None)), stage], dim=1)


class WarmUp(LRSchedulerFactory):  # type: ignore[misc]  # the library has no types
    """The rise of the learning rate; Tianshou moves it once an update, not once a gradient step."""

    def __init__(self, config: PPOConfig) -> None:
        self.config = config

    def create_scheduler(self, optim: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        steps = self.config.minibatches * self.config.update_epochs
        warm = max(self.config.warmup_steps, 1)
        return torch.optim.lr_scheduler.LambdaLR(
            optim, lambda update: min(1.0, (update + 0.5) * steps / warm)
        )


def tianshou_heads(tree: RouteTree, alpha: float, config: PPOConfig) -> tuple[nn.Module, nn.Module]:
    """Actor and critic of Tianshou's own parts, initialised as it does."""
    space = flat_env(tree, alpha)
    net = Net(
        state_shape=space.observation_space.shape,
        hidden_sizes=[config.hidden, config.hidden],
        activation=nn.Tanh,
    )
    actor = DiscreteActor(
        preprocess_net=net, action_shape=space.action_space.n, softmax_output=False
    )
    return actor, DiscreteCritic(preprocess_net=net)


class RouterActor(nn.Module):
    """Our router on float observations."""

    def __init__(self, router: RouterNetwork) -> None:
        super().__init__()
        self.router = router

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        return self.router(_states(obs, self.router))[0], state


class RouterCritic(nn.Module):
    """Our router on float observations."""

    def __init__(self, router: RouterNetwork) -> None:
        super().__init__()
        self.router = router

    def forward(self, obs: Any) -> Tensor:
        value: Tensor = self.router(_states(obs, self.router))[1]
        return value[:, None]


def _states(obs: Any, router: RouterNetwork) -> States:
    """What `flat_env` shows, taken apart; of the nodes of a stage, the first."""
    rows, shape = torch.as_tensor(obs), router.shape
    stage = rows[:, 1 + shape.dim :].argmax(dim=1).clamp(max=shape.hops - 1)
    legal = torch.ones(len(rows), shape.actions, dtype=torch.bool)
    return States(rows[:, 1 : 1 + shape.dim], first_nodes(shape)[stage], rows[:, 0], legal)


@cache
def first_nodes(shape: RouterShape) -> Tensor:
    """int64[L]: the first node of each stage."""
    layout = Layout.full(shape.models, shape.hops)
    return torch.tensor([layout.level(stage).start for stage in range(shape.hops)])


class StockTianshou:
    """Tianshou's collector, loss, update and trainer.

    Args:
        heads: actor and critic on float observations.
        envs: environments in its `DummyVectorEnv`.
    """

    def __init__(
        self,
        tree: RouteTree,
        alpha: float,
        config: PPOConfig,
        heads: tuple[nn.Module, nn.Module],
        envs: int,
        seed: int,
    ) -> None:
        self._config = config
        self._routes = tree.layout
        self._actor, critic = heads
        self.algorithm = PPO(
            policy=DiscreteActorPolicy(
                actor=self._actor, action_space=flat_env(tree, alpha).action_space
            ),
            critic=critic,
            optim=AdamOptimizerFactory(
                lr=config.learning_rate, eps=config.adam_eps
            ).with_lr_scheduler_factory(WarmUp(config)),
            eps_clip=config.clip,
            vf_coef=config.value_coefficient,
            ent_coef=config.entropy_coefficient,
            max_grad_norm=config.max_grad_norm,
            gae_lambda=config.gae_lambda,
            gamma=config.gamma,
        )
        vector = DummyVectorEnv([lambda: flat_env(tree, alpha)] * envs)
        vector.seed(seed * envs)  # environment i has the i-th seed from here
        self._buffer = VectorReplayBuffer(2 * config.rollouts * tree.hops + envs, envs)
        self._collector = Collector(self.algorithm, vector, self._buffer)
        self._collector.reset()

    def collect(self) -> None:
        """Fill the buffer with an iteration's episodes."""
        self._collector.reset_buffer()
        with policy_within_training_step(self.algorithm.policy), torch.no_grad():
            self._collector.collect(n_episode=self._config.rollouts)

    def update(self) -> None:
        """Learn from the buffer."""
        rows = self._config.rollouts * self._routes.hops // self._config.minibatches
        with policy_within_training_step(self.algorithm.policy):
            self.algorithm.update(self._buffer, rows, self._config.update_epochs)

    def epoch(self) -> None:
        """All iterations of an epoch, by Tianshou's trainer."""
        config, steps = self._config, self._config.rollouts * self._routes.hops
        self.algorithm.run_training(
            OnPolicyTrainerParams(
                training_collector=self._collector,
                max_epochs=1,
                epoch_num_steps=config.iterations * steps,
                collection_step_num_env_steps=None,
                collection_step_num_episodes=config.rollouts,
                batch_size=steps // config.minibatches,
                update_step_num_repetitions=config.update_epochs,
                verbose=False,
                show_progress=False,
            )
        )

    def logits(self, table: StateTable) -> Tensor:
        """float32[states, M]."""
        logits: Tensor = self._actor(features(table, self._routes))[0]
        return logits


class Trunk(BaseFeaturesExtractor):
    """Two layers under both heads; by default Stable-Baselines3 has two for each head."""

    def __init__(self, observation_space: gymnasium.spaces.Box, hidden: int) -> None:
        super().__init__(observation_space, hidden)
        self.layers = nn.Sequential(
            nn.Linear(observation_space.shape[0], hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        seen: Tensor = self.layers(observations)
        return seen


class Stable:
    """Stable-Baselines3 on as many environments as an iteration has episodes."""

    def __init__(self, tree: RouteTree, alpha: float, config: PPOConfig, seed: int) -> None:
        self._config = config
        self._routes = tree.layout
        steps = config.rollouts * tree.hops
        self.model = StablePPO(
            "MlpPolicy",
            DummyVecEnv([lambda: flat_env(tree, alpha)] * config.rollouts),
            n_steps=tree.hops,
            batch_size=steps // config.minibatches,
            n_epochs=config.update_epochs,
            learning_rate=config.learning_rate,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_range=config.clip,
            ent_coef=config.entropy_coefficient,
            vf_coef=config.value_coefficient,
            max_grad_norm=config.max_grad_norm,
            policy_kwargs={
                "net_arch": [],
                "features_extractor_class": Trunk,
                "features_extractor_kwargs": {"hidden": config.hidden},
                "optimizer_kwargs": {"eps": config.adam_eps},
            },
            seed=seed * config.rollouts,  # environment i has the i-th seed from here
            device="cpu",
        )
        _, self._callback = self.model._setup_learn(1)

    def collect(self) -> None:
        """Fill the buffer with an iteration's episodes."""
        model = self.model
        assert model.env
        model.collect_rollouts(model.env, self._callback, model.rollout_buffer, self._routes.hops)

    def update(self) -> None:
        """Learn from the buffer."""
        self.model.train()

    def epoch(self) -> None:
        """All iterations of an epoch."""
        steps = self._config.iterations * self._config.rollouts * self._routes.hops
        self.model.learn(steps, reset_num_timesteps=False)

    def logits(self, table: StateTable) -> Tensor:
        """float32[states, M]."""
        seen = features(table, self._routes)
        chosen = self.model.policy.get_distribution(seen).distribution
        assert isinstance(chosen, Categorical)
        return chosen.logits


class Plain:
    """PPO's mathematics and nothing else: one pass for the old values, then gradient steps.

    Args:
        router: trained in place.
    """

    def __init__(self, router: RouterNetwork, table: StateTable, config: PPOConfig) -> None:
        self._router = router
        self._table = table
        self._config = config
        self._parameters = list(router.parameters())
        self._adam = torch.optim.Adam(
            self._parameters, config.learning_rate, eps=config.adam_eps, fused=True
        )

    def update(self, episodes: Rollouts) -> None:
        """Learn from whole episodes of L hops."""
        config = self._config
        state = torch.from_numpy(episodes.state.ravel())
        action = torch.from_numpy(episodes.action.ravel())
        with torch.no_grad():
            logits, value = self._router(self._table.rows(state))
            old = torch.log_softmax(logits, dim=1).gather(1, action[:, None])[:, 0]
            reward = torch.from_numpy(episodes.reward.astype(np.float32))
            advantage = self._advantages(reward, value.reshape(reward.shape)).ravel()
        size = len(state) // config.minibatches
        for _ in range(config.update_epochs):
            for part in torch.split(torch.randperm(len(state)), size):
                self._step(state[part], action[part], old[part], advantage[part], value[part])

    def _advantages(self, reward: Tensor, value: Tensor) -> Tensor:
        config, advantage = self._config, reward - value
        advantage[:, :-1] += config.gamma * value[:, 1:]
        for hop in range(reward.shape[1] - 2, -1, -1):
            advantage[:, hop] += config.gamma * config.gae_lambda * advantage[:, hop + 1]
        return advantage

    def _step(
        self, state: Tensor, action: Tensor, old: Tensor, advantage: Tensor, value: Tensor
    ) -> None:
        config, returns = self._config, advantage + value
        logits, valued = self._router(self._table.rows(state))
        logged = torch.log_softmax(logits, dim=1)
        ratio = (logged.gather(1, action[:, None])[:, 0] - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        loss = (
            -torch.min(ratio * advantage, clipped * advantage).mean()
            + config.value_coefficient * (returns - valued).pow(2).mean()
            + config.entropy_coefficient * (logged.exp() * logged).sum(dim=1).mean()
        )
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm)
        self._adam.step()

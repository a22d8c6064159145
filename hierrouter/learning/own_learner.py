"""Drive any Tianshou algorithm on the replayed tree: the parts for a user's factory, and the loop.

The factory gets the parts of a router and returns an algorithm of Tianshou whose policy uses them.
Episodes are played by `ppo.TreeCollector`. An on-policy algorithm updates on the episodes of an
iteration and forgets them; an off-policy one draws batches from a memory. Evaluation, the choice of
the best weights and everything after the training are the same as for PPO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from tianshou.algorithm.algorithm_base import OffPolicyAlgorithm, OnPolicyAlgorithm, TrainingStats
from tianshou.data import Batch, ReplayBuffer, to_numpy
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn

from hierrouter.learning.config import TianshouConfig
from hierrouter.learning.network import (
    LearnerState,
    RouterNetwork,
    States,
    StateTable,
    TrainingFold,
    mean_by_name,
)
from hierrouter.learning.own_algorithm import OwnAlgorithm
from hierrouter.learning.ppo import AdamFactory, TreeCollector, iteration_statistics
from hierrouter.questions.own_code import own_code
from hierrouter.replay.env import QueryStream
from hierrouter_cache.errors import HierRouterError, InputError

REMEDY = "correct it, or take --algo ppo"


class SharedStates:
    """The states of the train fold by number; copies of a network share them.

    Args:
        table: the states.
    """

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def rows(self, obs: Any) -> States:
        """The rows of some states by number, int64[n]."""
        return self._table.rows(torch.as_tensor(obs, dtype=torch.int64))

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedStates:
        """Return the same states: an algorithm that copies its network needs no second copy."""
        return self


class StateActor(nn.Module):
    """State numbers to a number for each action, with Tianshou's signature.

    The numbers are logits or values of actions, whatever the algorithm takes them for: a router
    takes the action with the greatest one.

    Args:
        router: the network.
        states: looks the states up.
    """

    def __init__(self, router: RouterNetwork, states: SharedStates) -> None:
        super().__init__()
        self.router = router
        self.states = states

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """float32[n, A], `ILLEGAL_LOGIT` for an action that is not legal, and `state` as it came.

        Args:
            obs: int64[n], numbers of states.
            state: hidden state of a recurrent network; there is none.
            info: not used.

        Raises:
            FloatingPointError: the numbers are not finite.
        """
        rows = self.states.rows(obs)
        numbers = self.router.logits(self.router.features(rows), rows.legal)
        if not numbers.detach().sum().isfinite():
            raise FloatingPointError("the network's numbers are not finite")
        return numbers, state


class StateCritic(nn.Module):
    """State numbers to values, with Tianshou's signature; it shares the layers of the actor.

    Args:
        router: the network.
        states: looks the states up.
    """

    def __init__(self, router: RouterNetwork, states: SharedStates) -> None:
        super().__init__()
        self.router = router
        self.states = states

    def forward(self, obs: Any, act: Any = None, info: Any = None) -> Tensor:
        """float32[n, 1]: the values of states, int64[n]; `act` and `info` are not used."""
        value: Tensor = self.router.value(self.router.features(self.states.rows(obs)))
        return value


@dataclass(frozen=True)
class AlgorithmParts:
    """The parts from which a factory makes an algorithm.

    Attributes:
        actor: the router, from numbers of states to a number for each action; the algorithm's
            policy must use it, because it is what is evaluated, stored and served.
        critic: values of states; it shares its layers with `actor`.
        action_space: of the A actions.
        optim: Adam with the learning rate of `config`, which decays over the training; an optimiser
            of Tianshou's own may be taken instead.
        config: how many episodes are played, and how often is updated.
        alpha: price of cost.
        new_actor: returns another network of the same shape with new weights, from numbers of
            states to a number for each action; for the critics of an actor-critic on actions.
    """

    actor: nn.Module
    critic: nn.Module
    action_space: Discrete
    optim: AdamFactory
    config: TianshouConfig
    alpha: float
    new_actor: Callable[[], nn.Module]


class ExploringCollector(TreeCollector):
    """A `TreeCollector` that adds the exploration noise of the policy, as Tianshou's own does.

    An illegal action that the noise leads to is replaced by a random legal one.
    """

    def _act(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: actions of the policy at these states, int64[n]."""
        legal = self.legal_at(state)
        # Tianshou's policies for Q-values explore within the mask, if there is one.
        batch: Any = Batch(obs=Batch(obs=state, mask=legal), info=Batch())
        output: Any = self.policy(Batch(obs=state, info=Batch()))
        action = np.array(to_numpy(output.act), dtype=np.int64)
        action = np.asarray(self.policy.add_exploration_noise(action, batch), dtype=np.int64)
        illegal = ~legal[np.arange(len(action)), action]
        if illegal.any():
            action[illegal] = self._act_at_random(state[illegal])
        return action


class OwnAlgorithmLearner:
    """Learns a router with an algorithm of the user.

    An epoch is `config.iterations` iterations of rollouts and updates. An algorithm has state that
    only it knows, so such a training cannot be saved between two epochs.

    Args:
        router: trained in place.
        fold: the fold to learn from.
        alpha: reward lost per unit of cost.
        config: the settings.
        rng: source of the order of the queries.
        own: the user's factory.

    Attributes:
        algorithm: what the factory returned.
        collector: plays the episodes.

    Raises:
        InputError: the factory fails, or returns something that cannot be trained here.
    """

    def __init__(
        self,
        router: RouterNetwork,
        fold: TrainingFold,
        alpha: float,
        config: TianshouConfig,
        rng: np.random.Generator,
        own: OwnAlgorithm,
    ) -> None:
        self.router = router
        self._config = config
        self._own = own
        states = SharedStates(fold.table)
        steps_per_iteration = config.update_epochs * config.minibatches

        def new_actor() -> StateActor:
            network = RouterNetwork(router.shape)
            network.standardise(fold.table)
            return StateActor(network, states)

        parts = AlgorithmParts(
            actor=StateActor(router, states),
            critic=StateCritic(router, states),
            action_space=Discrete(router.shape.actions),
            optim=AdamFactory(config, config.epochs * config.iterations * steps_per_iteration),
            config=config,
            alpha=alpha,
            new_actor=new_actor,
        )
        with own_code(f"algorithm cannot be made: {own.path}", REMEDY, (HierRouterError,)):
            self.algorithm = own.factory(parts)
        self._is_on_policy = isinstance(self.algorithm, OnPolicyAlgorithm)
        self._require_fit()
        episode_steps = config.rollouts * fold.actions.steps
        memory = episode_steps if self._is_on_policy else max(config.memory, episode_steps)
        self.collector = ExploringCollector(
            self.algorithm,
            fold.tree,
            alpha,
            fold.actions.allow_stop,
            seed=rng,
            buffer=ReplayBuffer(memory),
            draw=QueryStream(len(fold.tree), rng).draw,
            reward=fold.episode_reward(alpha, config.standardise_reward),
        )

    def _require_fit(self) -> None:
        """Require an algorithm that learns from rollouts, whose policy is the router.

        Raises:
            InputError: it is another one.
        """
        path = self._own.path
        if not isinstance(self.algorithm, OnPolicyAlgorithm | OffPolicyAlgorithm):
            raise InputError(
                f"factory gave no algorithm that learns from rollouts: {path}: "
                f"{type(self.algorithm).__name__}; return an on-policy or off-policy algorithm of "
                "Tianshou"
            )
        if not any(module is self.router for module in self.algorithm.policy.modules()):
            raise InputError(
                f"the algorithm's policy does not use the router: {path}; make the policy from "
                "parts.actor"
            )

    def epoch(self) -> dict[str, float]:
        """Play episodes and update `config.iterations` times.

        Returns:
            See `ppo.iteration_statistics`; means over the iterations.

        Raises:
            FloatingPointError: the network's numbers are not finite.
            InputError: the algorithm fails.
        """
        iterations = []
        failure = f"algorithm failed: {self._own.path}"
        with own_code(failure, REMEDY, (FloatingPointError, HierRouterError)):
            for _ in range(self._config.iterations):
                # Within this context Tianshou's policies explore and may be updated.
                with policy_within_training_step(self.algorithm.policy):
                    collected = self.collector.collect(n_episode=self._config.rollouts)
                    iterations.append(iteration_statistics(collected, self._update()))
        return mean_by_name(iterations)

    def _update(self) -> TrainingStats:
        """Update as often as PPO would; return what Tianshou says of it, of the last update."""
        config = self._config
        buffer = self.collector.buffer
        batch_size = max(2, config.rollouts * self.collector.actions.steps // config.minibatches)
        if self._is_on_policy:
            updated = self.algorithm.update(buffer, batch_size, config.update_epochs)
            self.collector.reset_buffer()
            return cast(TrainingStats, updated)
        for _ in range(config.update_epochs * config.minibatches - 1):
            self.algorithm.update(buffer, batch_size)
        return cast(TrainingStats, self.algorithm.update(buffer, batch_size))

    def state(self) -> LearnerState:
        """Raise: only the algorithm knows its state."""
        raise NotImplementedError(f"the state of {self._own.path} cannot be saved")

    def restore(self, state: LearnerState) -> None:
        """Raise: there is no such state."""
        raise NotImplementedError(f"the state of {self._own.path} cannot be saved")

"""Tianshou's algorithms on the replayed tree: PPO (paper appendix B), and others by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from tianshou.algorithm import DQN, PPO
from tianshou.algorithm.algorithm_base import Algorithm, OnPolicyAlgorithm
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import OptimizerFactory, ParamsType
from tianshou.data import ReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.learning import loop
from hierrouter.learning.collector import TreeCollector
from hierrouter.learning.config import DQNConfig, PPOConfig, SampledConfig
from hierrouter.learning.network import NoisyTable, Router, States, noisy
from hierrouter.replay.env import QueryStream

# Rows that Tianshou evaluates at once before an update.
LARGEST_BATCH = 65_536


@dataclass(eq=False)
class Eyes:
    """How states are looked up by number; one for all networks, copied ones too."""

    look: Callable[[Tensor], States]

    def __deepcopy__(self, memo: Any) -> Eyes:
        return self


class Trunk(nn.Module):
    """Features of states by number.

    Tianshou's updates ask the actor and then the critic, with the same array. The actor's features
    are held for that next question and for no other: weights that fused Adam has changed do not
    show it (`Tensor._version` stays), so what is held longer could be stale.

    Args:
        shares: whether a critic asks after the actor.
    """

    def __init__(self, router: Router, eyes: Eyes, shares: bool = False) -> None:
        super().__init__()
        self.router = router
        self._eyes = eyes
        self.shares = shares
        self._held: tuple[object, bool, tuple[Tensor, Tensor]] | None = None

    def forward(self, obs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features float32[n, hidden] and legality bool[n, A] of these states, int64[n]."""
        held, self._held = self._held, None
        if held and held[0] is obs and held[1] == torch.is_grad_enabled():
            return held[2]
        states = self._eyes.look(torch.as_tensor(obs))
        return self.router.features(states), states.legal

    def hold(self, obs: object, found: tuple[Tensor, Tensor]) -> None:
        """Keep what was found for `obs`, if a critic asks for it next."""
        if self.shares:
            self._held = obs, torch.is_grad_enabled(), found


class Actor(nn.Module):
    """State numbers to logits or action values, with Tianshou's signature."""

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
        value: Tensor = self.trunk.router.value(self.trunk(obs)[0])
        return value


class NothingCompiled:
    """Before a class of Tianshou's: made without starting its compiler, which takes seconds."""

    @staticmethod
    def _compile() -> None:
        """Nothing: `uncompiled` runs the same loops as the Python they are written in."""


class ActorPolicy(NothingCompiled, DiscreteActorPolicy):  # type: ignore[misc]
    """Tianshou's categorical policy."""


class QPolicy(NothingCompiled, DiscreteQLearningPolicy):  # type: ignore[misc]
    """Tianshou's epsilon-greedy policy."""


def uncompiled(function: Any, **names: Any) -> Any:
    """Tianshou's own `function`, calling its compiled loops as the Python they are written in.

    On the short episodes here that takes about a millisecond an update, and compiling takes longer
    than a training. Nothing else in the process is changed: this is the same code with other names
    in sight.

    `names`: what it shall see under these names instead.
    """
    seen = {
        name: getattr(function.__globals__[name], "py_func", function.__globals__[name])
        for name in function.__code__.co_names
        if name in function.__globals__
    }
    return FunctionType(
        function.__code__,
        {**function.__globals__, **seen, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


class AdamFactory(OptimizerFactory):  # type: ignore[misc]
    """Adam of `loop.make_adam`, as Tianshou asks for it; remembers which it made."""

    def __init__(self, config: SampledConfig, steps: int) -> None:
        super().__init__()
        self.config = config
        self.steps = steps
        self.made: list[torch.optim.Adam] = []

    def _create_optimizer_for_params(self, params: ParamsType) -> torch.optim.Optimizer:
        parameters = cast(Iterable[nn.Parameter], params)
        self.made.append(loop.make_adam(parameters, self.config, self.steps))
        return self.made[-1]


def build_algorithm(router: Router, eyes: Eyes, config: SampledConfig, adam: AdamFactory) -> Any:
    """The algorithm of Tianshou that `config` is of, its own in all that it computes.

    `router`: trained in place; where an algorithm needs more networks, they are drawn anew; `eyes`:
    how states are looked up; `config`: the numbers; `adam`: makes the optimisers.
    """
    algorithm = _algorithm(router, eyes, config, adam)
    for name in ("compute_episodic_return", "compute_nstep_return"):
        setattr(algorithm, name, uncompiled(getattr(Algorithm, name)))
    return algorithm


def _algorithm(router: Router, eyes: Eyes, config: SampledConfig, adam: AdamFactory) -> Any:
    space, critic = Discrete(router.shape.actions), isinstance(config, PPOConfig)
    trunk = Trunk(router, eyes, shares=critic)
    actor: Any = Actor(trunk)  # it has what Tianshou calls, but not its base class
    if isinstance(config, DQNConfig):
        return DQN(
            policy=QPolicy(model=actor, action_space=space, eps_training=config.exploration),
            optim=adam,
            gamma=config.gamma,
            target_update_freq=config.target_every,
        )
    assert isinstance(config, PPOConfig)
    return PPO(
        policy=ActorPolicy(
            actor=actor,
            action_space=space,
            dist_fn=lambda logits: Categorical(logits=logits, validate_args=False),
        ),
        eps_clip=config.clip,
        critic=Critic(trunk),
        optim=adam,
        vf_coef=config.value_coefficient,
        ent_coef=config.entropy_coefficient,
        max_grad_norm=config.max_grad_norm,
        gae_lambda=config.gae_lambda,
        gamma=config.gamma,
        max_batchsize=LARGEST_BATCH,
    )


class SampledLearner:
    """An algorithm of Tianshou's on the replayed tree, driven by our loop.

    An epoch is `config.iterations` rounds of rollouts and updates. Tianshou draws actions from
    torch's global generator and mini-batches from numpy's: both belong to the state of a training.

    Args:
        router: trained in place.
        fold: what it learns from.
        alpha: cost penalty of the reward.
        config: the numbers.
        rng: source of the queries and the noise.
    """

    def __init__(
        self,
        router: Router,
        fold: loop.TrainingFold,
        alpha: float,
        config: SampledConfig,
        rng: np.random.Generator,
    ) -> None:
        self.router = router
        self._config = config
        self._rng = rng
        self._queries = QueryStream(len(fold.tree), rng)
        self._table = fold.table
        self._seen = NoisyTable(fold.table, config.embedding_noise, rng)
        self._eyes = Eyes(self._seen.visit)
        self._gradients = config.update_epochs * config.minibatches
        self._steps = config.epochs * config.iterations * self._gradients
        self._optim = AdamFactory(config, self._steps)
        self.algorithm = build_algorithm(router, self._eyes, config, self._optim)
        self._rows = config.rollouts * fold.tree.hops
        kept = config.kept if isinstance(config, DQNConfig) else 1
        # Its rows are drawn from numpy's global generator, like everything else of Tianshou's.
        source = cast(int, np.random.get_bit_generator())  # type: ignore[attr-defined]
        self.collector = TreeCollector(
            self.algorithm,
            fold.tree,
            alpha,
            fold.actions.allow_stop,
            buffer=ReplayBuffer(kept * self._rows, random_seed=source),
            exploration_noise=True,
            draw=self._queries.draw,
            reward=fold.episode_reward(alpha, config.standardise_reward),
            legal=fold.table.legal.numpy(),
        )

    def epoch(self) -> None:
        """Collect and update `config.iterations` times.

        Raises FloatingPointError: logits are not finite.
        """
        for _ in range(self._config.iterations):
            self._seen.begin()
            self._eyes.look = self._seen.visit
            with policy_within_training_step(self.algorithm.policy):
                self.collector.collect(n_episode=self._config.rollouts)
                if isinstance(self.algorithm, OnPolicyAlgorithm):
                    self._learn_from_now()
                else:
                    self._learn_from_memory()

    def _learn_from_now(self) -> None:
        """Update on what was collected, seen as it was then, and drop it."""
        config, algorithm, buffer = self._config, self.algorithm, self.collector.buffer
        self._eyes.look = self._seen.rows
        if isinstance(config, PPOConfig):
            done = loop.steps_made(self._optim.made[0]) / self._steps
            start, end = config.entropy_coefficient, config.entropy_end
            algorithm.ent_coef = (1 - done) * start + done * end
        minibatch = max(2, len(buffer) // config.minibatches)
        algorithm.update(buffer, minibatch, config.update_epochs)
        self.collector.reset_buffer()

    def _learn_from_memory(self) -> None:
        """Update on random parts of all that is kept, seen with new noise."""
        self._eyes.look = self._anew
        minibatch = max(2, self._rows // self._config.minibatches)
        for _ in range(self._gradients):
            self.algorithm.update(self.collector.buffer, minibatch)

    def _anew(self, state: Tensor) -> States:
        states = self._table.rows(state)
        noise = self._config.embedding_noise
        return states._replace(embedding=noisy(states.embedding, noise, self._rng))

    def tensors(self) -> dict[str, Tensor]:
        """All networks but the router, moments, queries still to be drawn, generators, memory."""
        found = {f"network.{name}": value.detach() for name, value in self._networks()}
        for number, adam in enumerate(self._optim.made):
            moments = loop.adam_tensors(adam).items()
            found |= {f"adam.{number}.{name}": value for name, value in moments}
        generator = np.random.get_state(legacy=False)["state"]["key"]
        found |= {
            "queries.waiting": torch.from_numpy(self._queries.waiting),
            "random.numpy": torch.from_numpy(generator),
            "random.torch": torch.get_rng_state(),
        }
        if held := len(self.collector.buffer):
            rows = self.collector.buffer[np.arange(held)]
            found |= {f"memory.{name}": torch.from_numpy(rows[name]) for name in MEMORY}
        return found

    def counters(self) -> dict[str, Any]:
        """The states of the generators, but for their long arrays; where the memory goes on."""
        return {
            "random": self._rng.bit_generator.state,
            "numpy.position": np.random.get_state(legacy=False)["state"]["pos"],
            "memory.last": int(self.collector.buffer.last_index[0]),
        }

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Put everything back."""
        held = loop.part_of(tensors, "network")
        with torch.no_grad():
            for name, value in self._networks():
                value.copy_(held[name])
        for number, adam in enumerate(self._optim.made):
            loop.restore_adam(adam, loop.part_of(tensors, f"adam.{number}"))
        if isinstance(self.algorithm, DQN):  # it counts its updates until the next target network
            self.algorithm._iter = loop.steps_made(self._optim.made[0])
        self._queries.waiting = tensors["queries.waiting"].numpy()
        if memory := loop.part_of(tensors, "memory"):
            self._remember({name: memory[name].numpy() for name in MEMORY}, counters["memory.last"])
        generator = {"key": tensors["random.numpy"].numpy(), "pos": counters["numpy.position"]}
        np.random.set_state({**np.random.get_state(legacy=False), "state": generator})
        torch.set_rng_state(tensors["random.torch"])
        self._rng.bit_generator.state = counters["random"]

    def _remember(self, rows: dict[str, NDArray[Any]], last: int) -> None:
        """Fill the buffer so that every row is where it was, and the next one goes where it did."""
        buffer = self.collector.buffer
        buffer.reset()
        buffer.update(ReplayBuffer.from_data(**rows))
        if last + 1 < len(buffer):  # it had gone round: write the newest rows over themselves
            newest = {name: values[: last + 1] for name, values in rows.items()}
            buffer.update(ReplayBuffer.from_data(**newest))

    def _networks(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters that the router does not have."""
        own = {id(value) for value in self.router.parameters()}
        for name, value in self.algorithm.named_parameters():
            if id(value) not in own:
                yield name, value


# Columns of a buffer, as `to_buffer` fills them.
MEMORY = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")

"""PPO from sampled episodes, by Tianshou (paper appendix B)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from tianshou.algorithm.modelfree.a2c import A2CTrainingStats
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import OptimizerFactory, ParamsType
from tianshou.data import ReplayBuffer, SequenceSummaryStats
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.learning import loop
from hierrouter.learning.config import PPOConfig
from hierrouter.learning.network import NoisyTable, Router
from hierrouter.replay.env import QueryStream, Rollouts, walk


def to_buffer(rollouts: Rollouts) -> ReplayBuffer:
    """All transitions, episode after episode.

    `obs_next` of a last hop is state 0: an episode that has terminated has no next state, and
    Tianshou masks its value.
    """
    made, following = rollouts.alive, np.zeros_like(rollouts.state)
    following[:, :-1] = rollouts.state[:, 1:]
    terminated = rollouts.last[made]
    return ReplayBuffer.from_data(
        obs=rollouts.state[made],
        act=rollouts.action[made],
        rew=rollouts.reward[made],
        terminated=terminated,
        truncated=np.zeros(len(terminated), dtype=bool),
        done=terminated,
        obs_next=following[made],
    )


# Rows that Tianshou evaluates at once before an update.
LARGEST_BATCH = 65_536


class SharedTrunk:
    """Features of states by number, which both heads read."""

    def __init__(self, router: Router, table: NoisyTable) -> None:
        self.router = router
        self.table = table

    def __call__(self, state: Tensor | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features float32[n, hidden] and legality bool[n, A] of these states, int64[n]."""
        states = self.table.rows(torch.as_tensor(state))
        return self.router.features(states), states.legal


class Head(nn.Module):
    """Reads the trunk's features of states; holds the router, for Tianshou to find its weights."""

    def __init__(self, trunk: SharedTrunk) -> None:
        super().__init__()
        self.router = trunk.router
        self.trunk = trunk


class Actor(Head):
    """State numbers to logits, with Tianshou's signature."""

    def forward(
        self, obs: NDArray[np.int64], state: Any = None, info: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits float32[n, A], not probabilities: the distribution must be told so."""
        return self.router.logits(*self.trunk(obs)), state


class Critic(Head):
    """State numbers to values, with Tianshou's signature."""

    def forward(self, obs: NDArray[np.int64]) -> Tensor:
        """float32[n, 1]."""
        value: Tensor = self.router.value(self.trunk(obs)[0])
        return value


class RouterPolicy(DiscreteActorPolicy):  # type: ignore[misc]
    """Tianshou's categorical policy, made without starting Tianshou's compiler."""

    @staticmethod
    def _compile() -> None:
        """Nothing: `EpisodePPO` runs none of the loops that would be compiled, for seconds."""


class EpisodePPO(PPO):  # type: ignore[misc]
    """Tianshou's PPO for buffers of complete episodes, each of them in consecutive rows.

    Args:
        shuffle: source of the mini-batches; the kind of generator that Tianshou uses, whose global
            one is left alone.
        settings: Tianshou's.
    """

    def __init__(self, *, shuffle: np.random.RandomState, **settings: Any) -> None:
        super().__init__(**settings)
        self._shuffle = shuffle

    @staticmethod
    def compute_episodic_return(  # pyright: ignore[reportIncompatibleMethodOverride]  no defaults
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
        last = np.flatnonzero(batch.done)
        length = np.diff(last, prepend=-1)
        ahead = np.where(batch.done, 0.0, gamma * v_s_.ravel())
        advantage = batch.rew + ahead - v_s.ravel()
        for back in range(1, int(length.max(initial=1))):
            row = last[length > back] - back
            advantage[row] += gamma * gae_lambda * advantage[row + 1]
        return advantage + v_s.ravel(), advantage

    def _update_with_batch(
        self, batch: Any, batch_size: int | None, repeat: int
    ) -> A2CTrainingStats:
        """Gradient steps on random parts of `batch`, all of it `repeat` times (arXiv:1707.06347).

        Tianshou's update as `build_algorithm` configures it: the same parts, the same losses, the
        same weights but for rounding. Tianshou's own calls the trunk once for each head, draws
        actions that nobody takes, and cuts whole batches where a few tensors do.
        """
        states, actions = torch.as_tensor(batch.obs), batch.act.long()
        columns = states, actions, batch.logp_old, batch.adv, batch.returns
        size, weights = batch_size or len(batch), torch.tensor([1.0, self.vf_coef, -self.ent_coef])
        made = []
        for _ in range(repeat):
            order = self._shuffle.permutation(len(batch))
            for part in np.split(order, np.arange(1, len(batch) // size) * size):
                row = torch.from_numpy(part)
                terms = self._terms(*(column[row] for column in columns))
                self.optim.step(terms @ weights)
                made.append(terms.detach())
        losses = torch.stack(made)
        told = [SequenceSummaryStats.from_sequence(term) for term in losses.T.numpy()]
        loss = SequenceSummaryStats.from_sequence((losses @ weights).numpy())
        return A2CTrainingStats(
            loss=loss,
            actor_loss=told[0],
            vf_loss=told[1],
            ent_loss=told[2],
            gradient_steps=len(made),
        )

    def _terms(
        self, state: Tensor, action: Tensor, log_prob: Tensor, advantage: Tensor, returns: Tensor
    ) -> Tensor:
        """float32[3]: clipped surrogate, value loss and entropy, each its mean over the rows."""
        trunk = cast(SharedTrunk, self.policy.actor.trunk)
        features, legal = trunk(state)
        log_policy = torch.log_softmax(trunk.router.logits(features, legal), dim=1)
        ratio = (log_policy.gather(1, action[:, None])[:, 0] - log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + self._eps)
        clipped = ratio.clamp(1 - self.eps_clip, 1 + self.eps_clip)
        surrogate = torch.min(ratio * advantage, clipped * advantage)
        error = returns - trunk.router.value(features)[:, 0]
        entropy = -(log_policy.exp() * log_policy).sum(dim=1)
        return torch.stack([-surrogate.mean(), error.square().mean(), entropy.mean()])


class AdamFactory(OptimizerFactory):  # type: ignore[misc]
    """Adam of `optimiser`, as Tianshou asks for it."""

    def __init__(self, config: PPOConfig, steps: int) -> None:
        super().__init__()
        self.config = config
        self.steps = steps

    def _create_optimizer_for_params(self, params: ParamsType) -> torch.optim.Optimizer:
        return loop.make_adam(cast(Iterable[nn.Parameter], params), self.config, self.steps)


def build_algorithm(
    trunk: SharedTrunk, config: PPOConfig, steps: int, shuffle: np.random.RandomState
) -> EpisodePPO:
    """PPO for the trunk's router with the numbers of `config`, over `steps` gradient steps.

    Args:
        shuffle: see `EpisodePPO`.
    """
    policy = RouterPolicy(
        actor=cast(Any, Actor(trunk)),  # it has what Tianshou calls, but not its base class
        action_space=Discrete(trunk.router.shape.actions),
        dist_fn=lambda logits: Categorical(logits=logits, validate_args=False),
    )
    return EpisodePPO(
        shuffle=shuffle,
        policy=policy,
        critic=Critic(trunk),
        optim=AdamFactory(config, steps),
        eps_clip=config.clip,
        vf_coef=config.value_coefficient,
        ent_coef=config.entropy_coefficient,
        max_grad_norm=config.max_grad_norm,
        gae_lambda=config.gae_lambda,
        gamma=config.gamma,
        max_batchsize=LARGEST_BATCH,
    )


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
        fold: loop.TrainingFold,
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
        config, algorithm = self._config, self._algorithm
        for _ in range(config.iterations):
            self._seen.begin()
            query = self._queries.draw(config.rollouts)
            buffer = to_buffer(walk(self._fold.actions, self._reward, query, self._act))
            done = loop.steps_made(self._adam) / self._steps
            start, end = config.entropy_coefficient, config.entropy_end
            algorithm.ent_coef = (1 - done) * start + done * end
            minibatch = max(2, len(buffer) // config.minibatches)
            with policy_within_training_step(algorithm.policy):
                algorithm.update(buffer, minibatch, config.update_epochs)

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
            **{f"adam.{name}": value for name, value in loop.adam_tensors(self._adam).items()},
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
        loop.restore_adam(self._adam, loop.part_of(tensors, "adam"))
        self._queries.waiting = tensors["queries.waiting"].numpy()
        held = {"key": tensors["random.numpy"].numpy(), "pos": counters["numpy.position"]}
        self._shuffle.set_state({**self._shuffle.get_state(legacy=False), "state": held})
        self._rng.bit_generator.state = counters["random"]

    @property
    def _adam(self) -> torch.optim.Adam:
        adam = self._algorithm.optim._optim
        assert isinstance(adam, torch.optim.Adam)
        return adam

"""PPO on the replayed tree (paper appendix B): our rollouts, Tianshou's update.

The path of one epoch, in the order of this file:

1. Rollout: `TreeCollector` plays whole episodes, all at the same time, so that a hop of all of
   them is one forward pass. `to_buffer` puts their transitions into Tianshou's buffer, where an
   observation is the number of a state and not its vectors.
2. Network: `Trunk`, `Actor` and `Critic` give the paper's router the signatures that Tianshou
   calls. `NoisyTable` looks the states up by number and adds the noise of the training.
3. Advantage and loss: Tianshou's own. `PPO._preprocess_batch` evaluates the buffer once and
   computes generalised advantages (`compute_episodic_return`); if the settings ask for exact ones,
   `TreePPO` reads them off the tree instead. `PPO._update_with_batch` cuts the buffer into
   mini-batches and makes a gradient step on each: clipped ratio, plus value loss, less entropy
   bonus. `build_ppo` sets all coefficients of the loss. Advantages are normalised within each
   mini-batch, which is Tianshou's default (`advantage_normalization=True`).
4. Loop: `PPOLearner.epoch` alternates between rollouts and updates; before the first one it may
   learn by enumeration (a warm start). `network.best_iterate` calls it epoch after epoch, evaluates
   the greedy policy exactly, and keeps the best weights.

In Tianshou's terms, an iteration is one training step (a collection step and an update step), an
epoch is `iterations` of them, and `update_epochs` is the number of repetitions of an update step.

Not covered: the network itself and the optimiser's schedule; both are in `network`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from tianshou.algorithm.algorithm_base import TrainingStats
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import OptimizerFactory, ParamsType
from tianshou.data import Batch, CollectStats, ReplayBuffer, to_numpy
from tianshou.data.collector import BaseCollector
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.evaluation.outcome import Actions, Draws, LegalActions, ending_reward, has_holes
from hierrouter.learning.config import EXACT_ADVANTAGES, ExactConfig, NetworkConfig, PPOConfig
from hierrouter.learning.exact import ExactLearner, action_values, one_row, rows_of
from hierrouter.learning.forward import forced_probabilities
from hierrouter.learning.network import (
    LearnerState,
    RouterNetwork,
    States,
    StateTable,
    TrainingFold,
    add_noise,
    evaluate_in_chunks,
    make_adam,
    mean_by_name,
    optimiser_state,
    restore_optimiser,
    steps_taken,
)
from hierrouter.replay.env import EndingRewards, QueryStream, ReplayVectorEnv, Rollouts, walk
from hierrouter_cache.tree import RouteTree

DEFAULT_BUFFER_SIZE = 65_536  # transitions of the buffer that a collector makes by default
MAX_ROWS_PER_PASS = 65_536  # rows that Tianshou evaluates at once before an update
MAX_TREE_STATES = 131_072  # states that exact advantages read in an iteration, at most
WARM_UP_STEPS = 100  # gradient steps of an epoch of a warm start, at most
WARM_UP_STATES = 2_048  # states of such a gradient step, at most; one query is always read
# Names in Tianshou's statistics of an update that are no column of a learning curve: counts, which
# are the same each time, and columns of ours.
NO_COLUMNS = ("gradient_steps", "epoch", "train", "validation")

# ------------------------------------------------------------------------------------- 1. Rollout


def to_buffer(rollouts: Rollouts) -> ReplayBuffer:
    """Put all transitions of some episodes into a buffer, episode after episode.

    `obs_next` of a last hop is state 0: an episode that has terminated has no next state, and
    Tianshou masks its value.
    """
    alive = rollouts.alive
    next_state = np.zeros_like(rollouts.state)
    next_state[:, :-1] = rollouts.state[:, 1:]
    terminated = rollouts.last[alive]
    return ReplayBuffer.from_data(
        obs=rollouts.state[alive],
        act=rollouts.action[alive],
        rew=rollouts.reward[alive],
        terminated=terminated,
        truncated=np.zeros(len(terminated), dtype=bool),
        done=terminated,
        obs_next=next_state[alive],
    )


class SizedVectorEnv(ReplayVectorEnv):
    """A vector environment with a length: Tianshou asks for the number of environments that way."""

    def __len__(self) -> int:
        return self.num_envs


class MonotonicCollectStats(CollectStats):  # type: ignore[misc]
    """Statistics of a collection that accept a clock that was set back meanwhile."""

    def set_collect_time(self, collect_time: float, update_collect_speed: bool = True) -> None:
        """Set the duration, in seconds, to a number above 0.

        Tianshou refuses a negative one, and would end the training.
        """
        super().set_collect_time(max(collect_time, 1e-9), update_collect_speed)


class TreeCollector(BaseCollector[CollectStats]):  # type: ignore[misc]
    """Tianshou's collector interface on a replayed tree: whole episodes, played together.

    A collection takes at most L forward passes of the policy, L + 1 with return, however many
    episodes it has. The policy observes the numbers of states, int64[n], as in `ReplayVectorEnv`.
    If a number of steps is asked for, episodes are played until there are enough; none is cut. If
    queries lack nodes, most states of a log have one legal action: there the policy is not asked,
    and of these only the first state of an episode is a step.

    Args:
        policy: Tianshou's algorithm or policy that chooses the actions.
        tree: the queries to play on.
        alpha: reward lost per unit of cost; with `reward` it has no effect.
        allow_stop: whether an episode may end before L calls.
        buffer: a plain `ReplayBuffer` for the transitions; by default a new one.
        seed: seed of the order of the queries, of random actions and of the draws of calls; or the
            generator itself. No query is drawn twice before all have been drawn once.
        draw: function from n to int64[n], the queries of the next n episodes, instead of that
            order; a test collector takes `np.arange`, and as many episodes as there are queries.
        reward: float64[queries, endings], reward of an episode with this ending. By default
            R = Q - alpha * C; `hierrouter train` passes rewards that are standardised.
    """

    def __init__(
        self,
        policy: Any,
        tree: RouteTree,
        alpha: float,
        allow_stop: bool = False,
        *,
        buffer: ReplayBuffer | None = None,
        seed: int | np.random.Generator = 0,
        draw: Callable[[int], NDArray[np.int64]] | None = None,
        reward: EndingRewards | None = None,
    ) -> None:
        # Tianshou's base class only reads the spaces and the length of this environment. It is
        # never stepped, so its own rewards are not used.
        env = SizedVectorEnv(tree, alpha, 1, allow_stop)
        super().__init__(
            policy, cast(Any, env), ReplayBuffer(DEFAULT_BUFFER_SIZE) if buffer is None else buffer
        )
        self.tree = tree
        self.actions = env.actions
        self._rng = np.random.default_rng(seed)
        self._legal = LegalActions.of(tree, self.actions)
        self._skips = has_holes(tree)
        self._draws = Draws.of(tree, self._rng)
        self._draw = QueryStream(len(tree), self._rng).draw if draw is None else draw
        self._reward: EndingRewards = ending_reward(tree, alpha) if reward is None else reward

    @torch.no_grad()
    def _collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        random: bool = False,
        render: float | None = None,
        gym_reset_kwargs: dict[str, Any] | None = None,
    ) -> CollectStats:
        """Play episodes and store their transitions: what Tianshou's `collect` calls.

        Args:
            n_step: transitions to make, at least; not cut to this number.
            n_episode: episodes to play, instead of `n_step`.
            random: draw legal actions at random instead of asking the policy.
            render: not used; there is nothing to render.
            gym_reset_kwargs: not used.
        """
        act = self._act_at_random if random else self._act
        max_length = self.actions.steps
        episodes_due = n_episode or -(-(n_step or 0) // max_length)
        returns = [np.zeros(0)]
        lengths = [np.zeros(0, dtype=np.int64)]
        while episodes_due > 0:
            query = self._draw(episodes_due)
            rollouts = walk(self.actions, self._reward, query, act, self._draws)
            if self._skips:
                choosing = self._has_choice(rollouts.state.ravel()).reshape(rollouts.state.shape)
                rollouts = rollouts.only(choosing & rollouts.alive)
            self.buffer.update(to_buffer(rollouts))
            returns.append(rollouts.reward.sum(axis=1))
            lengths.append(rollouts.length)
            if n_step is None:
                break
            # Episodes that end early leave steps to make; further episodes make them.
            steps_due = n_step - sum(int(length.sum()) for length in lengths)
            episodes_due = -(-steps_due // max_length)
        all_returns = np.concatenate(returns)
        all_lengths = np.concatenate(lengths)
        steps = int(all_lengths.sum())
        episodes = len(all_lengths)
        self.collect_step += steps
        self.collect_episode += episodes
        return MonotonicCollectStats.with_autogenerated_stats(
            all_returns, all_lengths, episodes, steps
        )

    def _act(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: actions of the policy at these states, int64[n]."""
        if not self._skips:
            output: Any = self.policy(Batch(obs=state, info=Batch()))
            return cast(NDArray[np.int64], to_numpy(output.act))
        action = self.legal_at(state).argmax(axis=1)
        chosen = self._has_choice(state)
        if chosen.any():
            output = self.policy(Batch(obs=state[chosen], info=Batch()))
            action[chosen] = to_numpy(output.act)
        return action

    def _has_choice(self, state: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n]: which states, int64[n], have a choice; the first of each episode counts."""
        is_first = state % self.actions.states == 0
        has_choice: NDArray[np.bool_] = is_first | (self.legal_at(state).sum(axis=1) > 1)
        return has_choice

    def _act_at_random(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: legal actions at these states, int64[n], all equally likely."""
        legal = self.legal_at(state)
        scores = legal * self._rng.random(legal.shape)
        return scores.argmax(axis=1)

    def legal_at(self, state: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n, A]: which actions may be chosen at these states, int64[n]."""
        query, node = np.divmod(state, self.actions.states)
        return self._legal.at(query % len(self.tree), node)


# ------------------------------------------------------------------------------------- 2. Network


class NoisyTable:
    """The states as PPO looks them up: with noise on the embedding of each visited state.

    Noise is drawn when a state is visited and stays until it is visited again: rollouts and the
    updates on them read the same numbers, because PPO's ratio compares policies on the same input.

    Args:
        table: the states without noise.
        length: expected length of the noise vector; 0 adds none.
        rng: source of the noise.
    """

    def __init__(self, table: StateTable, length: float, rng: np.random.Generator) -> None:
        self._table = table
        self._length = length
        self._rng = rng
        # Where the noisy embedding of each state is, among the rows of all visits of an iteration.
        self._visit_row = torch.zeros(len(table), dtype=torch.int64)
        self._visits: list[Tensor] = []

    def begin(self) -> None:
        """Forget the noise of all visits: a new iteration begins."""
        self._visits = []

    def visit(self, state: Tensor) -> States:
        """The rows of some states, int64[n], with new noise."""
        if not self._length:
            return self._table.rows(state)
        earlier_rows = sum(len(rows) for rows in self._visits)
        distinct = torch.unique(state)
        embedding = self._table.embedding(distinct)
        self._visits.append(add_noise(embedding, self._length, self._rng, self._table.numbers))
        self._visit_row[distinct] = torch.arange(earlier_rows, earlier_rows + len(distinct))
        return self.rows(state)

    def rows(self, state: Tensor) -> States:
        """The rows of some visited states, int64[n], with the noise of their last visit."""
        table = self._table
        if not self._length:
            return table.rows(state)
        if len(self._visits) > 1:
            self._visits = [torch.cat(self._visits)]
        embedding = self._visits[0][self._visit_row[state]]
        return States(embedding, *table.without_embedding(state))


class Trunk(nn.Module):
    """The layers that actor and critic share: features of states by number.

    Tianshou's updates ask the actor and then the critic, with the same array. The actor's features
    are kept for that question of the critic and for no other: fused Adam changes weights without
    changing `Tensor._version`, so features that are kept longer could be stale unnoticed.

    Args:
        router: the network that is trained.
        look_up: function from numbers of states, int64[n], to their rows.
    """

    def __init__(self, router: RouterNetwork, look_up: Callable[[Tensor], States]) -> None:
        super().__init__()
        self.router = router
        self.look_up = look_up
        # The actor's array, whether it recorded gradients, and its features and legality.
        self._for_critic: tuple[object, bool, tuple[Tensor, Tensor]] | None = None

    def forward(self, obs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Compute the features of some states.

        Args:
            obs: int64[n], numbers of the states.

        Returns:
            Features float32[n, hidden] and legality bool[n, A].
        """
        states = self.look_up(torch.as_tensor(obs))
        return self.router.features(states), states.legal

    def keep_for_critic(self, obs: object, output: tuple[Tensor, Tensor]) -> None:
        """Keep what `forward` returned for `obs`: the critic asks for it next."""
        self._for_critic = (obs, torch.is_grad_enabled(), output)

    def critic_features(self, obs: NDArray[np.int64]) -> Tensor:
        """float32[n, hidden]: the features that were kept for `obs`, else computed."""
        stored = self._for_critic
        self._for_critic = None
        if stored and stored[0] is obs and stored[1] == torch.is_grad_enabled():
            output = stored[2]
        else:
            output = self(obs)
        return output[0]


class Actor(nn.Module):
    """State numbers to logits, with Tianshou's signature."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(
        self, obs: NDArray[np.int64], state: Any = None, info: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits float32[n, A], and `state` as it came.

        They are not probabilities, so `build_ppo` makes the distribution from logits.

        Args:
            obs: int64[n], numbers of states.
            state: hidden state of a recurrent network; there is none.
            info: not used.

        Raises:
            FloatingPointError: the logits are not finite.
        """
        output = self.trunk(obs)
        self.trunk.keep_for_critic(obs, output)
        logits = self.trunk.router.logits(*output)
        if not logits.detach().sum().isfinite():  # Tianshou's own error would name no cause
            raise FloatingPointError("logits are not finite")
        return logits, state


class Critic(nn.Module):
    """State numbers to values, with Tianshou's signature."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, obs: NDArray[np.int64]) -> Tensor:
        """float32[n, 1]: values of states, int64[n]."""
        return self.trunk.router.value(self.trunk.critic_features(obs))


# -------------------------------------------------------------------------- 3. Advantage and loss


class ActorPolicy(DiscreteActorPolicy):  # type: ignore[misc]
    """Tianshou's categorical policy, made without starting its compiler, which takes seconds."""

    @staticmethod
    def _compile() -> None:
        """Compile nothing: see `without_compiler`."""


def without_compiler(function: Any) -> Any:
    """Copy a function of Tianshou such that it runs its compiled loops as plain Python.

    On the short episodes here that takes about a millisecond an update, and compiling takes longer
    than a training. Nothing else in the process changes: the copy has the same code, but finds the
    Python source of each compiled loop under the loop's name.
    """
    plain_loops = {}
    for name in function.__code__.co_names:
        if name in function.__globals__:
            value = function.__globals__[name]
            plain_loops[name] = getattr(value, "py_func", value)
    return FunctionType(
        function.__code__,
        {**function.__globals__, **plain_loops},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


class AdamFactory(OptimizerFactory):  # type: ignore[misc]
    """The optimiser of `make_adam`, in the form that Tianshou takes.

    Attributes:
        adam: the optimiser it made last, whose steps the learner counts.
    """

    adam: torch.optim.Adam

    def __init__(self, config: NetworkConfig, steps: int) -> None:
        """Prepare an optimiser for a training of `steps` gradient steps."""
        super().__init__()
        self.config = config
        self.steps = steps

    def _create_optimizer_for_params(self, params: ParamsType) -> torch.optim.Optimizer:
        self.adam = make_adam(cast(Iterable[nn.Parameter], params), self.config, self.steps)
        return self.adam


@dataclass(frozen=True)
class PolicyOnTrees:
    """A policy on the trees of some queries, with the rewards of their episodes.

    Attributes:
        actions: what may be chosen.
        policy: float32[queries, S, A].
        reward: float32[queries, endings].
        weight: float32[queries, nodes], see `action_values`.
    """

    actions: Actions
    policy: Tensor
    reward: Tensor
    weight: Tensor | None

    def of(self, position: NDArray[np.int64], action: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Compute advantages and values, float32[n] each; see `TreeAdvantages.of`.

        Args:
            position: int64[n], positions among all states of all queries.
            action: int64[n].
        """
        values = action_values(self.actions, self.policy, self.reward, self.weight)
        value = (self.policy * values).sum(dim=2).ravel()[position]
        return values.flatten(0, 1)[position, action] - value, value


class TreeAdvantages:
    """The exact values of actions under the present policy, from the trees of visited queries.

    Every answer of a tree is known, so nothing has to be estimated: the value of an action is the
    expected reward after it, over all endings.

    Args:
        router: the policy; it reads states without noise.
        fold: the queries.
        reward: float64[queries, endings], reward of an episode with each ending.
    """

    def __init__(self, router: RouterNetwork, fold: TrainingFold, reward: EndingRewards) -> None:
        self._router = router
        self._fold = fold
        self._reward = reward

    @torch.no_grad()
    def of(self, state: NDArray[np.int64], action: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Compute advantages of actions, Q(s, a) - V(s), and values of their states, V(s).

        Args:
            state: int64[n], numbers of states.
            action: int64[n], an action at each.

        Returns:
            float32[n] each, in units of the reward.
        """
        states = self._fold.actions.states
        query, row = np.unique(state // states, return_inverse=True)
        if self._fold.has_holes:
            part, position = self._of_forest(query, state)
        else:
            part, position = self._of_trees(query), row * states + state % states
        return part.of(position, action)

    def _of_trees(self, query: NDArray[np.int64]) -> PolicyOnTrees:
        """The policy on the trees of some queries, int64[n]."""
        fold = self._fold
        actions = fold.actions
        state = query[:, None] * actions.states + np.arange(actions.states)
        return PolicyOnTrees(
            actions=actions,
            policy=self._policy(state.ravel()).reshape(len(query), actions.states, -1),
            reward=torch.from_numpy(self._reward[query].astype(np.float32)),
            weight=rows_of(fold.tree.weight, query % len(fold.tree)),
        )

    def _of_forest(
        self, query: NDArray[np.int64], state: NDArray[np.int64]
    ) -> tuple[PolicyOnTrees, NDArray[np.int64]]:
        """The policy on the nodes that some queries have, and the positions of some states there.

        Args:
            query: int64[queries].
            state: int64[n], numbers of states.

        Returns:
            The policy on one tree, see `Forest`, and int64[n].
        """
        forest = self._fold.forest(query)
        probabilities, chosen = forced_probabilities(forest.legal)
        policy = one_row(probabilities)
        policy[0, torch.from_numpy(chosen)] = self._policy(forest.state[chosen])
        numbers = forest.state[1 : policy.shape[1]]  # the first state is the draw of a query
        order = np.argsort(numbers)
        part = PolicyOnTrees(
            actions=forest.actions,
            policy=policy,
            reward=one_row(forest.rewards(self._reward)),
            weight=one_row(forest.weight),
        )
        return part, 1 + order[np.searchsorted(numbers, state, sorter=order)]

    def _policy(self, state: NDArray[np.int64]) -> Tensor:
        """float32[n, A]: the policy at some states, int64[n]."""
        logits = evaluate_in_chunks(
            lambda states: self._router(states)[0], self._fold.table, torch.from_numpy(state)
        )
        return torch.softmax(logits, dim=1)


class TreePPO(PPO):  # type: ignore[misc]
    """Tianshou's PPO with exact advantages in place of estimated ones; the update is Tianshou's.

    Attributes:
        tree_advantages: computes them.
    """

    tree_advantages: TreeAdvantages

    def _add_returns_and_advantages(self, batch: Any, buffer: Any, indices: Any) -> Any:
        """Add what Tianshou's method of this name adds: `adv`, `returns` and `v_s`, float32[n].

        Args:
            batch: the transitions of all rollouts.
            buffer: not used.
            indices: not used.
        """
        batch.adv, batch.returns = self.tree_advantages.of(batch.obs, batch.act)
        batch.v_s = batch.returns
        return batch


def build_ppo(
    trunk: Trunk,
    config: PPOConfig,
    optim: AdamFactory,
    tree_advantages: TreeAdvantages | None = None,
) -> Any:
    """Tianshou's PPO on a router; advantage, loss and gradient step are Tianshou's own code.

    Args:
        trunk: the router, and how it looks up states.
        config: coefficients of the loss and of the advantage.
        optim: makes the optimiser.
        tree_advantages: computes the advantages; None has Tianshou estimate them.
    """
    actor: Any = Actor(trunk)  # it has what Tianshou calls, but not Tianshou's base class
    algorithm: Any = (TreePPO if tree_advantages else PPO)(
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
        max_batchsize=MAX_ROWS_PER_PASS,
    )
    algorithm.compute_episodic_return = without_compiler(PPO.compute_episodic_return)
    if tree_advantages:
        algorithm.tree_advantages = tree_advantages
    return algorithm


# ---------------------------------------------------------------------------------------- 4. Loop


def iteration_statistics(collected: CollectStats, updated: TrainingStats) -> dict[str, float]:
    """Describe an iteration of rollouts and updates by numbers, for the learning curve.

    Args:
        collected: Tianshou's statistics of the rollouts.
        updated: Tianshou's statistics of the update.

    Returns:
        `episode_reward` (mean reward of the sampled episodes, as the training sees it),
        `episode_length`, and the losses of the algorithm under Tianshou's names.
    """
    statistics = {}
    for name, summary in (
        ("episode_reward", collected.returns_stat),
        ("episode_length", collected.lens_stat),
    ):
        if summary is not None:
            statistics[name] = float(summary.mean)
    for name, value in updated.get_loss_stats_dict().items():
        is_column = name.isascii() and name.isidentifier() and name not in NO_COLUMNS
        if is_column and isinstance(value, int | float):
            statistics[name] = float(value)
    return statistics


class PPOLearner:
    """Learns the paper's router for one alpha from sampled episodes.

    An epoch is `config.iterations` iterations of rollouts and updates. Tianshou draws actions from
    torch's global generator and mini-batches from numpy's; `network.reproducible` seeds both.

    Args:
        router: trained in place.
        fold: the fold to learn from.
        alpha: reward lost per unit of cost.
        config: the settings.
        rng: source of the order of the queries and of the noise.

    Attributes:
        algorithm: Tianshou's PPO.
        collector: plays the episodes.
    """

    def __init__(
        self,
        router: RouterNetwork,
        fold: TrainingFold,
        alpha: float,
        config: PPOConfig,
        rng: np.random.Generator,
    ) -> None:
        self.router = router
        self._config = config
        self._rng = rng
        self._fold = fold
        self._alpha = alpha
        self._queries = QueryStream(fold.queries, rng)
        self._states = NoisyTable(fold.table, config.embedding_noise, rng)
        self._trunk = Trunk(router, self._states.visit)
        steps_per_iteration = config.update_epochs * config.minibatches
        self._total_steps = config.epochs * config.iterations * steps_per_iteration
        self._optim = AdamFactory(config, self._total_steps)
        reward = fold.episode_reward(alpha, config.standardise_reward)
        is_exact = config.advantages == EXACT_ADVANTAGES
        tree_advantages = TreeAdvantages(router, fold, reward) if is_exact else None
        self.algorithm = build_ppo(self._trunk, config, self._optim, tree_advantages)
        self.collector = TreeCollector(
            self.algorithm,
            fold.tree,
            alpha,
            fold.actions.allow_stop,
            seed=rng,
            buffer=ReplayBuffer(config.rollouts * fold.actions.steps),
            draw=self._draw,
            reward=reward,
        )

    def _draw(self, episodes: int) -> NDArray[np.int64]:
        """int64[episodes]: the queries of the next episodes.

        Exact advantages read every state of each query. Where queries have many states, there are
        fewer of them, with several episodes on each.
        """
        queries = episodes
        if self._config.advantages == EXACT_ADVANTAGES:
            queries = min(episodes, max(1, int(MAX_TREE_STATES / self._states_per_query)))
        return np.resize(self._queries.draw(queries), episodes)

    @cached_property
    def _states_per_query(self) -> float:
        """The mean number of states that a query has, at least 1."""
        states = self._fold.presence[:, : self._fold.actions.states] > 0
        return max(float(states.sum(axis=1).mean()), 1.0)

    def epoch(self) -> dict[str, float]:
        """Collect and update `config.iterations` times.

        Returns:
            See `iteration_statistics`; means over the iterations.

        Raises:
            FloatingPointError: logits are not finite.
        """
        if not steps_taken(self._optim.adam):
            self._warm_up()
        iterations = []
        for _ in range(self._config.iterations):
            self._states.begin()
            # Inside this context Tianshou's policy draws actions instead of taking the likeliest.
            with policy_within_training_step(self.algorithm.policy):
                self._trunk.look_up = self._states.visit
                collected = self.collector.collect(n_episode=self._config.rollouts)
                # Updates read states with the noise that the rollouts saw.
                self._trunk.look_up = self._states.rows
                iterations.append(iteration_statistics(collected, self._update()))
        return mean_by_name(iterations)

    def _warm_up(self) -> None:
        """Learn by enumeration for as many epochs as the settings say, see `exact`.

        On many queries, or on trees of many states, an epoch is shorter than one of `exact`.
        """
        config = self._config
        if not config.warm_start:
            return
        enumeration = ExactConfig(
            epochs=config.warm_start,
            adam_eps=config.adam_eps,
            embedding_noise=config.embedding_noise,
            standardise_reward=config.standardise_reward,
        )
        fitting = int(WARM_UP_STATES / self._states_per_query)
        enumeration = replace(enumeration, queries=min(max(fitting, 1), enumeration.queries))
        learner = ExactLearner(self.router, self._fold, self._alpha, enumeration, self._rng)
        for _ in range(config.warm_start):
            learner.epoch(WARM_UP_STEPS)

    def _update(self) -> TrainingStats:
        """Update on the collected transitions, and empty the buffer; return what Tianshou says."""
        config = self._config
        buffer = self.collector.buffer
        progress = steps_taken(self._optim.adam) / self._total_steps
        start = config.entropy_coefficient
        self.algorithm.ent_coef = (1 - progress) * start + progress * config.entropy_end
        # A mini-batch of one row has no standard deviation, by which advantages are divided.
        minibatch_size = max(2, len(buffer) // config.minibatches)
        updated: TrainingStats = self.algorithm.update(buffer, minibatch_size, config.update_epochs)
        self.collector.reset_buffer()
        return updated

    def state(self) -> LearnerState:
        """Return a copy of the state between two epochs.

        It has the optimiser, the generator, the queries that wait to be drawn, and the collector's
        counts. Noise and buffer are not part of it: each iteration begins with empty ones.
        """
        state = optimiser_state(self._optim.adam, self._rng)
        state.arrays["waiting_queries"] = self._queries.waiting.copy()
        state.values["collect_step"] = self.collector.collect_step
        state.values["collect_episode"] = self.collector.collect_episode
        return state

    def restore(self, state: LearnerState) -> None:
        """Put back what `state` returned, so that the next epoch is the same one.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of this learner.
        """
        waiting = state.arrays["waiting_queries"]
        if waiting.dtype != np.int64 or waiting.ndim != 1:
            raise TypeError("positions of queries are int64[n]")
        if not np.isin(waiting, np.arange(self._fold.queries)).all():
            raise ValueError("positions of queries that are not there")
        restore_optimiser(self._optim.adam, self._rng, state)
        self._queries.waiting = waiting.copy()
        self.collector.collect_step = int(state.values["collect_step"])
        self.collector.collect_episode = int(state.values["collect_episode"])

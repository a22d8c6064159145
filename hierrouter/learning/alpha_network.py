"""One network for many alphas, trained by PPO or by enumeration in one go.

Response and cost of a call do not depend on alpha, so alpha is treated as a part of the query.
`AlphaFold` has every query of a fold once for each alpha, with the reward at that alpha, and the
learners of `ppo` and `exact` play on it as on any fold. Nothing is copied for that: states and
rewards of an alpha are looked up in the fold itself. `AlphaNetwork` reads text, route and cost
with the same weights at every alpha; each alpha shifts and scales the outputs of both layers.
`AlphaNetwork.at` writes that into the weights of a plain router, so that what is kept is a network
for each alpha, with the weights that were best for it on validation.

A state has the number of the state of its query, after those of all smaller alphas: number =
(alpha's number * queries + query) * S + node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.evaluation.outcome import ending_values, from_endings, from_nodes, greedy
from hierrouter.learning.config import (
    NetworkConfig,
    Objective,
    OnEpoch,
    OnEvaluation,
    evaluated_epochs,
    ignore_evaluation,
)
from hierrouter.learning.forward import NetworkGrid, RouterShape, TrainedNetwork, sweep_rows
from hierrouter.learning.network import (
    Learner,
    RouterNetwork,
    States,
    TrainingFold,
    action_probabilities,
    fold_pair,
    present_state,
    reproducible,
    restore_present,
    run_epoch,
    shape_for,
    unfit_state,
)
from hierrouter.learning.resumption import Array, Resumption, TrainingState, prefix, select
from hierrouter.learning.training import learner_class
from hierrouter.replay.env import walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

# Called with the state of a checkpoint and the networks with the weights of its epoch.
OnGridCheckpoint = Callable[[TrainingState, NetworkGrid], None]

# The effect of an alpha on both layers: a shift before the nonlinearity, and a gain after it.
MODULATIONS = ("first_shift", "first_gain", "second_shift", "second_gain")


# Share of the training after which weights are chosen. Sixteen alphas have as many chances that an
# early network is good by luck on a small validation fold.
CHOSEN_AFTER = 0.75


class AlphaNetwork(RouterNetwork):
    """The paper's router for several alphas.

    The node of a state counts on from alpha to alpha: alpha's number * S + node. At the start all
    alphas do the same.

    Args:
        shape: of the router for one alpha.
        alphas: number of alphas.
    """

    def __init__(self, shape: RouterShape, alphas: int) -> None:
        super().__init__(shape)
        self.alphas = alphas
        self.modulation = nn.Embedding(alphas, len(MODULATIONS) * shape.hidden)
        nn.init.zeros_(self.modulation.weight)
        self._states = shape.states

    def features(self, states: States) -> Tensor:
        """float32[n, hidden]: the input of both heads."""
        alpha = states.node // self._states
        node = states.node - alpha * self._states
        shift, gain, second_shift, second_gain = self._modulations(self.modulation(alpha))
        first = torch.tanh(self.first(states._replace(node=node)) + shift) * (1 + gain)
        return torch.tanh(self.second(first) + second_shift) * (1 + second_gain)

    def _modulations(self, values: Tensor) -> tuple[Tensor, ...]:
        return torch.chunk(values, len(MODULATIONS), dim=-1)

    def at(self, number: int) -> dict[str, Tensor]:
        """The weights of the router for one alpha, as `RouterNetwork` names them.

        Args:
            number: of the alpha.
        """
        weights = {
            name: value.clone()
            for name, value in self.state_dict().items()
            if not name.startswith("modulation.")
        }
        shift, gain, second_shift, second_gain = self._modulations(
            self.modulation.weight.detach()[number]
        )
        weights["progress.bias"] += shift
        weights["second.weight"] *= 1 + gain
        weights["second.bias"] += second_shift
        weights["policy.weight"] *= 1 + second_gain
        weights["value.weight"] *= 1 + second_gain
        return weights


@dataclass(frozen=True)
class AlphaRewards:
    """The reward of an episode with each ending at each alpha, computed where it is looked up.

    It is indexed like float64[alphas * queries, endings]: by queries, int64[n], or by pairs of
    queries and endings. A table of all rewards would take as much memory as the tree for each
    alpha.

    Attributes:
        quality: float64[queries, endings].
        cost: float64[queries, endings], in money.
        alphas: float64[alphas].
        mean: float64[alphas, queries], what each reward is less.
        spread: float64[alphas], what it is divided by.
    """

    quality: NDArray[np.float64]
    cost: NDArray[np.float64]
    alphas: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    def __getitem__(self, index: Any, /) -> NDArray[np.float64]:
        """The rewards of some queries, float64[n, endings], or of some pairs, float64[n]."""
        is_pair = isinstance(index, tuple)
        query, ending = index if is_pair else (index[:, None], np.arange(self.quality.shape[1]))
        alpha, own = np.divmod(query, len(self.quality))
        reward = net_reward(self.quality[own, ending], self.cost[own, ending], self.alphas[alpha])
        return (reward - self.mean[alpha, own]) / self.spread[alpha]


@dataclass(frozen=True)
class AlphaFold(TrainingFold):
    """A fold with every query once for each alpha, see the module's docstring.

    Attributes:
        base: the fold itself.
        alphas: ascending.
    """

    base: TrainingFold
    alphas: tuple[float, ...]

    @classmethod
    def repeating(cls, base: TrainingFold, alphas: Sequence[float]) -> AlphaFold:
        """The fold `base`, repeated for each of `alphas`."""
        table = replace(base.table, copies=len(alphas))
        return cls(base.tree, base.actions, table, base, tuple(alphas))

    @property
    def queries(self) -> int:
        """Number of copies of queries."""
        return len(self.alphas) * len(self.tree)

    def episode_reward(self, alpha: float, standardise: bool) -> AlphaRewards:
        """The reward of an episode with each ending, see `TrainingFold.episode_reward`.

        Args:
            alpha: not used; each copy of a query has the reward at its own alpha.
            standardise: for each alpha alone.

        Returns:
            What is indexed like float64[alphas * queries, endings].
        """
        quality, _, cost = ending_values(self.tree)
        mean = np.zeros((len(self.alphas), len(self.tree)))
        spread = np.ones(len(self.alphas))
        if standardise:
            for number, own in enumerate(self.alphas):
                mean[number], spread[number] = self.base.reward_scale(own)
        return AlphaRewards(quality, cost, np.array(self.alphas), mean, spread)

    def greedy_means(
        self, router: RouterNetwork
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Exact mean Q and C of the greedy policy at each alpha.

        Returns:
            float64[alphas] each.
        """
        if self.has_holes:
            quality, _, cost = ending_values(self.tree)
            means = [
                self.greedy_means_of_present(router, [quality, cost], copy)
                for copy in range(len(self.alphas))
            ]
            return np.array(means).T[0], np.array(means).T[1]
        if self.tree.weight is None:
            endings = self._greedy_endings(router).reshape(len(self.alphas), -1)
            outcomes = [from_nodes(self.tree, ending, "", "router") for ending in endings]
        else:
            outcomes = [
                from_endings(self.tree, self.greedy_endings(router, copy), "", "router")
                for copy in range(len(self.alphas))
            ]
        qualities = np.array([outcome.quality.mean() for outcome in outcomes])
        return qualities, np.array([outcome.cost.mean() for outcome in outcomes])

    def _greedy_endings(self, router: RouterNetwork) -> NDArray[np.int64]:
        """int64[alphas * queries]: where the greedy policy ends on each copy of a query."""
        actions = self.actions
        states = actions.states

        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            probabilities = action_probabilities(router, self.table, torch.from_numpy(state))
            choice = greedy(probabilities, self.tree.base_rate, actions.returns)
            return choice.argmax(axis=1)

        queries = np.arange(self.queries)
        no_reward = np.broadcast_to(0.0, (len(queries), actions.width))
        rollouts = walk(actions, no_reward, queries, act)
        last = rollouts.length - 1
        last_node = rollouts.state[queries, last] % states
        _, ending, _ = actions.transition(last_node, rollouts.action[queries, last])
        return ending


@dataclass
class BestWeights:
    """For each alpha the weights that are best on validation; of equals the latest.

    Attributes:
        weights: float32[alphas, ...] by name, those of a router for each alpha.
        quality: float64[alphas], mean Q on validation.
        cost: float64[alphas], mean C there.
        rewards: float64[evaluations, alphas], R at each evaluation.
    """

    weights: dict[str, Tensor]
    quality: NDArray[np.float64]
    cost: NDArray[np.float64]
    rewards: NDArray[np.float64]

    @classmethod
    def before_training(cls, network: AlphaNetwork) -> BestWeights:
        """The weights at the start, which any evaluation replaces."""
        routers = [network.at(number) for number in range(network.alphas)]
        return cls(
            weights={
                name: torch.stack([router[name] for router in routers]) for name in routers[0]
            },
            quality=np.full(network.alphas, -np.inf),
            cost=np.zeros(network.alphas),
            rewards=np.empty((0, network.alphas)),
        )

    def offer(
        self,
        network: AlphaNetwork,
        alphas: NDArray[np.float64],
        quality: NDArray[np.float64],
        cost: NDArray[np.float64],
        is_late: bool = True,
    ) -> None:
        """Record R, and keep the weights for each alpha at which they are no worse.

        Args:
            network: as it is now.
            alphas: float64[alphas].
            quality: float64[alphas], mean Q on validation.
            cost: float64[alphas], mean C there.
            is_late: whether the weights can be kept, see `CHOSEN_AFTER`.
        """
        reward = quality - alphas * cost
        self.rewards = np.concatenate([self.rewards, reward[None]])
        if not is_late:
            return
        is_better = reward >= self.quality - alphas * self.cost
        for number in np.flatnonzero(is_better).tolist():
            for name, value in network.at(number).items():
                self.weights[name][number] = value
        self.quality = np.where(is_better, quality, self.quality)
        self.cost = np.where(is_better, cost, self.cost)

    @property
    def histories(self) -> tuple[tuple[float, ...], ...]:
        """For each alpha R at each evaluation."""
        return tuple(tuple(history) for history in self.rewards.T.tolist())

    def grid(self, shape: RouterShape) -> NetworkGrid:
        """The networks as they are used."""
        networks = []
        for number in range(len(self.quality)):
            weights = {name: value[number].numpy().copy() for name, value in self.weights.items()}
            networks.append(TrainedNetwork(shape, weights))
        return NetworkGrid(
            networks=tuple(networks),
            quality=tuple(self.quality.tolist()),
            cost=tuple(self.cost.tolist()),
            histories=self.histories,
        )


def fit_networks(
    trees: tuple[RouteTree, RouteTree],
    alphas: Sequence[float],
    objective: Objective,
    config: NetworkConfig,
    seed: int,
    on_epoch: OnEpoch,
    resumption: Resumption | None = None,
    on_evaluation: OnEvaluation = ignore_evaluation,
    on_checkpoint: OnGridCheckpoint = lambda state, grid: None,
) -> NetworkGrid:
    """Train one network for many alphas; return the best weights of its last quarter for each.

    They are the best on validation.

    Args:
        trees: to learn from, and to choose the weights on, see `training_folds`.
        alphas: ascending.
        objective: how an episode may end; its alpha is not used.
        config: the settings; its patience is not used.
        seed: of everything random.
        on_epoch: called after each evaluation with the mean of R over the alphas; R on the train
            fold is not computed, so it is NaN.
        resumption: how an interrupted training goes on; its own `on_checkpoint` is not called.
        on_evaluation: called with the learning curve, row after row, see `forward.sweep_rows`;
            of a training that goes on, first with the earlier rows.
        on_checkpoint: called after each epoch that is to have a checkpoint.

    Raises:
        InputError: the training diverged, or the state to go on from is not one of this training.
    """
    resumption = resumption or Resumption()
    learn_from, choose_on = fold_pair(trees, objective)
    prices = np.array(alphas)
    with reproducible(seed):
        shape = shape_for(learn_from.tree, learn_from.actions, config)
        network = AlphaNetwork(shape, len(alphas))
        network.standardise(learn_from.table)
        fold = AlphaFold.repeating(learn_from, alphas)
        chooser = fold if choose_on is learn_from else AlphaFold.repeating(choose_on, alphas)
        rng = np.random.default_rng(seed)
        learner = learner_class(config, None)(network, fold, objective.alpha, config, rng)
        best = BestWeights.before_training(network)
        epoch = 0
        if resumption.state:
            _restore(learner, best, resumption.state, config)
            epoch = resumption.state.epoch
            epochs = evaluated_epochs(config, len(best.rewards))
            for evaluated, row in zip(epochs, sweep_rows(alphas, best.histories), strict=True):
                on_evaluation(evaluated, row)

        def evaluate() -> None:
            means = chooser.greedy_means(network)
            best.offer(network, prices, *means, is_late=_is_late(epoch, config))
            [row] = sweep_rows(alphas, best.rewards[-1:].T.tolist())
            on_epoch(epoch, config.epochs, math.nan, row["validation"])
            on_evaluation(epoch, row)

        while epoch < config.epochs:
            epoch += 1
            run_epoch(learner, epoch)
            if epoch % config.evaluate_every == 0:
                evaluate()
            resumption.on_state(partial(_state, learner, best, epoch))
            if resumption.is_checkpoint(epoch):
                present = BestWeights.before_training(network)
                present.offer(network, prices, *chooser.greedy_means(network))
                grid = replace(present.grid(shape), histories=best.histories)
                on_checkpoint(_state(learner, best, epoch), grid)
        if epoch % config.evaluate_every:
            # The last epoch always counts, see `network.best_iterate`.
            evaluate()
    return best.grid(shape)


def _is_late(epoch: int, config: NetworkConfig) -> bool:
    """Whether weights after this epoch can be those that are kept."""
    return epoch > CHOSEN_AFTER * config.epochs


def _state(learner: Learner[RouterNetwork], best: BestWeights, epoch: int) -> TrainingState:
    """The state of a training after an epoch: network, learner, best weights and generators."""
    arrays, values = present_state(learner)
    # A copy, because `BestWeights.offer` writes into these weights.
    arrays |= prefix("best", {name: value.numpy().copy() for name, value in best.weights.items()})
    values["best"] = {
        "quality": best.quality.tolist(),
        "cost": best.cost.tolist(),
        "rewards": best.rewards.tolist(),
    }
    return TrainingState(epoch, arrays, values)


def _restore(
    learner: Learner[RouterNetwork], best: BestWeights, state: TrainingState, config: NetworkConfig
) -> None:
    """Put back everything that `_state` returned.

    Raises:
        InputError: it is not a state of this training.
    """
    try:
        if not 0 < state.epoch <= config.epochs:
            raise ValueError(f"epoch {state.epoch}")
        _restore_best(best, select(state.arrays, "best"), state.values["best"])
        if not _is_late(state.epoch, config):
            # In a longer training than the earlier one, those weights are not late any more.
            best.quality = np.full_like(best.quality, -np.inf)
        restore_present(learner, state)
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(unfit_state(state)) from error


def _restore_best(best: BestWeights, arrays: dict[str, Array], values: dict[str, Any]) -> None:
    """Put back the best weights so far; any error means that they are not of this training."""
    expected = {name: tuple(value.shape) for name, value in best.weights.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != expected or any(array.dtype != np.float32 for array in arrays.values()):
        raise ValueError("weights of another shape")
    alphas = len(best.quality)
    best.weights = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    best.quality = np.array(values["quality"], np.float64).reshape(alphas)
    best.cost = np.array(values["cost"], np.float64).reshape(alphas)
    best.rewards = np.array(values["rewards"], np.float64).reshape(-1, alphas)

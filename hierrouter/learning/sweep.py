"""Routers for many alphas: one network that is told alpha, sweeps, grids, and budgets."""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.evaluation.budget import policy_break_points, within
from hierrouter.evaluation.outcome import worth
from hierrouter.learning import loop
from hierrouter.learning.config import MAX_ALPHA, ExactConfig, Objective
from hierrouter.learning.exact import Enumeration
from hierrouter.learning.loop import Snapshot, TrainingFold, Watch
from hierrouter.learning.network import Committee, Router, RouterShape, States, shape_for
from hierrouter.learning.training import Constant, Origin, TrainedRouter
from hierrouter.paper import PAPER_ALPHA
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

WIDTH = 32  # of the layer that reads alpha
SCALES = 7  # alphas at which the inputs that tell alpha are halfway


class AlphaRouter(nn.Module):
    """The paper's router, with alpha as one more input.

    Alpha is told by `alpha / (alpha + scale)` for several scales: numbers in [0, 1] that resolve
    the range in which decisions change. They give a factor and a shift for each unit of the two
    layers, so at a fixed alpha this is a `Router` with other weights, see `at`.

    Args:
        shape: of the router.
        scales: float32[SCALES], alphas > 0, ascending.
    """

    scales: Tensor

    def __init__(self, shape: RouterShape, scales: Tensor) -> None:
        super().__init__()
        self.base = Router(shape)
        self.register_buffer("scales", scales)
        self.read = nn.Linear(len(scales), WIDTH)
        self.modulate = nn.Linear(WIDTH, 4 * shape.hidden)
        nn.init.normal_(self.modulate.weight, std=0.02)
        nn.init.zeros_(self.modulate.bias)

    def forward(self, states: States, alpha: Tensor) -> Tensor:
        """Logits of whole trees at several alphas each; what does not depend on alpha, once.

        `states`: the S states of one query after those of another, n = queries * S; `alpha`:
        float32[queries, K]. Returns float32[queries, K, S, A].
        """
        queries, alphas = alpha.shape
        rows = self._modulation(alpha.reshape(-1))
        factor, shift, factor2, shift2 = (row.reshape(queries, alphas, 1, -1) for row in rows)
        first = self.base.first(states).reshape(queries, 1, -1, self.base.shape.hidden)
        second = self.base.second(torch.tanh(first * factor + shift))
        features = torch.tanh(second * factor2 + shift2)
        legal = states.legal.reshape(queries, 1, -1, self.base.shape.actions)
        return self.base.logits(features, legal)

    def _modulation(self, alpha: Tensor) -> list[Tensor]:
        """Four of float32[n, hidden]: factor and shift of the first layer, of the second."""
        told = alpha[:, None] / (alpha[:, None] + self.scales)
        found = self.modulate(torch.tanh(self.read(told))).chunk(4, dim=1)
        return [found[0] + 1, found[1], found[2] + 1, found[3]]

    @torch.no_grad()
    def at(self, alpha: float) -> Router:
        """The router at one alpha: factors and shifts become part of its weights."""
        rows = self._modulation(torch.tensor([alpha], dtype=torch.float32))
        factor, shift, factor2, shift2 = (row[0] for row in rows)
        router = deepcopy(self.base)
        router.context.weight.mul_(factor[:, None])
        router.progress.weight.mul_(factor[:, None])
        router.progress.bias.mul_(factor).add_(shift)
        router.second.weight.mul_(factor2[:, None])
        router.second.bias.mul_(factor2).add_(shift2)
        return router.requires_grad_(False).eval()


def scales_of(break_points: NDArray[np.float64]) -> Tensor:
    """float32[SCALES]: quantiles of the alphas at which the oracle changes, see `hulls`."""
    if not len(break_points):
        return torch.ones(SCALES)
    spread = (np.arange(SCALES) + 0.5) / SCALES
    return torch.from_numpy(np.quantile(break_points, spread).astype(np.float32))


@dataclass(frozen=True)
class TrainedSweep:
    """A network for every alpha, and where it comes from.

    Attributes:
        networks: those that decide together, frozen.
        alphas: the grid on which the iterate was chosen, ascending.
        objective: what it was trained for, whatever its alpha.
        origin: where it comes from.
        history: mean over the grid of exact standardised R on validation, at each evaluation; of
            several networks, of each on the part of the queries that it has not seen.
        constants: for each alpha of the grid the choice that is made instead, see `TrainedRouter`;
            empty where nobody has looked.
    """

    networks: tuple[AlphaRouter, ...]
    alphas: tuple[float, ...]
    objective: Objective
    origin: Origin
    history: tuple[float, ...]
    constants: tuple[Constant | None, ...] = ()

    def at(self, alpha: float) -> TrainedRouter:
        """The router for one alpha >= 0; no training.

        Its history is empty: R at this alpha was not measured while the sweep was trained. Where
        the router at the nearest alpha of the grid showed no gain, the same choice is made here.
        Raises InputError: alpha is not finite, below 0 or too great for an `Objective`.
        """
        return TrainedRouter(
            router=Committee([network.at(alpha) for network in self.networks]),
            objective=replace(self.objective, alpha=alpha),
            origin=self.origin,
            history=(),
            constant=self.constants[self._nearest(alpha)] if self.constants else None,
        )

    def shipped(self, tree: RouteTree) -> "TrainedSweep":
        """What `TrainedRouter.shipped` says at each alpha of the grid."""
        found = (self.at(alpha).shipped(tree).constant for alpha in self.alphas)
        return replace(self, constants=tuple(found))

    def _nearest(self, alpha: float) -> int:
        """The place in the grid of the alpha that is fewest times as great or as small."""
        grid = np.array(self.alphas)
        least = grid[grid > 0].min(initial=1.0) / 10  # so far is 0 from what is above it
        return int(np.abs(np.log((grid + least) / (alpha + least))).argmin())


# For one alpha, or for every one.
Policy = TrainedRouter | TrainedSweep


ALPHAS = 8  # that a tree is seen at in one gradient step
EVENLY = 8  # one alpha in so many is not drawn where the oracle changes, but evenly


class AlphaLearner(Enumeration):
    """Policy improvement on whole trees, each at a few alphas of its own.

    Alphas are drawn between those at which the tree oracle changes its mind somewhere on the train
    fold, so that the training is where the decisions are; some also evenly, up to twice the last.

    Args:
        router: trained in place.
        fold: what it learns from.
        break_points: float64[n], ascending, see `policy_break_points`.
        config: the numbers.
        rng: source of the order of the queries, the alphas and the noise.
    """

    def __init__(
        self,
        router: AlphaRouter,
        fold: TrainingFold,
        break_points: NDArray[np.float64],
        config: ExactConfig,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(router.parameters(), len(fold.tree), config, rng)
        self.router = router
        self._fold = fold
        even = np.linspace(0.0, 2 * break_points.max(initial=0.0), 2 + len(break_points) // EVENLY)
        self._knots = np.sort(np.concatenate([break_points, even]))
        self._reward = StandardReward(fold)

    def _step(self, query: Tensor) -> None:
        fold = self._fold
        alpha = self._draw((len(query), ALPHAS))
        states = self._visit(fold, query)
        logits = self.router(states, torch.from_numpy(alpha.astype(np.float32)))
        legal = states.legal.reshape(len(query), 1, -1, fold.actions.count)
        reward = self._reward(np.repeat(query.numpy(), ALPHAS), alpha.ravel())
        self._descend(
            fold.actions,
            logits.flatten(0, 1),
            legal.expand(logits.shape).flatten(0, 1),
            torch.from_numpy(reward.astype(np.float32)),
        )

    def _draw(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Alphas, each between two neighbouring knots, all neighbours equally likely."""
        last = len(self._knots) - 1
        rank = self._rng.random(shape) * last
        alpha: NDArray[np.float64] = np.interp(rank, np.arange(last + 1), self._knots)
        return alpha


class StandardReward:
    """R = Q - alpha * C at any alpha, centred by query and scaled by its deviation at that alpha.

    What `TrainingFold.episode_reward` does for one alpha; the deviation at any other follows from
    the second moments of centred Q and C.
    """

    def __init__(self, fold: TrainingFold) -> None:
        ends = fold.actions.endings
        score, _, spent = worth(fold.tree, fold.actions.width)
        self._quality, self._cost = _centred(score, ends), _centred(spent, ends)
        quality, cost = self._quality[:, ends], self._cost[:, ends]
        self._moments = np.mean(quality**2), np.mean(quality * cost), np.mean(cost**2)

    def __call__(self, query: NDArray[np.int64], alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[n, endings] of these queries, int64[n], at these alphas, float64[n]."""
        reward = self._quality[query] - alpha[:, None] * self._cost[query]
        return reward / self.deviation(alpha)[:, None]

    def deviation(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[n]: standard deviation over all endings of the fold; 1 where there is none."""
        quality, both, cost = self._moments
        variance = np.maximum(quality - 2 * alpha * both + alpha**2 * cost, 0.0)
        return np.where(variance > 0, np.sqrt(variance), 1.0)


def _centred(values: NDArray[np.float64], ends: slice) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = values - values[:, ends].mean(axis=1, keepdims=True)
    return centred


def train_sweep(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: ExactConfig,
    seed: int,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> TrainedSweep:
    """Train one network for all alphas; the grid chooses the iterate on the validation fold.

    Raises InputError: there is nothing to train on, the cost of a query is limited, or the training
    diverged.

    Args:
        tree: all folds.
        alphas: the grid, ascending.
        objective: what to train for; its alpha is not looked at, and its cost of a query must
            not be limited.
        config: settings of the training.
        seed: of everything random.
        watch: who is told; the values are means over the grid of exact R / deviation.
        resumed: where to go on; everything else must be as it was.
    """
    if objective.max_cost is not None:
        raise InputError("max_cost cannot be kept at every alpha; train a router for one alpha")
    several = loop.folds_for(tree, config)
    pairs = loop.fold_trees(tree, several)
    break_points = policy_break_points(loop.learned_from(tree, several), objective.ends_early)
    folds = [loop.fold_pair(pair, objective) for pair in pairs]
    deviation = StandardReward(folds[0][0]).deviation(np.array(alphas))

    def value(network: AlphaRouter, valued: TrainingFold) -> float:
        reached = [valued.value(network.at(alpha), alpha) for alpha in alphas]
        return float(np.mean(np.array(reached) / deviation))

    def start(fold: TrainingFold, seed: int) -> AlphaLearner:
        # The scale of costs is that of the first, so that members have one shape.
        shape = shape_for(pairs[0][0], fold.actions, config)
        network = AlphaRouter(shape, scales_of(break_points))
        network.base.standardise(fold.table)
        return AlphaLearner(network, fold, break_points, config, np.random.default_rng(seed))

    networks, history = loop.train_all(start, value, folds, config, seed, watch, resumed)
    return TrainedSweep(
        networks=tuple(networks),
        alphas=tuple(alphas),
        objective=objective,
        origin=Origin.of(tree, config, seed),
        history=history,
    )


DIGITS = 2  # significant digits of an automatic alpha
POINTS = 6  # of an automatic grid


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        alphas: the grid, ascending.
        members: for each seed one network for every alpha, or one router for each of `alphas`.
    """

    alphas: tuple[float, ...]
    members: tuple[TrainedSweep | tuple[TrainedRouter, ...], ...]

    @property
    def origin(self) -> Origin:
        """Where it comes from; the seed is that of the first member."""
        return self._first.origin

    @property
    def objective(self) -> Objective:
        """What its routers were trained for, whatever their alphas."""
        return self._first.objective

    @property
    def _first(self) -> Policy:
        first = self.members[0]
        return first if isinstance(first, TrainedSweep) else first[0]

    def at(self, alpha: float) -> list[TrainedRouter]:
        """The router of each seed for one alpha; none where no network knows that alpha."""
        return list(self._each(alpha))

    def has(self, alpha: float) -> bool:
        """Whether there is a router for one alpha; makes none."""
        return alpha in self.alphas or any(isinstance(each, TrainedSweep) for each in self.members)

    def like(self, trained: TrainedRouter | None, alpha: float) -> TrainedRouter | None:
        """The first seed's router for one alpha that may do what `trained` may, or also stop early.

        `trained`: None is anything. Returns None without one.
        """
        for router in self._each(alpha):
            stop = router.objective.allow_stop or (trained and trained.objective.allow_stop)
            if trained is None or router.objective == replace(
                trained.objective, alpha=alpha, allow_stop=bool(stop)
            ):
                return router
        return None

    @property
    def routers(self) -> list[list[TrainedRouter]]:
        """For each alpha of the grid the router of each seed."""
        return [self.at(alpha) for alpha in self.alphas]

    def _each(self, alpha: float) -> Iterator[TrainedRouter]:
        """The same as `at`, each made when it is asked for."""
        for member in self.members:
            if isinstance(member, TrainedSweep):
                yield member.at(alpha)
            elif alpha in self.alphas:
                yield member[self.alphas.index(alpha)]


def alpha_grid(tree: RouteTree, count: int = POINTS, allow_stop: bool = False) -> tuple[float, ...]:
    """Alphas spread over the range in which the best routes change.

    0 (quality alone), the paper's alpha, and quantiles of the exact break-points at which the tree
    oracle takes another route on some query of the train fold, rounded for reading. Raises
    InputError: `count` is below 2 or the train fold is empty. Returns ascending.

    Args:
        tree: all folds; only "train" is looked at.
        count: number of alphas, at least 2; there are fewer where they coincide.
        allow_stop: whether the oracle may take routes of fewer than L calls.
    """
    if count < 2:
        raise InputError(f"a grid needs at least 2 alphas, got {count}")
    train = tree.split("train")
    if not len(train):
        raise InputError("no query to choose alphas on: the train fold is empty; add queries")
    break_points = policy_break_points(train, allow_stop)
    spread = (np.arange(count - 2) + 0.5) / max(count - 2, 1)
    quantiles = np.quantile(break_points, spread) if len(break_points) else np.empty(0)
    between: list[float] = np.minimum(quantiles, MAX_ALPHA).tolist()
    # Two significant digits: a grid is read and typed by people.
    rounded = (round(alpha, DIGITS - 1 - math.floor(math.log10(alpha))) for alpha in between)
    return tuple(sorted({0.0, PAPER_ALPHA, *rounded}))


CANDIDATES = 512  # alphas looked at; a router's cost changes in steps anyway
BEYOND = 2.0  # above the last alpha at which the oracle changes, a router may still change


def meet_budget(sweep: TrainedSweep, tree: RouteTree, budget: float) -> TrainedRouter:
    """The router at the smallest alpha whose mean cost is within the budget.

    That is its cost where it flatters nobody, see `TrainedRouter.judged`.

    A greater alpha makes a good router cheaper, so the alpha is found by bisection; what is
    returned has been valued and is within the budget. Raises InputError: not even the router at the
    greatest alpha is within the budget.

    Args:
        sweep: trained on `tree`.
        tree: all folds; the train fold gives the alphas to look at.
        budget: greatest mean of C over the queries, in money.
    """
    learn_from, judged = loop.training_folds(tree)[0], sweep.at(0.0).judged(tree)
    break_points = policy_break_points(learn_from, sweep.objective.ends_early)
    knots = np.concatenate([[0.0], break_points, BEYOND * break_points[-1:]])
    candidates = np.quantile(knots, np.linspace(0, 1, CANDIDATES))
    alphas = np.unique(np.minimum(candidates, MAX_ALPHA))

    def cost(place: int) -> float:
        return float(sweep.at(alphas[place]).outcome(judged).cost.mean())

    def is_met(place: int) -> bool:
        return bool(within(np.array(cost(place)), budget))

    low, high = 0, len(alphas) - 1
    if not is_met(high):
        raise InputError(
            f"no router is that cheap: --budget {budget:g}; at the greatest alpha it costs "
            f"{money(cost(high))} per query, allow at least that"
        )
    while low < high:
        middle = (low + high) // 2
        if is_met(middle):
            high = middle
        else:
            low = middle + 1
    return replace(sweep.at(float(alphas[high])), budget=budget)

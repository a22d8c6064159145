"""Routers for many alphas: one model for every alpha, sweeps, grids, and budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hierrouter.evaluation.budget import policy_break_points, within_budget
from hierrouter.learning.config import MAX_ALPHA, Objective, ValueConfig
from hierrouter.learning.training import Constant, Origin, TrainedRouter, fit_value, training_folds
from hierrouter.learning.value import ValueModel, ValueRouter
from hierrouter.paper import PAPER_ALPHA
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:
    from hierrouter.learning.loop import OnEpoch


@dataclass(frozen=True)
class TrainedSweep:
    """The value model for every alpha, and where it comes from.

    Attributes:
        objective: what it was trained for, whatever its alpha.
        origin: where it comes from.
        constants: for each alpha of the grid the choice that is made instead, see `TrainedRouter`;
            empty where nobody has looked.
    """

    model: ValueModel
    alphas: tuple[float, ...]
    objective: Objective
    origin: Origin
    constants: tuple[Constant | None, ...] = ()

    def at(self, alpha: float) -> TrainedRouter:
        """The router for one alpha >= 0; no training.

        Where the router at the nearest alpha of the grid showed no gain, the same choice is made
        here. Raises InputError: alpha is not finite, below 0 or too great for an `Objective`.
        """
        return TrainedRouter(
            router=ValueRouter(self.model, alpha),
            objective=replace(self.objective, alpha=alpha),
            origin=self.origin,
            history=(),
            constant=self.constants[self._nearest(alpha)] if self.constants else None,
        )

    @property
    def routers(self) -> list[TrainedRouter]:
        """The router for each alpha of the grid."""
        return [self.at(alpha) for alpha in self.alphas]

    def like(self, trained: TrainedRouter | None, alpha: float) -> TrainedRouter | None:
        """The router for one alpha, if it may do what `trained` may, or also stop early.

        `trained`: None is anything.
        """
        router = self.at(alpha)
        if trained is None:
            return router
        stop = router.objective.allow_stop or trained.objective.allow_stop
        wanted = replace(trained.objective, alpha=alpha, allow_stop=stop)
        return router if router.objective == wanted else None

    def shipped(self, tree: RouteTree) -> TrainedSweep:
        """What `TrainedRouter.shipped` says at each alpha of the grid."""
        constants = (router.shipped(tree).constant for router in self.routers)
        return replace(self, constants=tuple(constants))

    def _nearest(self, alpha: float) -> int:
        """The place in the grid of the alpha that is fewest times as great or as small."""
        grid = np.array(self.alphas)
        least = grid[grid > 0].min(initial=1.0) / 10  # so far is 0 from what is above it
        return int(np.abs(np.log((grid + least) / (alpha + least))).argmin())


# For one alpha, or for every one.
Policy = TrainedRouter | TrainedSweep


def train_sweep(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: ValueConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
) -> TrainedSweep:
    """Fit the value model for all alphas.

    Raises InputError: there is nothing to learn from.

    Args:
        objective: what to train for; its alpha is not looked at.
        seed: names the fit; nothing in it is random.
    """
    model = fit_value(tree, alphas, objective, config, on_epoch)
    return TrainedSweep(model, tuple(alphas), objective, Origin.of(tree, config, seed))


DIGITS = 2  # significant digits of an automatic alpha
POINTS = 6  # of an automatic grid


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
    learn_from, judged = training_folds(tree)[0], sweep.at(0.0).judged(tree)
    break_points = policy_break_points(learn_from, sweep.objective.ends_early)
    knots = np.concatenate([[0.0], break_points, BEYOND * break_points[-1:]])
    candidates = np.quantile(knots, np.linspace(0, 1, CANDIDATES))
    alphas = np.unique(np.minimum(candidates, MAX_ALPHA))

    def cost(place: int) -> float:
        return float(sweep.at(alphas[place]).outcome(judged).cost.mean())

    def is_met(place: int) -> bool:
        return bool(within_budget(np.array(cost(place)), budget))

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

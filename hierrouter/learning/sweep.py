"""Routers for many alphas: the sweep of a value model, grids of alphas, and budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hierrouter.declarations.checks import MAX_ALPHA
from hierrouter.evaluation.budget import policy_break_points, within_budget
from hierrouter.learning.config import Objective, OnEpoch, ValueConfig
from hierrouter.learning.training import Constant, Origin, TrainedRouter, fit_value, training_folds
from hierrouter.learning.value import BEYOND_LAST_BREAK_POINT, ValueModel, ValueRouter
from hierrouter.paper import PAPER_ALPHA
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

GRID_ALPHA_DIGITS = (
    2  # significant digits of an automatic alpha: a grid is read and typed by people
)
DEFAULT_GRID_SIZE = 6  # alphas of an automatic grid
BUDGET_CANDIDATES = 512  # alphas to choose from for a budget; a router's cost changes in steps


@dataclass(frozen=True)
class TrainedSweep:
    """The value model for every alpha, and its origin.

    Attributes:
        model: the value model.
        alphas: the grid.
        objective: what it was trained for; its alpha means nothing.
        origin: its pool, inputs and training.
        constants: for each alpha of the grid the choice that is made instead, see `TrainedRouter`;
            empty before `with_fallback`.
    """

    model: ValueModel
    alphas: tuple[float, ...]
    objective: Objective
    origin: Origin
    constants: tuple[Constant | None, ...] = ()

    def at(self, alpha: float) -> TrainedRouter:
        """The router for one alpha >= 0; no training.

        If the router at the nearest alpha of the grid showed no gain, its constant choice is made
        here too.

        Raises:
            InputError: alpha is not finite, below 0 or too great for an `Objective`.
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

    def matching(self, trained: TrainedRouter | None, alpha: float) -> TrainedRouter | None:
        """The router for one alpha, if it has the actions of another router, or can also stop.

        Args:
            trained: the other router; None matches anything.
            alpha: the alpha.
        """
        router = self.at(alpha)
        if trained is None:
            return router
        stop = router.objective.allow_stop or trained.objective.allow_stop
        objective = replace(trained.objective, alpha=alpha, allow_stop=stop)
        return router if router.objective == objective else None

    def with_fallback(self, tree: RouteTree) -> TrainedSweep:
        """The sweep with the constant of `TrainedRouter.with_fallback` at each alpha of the grid.

        Args:
            tree: the tree it learned from; all folds, or all but the test fold.
        """
        constants = [router.with_fallback(tree).constant for router in self.routers]
        return replace(self, constants=tuple(constants))

    def _nearest(self, alpha: float) -> int:
        """The position in the grid of the alpha with the smallest ratio to this one."""
        grid = np.array(self.alphas)
        # 0 has no ratio to anything; it counts as a tenth of the least alpha above it.
        offset = grid[grid > 0].min(initial=1.0) / 10
        return int(np.abs(np.log((grid + offset) / (alpha + offset))).argmin())


# A router for one alpha, or for every alpha.
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

    Args:
        tree: all folds.
        alphas: the grid, which gives knots of the model.
        objective: what to train for; its alpha is not used.
        config: the settings.
        seed: names the fit; nothing in it is random.
        on_epoch: called after each state.

    Raises:
        InputError: there is nothing to learn from.
    """
    model = fit_value(tree, alphas, objective, config, on_epoch)
    return TrainedSweep(model, tuple(alphas), objective, Origin.of(tree, config, seed))


def alpha_grid(
    tree: RouteTree, count: int = DEFAULT_GRID_SIZE, allow_stop: bool = False
) -> tuple[float, ...]:
    """Alphas spread over the range in which the best routes change.

    0 (quality alone), the paper's alpha, and quantiles of the exact break-points at which the tree
    oracle takes another route on some query of the train fold, rounded for reading.

    Args:
        tree: all folds; only "train" is used.
        count: number of alphas, at least 2; there are fewer if some coincide.
        allow_stop: whether the oracle may take routes of fewer than L calls.

    Returns:
        The alphas, ascending.

    Raises:
        InputError: `count` is below 2, or the train fold is empty.
    """
    if count < 2:
        raise InputError(f"a grid needs at least 2 alphas, got {count}")
    train = tree.split("train")
    if not len(train):
        raise InputError("no query to choose alphas on: the train fold is empty; add queries")
    break_points = policy_break_points(train, allow_stop)
    shares = (np.arange(count - 2) + 0.5) / max(count - 2, 1)
    quantiles = np.quantile(break_points, shares) if len(break_points) else np.empty(0)
    alphas = {0.0, PAPER_ALPHA}
    for alpha in np.minimum(quantiles, MAX_ALPHA).tolist():
        alphas.add(round(alpha, GRID_ALPHA_DIGITS - 1 - math.floor(math.log10(alpha))))
    return tuple(sorted(alphas))


def meet_budget(sweep: TrainedSweep, tree: RouteTree, budget: float) -> TrainedRouter:
    """The router at the smallest alpha whose mean cost is within the budget.

    The cost is that on the queries of `TrainedRouter.judging_fold`. A greater alpha makes a good
    router cheaper, so the alpha is found by bisection; the returned router has been valued and is
    within the budget.

    Args:
        sweep: trained on `tree`.
        tree: all folds; the train fold gives the alphas to choose from.
        budget: greatest mean of C over the queries, in money.

    Raises:
        InputError: not even the router at the greatest alpha is within the budget.
    """
    learn_from, _ = training_folds(tree)
    fold = sweep.at(0.0).judging_fold(tree)
    break_points = policy_break_points(learn_from, sweep.objective.ends_early)
    # A router may still change above the last alpha at which the oracle does.
    points = np.concatenate([[0.0], break_points, BEYOND_LAST_BREAK_POINT * break_points[-1:]])
    candidates = np.quantile(points, np.linspace(0, 1, BUDGET_CANDIDATES))
    alphas = np.unique(np.minimum(candidates, MAX_ALPHA))

    def cost(position: int) -> float:
        return float(sweep.at(alphas[position]).outcome(fold).cost.mean())

    def is_met(position: int) -> bool:
        return bool(within_budget(np.array(cost(position)), budget))

    low = 0
    high = len(alphas) - 1
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

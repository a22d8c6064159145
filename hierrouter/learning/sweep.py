"""Routers for many alphas: sweeps of a value model or of networks, grids of alphas, and budgets."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hierrouter.declarations.checks import MAX_ALPHA
from hierrouter.evaluation.budget import RouteHull, policy_break_points, within_budget
from hierrouter.evaluation.outcome import Floats
from hierrouter.learning.config import (
    NetworkConfig,
    Objective,
    OnEpoch,
    OnEvaluation,
    TrainConfig,
    ignore_epoch,
    ignore_evaluation,
)
from hierrouter.learning.forward import NetworkGrid
from hierrouter.learning.resumption import Resumption, TrainingState
from hierrouter.learning.router import (
    Constant,
    Ladder,
    Origin,
    PolicyFamily,
    TrainedRouter,
    nearest_alpha,
    training_folds,
)
from hierrouter.learning.training import fit_family
from hierrouter.learning.value import BEYOND_LAST_BREAK_POINT
from hierrouter.paper import PAPER_ALPHA
from hierrouter.tables import money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

GRID_ALPHA_DIGITS = (
    2  # significant digits of an automatic alpha: a grid is read and typed by people
)
DEFAULT_GRID_SIZE = 6  # alphas of an automatic grid
BUDGET_CANDIDATES = 128  # alphas to choose from for a budget; a router's cost changes in steps
# Alphas at which the routers of a sweep are measured against fixed routes, beside those of the grid
# and those at which another fixed route becomes the best.
MEASURED_ALPHAS = 24


@dataclass(frozen=True)
class FixedChoices:
    """The best fixed route at every alpha, and where the routers of a sweep show a gain over it.

    Attributes:
        hull: the fixed routes that are the best at some alpha, on the queries that the routers
            learned from.
        alphas: where the gain was measured, ascending; the grid is among them.
        constants: the constant choice at each of them; None if the router shows a gain there.
    """

    hull: RouteHull
    alphas: tuple[float, ...]
    constants: tuple[Constant | None, ...]

    def at(self, alpha: float) -> Constant | None:
        """The constant choice at an alpha: the fixed route that is the best at this very alpha.

        None if the routers show a gain at the nearest measured alphas on both sides: between them
        neither the best fixed route nor the best network changes, and R is a straight line.
        """
        above = bisect_left(self.alphas, alpha)
        last = len(self.alphas) - 1
        neighbours = {max(above - 1, 0), min(above, last)}
        if above <= last and self.alphas[above] == alpha:
            neighbours = {above}
        measured = [
            (self.alphas[number], constant)
            for number in sorted(neighbours)
            if (constant := self.constants[number])
        ]
        if not measured:
            return None
        nearest, constant = min(measured, key=lambda pair: abs(pair[0] - alpha))
        return replace(
            constant, node=self.hull.best(alpha), alpha=None if nearest == alpha else nearest
        )


@dataclass(frozen=True)
class TrainedSweep:
    """Routers for every alpha, and their origin.

    Attributes:
        model: the value model, a network or a table of routes for each alpha of the grid, or
            several of these.
        alphas: the grid.
        objective: what it was trained for; its alpha means nothing.
        origin: its pool, inputs and training.
        constants: for each alpha of the grid the choice that is made instead, see `TrainedRouter`;
            empty before `cross_fit.sweep_with_fallback`.
        fixed: the constant choices between these alphas; None before that, and in files
            of versions that took those of the nearest alpha.
        ladder: see `TrainedRouter`; each gain as a share of the gap to the oracle, in the mean over
            alphas.
    """

    model: PolicyFamily
    alphas: tuple[float, ...]
    objective: Objective
    origin: Origin
    constants: tuple[Constant | None, ...] = ()
    fixed: FixedChoices | None = None
    ladder: Ladder = ()

    def at(self, alpha: float) -> TrainedRouter:
        """The router for one alpha >= 0; no training.

        Of networks it is that of an alpha of the grid; between two alphas the one of them that has
        the higher R here on the fold that chose their weights. Of tables it is that of the nearest
        alpha, whose routes are chosen anew. Where no gain over the best fixed
        route at this alpha is shown, that route is the constant choice, see `FixedChoices`.

        Raises:
            InputError: alpha is not finite, below 0 or too great for an `Objective`.
        """
        actions = self.objective.actions(self.origin.layout)
        return TrainedRouter(
            router=self.model.at(alpha, self.alphas, actions),
            objective=replace(self.objective, alpha=alpha),
            origin=self.origin,
            history=self.model.history(alpha, self.alphas),
            constant=self._constant_at(alpha),
        )

    def for_alpha(self, alpha: float | None) -> TrainedRouter:
        """The router for an alpha; None is the smallest one of the grid."""
        return self.at(self.alphas[0] if alpha is None else alpha)

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

    def remark(self, alpha: float) -> str:
        """What a user should know about the router for an alpha, in words; mostly nothing.

        The value model has learned for every alpha, networks for those of the grid.
        """
        if remark := self.model.remark(alpha, self.alphas):
            return remark
        if self.fixed is None and any(self.constants) and alpha not in self.alphas:
            return (
                f"the sweep is of an earlier version, which knows the best fixed route at the "
                f"alphas of its grid alone, not at {alpha:g}; sweep again"
            )
        return ""

    def _constant_at(self, alpha: float) -> Constant | None:
        """The constant choice at an alpha; None if the router decides."""
        if alpha in self.alphas and self.constants:
            return self.constants[self.alphas.index(alpha)]
        if self.fixed:
            return self.fixed.at(alpha)
        return self.constants[nearest_alpha(alpha, self.alphas)] if self.constants else None


# A router for one alpha, or for every alpha.
Policy = TrainedRouter | TrainedSweep


def train_sweep(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: TrainConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
    resumption: Resumption | None = None,
    on_evaluation: OnEvaluation = ignore_evaluation,
    fitted: Mapping[str, PolicyFamily] | None = None,
) -> TrainedSweep:
    """Learn for all alphas at once, with the algorithm that the settings belong to.

    PPO and learning by enumeration train one network for the whole grid, see `alpha_network`. The
    value model is one fit; tables of routes are one for each alpha.

    Args:
        tree: all folds.
        alphas: the grid; of the value model it gives knots.
        objective: what to train for; its alpha is not used.
        config: the settings; their class is the choice of the algorithm.
        seed: of everything random; in the fit of the value model nothing is.
        on_epoch: called after each evaluation, or after each state of the value model.
        resumption: how an interrupted training of a network goes on; the value model is one fit,
            and always begins anew.
        on_evaluation: called with each row of the learning curve of networks, see
            `forward.sweep_rows`.
        fitted: see `policy_classes.fit_mean`.

    Raises:
        InputError: there is nothing to learn from, the training diverged, or the state to go on
            from is not one of this training.
    """
    origin = Origin.of(tree, config, seed)
    if not isinstance(config, NetworkConfig):
        family = fit_family(tree, alphas, objective, config, seed, on_epoch, fitted)
        return TrainedSweep(family, tuple(alphas), objective, origin)
    # Imported here: training a network needs torch, deciding with a trained one does not.
    from hierrouter.learning.alpha_network import fit_networks

    resumption = resumption or Resumption()
    on_checkpoint = resumption.on_checkpoint

    def on_grid(state: TrainingState, grid: NetworkGrid) -> None:
        on_checkpoint(replace(state, policy=TrainedSweep(grid, tuple(alphas), objective, origin)))

    networks = fit_networks(
        training_folds(tree),
        alphas,
        objective,
        config,
        seed,
        on_epoch or ignore_epoch,
        resumption,
        on_evaluation,
        on_grid,
    )
    return TrainedSweep(networks, tuple(alphas), objective, origin)


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


@dataclass(frozen=True)
class Frontier:
    """What the routers of a sweep reach on questions that none of them learned from, by mean cost.

    With each point Q rises, and so does R at the alpha of its router: a router that costs more and
    reaches less of one of them is no point. So who has more money never gets less.

    Attributes:
        alpha: float64[points], of the routers.
        quality: float64[points], mean Q; it rises.
        cost: float64[points], mean C, in money; it rises.
    """

    alpha: Floats
    quality: Floats
    cost: Floats

    @classmethod
    def of(cls, sweep: TrainedSweep, tree: RouteTree) -> Frontier:
        """Compute the frontier on the queries of `TrainedRouter.judging_fold`.

        Args:
            sweep: trained on `tree`.
            tree: all folds; the train fold gives the alphas to choose from.
        """
        learn_from, _ = training_folds(tree)
        fold = sweep.at(0.0).judging_fold(tree)
        break_points = policy_break_points(learn_from, sweep.objective.ends_early)
        # A router may still change above the last alpha at which the oracle does.
        points = np.concatenate([[0.0], break_points, BEYOND_LAST_BREAK_POINT * break_points[-1:]])
        candidates = np.quantile(points, np.linspace(0, 1, BUDGET_CANDIDATES))
        alphas = np.unique(np.minimum(np.append(candidates, sweep.alphas), MAX_ALPHA))
        outcomes = [sweep.at(float(alpha)).outcome(fold) for alpha in alphas]
        quality = np.array([outcome.quality.mean() for outcome in outcomes])
        cost = np.array([outcome.cost.mean() for outcome in outcomes])
        return cls.rising(alphas, quality, cost)

    @classmethod
    def rising(cls, alpha: Floats, quality: Floats, cost: Floats) -> Frontier:
        """Keep the points with which Q and R rise with C, from the cheapest one on.

        Args:
            alpha: float64[n].
            quality: float64[n].
            cost: float64[n].
        """
        reward = net_reward(quality, cost, alpha)
        kept: list[int] = []
        for number in np.lexsort((alpha, -quality, cost)).tolist():
            if not kept or (
                quality[number] > quality[kept[-1]] and reward[number] >= reward[kept[-1]]
            ):
                kept.append(number)
        return cls(alpha[kept], quality[kept], cost[kept])

    def within(self, budget: float) -> float:
        """Return the alpha of the best point at or below a mean cost.

        Raises:
            InputError: not even the cheapest point is within the budget.
        """
        affordable = np.flatnonzero(within_budget(self.cost, budget))
        if not len(affordable):
            raise InputError(
                f"no router is that cheap: --budget {budget:g}; the cheapest one costs "
                f"{money(self.cost[0])} per query, allow at least that"
            )
        return float(self.alpha[affordable[-1]])


def meet_budget(sweep: TrainedSweep, tree: RouteTree, budget: float) -> TrainedRouter:
    """The router with the highest mean Q whose mean cost is within the budget, see `Frontier`.

    Args:
        sweep: trained on `tree`.
        tree: all folds; the train fold gives the alphas to choose from.
        budget: greatest mean of C over the queries, in money.

    Raises:
        InputError: no router is within the budget.
    """
    return replace(sweep.at(Frontier.of(sweep, tree).within(budget)), budget=budget)

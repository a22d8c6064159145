"""Finished trainings and sweeps as values: what `hr.train` and `hr.sweep` return."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from hierrouter.evaluation.bounds import best_direct_call, best_fixed_route, gap_closed, oracle
from hierrouter.evaluation.intervals import Judge, Judgement, reward_interval
from hierrouter.evaluation.outcome import Actions, Outcome
from hierrouter.learning.config import Objective, TrainConfig, evaluated_epochs
from hierrouter.learning.router import TrainedRouter, choosing_fold
from hierrouter.learning.sweep import Policy, TrainedSweep
from hierrouter.runs import checkpoint, folders
from hierrouter.runs.checkpoint import load_seeds, member_folder
from hierrouter.runs.saved_states import epoch_folders
from hierrouter.tables import COLUMN_GAP, money, safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Performance:
    """Mean R of a router, of the best fixed route and of the oracle.

    It is measured on queries that the router did not learn from.

    The names of the attributes are keys of `run.json`.

    Attributes:
        where: the queries, in words.
        reward: mean R of the router.
        fixed: mean R of the fixed route that is best on the queries that the router learned from;
            None if no fixed route is offered for all queries.
        oracle: mean R of the best routes in hindsight.
        low: lower end of the 95 % interval of `reward` less `fixed`, over the queries; None without
            a fixed route.
        high: upper end of it; likewise.
        direct: mean R of the direct call, of a model of the pool or a reference, that is best on
            the queries that the router learned from; None without direct calls.
        direct_model: its model; "" without one.
        direct_judgement: how the router compares with it, see `Judge`.
    """

    where: str
    reward: float
    fixed: float | None
    oracle: float
    low: float | None
    high: float | None
    direct: float | None = None
    direct_model: str = ""
    direct_judgement: Judgement = "open"

    @classmethod
    def of(cls, trained: TrainedRouter, tree: RouteTree) -> Performance:
        """Evaluate a router on the tree it learned from; see `TrainedRouter.judging_fold`."""
        fold = trained.judging_fold(tree)
        alpha = trained.alpha
        ends_early = trained.objective.ends_early
        choosing = trained.constant_fold(tree)
        router = trained.outcome(fold)
        constant = best_fixed_route(choosing, alpha, fold, ends_early)
        reward = router.reward(alpha)
        fixed = constant.reward(alpha)
        best = oracle(fold, alpha, ends_early).reward(alpha)
        low, high = reward_interval(router, constant, alpha, fold.datasets)
        direct = best_direct_call(choosing, alpha, fold, references=True)
        direct_reward = None
        judgement: Judgement = "open"
        if direct is not None:
            direct_reward = direct.reward(alpha)
            difference = reward - direct_reward
            reference = max(fixed.mean(), direct_reward.mean())
            gap = float(best.mean() - reference)
            ends = reward_interval(router, direct, alpha, fold.datasets)
            judgement = Judge(len(fold), max(gap, 0.0)).judge(float(difference.mean()), *ends)
        return cls(
            where=judged_in_words(trained, fold),
            reward=float(reward.mean()),
            fixed=float(fixed.mean()),
            oracle=float(best.mean()),
            low=low,
            high=high,
            direct=None if direct_reward is None else float(direct_reward.mean()),
            direct_model="" if direct is None else direct.name,
            direct_judgement=judgement,
        )

    @property
    def gain(self) -> float | None:
        """How much higher R is than that of the fixed route; None if there is none."""
        return None if self.fixed is None else self.reward - self.fixed

    @property
    def share(self) -> float | None:
        """Share of the gap between the fixed route and the oracle; None if that is too small."""
        if self.fixed is None:
            return None
        return gap_closed(self.reward, self.fixed, self.oracle)

    def __str__(self) -> str:
        direct = ""
        worse = ""
        if self.direct is not None and (self.fixed is None or self.direct > self.fixed):
            # Otherwise the route says more, and a line has room for little.
            model = safe_text(self.direct_model)
            direct = f"best direct call {model} {self.direct:.3f}, "
            if self.direct_judgement == "worse":
                worse = f"; always calling {model} alone is better"
        fixed = "no fixed route is offered for all"
        if self.fixed is not None:
            fixed = f"best fixed route {self.fixed:.3f}"
        return (
            f"R {self.reward:.3f} on {self.where} ({fixed}, {direct}"
            f"oracle {self.oracle:.3f}){worse}"
        )


def _refuse_folder_alone() -> NoReturn:
    raise InputError("a folder alone is no run; write hr.Run.load(path), or hr.SweepRun.load(path)")


def history_table(trained: Policy) -> pa.Table:
    """Return the learning curve of networks, a row for each evaluation, in their order.

    Columns: epoch (int64), train and validation (float64, exact mean R of the greedy policy on the
    fold; null if it is not known), and what the learner says of the epoch before the evaluation,
    by name, each a float64: for `ppo` the mean reward and length of the sampled episodes and
    Tianshou's losses, for `exact` the loss. There are no rows for the value model, which has no
    epochs.

    The columns of a sweep are epoch, and those of `forward.sweep_rows`: the mean over the
    alphas as validation, and each of them.

    The fold "train" chooses, and is the column "validation", if there is no validation fold.
    """
    if isinstance(trained, TrainedSweep):
        return _sweep_history(trained)
    count = len(trained.history)
    learner = dict(trained.statistics)
    train = learner.pop("train", [None] * count)
    columns = {
        "epoch": pa.array(evaluated_epochs(trained.origin.config, count), pa.int64()),
        "train": pa.array(train, pa.float64(), from_pandas=True),
        "validation": pa.array(trained.history, pa.float64()),
    }
    for name, column in sorted(learner.items()):
        columns[name] = pa.array(column, pa.float64(), from_pandas=True)
    return pa.table(columns)


def _sweep_history(sweep: TrainedSweep) -> pa.Table:
    """Return the learning curve of a sweep, see `history_table`."""
    rows = sweep.model.learning_curve(sweep.alphas)
    epochs = evaluated_epochs(sweep.origin.config, len(rows))
    columns = {"epoch": pa.array(epochs, pa.int64())}
    for name in rows[0] if rows else ("validation",):
        columns[name] = pa.array([row[name] for row in rows], pa.float64())
    return pa.table(columns)


def judged_in_words(trained: TrainedRouter, fold: RouteTree) -> str:
    """Return the queries on which a router is evaluated, in words; see `judging_fold`."""
    if trained.holds_out:
        return f"{len(fold):,} held-out questions"
    return choosing_fold(fold)


@dataclass(frozen=True, repr=False)
class Run:
    """A finished training in its folder; it can be given wherever a path can.

    Attributes:
        folder: of the run.
        trained: the router.
        reached: performance of the router; None if the run was only loaded.
        seeds: of the best of several trainings, the runs of all of them.
    """

    folder: Path
    trained: TrainedRouter = field(default_factory=_refuse_folder_alone)
    reached: Performance | None = None
    seeds: tuple[Run, ...] = ()

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tree: RouteTree | None = None) -> Run:
        """Load the run in a folder, or of a name.

        Args:
            folder: of the run, or its name.
            tree: that it learned from; if it is given, `reached` is computed.

        Raises:
            InputError: there is no run, or it is not for this tree.
        """
        path = folders.find_run(folder)
        trained = checkpoint.router_at(path, None)
        return cls(path, trained, Performance.of(trained, tree) if tree else None)

    @property
    def alpha(self) -> float:
        """The alpha it was trained for."""
        return self.trained.alpha

    @property
    def algo(self) -> str:
        """The algorithm; see `train`."""
        return self.trained.origin.config.algo

    @property
    def actions(self) -> Actions:
        """The actions that it chooses from."""
        return self.trained.actions

    @property
    def history(self) -> pa.Table:
        """The learning curve of a network, a row for each evaluation; see `history_table`."""
        return history_table(self.trained)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The folder of each checkpoint by its epoch; see `train`."""
        return epoch_folders(self.folder)

    def outcome(self, tree: RouteTree) -> Outcome:
        """Return the exact outcome of the router on every query of a tree."""
        return self.trained.outcome(tree)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        origin = self.trained.origin
        training = describe_training(self.trained.objective, origin.config, self.trained.budget)
        reached = f"; {self.reached}" if self.reached else ""
        return f"Run({self.folder}: {training}, seed {origin.seed}{reached})"


@dataclass(frozen=True, repr=False)
class SweepRun:
    """A finished sweep in its folder; it can be given wherever a path can.

    Attributes:
        folder: of the run.
        sweep: the routers of all alphas; of several seeds those of the best.
        table: their performance at each alpha, as text.
        seeds: the routers of each seed, the best first.
    """

    folder: Path
    sweep: TrainedSweep = field(default_factory=_refuse_folder_alone)
    table: str = ""
    seeds: tuple[TrainedSweep, ...] = ()

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tree: RouteTree | None = None) -> SweepRun:
        """Load the sweep in a folder, or of a name; see `Run.load`."""
        path = folders.find_run(folder)
        seeds = load_seeds(path)
        return cls(path, seeds[0], sweep_table(seeds, tree) if tree else "", seeds)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The grid, ascending."""
        return self.sweep.alphas

    @property
    def history(self) -> pa.Table:
        """The learning curve of the best seed of networks; see `history_table`."""
        return history_table(self.sweep)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The folder of each checkpoint of the best seed by its epoch; see `train`."""
        return epoch_folders(member_folder(self.folder, self.sweep.origin.seed))

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"SweepRun({self.folder})\n{self.table}".rstrip()


def rank_sweeps(sweeps: Sequence[TrainedSweep], tree: RouteTree) -> list[TrainedSweep]:
    """Return sweeps of one grid, the best first.

    That is the one with the highest mean share of the gap between the best fixed route and the
    oracle, over the alphas of the grid at which there is a gap, on queries that the routers did not
    learn from.

    Args:
        sweeps: of one grid and one algorithm.
        tree: that they learned from.
    """
    if len(sweeps) == 1:
        return list(sweeps)

    def mean_share(sweep: TrainedSweep) -> float:
        shares = [Performance.of(router, tree).share for router in sweep.routers]
        return float(np.mean([share for share in shares if share is not None] or [0.0]))

    return sorted(sweeps, key=mean_share, reverse=True)


def sweep_table(seeds: Sequence[TrainedSweep], tree: RouteTree) -> str:
    """Return a table of the routers of a sweep: alpha, quality, cost and reward.

    They are measured on queries that the routers did not learn from. Of several seeds the routers
    of the best are shown, and beside them mean and standard deviation of R over the seeds.

    Args:
        seeds: the sweep of each seed, the best first.
        tree: that they learned from.
    """
    sweep = seeds[0]
    routers = sweep.routers
    fold = routers[0].judging_fold(tree)
    outcomes = [router.outcome(fold) for router in routers]
    cells = [
        (f"{alpha:.4g}", money(outcome.cost.mean()), f"{outcome.reward(alpha).mean():.3f}")
        for alpha, outcome in zip(sweep.alphas, outcomes, strict=True)
    ]
    # As wide as the widest cell and two blanks, but no narrower than usual prices need.
    widths = [max(map(len, column)) + COLUMN_GAP for column in zip(*cells, strict=True)]
    alpha_width = max(widths[0], 8)
    cost_width = max(widths[1], 10)
    reward_width = max(widths[2], 7)
    heading = (
        f"{'alpha':<{alpha_width}}{'Q':>4}{'C':>{cost_width - 3}}{'R':>{reward_width}}    "
        f"({judged_in_words(routers[0], fold)})"
    )
    if len(seeds) > 1:
        heading += f"  R of {len(seeds)} seeds; seed {sweep.origin.seed} is shown"
    lines = [heading]
    for number, (alpha, router) in enumerate(zip(sweep.alphas, routers, strict=True)):
        alpha_text, cost, reward = cells[number]
        line = (
            f"{alpha_text:<{alpha_width}}{outcomes[number].quality.mean():6.3f}"
            f"{cost:>{cost_width}}{reward:>{reward_width}}"
        )
        if len(seeds) > 1:
            rewards = [other.at(alpha).outcome(fold).reward(alpha).mean() for other in seeds]
            line += f"  {np.mean(rewards):.3f} +- {np.std(rewards, ddof=1):.3f}"
        route = router.constant_route
        if route:
            line += f"  always {safe_text(route)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def describe_training(
    objective: Objective, config: TrainConfig, budget: float | None = None
) -> str:
    """Return the objective and the algorithm of a training, in words."""
    price = f"alpha {objective.alpha:g}" if budget is None else f"mean cost {budget:g}"
    stop = ", may stop early" if objective.allow_stop else ""
    returns = ", may return earlier answers" if objective.allow_return else ""
    return f"{price}{stop}{returns}, {config.algo}, preset {config.preset}"

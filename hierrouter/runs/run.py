"""Train and sweep as a user calls them: in a folder, resumable, ready for live questions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from hierrouter.engines.encoders import encoder_note
from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.budget import optimum_at_mean_cost
from hierrouter.evaluation.intervals import interval
from hierrouter.evaluation.outcome import Actions, Outcome
from hierrouter.learning import config as presets
from hierrouter.learning.config import (
    NetworkConfig,
    Objective,
    OnEpoch,
    TrainConfig,
    ValueConfig,
    ignore_epoch,
)
from hierrouter.learning.sweep import TrainedSweep, alpha_grid, meet_budget, train_sweep
from hierrouter.learning.training import Origin, TrainedRouter, choosing_fold
from hierrouter.learning.training import train as train_once
from hierrouter.learning.value import learned_from
from hierrouter.paper import PAPER_ALPHA, PAPER_SEED
from hierrouter.replay.opening import training_tree
from hierrouter.replay.tree import Tree
from hierrouter.runs import checkpoint, folders
from hierrouter.runs.bundle import bundle_of, save_bundle
from hierrouter.runs.checkpoint import load_sweep, member_folder, training_named
from hierrouter.runs.selection import latest_run, trained_on
from hierrouter.tables import money, safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

AS_OPENED = ("fingerprint", "view", "encoder")  # of a tree; see `Origin`
# Told the label of a training, epochs done, epochs in all, value on train, value on validation.
Progress = Callable[[str, int, int, float, float], None]
Policy = TypeVar("Policy", TrainedRouter, TrainedSweep)


@dataclass(frozen=True)
class RunWatch:
    """Who is told of a run; nobody by default.

    Attributes:
        on_folder: told the run's folder before anything is trained.
        on_note: told in a line what is not done again, or was chosen.
        training: entered for the time of each training with its label, its epochs and its folder;
            what it gives is told of each evaluation.
    """

    on_folder: Callable[[Path], None] = lambda folder: None
    on_note: Callable[[str], None] = lambda line: None
    training: Callable[[str, int, Path], AbstractContextManager[OnEpoch]] = (
        lambda label, epochs, folder: nullcontext(ignore_epoch)
    )

    @classmethod
    def of(cls, progress: Progress | None) -> RunWatch:
        """One who is told of evaluations only."""
        if progress is None:
            return cls()
        return cls(training=lambda label, *_: nullcontext(partial(progress, label)))


@dataclass(frozen=True)
class Reached:
    """What a router reaches where that flatters nobody, and how far that is from the bounds.

    Attributes:
        fixed: that of the fixed route that is best on what it learned from.
        oracle: that of the best routes in hindsight.
        low, high: 95 % interval of `reward` less `fixed`, over the queries.
    """

    where: str
    reward: float
    fixed: float
    oracle: float
    low: float
    high: float

    @classmethod
    def by(cls, trained: TrainedRouter, tree: RouteTree) -> Reached:
        """The result of a router on the tree it learned from, see `TrainedRouter.judging_fold`."""
        fold, alpha, stop = trained.judging_fold(tree), trained.alpha, trained.objective.ends_early
        chooses = fold if trained.holds_out else tree.split("train")
        reward = trained.outcome(fold).reward(alpha)
        fixed = best_fixed_route(chooses, alpha, fold, stop).reward(alpha)
        best = oracle(fold, alpha, stop).reward(alpha)
        means = float(reward.mean()), float(fixed.mean()), float(best.mean())
        ends = interval(reward - fixed, rng=np.random.default_rng(0))
        return cls(judged_in_words(trained, fold), *means, *ends)

    @property
    def share(self) -> float | None:
        """Of the gap between the fixed route and the oracle; None where there is no gap."""
        gap = self.oracle - self.fixed
        return (self.reward - self.fixed) / gap if gap > 0 else None

    def __str__(self) -> str:
        return (
            f"R {self.reward:.3f} on {self.where} (best fixed route {self.fixed:.3f}, "
            f"oracle {self.oracle:.3f})"
        )


def _load_instead() -> NoReturn:
    raise InputError("a folder alone is no run; write hr.Run.load(path), or hr.SweepRun.load(path)")


def judged_in_words(trained: TrainedRouter, fold: RouteTree) -> str:
    """On what a router was judged, see `TrainedRouter.judging_fold`."""
    if trained.holds_out:
        return f"{len(fold):,} held-out questions"
    return choosing_fold(fold)


@dataclass(frozen=True, repr=False)
class Run:
    """A finished training in its folder; anything that takes a path takes it.

    Attributes:
        reached: what it reaches, see there; None where it was only loaded.
        seeds: of the best of several trainings, the runs of all of them.
    """

    folder: Path
    trained: TrainedRouter = field(default_factory=_load_instead)
    reached: Reached | None = None
    seeds: tuple[Run, ...] = ()

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tree: RouteTree | None = None) -> Run:
        """The router in a folder, or of this name.

        Raises InputError: there is none, or it is not for this tree.
        """
        trained = checkpoint.router_at(place := folders.find_run(folder), None)
        return cls(place, trained, Reached.by(trained, tree) if tree else None)

    @property
    def alpha(self) -> float:
        """The price of cost it was trained for."""
        return self.trained.alpha

    @property
    def algo(self) -> str:
        """How it learned; see `train`."""
        return self.trained.origin.config.algo

    @property
    def actions(self) -> Actions:
        """What it chooses from."""
        return self.trained.actions

    def outcome(self, tree: RouteTree) -> Outcome:
        """Its exact outcome on every query of a tree; see `TrainedRouter.outcome`."""
        return self.trained.outcome(tree)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        origin = self.trained.origin
        found = describe_training(self.trained.objective, origin.config, self.trained.budget)
        reached = f"; {self.reached}" if self.reached else ""
        return f"Run({self.folder}: {found}, seed {origin.seed}{reached})"


@dataclass(frozen=True, repr=False)
class SweepRun:
    """A finished sweep in its folder; anything that takes a path takes it.

    Attributes:
        table: what they reach at each alpha, as text.
    """

    folder: Path
    sweep: TrainedSweep = field(default_factory=_load_instead)
    table: str = ""

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tree: RouteTree | None = None) -> SweepRun:
        """The sweep in a folder; see `Run.load`."""
        sweep = load_sweep(place := folders.find_run(folder))
        return cls(place, sweep, sweep_table(sweep, tree) if tree else "")

    @property
    def alphas(self) -> tuple[float, ...]:
        """The grid, ascending."""
        return self.sweep.alphas

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"SweepRun({self.folder})\n{self.table}".rstrip()


def train(
    tree: Tree,
    *,
    alpha: float | None = None,
    algo: str | None = None,
    preset: str = "default",
    allow_stop: bool = False,
    allow_return: bool = False,
    seed: int = PAPER_SEED,
    seeds: int = 1,
    epochs: int | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    budget: float | None = None,
    keep_anyway: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Learn a router from the folds "train" and "validation"; no model is called.

    The validation fold chooses the checkpoint of a network; the value model learns from both folds
    and is judged on each query as if it had not seen it. Given the same `out` again, an interrupted
    training is made anew, to the same bytes, and what is finished there is not done again.

    Args:
        tree: all folds; the test fold is not read.
        alpha: price of cost in R = Q - alpha * C; default 0.005.
        algo: "ppo" (the default) samples episodes, "exact" enumerates the tree, "value" expects Q
            and C of every action in closed form.
        preset: training hyperparameters, "default" or "paper".
        allow_stop: the router may stop before the last hop.
        allow_return: after each answer the router may end with any answer of its route; the tree
            was opened with `allow_return`, too.
        seed: of everything that is drawn.
        seeds: how many trainings, from `seed` on, each a run of its own in a folder `<out>-seed-N`;
            the one that is best on validation is returned, and is the newest run.
        epochs: length of the training; default: the preset's.
        out: the run's folder; default: a new one below `runs`.
        name: instead of `out`: the run is `runs/<name>`, and all that takes a run takes the name.
        budget: mean cost of a query, instead of alpha: the alpha that meets it is looked for.
        keep_anyway: ship the router even where it shows no gain over the best fixed route; without
            it such a run is that route, and says so.
        progress: told (label, epochs done, epochs in all, R on train, R on validation or NaN).

    Raises:
        InputError: something does not fit together, or there is too little to learn from.
        CacheLocked: another process is at work in `out`.
        WorldError: the disk is full or failed.
    """
    algo = presets.algorithm(algo, budget, alpha)
    config = presets.training_config(preset, algo, epochs, seeds, keep_anyway)
    alpha = PAPER_ALPHA if alpha is None else alpha
    objective = Objective(alpha, allow_stop, allow_return)
    learned_from, folder = training_tree(tree), folders.named(name, out)
    require_possible(learned_from, budget, objective)
    watch = RunWatch.of(progress)
    if note := encoder_note(config.preset, tree.encoder):
        watch.on_note(note)
    if seeds < 1:
        raise InputError(f"nothing to train: {seeds} seeds; give at least one")
    if seeds == 1:
        return train_run(learned_from, objective, config, seed, budget, folder, watch)
    places = folders.seed_folders(folder or folders.timed("train"), range(seed, seed + seeds))
    return train_seeds(learned_from, objective, config, places, budget, watch)


def sweep(
    tree: Tree,
    alphas: str | Sequence[float] = "auto",
    *,
    allow_stop: bool = False,
    allow_return: bool = False,
    seed: int = PAPER_SEED,
    out: str | Path | None = None,
    name: str | None = None,
    keep_anyway: bool = False,
    progress: Progress | None = None,
) -> SweepRun:
    """Learn routers for many alphas: one value model for all of them.

    Args:
        alphas: prices of cost; "auto" takes them from the data's break-points.

    The other arguments and the errors are those of `train`.
    """
    config = ValueConfig(keep_anyway=keep_anyway)
    learned_from, may = training_tree(tree), Objective(0.0, allow_stop, allow_return)
    if isinstance(alphas, str):
        if alphas != "auto":
            raise InputError(f"alphas are numbers, or auto: {alphas:.60}; e.g. alphas=[0, 0.005]")
        grid = alpha_grid(learned_from, allow_stop=may.ends_early)
    else:
        grid = tuple(sorted({Objective(float(alpha)).alpha for alpha in alphas}))
    if not grid:
        raise InputError("nothing to train: no alphas; give at least one")
    folder = folders.named(name, out)
    return sweep_run(learned_from, grid, config, seed, may, folder, RunWatch.of(progress))


def require_possible(tree: RouteTree, budget: float | None, objective: Objective) -> None:
    """Refuse what no policy can keep to where it is judged, before anything is trained.

    Raises InputError: with what is possible.
    """
    if budget is not None:
        optimum_at_mean_cost(learned_from(tree), budget, objective.ends_early)


def train_run(
    tree: Tree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    budget: float | None,
    out: Path | None,
    watch: RunWatch,
    over: bool = False,
) -> Run:
    """A run of `train`, from its folder to its record.

    Raises HierRouterError: as `train`.

    `tree`: of `training_tree`; `budget`: as in `train`; instead of the objective's alpha; `over`:
    another run in `out` makes way.
    """
    asked = {**training_named(Origin.of(tree, config, seed), objective), "budget": budget}
    with folders.resumable("train", asked, out, over) as begun:
        folder = begun.folder
        watch.on_folder(folder)
        if not begun.is_finished:
            keep_for_live(tree, folder)
        if budget is None:
            trained = train_router(tree, objective, config, seed, folder, watch)
        else:
            assert isinstance(config, ValueConfig)  # `config.algorithm` sees to it
            grid = alpha_grid(tree, allow_stop=objective.ends_early)
            every = train_alphas(tree, grid, objective, config, seed, folder / "alphas", watch)
            trained = meet_budget(every, tree, budget)
            if not begun.is_finished:
                checkpoint.save_checkpoint(trained, folder)
            watch.on_note(_bought(trained, trained.judging_fold(tree), budget))
        reached, learned = Reached.by(trained, tree), checkpoint.learned(trained)
        told = {
            "gain": reached.reward - reached.fixed,
            "alphas": [trained.alpha],
            **asdict(reached),
        }
        folders.finish_run(folder, {**learned, **told, **trained_on(tree)})
        if trained.constant:
            watch.on_note(trained.why_constant)
    return Run(folder, trained, reached)


def train_seeds(
    tree: Tree,
    objective: Objective,
    config: TrainConfig,
    places: Mapping[int, Path],
    budget: float | None,
    watch: RunWatch,
) -> Run:
    """The best of several runs of `train` by `Reached`, made the newest; see `train_run`."""
    runs = []
    for seed, place in places.items():
        run = train_run(tree, objective, config, seed, budget, place, watch)
        reached = Reached.by(run.trained, tree)
        share = "" if reached.share is None else f", {reached.share:.3f} of the gap"
        watch.on_note(f"seed {seed}: R {reached.reward:.4f} on {reached.where}{share}, in {place}")
        runs.append((reached.reward, run))
    best = max(runs, key=itemgetter(0))[1]
    if record := folders.record_of(best.folder):
        folders.make_newest(record)
    return replace(best, seeds=tuple(run for _, run in runs))


def _bought(trained: TrainedRouter, fold: RouteTree, budget: float) -> str:
    best = optimum_at_mean_cost(fold, budget, trained.objective.ends_early)
    reached = trained.outcome(fold)
    return (
        f"budget {budget:g}: alpha {trained.alpha:.4g}; Q {reached.quality.mean():.3f} "
        f"at C {money(reached.cost.mean())} on {judged_in_words(trained, fold)}; "
        f"with hindsight at most Q {best.quality.mean():.3f}"
    )


def sweep_run(
    tree: Tree,
    grid: tuple[float, ...],
    config: ValueConfig,
    seed: int,
    may: Objective,
    out: Path | None,
    watch: RunWatch,
    over: bool = False,
) -> SweepRun:
    """A run of `sweep-alpha`, from its folder to its record; see `train_run`."""
    objective, *_ = (replace(may, alpha=alpha) for alpha in grid)  # refuses what is no alpha
    origin = Origin.of(tree, config, seed)
    asked = {**training_named(origin, objective, grid), "seeds": [seed]}
    with folders.resumable("sweep-alpha", asked, out, over) as begun:
        folder = begun.folder
        watch.on_folder(folder)
        if not begun.is_finished:
            keep_for_live(tree, folder)
        place = member_folder(folder, seed)
        found = train_alphas(tree, grid, objective, config, seed, place, watch)
        told = {"alphas": list(grid), "seeds": [seed], **trained_on(tree)}
        folders.finish_run(folder, {**checkpoint.learned(found), **told})
    return SweepRun(folder, found, sweep_table(found, tree))


def retrain(command: str, run: Path | None, tree: Tree, watch: RunWatch) -> Path | None:
    """A run with the settings of this one, or of the latest, on the tree as it is now; see `train`.

    That one itself where it fits, else a new one; None where there is none.
    """
    others = (one.folder for one in folders.finished_runs(command))
    if (run := run or latest_run(tree, command)[0] or next(others, None)) is None:
        return None
    found = load_sweep(run) if command == "sweep-alpha" else checkpoint.load_checkpoint(run)
    origin, may, config = found.origin, found.objective, found.origin.config
    if all(getattr(origin, name) == getattr(tree, name) for name in AS_OPENED):
        return run
    watch.on_note(f"{run} is trained again")
    learns_from = training_tree(tree)
    if isinstance(found, TrainedRouter):
        return train_run(learns_from, may, config, origin.seed, found.budget, None, watch).folder
    assert isinstance(config, ValueConfig)
    new = sweep_run(learns_from, found.alphas, config, origin.seed, may, None, watch).folder
    return new if command == "sweep-alpha" else member_folder(new, origin.seed)


def keep_for_live(tree: Tree, folder: Path) -> None:
    """Put beside a policy what it needs to route live questions, if its models can be asked."""
    bundle = bundle_of(tree.root, tree, tree.pool)
    if bundle.can_be_asked:
        save_bundle(bundle, folder)


def train_router(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    folder: Path,
    watch: RunWatch,
) -> TrainedRouter:
    """Train for one alpha and save the checkpoint; what is there already is not done again."""
    named = training_named(Origin.of(tree, config, seed), objective)

    def start(on_epoch: OnEpoch) -> TrainedRouter:
        return train_once(tree, objective, config, seed, on_epoch).with_fallback(tree)

    epochs = config.epochs if isinstance(config, NetworkConfig) else tree.routes.states
    return _once(f"train {objective.alpha:g}", named, epochs, folder, start, watch)


def train_alphas(
    tree: RouteTree,
    alphas: tuple[float, ...],
    objective: Objective,
    config: ValueConfig,
    seed: int,
    folder: Path,
    watch: RunWatch,
) -> TrainedSweep:
    """Fit the value model for every alpha and save it; what is there is not done again."""
    named = training_named(Origin.of(tree, config, seed), objective, alphas)

    def start(on_epoch: OnEpoch) -> TrainedSweep:
        return train_sweep(tree, alphas, objective, config, seed, on_epoch).with_fallback(tree)

    return _once("fit", named, tree.routes.states, folder, start, watch)


def _once(
    label: str,
    named: dict[str, Any],
    epochs: int,
    folder: Path,
    start: Callable[[OnEpoch], Policy],
    watch: RunWatch,
) -> Policy:
    """The training in `folder`, unless it is there already."""
    if found := checkpoint.finished(folder, named):
        watch.on_note(f"{label}: already there, {folder}")
        return found  # type: ignore[return-value]
    with watch.training(label, epochs, folder) as on_epoch:
        trained = start(on_epoch)
    checkpoint.save_checkpoint(trained, folder)
    return trained


def sweep_table(sweep: TrainedSweep, tree: RouteTree) -> str:
    """Alpha, quality, cost and reward, where they flatter nobody."""
    routers = sweep.routers
    fold = routers[0].judging_fold(tree)
    lines = [f"alpha      Q      C      R    ({judged_in_words(routers[0], fold)})"]
    for alpha, router in zip(sweep.alphas, routers, strict=True):
        reached, route = router.outcome(fold), router.constant_route
        always = f"  always {safe_text(route)}" if route else ""
        lines.append(
            f"{alpha:<8.4g}{reached.quality.mean():6.3f}{money(reached.cost.mean()):>10}"
            f"{reached.reward(alpha).mean():7.3f}{always}"
        )
    return "\n".join(lines) + "\n"


def describe_training(
    objective: Objective, config: TrainConfig, budget: float | None = None
) -> str:
    """What is trained and how, in words."""
    price = f"alpha {objective.alpha:g}" if budget is None else f"mean cost {budget:g}"
    stop = ", may stop early" if objective.allow_stop else ""
    stop += ", may return earlier answers" if objective.allow_return else ""
    return f"{price}{stop}, {config.algo}, preset {config.preset}"

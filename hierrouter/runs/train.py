"""The jobs that train routers on an opened tree: `hr.train` and `hr.sweep`.

Each job is declared once, for Python and for the command line, see `hierrouter.declarations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter.declarations import flags
from hierrouter.declarations.checks import AUTOMATIC, check_alphas
from hierrouter.declarations.declaration import Flag, declaration, function_of
from hierrouter.learning.config import (
    Objective,
    TrainConfig,
    ValueConfig,
    algorithm,
    training_config,
)
from hierrouter.paper import PAPER_ALPHA, PAPER_SEED
from hierrouter.runs import folders

if TYPE_CHECKING:
    from hierrouter.replay.tree import Tree
    from hierrouter.runs.run import Run, SweepRun
    from hierrouter.runs.training import OnTrainingEpoch, RunCallbacks, SweepPlan, TrainingPlan


@declaration
class Train:
    """Learn a router for one alpha, or for a budget; see `train` for the attributes."""

    alpha: flags.AlphaToTrain = None
    algo: flags.Algorithm = None
    preset: flags.Preset = "default"
    epochs: flags.Epochs = None
    allow_stop: flags.AllowStop = False
    allow_return: flags.AllowReturn = False
    budget: flags.Budget = None
    seeds: flags.Seeds = 1
    seed: flags.Seed = PAPER_SEED
    out: flags.Out = None
    name: flags.Name = None
    keep_anyway: flags.KeepAnyway = False

    @property
    def config(self) -> TrainConfig:
        """Settings of the algorithm.

        Raises:
            InputError: settings that contradict each other, or that the algorithm does not have.
        """
        algo = algorithm(self.algo, self.budget, self.alpha)
        return training_config(self.preset, algo, self.epochs, self.seeds, self.keep_anyway)

    @property
    def objective(self) -> Objective:
        """The objective of the router."""
        alpha = PAPER_ALPHA if self.alpha is None else self.alpha
        return Objective(alpha, self.allow_stop, self.allow_return)

    @property
    def folder(self) -> Path | None:
        """The folder of the run, or the prefix of the folders of several; None makes a new one.

        Raises:
            InputError: a name that cannot be used, or one that contradicts `out`.
        """
        return folders.chosen_folder(self.name, self.out)

    @property
    def all_seeds(self) -> range:
        """The seed of each training."""
        return range(self.seed, self.seed + self.seeds)

    def check(self) -> None:
        """Refuse settings that can be refused before a cache is read.

        Raises:
            InputError: settings that contradict each other, or a folder that is in use.
        """
        # These properties raise if settings contradict each other.
        self.config  # noqa: B018
        self.objective  # noqa: B018
        run_folders = [self.folder]
        if self.seeds > 1:
            run_folders = []
            if self.folder:
                run_folders += folders.seed_folders(self.folder, self.all_seeds).values()
        for folder in run_folders:
            folders.check_out(folder, "train")

    def plan(self, tree: Tree) -> TrainingPlan:
        """Return the trainings on a tree, ready to run.

        Args:
            tree: all folds; the test fold is not read.

        Raises:
            InputError: something does not fit together, or there is too little to learn from.
        """
        from hierrouter.replay.opening import training_tree

        config = self.config
        objective = self.objective
        learns_from = training_tree(tree)
        # This imports torch, which takes seconds: everything above is refused before.
        from hierrouter.runs.training import TrainingPlan, require_possible

        require_possible(learns_from, self.budget, objective)
        out = self.folder
        if out is None and self.seeds > 1:
            out = folders.timestamped_folder("train")
        return TrainingPlan(learns_from, objective, config, self.budget, self.all_seeds, out)

    def run(
        self, tree: Tree, callbacks: RunCallbacks | None = None, replace_existing: bool = False
    ) -> Run:
        """Train; see `train` for arguments and errors, and `TrainingPlan.run`."""
        return self.plan(tree).run(callbacks, replace_existing)


@declaration
class Sweep:
    """Learn routers for many alphas; see `sweep` for the attributes."""

    alphas: Annotated[
        Sequence[float] | str,
        Flag(
            "--alphas",
            "A,B|auto",
            "Prices of cost; auto: from the data's break-points.",
            check=check_alphas,
        ),
    ] = AUTOMATIC
    allow_stop: flags.AllowStop = False
    allow_return: flags.AllowReturn = False
    seed: flags.Seed = PAPER_SEED
    out: flags.Out = None
    name: flags.Name = None
    keep_anyway: flags.KeepAnyway = False

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None makes a new one.

        Raises:
            InputError: a name that cannot be used, or one that contradicts `out`.
        """
        return folders.chosen_folder(self.name, self.out)

    def check(self) -> None:
        """Refuse settings that can be refused before a cache is read.

        Raises:
            InputError: a name or a folder that cannot be used.
        """
        folders.check_out(self.folder, "sweep-alpha")

    def plan(self, tree: Tree) -> SweepPlan:
        """Return the training on a tree, ready to run.

        Args:
            tree: all folds; the test fold is not read.

        Raises:
            InputError: something does not fit together, or there is too little to learn from.
        """
        from hierrouter.replay.opening import training_tree

        learns_from = training_tree(tree)
        # This imports torch, which takes seconds: everything above is refused before.
        from hierrouter.learning.sweep import alpha_grid
        from hierrouter.runs.training import SweepPlan, Training

        objective = Objective(0.0, self.allow_stop, self.allow_return)
        if isinstance(self.alphas, str):
            grid = alpha_grid(learns_from, allow_stop=objective.ends_early)
        else:
            grid = tuple(self.alphas)
        training = Training(objective, ValueConfig(keep_anyway=self.keep_anyway), self.seed, grid)
        return SweepPlan(learns_from, training, self.folder)

    def run(
        self, tree: Tree, callbacks: RunCallbacks | None = None, replace_existing: bool = False
    ) -> SweepRun:
        """Train; see `sweep` for arguments and errors, and `SweepPlan.run`."""
        return self.plan(tree).run(callbacks, replace_existing)


@function_of(Train)
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
    progress: OnTrainingEpoch | None = None,
) -> Run:
    """Learn a router from the folds "train" and "validation"; no model is called.

    The validation fold chooses the weights of a network. The value model learns from both folds,
    and is evaluated on each query as if it had not learned from it. Given the same `out`, an
    interrupted training goes on from its last saved epoch, with the same bytes as its result, and a
    finished one is only loaded.

    Args:
        tree: all folds; the test fold is not read.
        alpha: price of cost in R = Q - alpha * C (paper section 3.1); default 0.005.
        algo: "ppo" (the default) samples episodes, "exact" enumerates the tree, "value" expects Q
            and C of every action in closed form.
        preset: training hyperparameters, "default" or "paper".
        allow_stop: the router may stop before the last hop.
        allow_return: after each call the router may end with any response of its route; the tree
            must have been opened with `allow_return`, too.
        seed: of all random numbers.
        seeds: how many trainings, from `seed` on, each a separate run in a folder `<out>-seed-N`;
            the one that is best on validation is returned, and is the newest run.
        epochs: length of the training; default: the preset's.
        out: the run's folder; default: a new one below `runs`.
        name: instead of `out`: the run is `runs/<name>`, and can be given by its name to all that
            takes a run.
        budget: mean cost of a query in money, instead of alpha: the smallest alpha that keeps
            within it is found.
        keep_anyway: keep the router even if it shows no gain over the best fixed route; without
            it such a run is that route, and its notes give the reason.
        progress: called with (label, epochs done, epochs in all, R on train, R on validation or
            NaN).

    Returns:
        The run.

    Raises:
        InputError: something does not fit together, or there is too little to learn from.
        CacheLocked: another process is at work in `out`.
        WorldError: the disk is full or failed.
    """
    training = Train(
        alpha=alpha,
        algo=algo,
        preset=preset,
        allow_stop=allow_stop,
        allow_return=allow_return,
        seed=seed,
        seeds=seeds,
        epochs=epochs,
        out=None if out is None else Path(out),
        name=name,
        budget=budget,
        keep_anyway=keep_anyway,
    )
    from hierrouter.runs.training import RunCallbacks

    return training.run(tree, RunCallbacks.of(progress))


@function_of(Sweep)
def sweep(
    tree: Tree,
    alphas: str | Sequence[float] = AUTOMATIC,
    *,
    allow_stop: bool = False,
    allow_return: bool = False,
    seed: int = PAPER_SEED,
    out: str | Path | None = None,
    name: str | None = None,
    keep_anyway: bool = False,
    progress: OnTrainingEpoch | None = None,
) -> SweepRun:
    """Learn routers for many alphas: one value model for all of them.

    Args:
        tree: all folds; the test fold is not read.
        alphas: prices of cost; "auto" takes them from the data's break-points.
        allow_stop: as for `train`.
        allow_return: as for `train`.
        seed: as for `train`.
        out: as for `train`.
        name: as for `train`.
        keep_anyway: as for `train`.
        progress: as for `train`.

    Returns:
        The run.

    Raises:
        InputError: as `train`.
        CacheLocked: as `train`.
        WorldError: as `train`.
    """
    sweeping = Sweep(
        alphas=alphas,
        allow_stop=allow_stop,
        allow_return=allow_return,
        seed=seed,
        out=None if out is None else Path(out),
        name=name,
        keep_anyway=keep_anyway,
    )
    from hierrouter.runs.training import RunCallbacks

    return sweeping.run(tree, RunCallbacks.of(progress))

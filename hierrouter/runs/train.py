"""The jobs that train routers on an opened tree: `hr.train` and `hr.sweep`.

Each job is declared once, for Python and for the command line, see `hierrouter.declarations`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter.declarations import flags
from hierrouter.declarations.checks import AUTOMATIC, check_alphas
from hierrouter.declarations.declaration import (
    Flag,
    declaration,
    function_of,
    shown_name,
    shown_value,
)
from hierrouter.learning.config import (
    CHECKPOINTS_EVERY,
    NetworkConfig,
    Objective,
    TianshouConfig,
    TrainConfig,
    algorithm,
    sweep_config,
    training_config,
)
from hierrouter.paper import PAPER_ALPHA, PAPER_SEED
from hierrouter.runs import folders
from hierrouter.runs.folders import run_flag
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.learning.own_algorithm import Factory, OwnAlgorithm
    from hierrouter.replay.tree import Tree
    from hierrouter.runs.run import Run, SweepRun
    from hierrouter.runs.training import (
        Byproducts,
        OnTrainingEpoch,
        RunCallbacks,
        SweepPlan,
        TrainingPlan,
    )

FromCheckpoint = Annotated[
    Path | None,
    run_flag(
        "--from-checkpoint",
        help="Go on from the checkpoint of an epoch, with the flags of its training.",
        group=flags.TRAINING,
    ),
]


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
    checkpoint_every: flags.CheckpointEvery = None
    from_checkpoint: FromCheckpoint = None
    log_to: flags.LogTo = ()

    @cached_property
    def own_algorithm(self) -> OwnAlgorithm | None:
        """The algorithm of the user, imported; None if a built-in one is asked for.

        Raises:
            InputError: it cannot be imported, or is no factory.
        """
        from hierrouter.learning.own_algorithm import own_algorithm

        if self.algo is None or self.algo in flags.ALGORITHMS:
            return None
        return own_algorithm(self.algo)

    @property
    def config(self) -> TrainConfig:
        """Settings of the algorithm.

        Raises:
            InputError: settings that contradict each other, that the algorithm does not have, or an
                algorithm of the user that cannot be imported.
        """
        own = self.own_algorithm
        name = own.path if own else str(self.algo) if self.algo else None
        algo = algorithm(name, self.budget, self.alpha)
        config = training_config(self.preset, algo, self.epochs, self.seeds, self.keep_anyway)
        return own.applied_to(config) if own and isinstance(config, TianshouConfig) else config

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

    @property
    def byproducts(self) -> Byproducts:
        """Checkpoints and logs.

        Raises:
            InputError: settings that the algorithm does not have or that contradict each other, no
                checkpoint to go on from, or a log target that is not installed.
        """
        return _byproducts(self)

    def check(self) -> None:
        """Refuse settings that can be refused before a cache is read.

        Raises:
            InputError: settings that contradict each other, a folder that is in use, or one of the
                errors of `byproducts`.
        """
        # These properties raise if settings contradict each other.
        self.config  # noqa: B018
        self.objective  # noqa: B018
        if self.checkpoint_every or self.from_checkpoint or self.log_to:
            self.byproducts  # noqa: B018
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
        return TrainingPlan(
            learns_from,
            objective,
            config,
            self.budget,
            self.all_seeds,
            out,
            self.byproducts,
            self.own_algorithm,
        )

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
    algo: flags.SweepAlgorithm = "best"
    preset: flags.Preset = "default"
    epochs: flags.Epochs = None
    allow_stop: flags.AllowStop = False
    allow_return: flags.AllowReturn = False
    seeds: flags.Seeds = 1
    seed: flags.Seed = PAPER_SEED
    out: flags.Out = None
    name: flags.Name = None
    keep_anyway: flags.KeepAnyway = False
    checkpoint_every: Annotated[
        int,
        flags.training(
            "--checkpoint-every",
            "N",
            "Keep a checkpoint of every N epochs, with a network for each alpha; 0: none.",
            minimum=0,
        ),
    ] = 0
    from_checkpoint: FromCheckpoint = None
    log_to: flags.LogTo = ()

    @property
    def config(self) -> TrainConfig:
        """Settings of the algorithm.

        Raises:
            InputError: settings that the algorithm does not have.
        """
        return sweep_config(self.preset, self.algo, self.epochs, self.seeds, self.keep_anyway)

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None makes a new one.

        Raises:
            InputError: a name that cannot be used, or one that contradicts `out`.
        """
        return folders.chosen_folder(self.name, self.out)

    @property
    def byproducts(self) -> Byproducts:
        """Checkpoints and logs; see `Train.byproducts`."""
        return _byproducts(self)

    def check(self) -> None:
        """Refuse settings that can be refused before a cache is read.

        Raises:
            InputError: settings that contradict each other, a name or a folder that cannot be used,
                or one of the errors of `byproducts`.
        """
        self.config  # noqa: B018 (raises)
        if self.checkpoint_every or self.from_checkpoint or self.log_to:
            self.byproducts  # noqa: B018
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
        training = Training(objective, self.config, self.seed, grid)
        seeds = range(self.seed, self.seed + self.seeds)
        return SweepPlan(learns_from, training, self.folder, seeds, self.byproducts)

    def run(
        self, tree: Tree, callbacks: RunCallbacks | None = None, replace_existing: bool = False
    ) -> SweepRun:
        """Train; see `sweep` for arguments and errors, and `SweepPlan.run`."""
        return self.plan(tree).run(callbacks, replace_existing)


def _byproducts(job: Train | Sweep) -> Byproducts:
    """Return the checkpoints and logs of a training or a sweep; see `Train.byproducts`."""
    from hierrouter.runs.checkpoint import member_folder
    from hierrouter.runs.curve_logs import require_installed
    from hierrouter.runs.saved_states import find_checkpoint
    from hierrouter.runs.training import Byproducts

    config = job.config
    names = {
        field: shown_name(type(job), field)
        for field in ("checkpoint_every", "from_checkpoint", "log_to", "algo", "seeds")
    }
    if not isinstance(config, NetworkConfig):
        # By default a sweep has no network.
        other = f", or give {shown_value(names['algo'], 'ppo')}" if isinstance(job, Sweep) else ""
        for field in ("checkpoint_every", "from_checkpoint", "log_to"):
            if getattr(job, field):
                algo = shown_value(names["algo"], config.algo)
                raise InputError(
                    f"{names[field]} with {algo}: it has no epochs; leave {names[field]} out{other}"
                )
    elif not config.can_be_saved:
        for field in ("checkpoint_every", "from_checkpoint"):
            if getattr(job, field):
                algo = shown_value(names["algo"], config.algo)
                raise InputError(
                    f"{names[field]} with {algo}: only the algorithm knows its state; "
                    f"leave {names[field]} out"
                )
    start = None
    if job.from_checkpoint is not None:
        if job.seeds > 1:
            seeds = shown_value(names["seeds"], job.seeds)
            raise InputError(
                f"a checkpoint is of one seed: {names['from_checkpoint']} with {seeds}; "
                f"leave {names['seeds']} out"
            )
        path = job.from_checkpoint
        member = member_folder(path, job.seed)
        if isinstance(job, Sweep) and member.is_dir():
            path = member
        start = find_checkpoint(path, names["from_checkpoint"])
    require_installed(job.log_to, names["log_to"])
    interval = job.checkpoint_every
    if interval is None:
        interval = CHECKPOINTS_EVERY[config.preset]
    return Byproducts(interval, start, tuple(job.log_to))


@function_of(Train)
def train(
    tree: Tree,
    *,
    alpha: float | None = None,
    algo: str | Factory | None = None,
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
    checkpoint_every: int | None = None,
    from_checkpoint: str | os.PathLike[str] | None = None,
    log_to: str | Sequence[str] = (),
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
            and C of every action in closed form, "best" is the best policy class by cross-fitting.
            Or a factory of any other algorithm of Tianshou: a function that takes
            `hierrouter.learning.own_learner.AlgorithmParts`, or its import path "module:factory".
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
        budget: mean cost of a query in money, instead of alpha: the router with the highest mean
            Q that keeps within it is found.
        keep_anyway: keep the router even if it shows no gain over the best fixed route; without
            it such a run is that route, and its notes give the reason.
        checkpoint_every: epochs between two checkpoints in the run's folder, see `Run.checkpoints`;
            0 makes none. Default: 5 with the preset "paper", 0 with others.
        from_checkpoint: go on from the checkpoint of an epoch, given as its folder, or from the
            last one of a run. Everything else must be as in its training, and the result has the
            same bytes as a training that was not interrupted. With the preset "paper", whose
            schedules do not depend on the length, `epochs` may be greater than it was.
        log_to: clients that log the learning curve: "csv", "mlflow", "tensorboard" or "wandb", or
            several of them.
        progress: called with (label, epochs done, epochs in all, R on train, R on validation or
            NaN).

    Returns:
        The run.

    Raises:
        InputError: something does not fit together, there is too little to learn from, or a log
            target is not installed.
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
        checkpoint_every=checkpoint_every,
        from_checkpoint=None if from_checkpoint is None else Path(from_checkpoint),
        log_to=log_to,
    )
    from hierrouter.runs.training import RunCallbacks

    return training.run(tree, RunCallbacks.of(progress))


@function_of(Sweep)
def sweep(
    tree: Tree,
    alphas: str | Sequence[float] = AUTOMATIC,
    *,
    algo: str = "best",
    preset: str = "default",
    allow_stop: bool = False,
    allow_return: bool = False,
    seed: int = PAPER_SEED,
    seeds: int = 1,
    epochs: int | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    keep_anyway: bool = False,
    checkpoint_every: int = 0,
    from_checkpoint: str | os.PathLike[str] | None = None,
    log_to: str | Sequence[str] = (),
    progress: OnTrainingEpoch | None = None,
) -> SweepRun:
    """Learn routers for many alphas: the best policy class, or one that is named, for all of them.

    Args:
        tree: all folds; the test fold is not read.
        alphas: prices of cost; "auto" takes them from the data's break-points.
        algo: "best" (the default) takes the best of the policy classes without a network, by
            cross-fitting; "value" and "ridge" fit one model, "groups" and "clusters" are tables of
            fixed routes, "ppo" and "exact" train one network for all alphas.
        preset: as for `train`.
        allow_stop: as for `train`.
        allow_return: as for `train`.
        seed: as for `train`.
        seeds: how many trainings, from `seed` on, all in the run's folder; the one that is best on
            validation answers, and the table has mean and standard deviation over all of them.
        epochs: as for `train`.
        out: as for `train`.
        name: as for `train`.
        keep_anyway: as for `train`.
        checkpoint_every: epochs between two checkpoints of networks in the run's folder, see
            `SweepRun.checkpoints`; 0 makes none.
        from_checkpoint: as for `train`; of a sweep's run, the last one of `seed`.
        log_to: as for `train`; the curve has R at each alpha and their mean, and each seed has its
            own log.
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
        algo=algo,
        preset=preset,
        allow_stop=allow_stop,
        allow_return=allow_return,
        seed=seed,
        seeds=seeds,
        epochs=epochs,
        out=None if out is None else Path(out),
        name=name,
        keep_anyway=keep_anyway,
        checkpoint_every=checkpoint_every,
        from_checkpoint=None if from_checkpoint is None else Path(from_checkpoint),
        log_to=log_to,
    )
    from hierrouter.runs.training import RunCallbacks

    return sweeping.run(tree, RunCallbacks.of(progress))

"""From an objective to a stored run: the one way in which commands and Python train.

A `Training` states what to learn. `load_or_train` trains it and saves the policy in a folder,
unless it is there already; an interrupted training goes on from the state that `progress` saved.
`TrainingPlan` and `SweepPlan` make complete runs of trainings, with a record of the settings. So an
interrupted run can be resumed by giving the same settings again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hierrouter.engines.encoders import encoder_note
from hierrouter.evaluation.bounds import REWARD_ROUNDING
from hierrouter.evaluation.budget import optimum_at_mean_cost
from hierrouter.evaluation.intervals import reward_interval
from hierrouter.learning.config import (
    CHECKPOINTS_EVERY,
    PRESET_NOTES,
    BestConfig,
    NetworkConfig,
    Objective,
    OnEpoch,
    OnEvaluation,
    TrainConfig,
    ignore_epoch,
    ignore_evaluation,
)
from hierrouter.learning.cross_fit import (
    Repetition,
    sweep_best,
    sweep_with_fallback,
    train_best,
    with_fallback,
)
from hierrouter.learning.own_algorithm import OwnAlgorithm, require_given
from hierrouter.learning.resumption import Resumption
from hierrouter.learning.router import Origin, TrainedRouter, choosing_fold, requested_config
from hierrouter.learning.sweep import Policy, TrainedSweep, alpha_grid, meet_budget, train_sweep
from hierrouter.learning.training import train
from hierrouter.replay.opening import LEARNED_FROM, few_queries_note, training_tree
from hierrouter.replay.tree import Tree
from hierrouter.runs import checkpoint, folders
from hierrouter.runs.bundle import bundle_of, save_bundle
from hierrouter.runs.checkpoint import load_sweep, member_folder, sweep_seeds, training_identity
from hierrouter.runs.curve_logs import open_logs
from hierrouter.runs.freshness import trained_on
from hierrouter.runs.run import (
    Performance,
    Run,
    SweepRun,
    describe_training,
    history_table,
    judged_in_words,
    rank_sweeps,
    sweep_table,
)
from hierrouter.runs.saved_states import (
    TrainingProgress,
    latest_state,
    remove_epochs,
    save_epoch,
    state_to_go_on_from,
)
from hierrouter.runs.selection import latest_run
from hierrouter.tables import money
from hierrouter_cache.errors import HierRouterError
from hierrouter_cache.tree import RouteTree

TRAIN = "train"
SWEEP = "sweep-alpha"
COMPARED_ATTRIBUTES = ("fingerprint", "view", "encoder")  # of a tree, and of the origin of a run
# Called with the label of a training, epochs done, epochs in all, R on train, R on validation.
OnTrainingEpoch = Callable[[str, int, int, float, float], None]
# Called with the number of a repeated training, and how many there are; see `cross_fit.Repetition`.
FoldContext = Callable[[int, int], AbstractContextManager[OnEpoch]]


@dataclass(frozen=True)
class RunCallbacks:
    """Callbacks of the making of runs; by default they do nothing.

    Attributes:
        on_folder: called with the run's folder before anything is trained.
        on_note: called with a line on each training that was done before, and on each choice.
        training_context: called with the label of a training, its number of epochs and its folder;
            returns the context in which it runs. The value of the context is called after each
            evaluation.
    """

    on_folder: Callable[[Path], None] = lambda folder: None
    on_note: Callable[[str], None] = lambda note: None
    training_context: Callable[[str, int, Path], AbstractContextManager[OnEpoch]] = (
        lambda label, epochs, folder: nullcontext(ignore_epoch)
    )

    @classmethod
    def of(cls, on_epoch: OnTrainingEpoch | None) -> RunCallbacks:
        """Return callbacks that only report evaluations."""
        if on_epoch is None:
            return cls()
        return cls(training_context=lambda label, *_: nullcontext(partial(on_epoch, label)))


@dataclass(frozen=True)
class Training:
    """The settings of one training.

    Attributes:
        objective: what to train for; a sweep ignores its alpha.
        config: settings of the algorithm.
        seed: of all random numbers.
        alphas: the grid of a sweep, whose policy is one for every alpha; empty for one alpha.
        own: the algorithm of the user that the settings name; None if they name none.
        candidates: trainings of which the best one is taken, such as several seeds.
    """

    objective: Objective
    config: TrainConfig
    seed: int
    alphas: tuple[float, ...] = ()
    own: OwnAlgorithm | None = None
    candidates: int = 1

    def identity(self, tree: RouteTree) -> dict[str, Any]:
        """Return what tells this training on a tree from all others, as JSON values."""
        origin = Origin.of(tree, self.config, self.seed)
        return training_identity(origin, self.objective, self.alphas)

    def fit(
        self,
        tree: RouteTree,
        on_epoch: OnEpoch,
        resumption: Resumption | None = None,
        on_evaluation: OnEvaluation = ignore_evaluation,
    ) -> Policy:
        """Learn from a tree.

        Args:
            tree: of `training_tree`.
            on_epoch: called after each evaluation.
            resumption: how a training of a network goes on, and what is saved of it.
            on_evaluation: called with each row of the learning curve of a network.
        """
        if isinstance(self.config, BestConfig):
            if self.alphas:
                return sweep_best(
                    tree, self.alphas, self.objective, self.config, self.seed, on_epoch
                )
            return train_best(tree, self.objective, self.config, self.seed, on_epoch)
        if not self.alphas:
            return train(
                tree,
                self.objective,
                self.config,
                self.seed,
                on_epoch,
                resumption,
                on_evaluation,
                self.own,
            )
        return train_sweep(
            tree,
            self.alphas,
            self.objective,
            self.config,
            self.seed,
            on_epoch,
            resumption,
            on_evaluation,
        )

    def shipped(self, policy: Policy, tree: RouteTree, context: FoldContext) -> Policy:
        """Replace a policy by a constant choice where it shows no gain, see `cross_fit`.

        Args:
            policy: what `fit` returned.
            tree: of `training_tree`.
            context: of each training that is repeated.
        """
        if isinstance(self.config, BestConfig):
            return policy  # it was judged when it was chosen
        repetition = Repetition(self.own, self.candidates, context)
        if isinstance(policy, TrainedSweep):
            return sweep_with_fallback(policy, tree, repetition)
        return with_fallback(policy, tree, repetition)

    @property
    def label(self) -> str:
        """Its name in notes and beside a bar."""
        if not self.alphas:
            return f"train {self.objective.alpha:g}"
        if isinstance(self.config, NetworkConfig):
            return f"sweep {self.config.algo}, seed {self.seed}"
        return "cross-fit" if isinstance(self.config, BestConfig) else "fit"


@dataclass(frozen=True)
class Byproducts:
    """The outputs of a training beside its policy, and its start; it learns the same anyway.

    Attributes:
        checkpoint_every: epochs between two checkpoints; 0 makes none.
        start: file of the state to go on from, see `epochs.find_checkpoint`; None begins with the
            first epoch, or goes on with an interrupted training.
        log_to: clients that log the learning curve, see `curve_logs`.
    """

    checkpoint_every: int = 0
    start: Path | None = None
    log_to: tuple[str, ...] = ()


NO_BYPRODUCTS = Byproducts()


def load_or_train(
    training: Training,
    tree: RouteTree,
    folder: Path,
    callbacks: RunCallbacks,
    byproducts: Byproducts = NO_BYPRODUCTS,
) -> Policy:
    """Return the policy of a training from its folder; train and save it if it is not there.

    A network whose training was interrupted goes on from its last saved state. Its learning curve
    is logged from the first epoch on, whatever was trained now.

    Args:
        training: what to learn.
        tree: of `training_tree`.
        folder: of the checkpoint.
        callbacks: see `RunCallbacks`.
        byproducts: checkpoints and logs.

    Raises:
        InputError: the checkpoint or a saved state is damaged or of another training, the training
            diverged, or a log cannot be opened.
        WorldError: the disk is full or failed.
    """
    label = training.label
    identity = training.identity(tree)
    stored = checkpoint.load_finished(folder, identity)
    if stored:
        callbacks.on_note(f"{label}: already there, {folder}")
        with open_logs(byproducts.log_to, folder, identity, callbacks.on_note) as on_evaluation:
            for row in history_table(stored).to_pylist():
                on_evaluation(row.pop("epoch"), row)
        return stored
    epochs = tree.layout.inner  # of the value model, which is fitted state by state
    resumption = None
    if isinstance(training.config, NetworkConfig):
        epochs = training.config.epochs
        if training.config.can_be_saved:
            resumption = _resumption(training.config, folder, identity, byproducts)
            state = resumption.state
            if state and state.epoch < epochs:
                callbacks.on_note(f"{label}: goes on at epoch {state.epoch + 1} of {epochs}")
    with (
        open_logs(byproducts.log_to, folder, identity, callbacks.on_note) as on_evaluation,
        callbacks.training_context(label, epochs, folder) as on_epoch,
    ):
        policy = training.fit(tree, on_epoch, resumption, on_evaluation)

    def fold_context(number: int, count: int) -> AbstractContextManager[OnEpoch]:
        return callbacks.training_context(f"{label}, judged {number}/{count}", epochs, folder)

    policy = training.shipped(policy, tree, fold_context)
    if policy.ladder:
        callbacks.on_note(ladder_in_words(policy))
    checkpoint.save_checkpoint(policy, folder)
    return policy


def _resumption(
    config: NetworkConfig, folder: Path, identity: dict[str, Any], byproducts: Byproducts
) -> Resumption:
    """Return where the training of a network begins, and how its states are saved.

    It begins with the furthest of the states in its folder; else with that of `byproducts.start`.
    """
    progress = TrainingProgress(folder, identity)
    states = [state for state in (progress.load(), latest_state(folder, identity)) if state]
    state = max(states, key=lambda state: state.epoch, default=None)
    if state is None:
        if byproducts.start:
            state = state_to_go_on_from(byproducts.start, identity, config.is_scheduled)
        remove_epochs(folder)  # of another training, which was there before
    return Resumption(
        state,
        progress.save_now_and_then,
        byproducts.checkpoint_every,
        lambda state: save_epoch(folder, state, identity),
    )


@dataclass(frozen=True)
class TrainingPlan:
    """One or several trainings for one alpha or budget, ready to run; see `train.Train`.

    Attributes:
        tree: of `training_tree`.
        objective: what to train for; with a budget its alpha is ignored.
        config: settings of the algorithm.
        budget: mean cost of a query, in money, instead of alpha; None is no budget.
        seeds: of the trainings; each of them is a separate run.
        out: the folder of one run, or what the folders of several begin with; None makes a new
            folder.
        byproducts: checkpoints and logs of a network.
        own: the algorithm of the user that the settings name; None if they name none.

    Raises:
        InputError: the settings name an algorithm of the user that is not given.
    """

    tree: Tree
    objective: Objective
    config: TrainConfig
    budget: float | None
    seeds: Sequence[int]
    out: Path | None
    byproducts: Byproducts = NO_BYPRODUCTS
    own: OwnAlgorithm | None = None

    def __post_init__(self) -> None:
        require_given(self.config, self.own)

    @property
    def run_folders(self) -> dict[int, Path | None]:
        """The folder of each run by its seed; None if a new one is to be made."""
        if len(self.seeds) == 1:
            return {self.seeds[0]: self.out}
        assert self.out, "the folders of several runs have a common prefix"
        return {**folders.seed_folders(self.out, self.seeds)}

    def __str__(self) -> str:
        seeds = f"seed {self.seeds[0]}"
        if len(self.seeds) > 1:
            seeds = f"seeds {self.seeds[0]} to {self.seeds[-1]}, in {self.out}-seed-N"
        training = describe_training(self.objective, self.config, self.budget)
        return f"train: {training}, {seeds}: {describe_tree(self.tree)}"

    def notes(self) -> list[str]:
        """Return what the user should know before the training, a line each."""
        return training_notes(self.tree, self.config)

    def run(self, callbacks: RunCallbacks | None = None, replace_existing: bool = False) -> Run:
        """Make the runs, one after the other.

        Args:
            callbacks: see `RunCallbacks`; None does nothing.
            replace_existing: replace another run in the folder, instead of refusing.

        Returns:
            The run; of several the best, which becomes the newest one.

        Raises:
            InputError: the folder holds something else, or the training diverged.
            CacheLocked: another process is at work in the folder.
            WorldError: the disk is full or failed.
        """
        callbacks = callbacks or RunCallbacks()
        runs = []
        for seed, folder in self.run_folders.items():
            run = self._run_seed(seed, folder, callbacks, replace_existing)
            runs.append(run)
            if len(self.seeds) > 1:
                callbacks.on_note(f"seed {seed}: {_gap_in_words(run)}, in {folder}")
        if len(runs) == 1:
            return runs[0]
        best = max(runs, key=lambda run: run.reached.reward if run.reached else 0.0)
        record = folders.read_record(best.folder)
        if record:
            folders.make_newest(record)
        return replace(best, seeds=tuple(runs))

    def _run_seed(
        self, seed: int, out: Path | None, callbacks: RunCallbacks, replace_existing: bool
    ) -> Run:
        """Make one run, from its folder to its record."""
        training = Training(
            self.objective, self.config, seed, own=self.own, candidates=len(self.seeds)
        )
        settings = {**training.identity(self.tree), "budget": self.budget}
        with folders.begin_or_resume(TRAIN, settings, out, replace_existing) as record:
            callbacks.on_folder(record.folder)
            if not record.is_finished:
                keep_for_live(self.tree, record.folder)
            if self.budget is None:
                policy = load_or_train(
                    training, self.tree, record.folder, callbacks, self.byproducts
                )
                assert isinstance(policy, TrainedRouter)  # the training has no grid
                router = policy
            else:
                router = self._router_within_budget(training, record, callbacks)
            reached = Performance.of(router, self.tree)
            result = {
                **checkpoint.policy_record(router),
                "gain": reached.gain,
                "alphas": [router.alpha],
                **asdict(reached),
                **trained_on(self.tree),
            }
            folders.finish_run(record.folder, result)
            if router.constant:
                callbacks.on_note(router.why_constant)
            better = better_sweep(router, self.tree) if self.budget is None else ""
            if better:
                callbacks.on_note(better)
            elif router.table_in_words:
                callbacks.on_note(router.table_in_words)
        return Run(record.folder, router, reached)

    def _router_within_budget(
        self, training: Training, record: folders.Record, callbacks: RunCallbacks
    ) -> TrainedRouter:
        """Learn for every alpha, and return the router of the smallest one within the budget."""
        assert self.budget is not None
        grid = alpha_grid(self.tree, allow_stop=self.objective.ends_early)
        for_all_alphas = replace(training, alphas=grid)
        sweep = load_or_train(for_all_alphas, self.tree, record.folder / "alphas", callbacks)
        assert isinstance(sweep, TrainedSweep)  # the training has a grid
        router = meet_budget(sweep, self.tree, self.budget)
        if not record.is_finished:
            checkpoint.save_checkpoint(router, record.folder)
        callbacks.on_note(budget_note(router, router.judging_fold(self.tree), self.budget))
        return router


@dataclass(frozen=True)
class SweepPlan:
    """Trainings for many alphas, one for each seed, ready to run; see `train.Sweep`.

    Attributes:
        tree: of `training_tree`.
        training: with the grid of alphas, and the first seed.
        folder: of the run; None makes a new one.
        seeds: of the trainings, whose checkpoints lie side by side in the folder.
        byproducts: checkpoints and logs of networks, in the folder of each seed.
    """

    tree: Tree
    training: Training
    folder: Path | None
    seeds: Sequence[int]
    byproducts: Byproducts = NO_BYPRODUCTS

    def __str__(self) -> str:
        alphas = self.training.alphas
        seeds = f"seed {self.seeds[0]}"
        if len(self.seeds) > 1:
            seeds = f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        return (
            f"sweep-alpha: {len(alphas)} alphas ({', '.join(f'{alpha:g}' for alpha in alphas)}), "
            f"{self.training.config.algo}, {seeds}: {describe_tree(self.tree)}"
        )

    def notes(self) -> list[str]:
        """Return what the user should know before the training, a line each."""
        return training_notes(self.tree, self.training.config)

    def run(
        self, callbacks: RunCallbacks | None = None, replace_existing: bool = False
    ) -> SweepRun:
        """Make the run, from its folder to its record; see `TrainingPlan.run`."""
        callbacks = callbacks or RunCallbacks()
        alphas = self.training.alphas
        # The record names an alpha, although a sweep has none: the first of the grid, as in the
        # records of earlier versions, so that their runs can be resumed.
        objective = replace(self.training.objective, alpha=alphas[0])
        trainings = [
            replace(self.training, objective=objective, seed=seed, candidates=len(self.seeds))
            for seed in self.seeds
        ]
        settings = {**trainings[0].identity(self.tree), "seeds": list(self.seeds)}
        with folders.begin_or_resume(SWEEP, settings, self.folder, replace_existing) as record:
            callbacks.on_folder(record.folder)
            if not record.is_finished:
                keep_for_live(self.tree, record.folder)
            sweeps = []
            for training in trainings:
                policy_folder = member_folder(record.folder, training.seed)
                sweep = load_or_train(
                    training, self.tree, policy_folder, callbacks, self.byproducts
                )
                assert isinstance(sweep, TrainedSweep)  # the training has a grid
                sweeps.append(sweep)
            ranked = rank_sweeps(sweeps, self.tree)
            result = {
                **checkpoint.policy_record(ranked[0]),
                "alphas": list(alphas),
                # The best one first: commands that want one router take that of the first seed.
                "seeds": [sweep.origin.seed for sweep in ranked],
                **trained_on(self.tree),
            }
            folders.finish_run(record.folder, result)
        return SweepRun(record.folder, ranked[0], sweep_table(ranked, self.tree), tuple(ranked))


def better_sweep(trained: TrainedRouter, tree: RouteTree) -> str:
    """Return a line if a sweep that is there is better than a network that was just trained.

    Nothing is trained for that: the latest sweep of the same tree is read, if its routers decide on
    each question as if they had not learned from it. Both are compared on the fold that chose the
    weights of the network, which flatters the network.

    Args:
        trained: the network, or the constant choice in its place.
        tree: of `training_tree`.

    Returns:
        The line; empty if there is no such sweep, or it shows no gain.
    """
    if not isinstance(trained.origin.config, NetworkConfig):
        return ""
    try:
        run, _ = latest_run(tree, SWEEP)
        sweep = load_sweep(run) if run else None
    except HierRouterError:
        return ""  # a run that cannot be read says nothing about this one
    other = sweep.matching(trained, trained.alpha) if sweep else None
    if other is None or not other.holds_out or other.origin.fingerprint != tree.fingerprint:
        return ""
    fold = tree.split(choosing_fold(tree))
    outcome = other.outcome(fold)
    own = trained.outcome(fold)
    low, high = reward_interval(outcome, own, trained.alpha, fold.datasets)
    if low <= REWARD_ROUNDING:
        return ""
    gain = outcome.reward(trained.alpha).mean() - own.reward(trained.alpha).mean()
    return (
        f"better here: {other.origin.config.algo} of the sweep {run}, R {gain:+.4f} "
        f"[{low:+.4f}, {high:+.4f}] on {choosing_fold(tree)}; `hierrouter train --algo best` "
        "compares all policy classes"
    )


def ladder_in_words(policy: Policy) -> str:
    """Return which policy class was taken and what each of them gains, in a line."""
    over = "over the best fixed route"
    if isinstance(policy, TrainedSweep):
        over = f"{over}, as a share of the oracle's"
    ranked = sorted(policy.ladder, key=lambda entry: -entry[1])
    gains = ", ".join(f"{name} {gain:+.4f}" for name, gain in ranked)
    return f"cross-fitted: {policy.origin.config.algo} is taken; gains {over}: {gains}"


def training_notes(tree: RouteTree, config: TrainConfig) -> list[str]:
    """Return what the user should know before a training on a tree, a line each."""
    notes = []
    if config.preset in PRESET_NOTES:
        notes.append(f"note: {PRESET_NOTES[config.preset]}")
    deviation = encoder_note(config.preset, tree.encoder)
    if deviation:
        notes.append(f"note: {deviation}")
    if isinstance(config, NetworkConfig):  # no fold chooses the weights of the value model
        few = few_queries_note(tree, "validation", "they choose the weights")
        if few:
            notes.append(few)
    return notes


def require_possible(tree: RouteTree, budget: float | None, objective: Objective) -> None:
    """Reject a budget that no policy can keep within, before anything is trained.

    Args:
        tree: of `training_tree`.
        budget: mean cost of a query, in money; None is no budget.
        objective: whether the policy may stop early or return earlier responses.

    Raises:
        InputError: it is too small; the message says which budgets are possible.
    """
    from hierrouter.learning.router import training_queries

    if budget is not None:
        optimum_at_mean_cost(training_queries(tree), budget, objective.ends_early)


def retrain(command: str, run: Path | None, tree: Tree, callbacks: RunCallbacks) -> Path | None:
    """Train again with the settings of a run, if the run does not fit the tree any more.

    Args:
        command: "train" or "sweep-alpha".
        run: the run; None is the latest that fits the tree best.
        tree: all folds.
        callbacks: see `RunCallbacks`.

    Returns:
        The folder of the run if it fits, else of the new one; None if there is no run.
    """
    if run is None:
        run, _ = latest_run(tree, command)
    if run is None:
        records = folders.finished_runs(command)
        run = records[0].folder if records else None
    if run is None:
        return None
    policy: Policy
    if command == SWEEP:
        policy = load_sweep(run)
        seeds = sorted(sweep_seeds(run))
    else:
        policy = checkpoint.load_checkpoint(run)
        seeds = [policy.origin.seed]
    origin = policy.origin
    if all(getattr(origin, name) == getattr(tree, name) for name in COMPARED_ATTRIBUTES):
        return run
    callbacks.on_note(f"{run} is trained again")
    config = requested_config(origin.config, policy.ladder)
    learns_from = training_tree(tree)
    if isinstance(policy, TrainedRouter):
        plan = TrainingPlan(
            learns_from,
            policy.objective,
            config,
            policy.budget,
            seeds,
            None,
            Byproducts(CHECKPOINTS_EVERY.get(config.preset, 0)),
        )
        return plan.run(callbacks).folder
    training = Training(policy.objective, config, seeds[0], policy.alphas)
    folder = SweepPlan(learns_from, training, None, seeds).run(callbacks).folder
    return folder if command == SWEEP else member_folder(folder, origin.seed)


def keep_for_live(tree: Tree, folder: Path) -> None:
    """Save what routing live questions needs beside a policy, if its models can be called."""
    bundle = bundle_of(tree.root, tree, tree.pool)
    if bundle.can_be_asked:
        save_bundle(bundle, folder)


def describe_tree(tree: RouteTree) -> str:
    """Return the size of the tree of a training, in words."""
    sizes = ", ".join(f"{tree.splits.count(fold)} {fold}" for fold in LEARNED_FROM)
    return f"{len(tree)} queries ({sizes}) x {tree.layout.calls} nodes, {len(tree.models)} models"


def _gap_in_words(run: Run) -> str:
    """Return the performance of a run, and its share of the gap to the oracle, in words."""
    reached = run.reached
    assert reached  # the run was just trained
    share = "" if reached.share is None else f", {reached.share:.3f} of the gap"
    return f"R {reached.reward:.4f} on {reached.where}{share}"


def budget_note(router: TrainedRouter, fold: RouteTree, budget: float) -> str:
    """Return the performance with a budget, and the best with hindsight, in words."""
    best = optimum_at_mean_cost(fold, budget, router.objective.ends_early)
    outcome = router.outcome(fold)
    return (
        f"budget {budget:g}: alpha {router.alpha:.4g}; Q {outcome.quality.mean():.3f} "
        f"at C {money(outcome.cost.mean())} on {judged_in_words(router, fold)}; "
        f"with hindsight at most Q {best.quality.mean():.3f}"
    )

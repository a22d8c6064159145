"""`hierrouter train` and `hierrouter sweep-alpha`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter_cli import console, options
from hierrouter_cli.report import say_if_few
from hierrouter_cli.selecting import Selected, selecting

if TYPE_CHECKING:
    from hierrouter.runs.run import RunWatch
    from hierrouter_cache.tree import RouteTree

EVERY = 10.0  # seconds between lines where there is no terminal


@selecting
def train(
    *,
    alpha: options.AlphaOrBudget = None,
    selected: Selected,
    algo: options.Algo = None,
    preset: options.Preset = "default",
    epochs: options.Epochs = None,
    allow_stop: options.AllowStop = False,
    budget: options.Budget = None,
    seeds: options.Seeds = 1,
    seed: options.Seed = options.DEFAULT_SEED,
    out: options.Out = None,
    name: options.Name = None,
    keep_anyway: options.KeepAnyway = False,
    dry_run: options.CheckOnly = False,
) -> None:
    """Train the router with PPO on the replayed tree; no model is called.

    The test fold is out of reach. The same flags with the folder of an interrupted training as
    --out make it anew, to the same bytes. With --seeds each training is a run, in a folder whose
    name ends with its seed; the best of them, without a look at the test fold, becomes the latest
    run, which `report` takes.
    """
    from hierrouter.engines.encoders import encoder_note
    from hierrouter.learning.config import Objective, algorithm, training_config
    from hierrouter.replay.opening import training_tree
    from hierrouter.runs.folders import check_out, named, seed_folders, timed

    algo = algorithm(algo, budget, alpha)
    config = training_config(preset, algo, epochs, seeds, keep_anyway)
    alpha = options.DEFAULT_ALPHA if alpha is None else alpha
    objective = Objective(alpha, allow_stop, selected.allow_return)
    several, out = seeds > 1, named(name, out)
    if several and out is None:
        out = timed("train")
    places = seed_folders(out, range(seed, seed + seeds)) if several and out else {}
    for place in places.values() if several else [out]:
        check_out(place, "train")
    tree = training_tree(selected.open())
    # What needs torch comes after all that can be refused without it.
    from hierrouter.runs.run import describe_training, require_possible, train_run, train_seeds

    require_possible(tree, budget, objective)
    training = describe_training(objective, config, budget)
    drawn = f"seeds {seed} to {seed + seeds - 1}, in {out}-seed-N" if several else f"seed {seed}"
    planned = f"train: {training}, {drawn}: {describe(tree)}"
    if dry_run:
        console.put(f"{planned}\n")
        return

    console.say(planned)
    if note := encoder_note(preset, tree.encoder):
        console.say(f"note: {note}")
    if algo != "value":  # whose weights no fold chooses
        say_if_few(tree, "validation", "they choose the weights")
    with told_how_to_go_on("train", out) as watch:
        if several:
            run = train_seeds(tree, objective, config, places, budget, watch)
        else:
            run = train_run(tree, objective, config, seed, budget, out, watch)
    chosen = f"seed {run.trained.origin.seed}, the best of {seeds}: "
    console.say(f"trained: {chosen if several else ''}{run.reached}")
    console.put(f"{run.folder}\n")


@selecting
def sweep_alpha(
    *,
    alphas: Annotated[
        str,
        options.value(
            "--alphas", "A,B|auto", "Prices of cost; auto: from the data's break-points."
        ),
    ] = "auto",
    selected: Selected,
    allow_stop: options.AllowStop = False,
    seed: options.Seed = options.DEFAULT_SEED,
    out: options.Out = None,
    name: options.Name = None,
    keep_anyway: options.KeepAnyway = False,
    dry_run: options.CheckOnly = False,
) -> None:
    """Fit one value model for all alphas: `report --alpha X` needs no training at any X then."""
    from hierrouter.learning.config import Objective, ValueConfig
    from hierrouter.replay.opening import training_tree
    from hierrouter.runs.folders import check_out, named

    given, out = options.parse_alphas(alphas), named(name, out)
    check_out(out, "sweep-alpha")
    tree = training_tree(selected.open())
    # What needs torch comes after all that can be refused without it.
    from hierrouter.learning.sweep import alpha_grid
    from hierrouter.runs.run import sweep_run

    may = Objective(0.0, allow_stop, selected.allow_return)
    grid = given or alpha_grid(tree, allow_stop=may.ends_early)
    planned = (
        f"sweep-alpha: {len(grid)} alphas ({', '.join(f'{x:g}' for x in grid)}), "
        f"seed {seed}: {describe(tree)}"
    )
    if dry_run:
        console.put(f"{planned}\n")
        return
    console.say(planned)
    config = ValueConfig(keep_anyway=keep_anyway)
    with told_how_to_go_on("sweep-alpha", out) as watch:
        run = sweep_run(tree, grid, config, seed, may, out, watch)
    console.put(run.table)
    console.put(f"{run.folder}\n")


@contextmanager
def told_how_to_go_on(command: str, out: Path | None) -> Iterator[RunWatch]:
    """Who watches a run; whatever ends it early, the user knows how to go on.

    `out`: the folder that the user chose, or what those of several trainings begin with; where
    neither, the folder is said.
    """
    from hierrouter_cache.errors import WorldError

    folders: list[Path] = []

    def on_folder(folder: Path) -> None:
        folders.append(folder)
        if out is None:
            console.say(f"{command}: in {folder}")

    try:
        yield replace(watch(), on_folder=on_folder)
    except (KeyboardInterrupt, WorldError):
        for folder in folders[:1]:
            console.say(f"{command}: to go on, give the same command with --out {out or folder}")
        raise


def watch() -> RunWatch:
    """Who watches trainings: notes are said, each training has its bar."""
    from hierrouter.runs.run import RunWatch

    return RunWatch(on_note=console.say, training=lambda label, epochs, _: _followed(label, epochs))


@contextmanager
def _followed(label: str, epochs: int) -> Iterator[Callable[[int, int, float, float], None]]:
    """A bar on a terminal, else a line now and then."""
    said = time.monotonic()
    with console.progress_bars() as bars:
        task = bars.add_task(label, total=epochs, note="")

        def on_epoch(done: int, total: int, training: float, validation: float) -> None:
            nonlocal said
            if math.isnan(validation):  # nothing is valued yet
                bars.update(task, completed=done, total=total)
                return
            note = f"{training:.3f} train, {validation:.3f} validation"
            bars.update(task, completed=done, total=total, note=note)
            if not bars.console.is_terminal and time.monotonic() - said > EVERY:
                console.say(f"{label}: epoch {done} of {total}, {note}")
                said = time.monotonic()

        yield on_epoch


def describe(tree: RouteTree) -> str:
    """The size of a tree that is learned from, in words."""
    from hierrouter.replay.opening import LEARNED_FROM

    folds = ", ".join(f"{tree.splits.count(fold)} {fold}" for fold in LEARNED_FROM)
    return f"{len(tree)} queries ({folds}) x {tree.routes.calls} nodes, {len(tree.models)} models"

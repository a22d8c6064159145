"""`hierrouter train` and `hierrouter sweep-alpha`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter.replay.open_tree import OpenTree
from hierrouter.runs.train import Sweep, Train
from hierrouter_cli import console, declared
from hierrouter_cli.declared import make_importable, open_tree, with_flags

if TYPE_CHECKING:
    from hierrouter.runs.training import RunCallbacks

SECONDS_BETWEEN_LINES = 10.0  # if there is no terminal for a bar


@with_flags
def train(*, opening: OpenTree, training: Train, dry_run: declared.CheckOnly = False) -> None:
    """Train the router with PPO on the replayed tree; no model is called.

    The test fold is out of reach. The same flags with the folder of an interrupted training as
    --out go on from its last saved epoch, to the same bytes; --from-checkpoint goes on from any
    epoch that was kept. With --seeds each training is a run, in a folder whose name ends with its
    seed; the best of them, without a look at the test fold, becomes the latest run, which `report`
    takes.
    """
    make_importable(training.algo)
    with console.foreign_output_on_stderr():
        training.check()
    plan = training.plan(open_tree(opening))
    if dry_run:
        console.put(f"{plan}\n")
        return
    console.say(str(plan))
    for note in plan.notes():
        console.say(note)
    with remedy_if_interrupted("train", plan.out) as callbacks, console.foreign_output_on_stderr():
        run = plan.run(callbacks)
    best = f"seed {run.trained.origin.seed}, the best of {training.seeds}: "
    console.say(f"trained: {best if training.seeds > 1 else ''}{run.reached}")
    console.put(f"{run.folder}\n")


@with_flags
def sweep_alpha(*, opening: OpenTree, sweeping: Sweep, dry_run: declared.CheckOnly = False) -> None:
    """Learn for all alphas in one go: `report --alpha X` needs no training at any X then.

    By default several policy classes are compared by cross-fitting, and the best one is fitted.
    With --algo ppo or exact one network is trained for the whole grid, and keeps the weights that
    are best on validation for each of its alphas. With --seeds it is trained several times; the
    best of them answers, and the table shows the spread. The same flags with the folder of an
    interrupted training as --out go on from its last saved epoch, to the same bytes.
    """
    with console.foreign_output_on_stderr():
        sweeping.check()
    plan = sweeping.plan(open_tree(opening))
    if dry_run:
        console.put(f"{plan}\n")
        return
    console.say(str(plan))
    for note in plan.notes():
        console.say(note)
    with (
        remedy_if_interrupted("sweep-alpha", plan.folder) as callbacks,
        console.foreign_output_on_stderr(),
    ):
        run = plan.run(callbacks)
    console.put(run.table)
    console.put(f"{run.folder}\n")


@contextmanager
def remedy_if_interrupted(command: str, out: Path | None) -> Iterator[RunCallbacks]:
    """Show a run as it goes on; if something ends it early, say how to go on.

    Args:
        command: whose run it is.
        out: what to give as --out; None if the run makes a folder of its own, which is then named.
    """
    from hierrouter_cache.errors import WorldError

    folders: list[Path] = []

    def on_folder(folder: Path) -> None:
        folders.append(folder)
        if out is None:
            console.say(f"{command}: in {folder}")

    try:
        yield replace(callbacks_with_bars(), on_folder=on_folder)
    except (KeyboardInterrupt, WorldError):
        if folders:
            folder = out or folders[0]
            console.say(f"{command}: to go on, give the same command with --out {folder}")
        raise


def callbacks_with_bars() -> RunCallbacks:
    """Return callbacks that print notes and show a bar for each training."""
    from hierrouter.runs.training import RunCallbacks

    return RunCallbacks(
        on_note=console.say, training_context=lambda label, epochs, _: _epoch_bar(label, epochs)
    )


@contextmanager
def _epoch_bar(label: str, epochs: int) -> Iterator[Callable[[int, int, float, float], None]]:
    """Show a bar on a terminal, else a line now and then."""
    last_line = time.monotonic()
    with console.progress_bars() as bars:
        task = bars.add_task(label, total=epochs, note="")

        def on_epoch(done: int, total: int, training: float, validation: float) -> None:
            nonlocal last_line
            if math.isnan(validation):  # nothing is valued yet
                bars.update(task, completed=done, total=total)
                return
            note = f"{validation:.3f} validation"
            if not math.isnan(training):  # a sweep is not valued on the train fold
                note = f"{training:.3f} train, {note}"
            bars.update(task, completed=done, total=total, note=note)
            is_due = time.monotonic() - last_line > SECONDS_BETWEEN_LINES
            if is_due and not bars.console.is_terminal:
                console.say(f"{label}: epoch {done} of {total}, {note}")
                last_line = time.monotonic()

        yield on_epoch

"""A training that a person watches: bar, curve, what goes on, how to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.learn.run import RunWatch
    from hierrouter_cache.tree import RouteTree

SHORT = 12  # characters of a curve in a bar
EVERY = 10.0  # seconds between lines where there is no terminal


@contextmanager
def told_how_to_go_on(
    command: str, out: Path | None, on_begun: Callable[[], None], tensorboard: bool
) -> Iterator[RunWatch]:
    """Who watches a run; whatever ends it early, the user knows how to go on.

    Args:
        out: the folder that the user chose; another one is said.
        on_begun: called when the folder is there.
        tensorboard: write the learning curve into it.
    """
    from hierrouter_cache.errors import WorldError

    folders: list[Path] = []

    def on_folder(folder: Path) -> None:
        folders.append(folder)
        if out is None:
            console.say(f"{command}: in {folder}")
        on_begun()

    try:
        yield replace(watch(tensorboard), on_folder=on_folder)
    except (KeyboardInterrupt, WorldError):
        for folder in folders:
            console.say(f"{command}: to go on, give the same command with --out {folder}")
        raise


def watch(tensorboard: bool = False) -> RunWatch:
    """Who watches trainings: notes are said, each training has its bar."""
    from hierrouter.learn.run import RunWatch

    def training(label: str, epochs: int, folder: Path) -> Any:
        return _followed(label, epochs, folder / "tensorboard" if tensorboard else None)

    return RunWatch(on_note=console.say, training=training)


@contextmanager
def _followed(
    label: str, epochs: int, events: Path | None
) -> Iterator[Callable[[int, int, float, float], None]]:
    """A bar with the learning curve on a terminal; the same values for TensorBoard if asked for."""
    writer = _writer(events) if events else None
    curve: list[float] = []
    told = time.monotonic()
    with console.progress_bars() as bars:
        task = bars.add_task(label, total=epochs, note="")

        def on_epoch(done: int, total: int, training: float, validation: float) -> None:
            curve.append(validation)
            note = f"{validation:.3f} {sparkline(curve, SHORT)} validation, {training:.3f} train"
            bars.update(task, completed=done, total=total, note=note)
            nonlocal told
            if not bars.console.is_terminal and time.monotonic() - told > EVERY:
                values = f"{training:.3f} train, {validation:.3f} validation"
                console.say(f"{label}: epoch {done} of {total}, {values} {sparkline(curve)}")
                told = time.monotonic()
            if writer:
                writer.add_scalar("value/train", training, done)
                writer.add_scalar("value/validation", validation, done)

        try:
            yield on_epoch
        finally:
            if writer:
                writer.close()


def _writer(events: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(events))


def describe(tree: RouteTree) -> str:
    """The size of a tree that is learned from, in words."""
    from hierrouter.trees import LEARNED_FROM

    folds = ", ".join(f"{tree.splits.count(fold)} {fold}" for fold in LEARNED_FROM)
    routes = tree.routes
    return f"{len(tree)} queries ({folds}) x {routes.calls} nodes, {len(tree.models)} models"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last values as one line of bars, the smallest lowest; empty for none."""
    bars = "▁▂▃▄▅▆▇█"
    shown = list(values)[-width:]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(bars[round((value - low) / span * 7) if span else 0] for value in shown)

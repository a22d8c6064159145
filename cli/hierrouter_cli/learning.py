"""A training that a person watches: bar, curve, resume, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.learn.alpha_router import TrainedSweep
    from hierrouter.learn.config import ExactConfig, TrainConfig
    from hierrouter.learn.loop import Snapshot, Watch
    from hierrouter.learn.objective import Objective
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree

    Trained = TypeVar("Trained", TrainedRouter, TrainedSweep)

SHORT = 12  # characters of a curve in a bar
EVERY = 10.0  # seconds between lines where there is no terminal


@contextmanager
def resumable_run(command: str, asked: dict[str, Any], out: Path | None) -> Iterator[Path]:
    """The folder of a run; whatever ends it early, the user knows how to go on."""
    from hierrouter.learn.resume import remove_drafts
    from hierrouter.runs import resumable
    from hierrouter_cache.errors import WorldError

    with resumable(command, asked, out) as run:
        remove_drafts(run)
        if out is None:
            console.say(f"{command}: in {run}")
        try:
            yield run
        except (KeyboardInterrupt, WorldError):
            console.say(f"{command}: to go on, give the same command with --out {run}")
            raise


def keep_for_live(cache: Path, pool: str | None, tree: RouteTree, run: Path) -> None:
    """Put beside a policy what it needs to route live questions, if its models can be asked."""
    from hierrouter.live.bundle import bundle_of, save_bundle

    bundle = bundle_of(cache, tree, pool)
    if bundle.can_be_asked:
        save_bundle(bundle, run)


def train_router(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    folder: Path,
    tensorboard: bool = False,
) -> TrainedRouter:
    """Train for one alpha and save the checkpoint; what is there already is not done again."""
    from hierrouter.learn.origin import Origin
    from hierrouter.learn.resume import training_named
    from hierrouter.learn.training import train

    return _once(
        f"train {objective.alpha:g}",
        training_named(Origin.of(tree, config, seed), objective),
        folder,
        lambda watch, resumed: train(tree, objective, config, seed, watch, resumed),
        tensorboard,
    )


def train_alphas(
    tree: RouteTree,
    alphas: tuple[float, ...],
    objective: Objective,
    config: ExactConfig,
    seed: int,
    folder: Path,
    tensorboard: bool = False,
) -> TrainedSweep:
    """Train one network for every alpha and save it; what is there is not done again."""
    from hierrouter.learn.conditioned import train_sweep
    from hierrouter.learn.origin import Origin
    from hierrouter.learn.resume import training_named

    return _once(
        f"train seed {seed}",
        training_named(Origin.of(tree, config, seed), objective, alphas),
        folder,
        lambda watch, resumed: train_sweep(tree, alphas, objective, config, seed, watch, resumed),
        tensorboard,
    )


def _once(
    label: str,
    named: dict[str, Any],
    folder: Path,
    start: Callable[[Watch, Snapshot | None], Trained],
    tensorboard: bool,
) -> Trained:
    """The training in `folder` to its end, from wherever it is."""
    from hierrouter.learn.checkpoint import save_checkpoint
    from hierrouter.learn.loop import Watch
    from hierrouter.learn.resume import finished, forget_snapshot, load_snapshot, save_snapshot

    if found := finished(folder, named):
        console.say(f"{label}: already there, {folder}")
        forget_snapshot(folder)
        return found  # type: ignore[return-value]
    folder.mkdir(parents=True, exist_ok=True)
    resumed = load_snapshot(folder, named)
    if resumed:
        console.say(f"{label}: goes on after epoch {resumed.epoch}")
    events = folder / "tensorboard" if tensorboard else None
    with _followed(label, named["config"]["epochs"], events) as on_epoch:
        trained = start(
            Watch(on_epoch, lambda snapshot: save_snapshot(snapshot, named, folder)), resumed
        )
    save_checkpoint(trained, folder)
    forget_snapshot(folder)
    return trained


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

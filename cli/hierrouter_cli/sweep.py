"""`hierrouter sweep-alpha`: routers for every alpha, in one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.learning import (
    describe,
    keep_for_live,
    resumable_run,
    train_alphas,
    train_router,
)
from hierrouter_cli.looking import say_if_few
from hierrouter_cli.selecting import Selected, selecting

if TYPE_CHECKING:
    from hierrouter.learn.alpha_router import TrainedSweep
    from hierrouter.learn.config import TrainConfig
    from hierrouter.learn.sweep import Sweep
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree


@selecting
def sweep_alpha(
    *,
    alphas: Annotated[
        str,
        typer.Option(
            "--alphas",
            metavar="A,B|auto",
            help="Prices of cost; auto: from the data's break-points.",
        ),
    ] = "auto",
    selected: Selected,
    algo: Annotated[
        str,
        options.choice(
            "--algo",
            ("exact", "ppo"),
            "exact: one network for all alphas; ppo: one for each.",
            options.TRAINING,
        ),
    ] = "exact",
    preset: options.Preset = "default",
    epochs: options.Epochs = None,
    allow_stop: options.AllowStop = False,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="How many trainings, from --seed on.")
    ] = 1,
    seed: options.Seed = options.DEFAULT_SEED,
    out: options.Out = None,
    tensorboard: options.TensorBoard = False,
    dry_run: options.CheckOnly = False,
) -> None:
    """Train routers for all alphas on the same cached tree.

    By default one network that is told alpha, so that `report --alpha X` needs no training at any
    X afterwards; with --algo ppo one training for each alpha.
    """
    from hierrouter.learn.config import SWEEP, shortened
    from hierrouter.learn.config import preset as config_of
    from hierrouter.learn.objective import Objective
    from hierrouter.runs import check_out
    from hierrouter.trees import training_tree

    given = parsing.parse_alphas(alphas)
    chosen = config_of(preset, algo)
    config = shortened(SWEEP if algo == "exact" else chosen, epochs)
    check_out(out, "sweep-alpha")
    tree = training_tree(selected.open())
    grid = given or automatic(tree, allow_stop)
    each = range(seed, seed + seeds)
    planned = (
        f"sweep-alpha: {len(grid)} alphas ({', '.join(f'{x:g}' for x in grid)}), {algo}, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}: {describe(tree)}"
    )
    if dry_run:
        console.put(f"{planned}\n")
        return
    console.say(planned)
    # What needs torch comes after all that can be refused without it.
    from hierrouter.learn.origin import Origin
    from hierrouter.learn.resume import training_named

    named = training_named(Origin.of(tree, config, seed), Objective(grid[0], allow_stop), grid)
    with resumable_run("sweep-alpha", {**named, "seeds": list(each)}, out) as run:
        say_if_few(tree, "validation", "they choose the weights")
        keep_for_live(selected.cache, selected.pool, tree, run)
        sweep = run_sweep(tree, grid, config, each, run, allow_stop, tensorboard)
    console.put(table(sweep, tree))
    console.put(f"{run}\n")


def automatic(tree: RouteTree, allow_stop: bool = False) -> tuple[float, ...]:
    """The grid that the data suggest."""
    from hierrouter.learn.sweep import alpha_grid

    return alpha_grid(tree, options.POINTS, allow_stop)


def run_sweep(
    tree: RouteTree,
    grid: tuple[float, ...],
    config: TrainConfig,
    seeds: Sequence[int],
    run: Path,
    allow_stop: bool = False,
    tensorboard: bool = False,
) -> Sweep:
    """Train with every seed at every alpha; what is there is not trained again."""
    from hierrouter.learn.config import ExactConfig
    from hierrouter.learn.objective import Objective
    from hierrouter.learn.sweep import Sweep, finish_sweep, member_folder

    def network(seed: int, config: ExactConfig) -> TrainedSweep:
        objective = Objective(grid[0], allow_stop)
        folder = member_folder(run, seed)
        return train_alphas(tree, grid, objective, config, seed, folder, tensorboard)

    def router(seed: int, alpha: float) -> TrainedRouter:
        objective = Objective(alpha, allow_stop)
        folder = member_folder(run, seed, alpha)
        return train_router(tree, objective, config, seed, folder, tensorboard)

    members: list[TrainedSweep | tuple[TrainedRouter, ...]] = [
        network(seed, config)
        if isinstance(config, ExactConfig)
        else tuple(router(seed, alpha) for alpha in grid)
        for seed in seeds
    ]
    sweep = Sweep(grid, tuple(members))
    finish_sweep(run, sweep, seeds)
    return sweep


def table(sweep: Sweep, tree: RouteTree) -> str:
    """Alpha, quality, cost and reward, means over the seeds, on the fold that chose the weights."""
    from hierrouter.evaluate.outcome import mean_outcome

    name = "validation" if "validation" in tree.splits else "train"
    fold = tree.split(name)
    lines = [f"alpha      Q      C      R    ({name} fold)"]
    for alpha, routers in zip(sweep.alphas, sweep.routers, strict=True):
        reached = mean_outcome([router.outcome(fold) for router in routers])
        lines.append(
            f"{alpha:<8.4g}{reached.quality.mean():6.3f}{reached.cost.mean():7.3f}"
            f"{reached.reward(alpha).mean():7.3f}"
        )
    return "\n".join(lines) + "\n"

"""`hierrouter sweep-alpha`: routers for every alpha, in one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.learning import describe, told_how_to_go_on
from hierrouter_cli.looking import say_if_few
from hierrouter_cli.selecting import Selected, selecting

if TYPE_CHECKING:
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
    from hierrouter.learn.config import sweep_config
    from hierrouter.runs import check_out
    from hierrouter.trees import training_tree

    given = parsing.parse_alphas(alphas)
    config = sweep_config(preset, algo, epochs)
    check_out(out, "sweep-alpha")
    tree = training_tree(selected.open())
    grid = given or _automatic(tree, allow_stop)
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
    from hierrouter.learn.run import sweep_run

    def on_begun() -> None:
        say_if_few(tree, "validation", "they choose the weights")

    with told_how_to_go_on("sweep-alpha", out, on_begun, tensorboard) as watch:
        run = sweep_run(tree, grid, config, each, allow_stop, out, watch)
    console.put(run.table)
    console.put(f"{run.folder}\n")


def _automatic(tree: RouteTree, allow_stop: bool) -> tuple[float, ...]:
    """The grid that the data suggest."""
    from hierrouter.learn.sweep import automatic_grid

    return automatic_grid(tree, allow_stop)

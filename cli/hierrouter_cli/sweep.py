"""`hierrouter sweep-alpha`: one policy for each alpha."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options
from hierrouter_cli.opening import open_tree, select
from hierrouter_cli.train import run_training

if TYPE_CHECKING:
    from hierrouter.learn.config import PPOConfig
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree

POINTS = 6  # of the automatic grid


def sweep_alpha(
    alphas: Annotated[
        str,
        typer.Option("--alphas", metavar="A,B|auto", help="auto: from the data's break-points."),
    ] = "auto",
    cache: options.Cache = options.DEFAULT_CACHE,
    pool: options.PoolName = None,
    models: options.Models = None,
    hops: options.Hops = None,
    datasets: options.Datasets = None,
    limit: options.Limit = None,
    encoder: options.Encoder = None,
    scorer: options.Scorer = options.DEFAULT_SCORER,
    prices: options.PriceFiles = None,
    price: options.Price = None,
    allow_incomplete: options.AllowIncomplete = False,
    preset: options.Preset = "default",
    seed: options.Seed = options.DEFAULT_SEED,
    out: options.Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, then stop.")
    ] = False,
) -> None:
    """Train one router for each alpha, all on the same cached tree."""
    from hierrouter.learn.config import preset as config_of
    from hierrouter.runs import check_out
    from hierrouter.trees import require_folds

    given = options.parse_alphas(alphas)
    config = config_of(preset)
    check_out(out)
    selection = select(
        pool=pool,
        models=models,
        hops=hops,
        datasets=datasets,
        limit=limit,
        encoder=encoder,
        scorer=scorer,
        prices=prices,
        price=price,
        allow_incomplete=allow_incomplete,
    )
    tree = open_tree(cache, selection)
    require_folds(tree)
    grid = given or automatic(tree)
    console.say(f"sweep-alpha: {len(grid)} alphas ({', '.join(f'{x:g}' for x in grid)})")
    if dry_run:
        return
    from hierrouter.runs import new_run

    run = new_run("sweep-alpha", out)
    trained = run_sweep(tree, grid, config, seed, encoder, run)
    console.put(table(trained, tree))
    console.put(f"{run}\n")


def automatic(tree: RouteTree) -> tuple[float, ...]:
    """The grid that the data suggest."""
    from hierrouter.learn.sweep import alpha_grid

    return alpha_grid(tree, POINTS)


def run_sweep(
    tree: RouteTree,
    grid: tuple[float, ...],
    config: PPOConfig,
    seed: int,
    encoder: str | None,
    run: Path,
    known: Sequence[TrainedRouter] = (),
) -> list[TrainedRouter]:
    """Train at every alpha of the grid; what is there or `known` is not trained again."""
    from hierrouter.learn.checkpoint import save_checkpoint
    from hierrouter.learn.sweep import finish_sweep, point_folder

    for router in known:
        if router.alpha in grid:
            save_checkpoint(router, point_folder(run, router.alpha))
    trained = [
        train_once(tree, alpha, config, seed, encoder, point_folder(run, alpha)) for alpha in grid
    ]
    finish_sweep(run, trained)
    return trained


def train_once(
    tree: RouteTree,
    alpha: float,
    config: PPOConfig,
    seed: int,
    encoder: str | None,
    folder: Path,
) -> TrainedRouter:
    """Train, or take the checkpoint in `folder` where it is of this very training."""
    from hierrouter.learn.checkpoint import load_checkpoint
    from hierrouter.runs import DONE

    if (folder / DONE["train"]).is_file():
        found = load_checkpoint(folder)
        if (found.fingerprint, found.alpha, found.config, found.seed) == (
            tree.fingerprint,
            alpha,
            config,
            seed,
        ):
            console.say(f"train: alpha {alpha:g}: already there, {folder}")
            return found
    folder.mkdir(parents=True, exist_ok=True)
    return run_training(tree, alpha, config, seed, encoder, folder)


def table(trained: list[TrainedRouter], tree: RouteTree) -> str:
    """Alpha, quality, cost and reward of each policy on the fold that chose its weights."""
    name = "validation" if "validation" in tree.splits else "train"
    fold = tree.split(name)
    lines = [f"alpha      Q      C      R    ({name} fold)"]
    for router in trained:
        reached = router.outcome(fold)
        lines.append(
            f"{router.alpha:<8.4g}{reached.quality.mean():6.3f}{reached.cost.mean():7.3f}"
            f"{reached.reward(router.alpha).mean():7.3f}"
        )
    return "\n".join(lines) + "\n"

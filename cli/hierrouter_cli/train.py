"""`hierrouter train`: learn a router from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options
from hierrouter_cli.opening import open_tree, select

if TYPE_CHECKING:
    from hierrouter.learn.config import PPOConfig
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree

FEW_QUERIES = 30


def train(
    alpha: options.Alpha = str(options.DEFAULT_ALPHA),
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
    """Train the router with PPO on the replayed tree; no model is called.

    The validation fold chooses the checkpoint; the test fold is not looked at.
    """
    from hierrouter.learn.config import preset as config_of
    from hierrouter.runs import check_out
    from hierrouter.trees import require_folds

    value = options.parse_alpha(alpha)
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
    if dry_run:
        console.say(f"train: alpha {value}, preset {preset}, seed {seed}: {describe(tree)}")
        return
    from hierrouter.runs import new_run

    run = new_run("train", out)
    trained = run_training(tree, value, config, seed, encoder, run)
    console.say(f"trained: {report_line(trained, tree)}")
    console.put(f"{run}\n")


def run_training(
    tree: RouteTree,
    alpha: float,
    config: PPOConfig,
    seed: int,
    encoder: str | None,
    folder: Path,
) -> TrainedRouter:
    """Train with a bar and save the checkpoint in `folder`."""
    from hierrouter.collect.encoders import BUILT_IN
    from hierrouter.learn.checkpoint import save_checkpoint
    from hierrouter.learn.ppo import train as train_router

    console.say(f"train: alpha {alpha:g}, preset {config.preset}, seed {seed}: {describe(tree)}")
    say_if_few(tree, "validation", "they choose the checkpoint")
    with console.progress_bars() as bars:
        task = bars.add_task(f"train {alpha:g}", total=None, note="")

        def on_progress(done: int, total: int, training: float, validation: float) -> None:
            note = f"R {training:.3f} train, {validation:.3f} validation"
            bars.update(task, completed=done, total=total, note=note)

        trained = train_router(tree, alpha, config, seed, on_progress, encoder=encoder or BUILT_IN)
    save_checkpoint(trained, folder)
    return trained


def describe(tree: RouteTree) -> str:
    """The size of a tree, in words."""
    from hierrouter_cache.tree import SPLITS

    folds = ", ".join(f"{tree.splits.count(fold)} {fold}" for fold in SPLITS)
    routes = tree.routes
    return f"{len(tree)} queries ({folds}) x {routes.calls} nodes, {len(tree.models)} models"


def say_if_few(tree: RouteTree, fold: str, role: str) -> None:
    """Warn where a fold is too small to trust what is read off it."""
    found = tree.splits.count(fold)
    if found < FEW_QUERIES:
        console.say(f"note: only {found} {fold} queries, and {role}; collect more to trust it")


def report_line(trained: TrainedRouter, tree: RouteTree) -> str:
    """What the router reaches on the validation fold, and how far that is from the bounds."""
    from hierrouter.evaluate.bounds import best_fixed_route, oracle

    fold = tree.split("validation")
    if not len(fold):
        return "no validation fold to measure on"
    alpha = trained.alpha
    reached = trained.outcome(fold).reward(alpha).mean()
    fixed = best_fixed_route(tree.split("train"), alpha, fold).reward(alpha).mean()
    bound = oracle(fold, alpha).reward(alpha).mean()
    return f"R {reached:.3f} on validation (best fixed route {fixed:.3f}, oracle {bound:.3f})"

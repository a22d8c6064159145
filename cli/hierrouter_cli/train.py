"""`hierrouter train`: learn a router from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
    from hierrouter.learn.config import TrainConfig
    from hierrouter.learn.objective import Objective
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree


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
    max_cost: options.MaxCost = None,
    seed: options.Seed = options.DEFAULT_SEED,
    out: options.Out = None,
    tensorboard: options.TensorBoard = False,
    dry_run: options.CheckOnly = False,
) -> None:
    """Train the router with PPO on the replayed tree; no model is called.

    The validation fold chooses the checkpoint; the test fold is out of reach. An interrupted
    training goes on where it was, with the same flags and its folder as --out.
    """
    from hierrouter.learn.config import SWEEP, shortened
    from hierrouter.learn.config import preset as config_of
    from hierrouter.learn.objective import Objective
    from hierrouter.runs import check_out
    from hierrouter.trees import training_tree

    mean, most = parsing.parse_cost(budget, "--budget"), parsing.parse_cost(max_cost, "--max-cost")
    algo = parsing.algorithm(algo, budget, max_cost, alpha)
    value = options.DEFAULT_ALPHA if alpha is None else parsing.parse_alpha(alpha)
    chosen = config_of(preset, algo)
    config = shortened(chosen if mean is None else SWEEP, epochs)
    objective = Objective(value, allow_stop, most)
    check_out(out, "train")
    tree = training_tree(selected.open())
    # What needs torch comes after all that can be refused without it.
    from hierrouter.learn.origin import Origin
    from hierrouter.learn.resume import training_named

    require_possible(tree, mean, objective)
    planned = f"train: {told(objective, config, mean)}, seed {seed}: {describe(tree)}"
    if dry_run:
        console.put(f"{planned}\n")
        return
    asked = {**training_named(Origin.of(tree, config, seed), objective), "budget": mean}
    with resumable_run("train", asked, out) as run:
        console.say(planned)
        say_if_few(tree, "validation", "they choose the checkpoint")
        keep_for_live(selected.cache, selected.pool, tree, run)
        if mean is None:
            trained = train_router(tree, objective, config, seed, run, tensorboard)
        else:
            trained = within_budget(tree, mean, objective, config, seed, run, tensorboard)
    console.say(f"trained: {report_line(trained, tree)}")
    console.put(f"{run}\n")


def require_possible(tree: RouteTree, budget: float | None, objective: Objective) -> None:
    """Refuse what no policy can keep to on validation, before anything is trained."""
    from hierrouter.evaluate.budget import optimum_at_mean_cost
    from hierrouter.learn.limits import require_reachable

    fold = tree.split("validation")
    if budget is not None:
        optimum_at_mean_cost(fold, budget, objective.allow_stop)
    require_reachable(fold, objective)


def within_budget(
    tree: RouteTree,
    budget: float,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    folder: Path,
    tensorboard: bool,
) -> TrainedRouter:
    """Train for every alpha, keep the router of the smallest one that meets the budget."""
    from hierrouter.evaluate.budget import optimum_at_mean_cost
    from hierrouter.learn.budget import meet_budget
    from hierrouter.learn.checkpoint import save_checkpoint
    from hierrouter.learn.config import ExactConfig
    from hierrouter.learn.sweep import alpha_grid

    assert isinstance(config, ExactConfig)
    fold = tree.split("validation")
    best = optimum_at_mean_cost(fold, budget, objective.allow_stop).outcome
    grid = alpha_grid(tree, options.POINTS, objective.allow_stop)
    sweep = train_alphas(tree, grid, objective, config, seed, folder / "alphas", tensorboard)
    trained = meet_budget(sweep, tree, budget)
    save_checkpoint(trained, folder)
    reached = trained.outcome(fold)
    console.say(
        f"budget {budget:g}: alpha {trained.alpha:.4g}; validation Q {reached.quality.mean():.3f} "
        f"at C {reached.cost.mean():.3f}; with hindsight at most Q {best.quality.mean():.3f}"
    )
    return trained


def told(objective: Objective, config: TrainConfig, budget: float | None = None) -> str:
    """What is trained and how, in words."""
    price = f"alpha {objective.alpha:g}" if budget is None else f"mean cost {budget:g}"
    stop = ", may stop early" if objective.allow_stop else ""
    limit = "" if objective.max_cost is None else f", at most {objective.max_cost:g} a query"
    return f"{price}{stop}{limit}, {config.algo}, preset {config.preset}"


def report_line(trained: TrainedRouter, tree: RouteTree) -> str:
    """What the router reaches on the validation fold, and how far that is from the bounds."""
    from hierrouter.evaluate.bounds import best_fixed_route, oracle

    fold = tree.split("validation")
    if not len(fold):
        return "no validation fold to measure on"
    alpha, stop = trained.alpha, trained.objective.allow_stop
    reached = trained.outcome(fold).reward(alpha).mean()
    fixed = best_fixed_route(tree.split("train"), alpha, fold, stop).reward(alpha).mean()
    bound = oracle(fold, alpha, stop).reward(alpha).mean()
    line = f"R {reached:.3f} on validation (best fixed route {fixed:.3f}, oracle {bound:.3f})"
    return line if trained.objective.max_cost is None else f"{line}; {limit_line(trained, fold)}"


def limit_line(trained: TrainedRouter, fold: RouteTree) -> str:
    """How a router that is limited in each query keeps its limit, and what it costs."""
    from hierrouter.learn.limits import under_limit

    found = under_limit(trained, fold)
    return (
        f"{found.share_over:.1%} of queries cost more than {found.limit:g}, "
        f"{found.impossible:.1%} have no route within it; "
        f"with hindsight R is at most {found.bound:.3f}"
    )

"""`hierrouter train`: learn a router from the cache."""

from __future__ import annotations

from hierrouter_cli import console, options, parsing
from hierrouter_cli.learning import describe, told_how_to_go_on
from hierrouter_cli.looking import say_if_few
from hierrouter_cli.selecting import Selected, selecting


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
    from hierrouter.learn.config import algorithm, train_config
    from hierrouter.learn.objective import Objective
    from hierrouter.runs import check_out
    from hierrouter.trees import training_tree

    mean, most = parsing.parse_cost(budget, "--budget"), parsing.parse_cost(max_cost, "--max-cost")
    algo = algorithm(algo, budget, max_cost, alpha)
    value = options.DEFAULT_ALPHA if alpha is None else parsing.parse_alpha(alpha)
    config = train_config(preset, algo, mean, epochs)
    objective = Objective(value, allow_stop, most)
    check_out(out, "train")
    tree = training_tree(selected.open())
    # What needs torch comes after all that can be refused without it.
    from hierrouter.learn.run import require_possible, told, train_run

    require_possible(tree, mean, objective)
    planned = f"train: {told(objective, config, mean)}, seed {seed}: {describe(tree)}"
    if dry_run:
        console.put(f"{planned}\n")
        return

    def on_begun() -> None:
        console.say(planned)
        say_if_few(tree, "validation", "they choose the checkpoint")

    with told_how_to_go_on("train", out, on_begun, tensorboard) as watch:
        run = train_run(tree, objective, config, seed, mean, out, watch)
    console.say(f"trained: {run.reached}")
    console.put(f"{run.folder}\n")

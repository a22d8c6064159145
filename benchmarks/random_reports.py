"""Random trees, routers and settings of reports, and what can be enumerated of them.

A tree is planted, random, ragged as a log is, lucky (a call has several draws), or has roles, with
one to four models, from one question to some hundred, with ties, odd names and prices of eight
orders of magnitude. Its router is learned in one of all ways, kept or shipped as `train` does it,
for an alpha or a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  makes `tests` importable
import numpy as np

from hierrouter.evaluation.policies import OwnPolicy, own_policy
from hierrouter.learning.config import (
    BestConfig,
    ExactConfig,
    Objective,
    PPOConfig,
    TrainConfig,
    ValueConfig,
    ignore_epoch,
    preset,
)
from hierrouter.learning.cross_fit import Repetition
from hierrouter.learning.policy_classes import MeanRouter, TableRouter
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import TrainedSweep, meet_budget
from hierrouter.reports.fold_report import DeferralTarget
from hierrouter.runs.selection import SweepBeside
from hierrouter.runs.training import Training
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.hierrouter.trees import (
    LARGE,
    lucky_tree,
    planted_tree,
    ragged_tree,
    random_tree,
    showing_leaves,
    tree_with_roles,
)

BINARY_SCORERS = ("accuracy", "exact_match", "numeric", "choice", "boxed")
ALPHAS = (0.0, 0.005, 0.05, 0.5, 3.0)
ODD_NAMES = ("gpt 4.1-mini", "Qwen/Qwen2.5-0.5B", "o3, mini", "text", "is better", "R (new); a_b")
# How often a router is learned in each way, "none" in none.
TRAININGS = {
    "none": 0.12,
    "value": 0.25,
    "exact": 0.15,
    "groups": 0.12,
    "clusters": 0.08,
    "ridge": 0.08,
    "mean": 0.08,
    "ppo": 0.1,
    "best": 0.02,  # it is slow
}
SMALL_NETWORK: dict[str, Any] = {"epochs": 1, "hidden": 8}  # it has hardly learned
CONFIGS: dict[str, TrainConfig] = {
    **{algo: preset("default", algo) for algo in TRAININGS if algo != "none"},
    "exact": ExactConfig(queries=8, steps=1, **SMALL_NETWORK),
    "ppo": PPOConfig(rollouts=32, minibatches=2, update_epochs=1, **SMALL_NETWORK),
    "best": BestConfig(classes="groups,clusters,ridge,value,mean"),
}


@dataclass(frozen=True)
class Case:
    """A random tree, and what is reported on it.

    Attributes:
        seed: repeats the case.
        tree: all folds.
        alpha: weight of cost in R.
        split: the fold that is reported on.
        objective: what the router was trained for; without one, alpha alone.
        trained: the router.
        sweep: the routers of a frontier.
        more: further arguments of `report_on_fold`.
    """

    seed: int
    tree: RouteTree
    alpha: float
    split: str
    objective: Objective
    trained: TrainedRouter | None
    sweep: TrainedSweep | None
    more: Mapping[str, Any]

    @property
    def fold(self) -> RouteTree:
        """The questions that are reported on."""
        return self.tree.split(self.split)

    @property
    def kind(self) -> str:
        """The way in which the router was learned."""
        if self.trained is None:
            return "none"
        return "best" if self.trained.ladder else self.trained.origin.config.algo


def draw_case(seed: int) -> Case:
    """Draw a tree, train what is reported on, and choose the settings of the report."""
    rng = np.random.default_rng(seed)
    tree = _draw_tree(rng)
    alpha = float(rng.choice(ALPHAS)) / float(np.median(tree.cost[:, 1:])) * 0.1
    alpha = float(f"{alpha:.2g}")
    is_full = tree.weight is None and tree.can_end is None
    allow_stop = bool(rng.random() < 0.4)
    allow_return = is_full and bool(rng.random() < 0.15)
    if allow_return:
        tree = showing_leaves(tree)
    objective = Objective(alpha, allow_stop, allow_return)
    algo = str(rng.choice(list(TRAININGS), p=list(TRAININGS.values())))
    trained = None if algo == "none" else _draw_router(rng, tree, objective, algo)
    if trained is None:
        objective = Objective(alpha)
    elif trained.budget is not None:
        alpha = trained.alpha
        objective = trained.objective
    sweep = None
    if trained is not None and is_full and rng.random() < 0.25:
        sweep_objective = replace(objective, allow_stop=bool(rng.random() < 0.5))
        grid = (0.0, alpha) if alpha else (0.0, 1.0)
        sweep = _sweep(tree, sweep_objective, grid, ValueConfig(), seed)
    split = "test" if rng.random() < 0.8 else str(rng.choice([*dict.fromkeys(tree.splits), "all"]))
    more = _draw_settings(rng, tree, trained, sweep)
    return Case(seed, tree, alpha, split, objective, trained, sweep, more)


def _draw_tree(rng: np.random.Generator) -> RouteTree:
    """Draw a tree of one of five kinds, and change prices, names, scores and scorer."""
    kinds = ["planted", "random", "ragged", "lucky", "roles"]
    kind = rng.choice(kinds, p=[0.45, 0.15, 0.2, 0.1, 0.1])
    seed = int(rng.integers(1 << 31))
    evaluated = int(rng.choice([1, 2, 3, 6, 20, 60, 200], p=[0.1, 0.1, 0.05, 0.1, 0.2, 0.25, 0.2]))
    models = int(rng.choice([1, 2, 3, 4], p=[0.1, 0.35, 0.35, 0.2]))
    hops = int(rng.choice([1, 2, 3], p=[0.25, 0.6, 0.15]))
    if kind == "planted":
        families = int(rng.choice([1, 2, 4]))
        validation = int(rng.choice([0, 2, 8]))
        tree = planted_tree(
            families=families,
            per_family=(int(rng.choice([3, 8, 16])), validation, max(evaluated // families, 1)),
            models=models,
            hops=hops,
            dim=8,
            luck=float(rng.choice([0.0, 0.1, 0.4], p=[0.5, 0.3, 0.2])),
            noise=float(rng.choice([0.1, 1.0, 3.0], p=[0.5, 0.3, 0.2])),
            spread=90.0 if rng.random() < 0.4 else None,
            seed=seed,
        )
    else:
        count = 24 + evaluated
        splits = ("train",) * 16 + ("validation",) * 8 + ("test",) * evaluated
        if kind == "random":
            tree = random_tree(Layout.full(models, hops), count, seed)
        elif kind == "roles":
            tree = tree_with_roles(models, count, seed)
        elif kind == "ragged":
            draws = int(rng.choice([1, 2]))
            layout = Layout.grown(
                models,
                lambda path: range(models) if len(path) < min(hops, 2) else (),
                lambda _: draws,
            )
            if rng.random() < 0.5:  # as in a log, whose runs end anywhere
                layout = layout.with_give_backs([NEWEST])
            unjudged = float(rng.choice([0.0, 0.1]))
            tree = ragged_tree(layout, count, seed, missing=0.2, unjudged=unjudged)
        else:
            tree = lucky_tree(int(rng.choice([2, 4])), count, min(hops, 2), seed)
        datasets = rng.choice(["odd", "even", "other"], count).tolist()
        tree = replace(tree, splits=splits, datasets=tuple(datasets))
    return _vary(rng, replace(tree, encoder="planted"))


def _vary(rng: np.random.Generator, tree: RouteTree) -> RouteTree:
    """Change what a tree's figures look like, and what they tell."""
    rates = 10.0 ** rng.uniform(-3, 5)
    if rng.random() < 0.3:
        rates = 10.0 ** rng.integers(-3, 5)
    tree = replace(
        tree, rate=tree.rate * rates, direct=replace(tree.direct, rate=tree.direct.rate * rates)
    )
    if rng.random() < 0.1:  # nothing to gain: every route is as good
        tree = replace(tree, score=np.where(tree.score >= 0, 0.5, tree.score))
        tree.score[:, 0] = 0
    if rng.random() < 0.15:  # a direct call that is better than every route
        score = tree.direct.score.copy()
        score[:, rng.integers(score.shape[1])] = 1.0
        tree = replace(tree, direct=replace(tree.direct, score=score))
    if rng.random() < 0.1:
        tree = replace(tree, datasets=("one",) * len(tree))
    if rng.random() < 0.3:
        tree = replace(tree, scorer=str(rng.choice(BINARY_SCORERS)))
    if rng.random() < 0.2:
        accuracy = tree.accuracy.copy()
        accuracy[np.array(tree.datasets) == tree.datasets[0]] = np.nan
        tree = replace(tree, accuracy=accuracy)
    if rng.random() < 0.3:
        tree = replace(tree, sampled=tuple(rng.random(len(tree.models)) < 0.5))
    if rng.random() < 0.2:
        tree = replace(tree, context_free=True)
    if rng.random() < 0.3:
        tree = replace(tree, seconds=np.where(tree.tokens_out > 0, rng.random(tree.score.shape), 0))
        seconds = rng.random(tree.direct.score.shape)
        tree = replace(tree, direct=replace(tree.direct, seconds=seconds))
    if rng.random() < 0.3:
        names = dict(zip(tree.models, rng.permutation(ODD_NAMES).tolist(), strict=False))
        models, callers, direct = (
            tuple(names.get(name, name) for name in old)
            for old in (tree.models, tree.callers, tree.direct.models)
        )
        tree = replace(
            tree, models=models, callers=callers, direct=replace(tree.direct, models=direct)
        )
    return tree


def _sweep(
    tree: RouteTree, objective: Objective, alphas: tuple[float, ...], config: TrainConfig, seed: int
) -> TrainedSweep:
    """Sweep as `sweep-alpha` does it, with a constant wherever no gain is shown."""
    training = Training(objective, config, seed, alphas)
    policy = training.shipped(training.fit(tree, ignore_epoch), tree, Repetition().context)
    assert isinstance(policy, TrainedSweep)
    return policy


def _draw_router(
    rng: np.random.Generator, tree: RouteTree, objective: Objective, algo: str
) -> TrainedRouter:
    """Train as `train` does it: for the alpha or for a budget, kept anyway or not."""
    config = replace(CONFIGS[algo], keep_anyway=bool(rng.random() < 0.5))
    seed = int(rng.integers(1000))
    if algo == "value" and rng.random() < 0.2:
        grid = tuple(sorted({0.0, objective.alpha, 10 * objective.alpha}))
        sweep = _sweep(tree, objective, grid, config, seed)
        cost = tree.cost[:, 1:][tree.weight[:, 1:] > 0] if tree.weight is not None else tree.cost
        budget = float(f"{np.quantile(cost, rng.random()):.2g}")
        try:
            return meet_budget(sweep, tree, budget)
        except InputError:  # it is too small for any router
            return sweep.at(objective.alpha)
    training = Training(objective, config, seed)
    policy = training.shipped(training.fit(tree, ignore_epoch), tree, Repetition().context)
    assert isinstance(policy, TrainedRouter)
    return policy


def _draw_settings(
    rng: np.random.Generator,
    tree: RouteTree,
    trained: TrainedRouter | None,
    sweep: TrainedSweep | None,
) -> dict[str, Any]:
    """Draw what else a report may show."""
    settings: dict[str, Any] = {}
    if rng.random() < 0.15:
        lists = {"own": tree}
        for name in ("dear", "cheap")[: int(rng.integers(1, 3))]:
            rates = {**tree.direct.rates, **dict(zip(tree.models, _rates(tree), strict=True))}
            prices = {model: rate.times(rng.uniform(0.1, 10)) for model, rate in rates.items()}
            lists[name] = reprice(tree, prices)
        settings["price_lists"] = lists
    is_table = trained is not None and isinstance(trained.router, TableRouter | MeanRouter)
    can_defer = trained is not None and not trained.actions.returns and not is_table
    if can_defer and rng.random() < 0.15:
        settings["defer"] = DeferralTarget(LARGE, None if rng.random() < 0.5 else 0.3)
    if rng.random() < 0.3:
        settings["p95_below"] = float(rng.uniform(0.2, 2.0))
    may_end = tree.weight is None or NEWEST in tree.layout.give_backs
    if may_end and rng.random() < 0.3:
        settings["policies"] = (_own_policy(int(rng.integers(1000))),)
    if sweep is not None and rng.random() < 0.6:
        names = rng.permutation(["value", "groups", "ridge"])[: int(rng.integers(1, 3))].tolist()
        settings["beside"] = tuple(
            SweepBeside(
                f"{name}, seed 1" if name == "value" else name,
                Path("sweep"),
                _sweep(tree, sweep.objective, sweep.alphas, CONFIGS[name], 1),
                name == "value",
            )
            for name in names
        )
    return settings


def _rates(tree: RouteTree) -> list[Rate]:
    """The prices of the tree's actions."""
    return [Rate(*row) for row in tree.rate.tolist()]


def _own_policy(seed: int) -> OwnPolicy:
    """A policy of a user that chooses by the stage alone."""

    def choose(observation: Mapping[str, Any]) -> str:
        offered: Sequence[str] = observation["offered"]
        return offered[(seed + int(observation["stage"])) % len(offered)]

    return own_policy(choose, "rule of mine")

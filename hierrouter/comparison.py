"""Everything a report compares, on one fold.

In: a tree with its folds, a trained router, the routers of a sweep. Out: `Report`: direct calls,
fixed routes, baselines chosen on the train fold, the tree oracle and the router, all evaluated
exactly on the fold asked for, under one price list or several. Not covered: how it is shown
(`hierrouter.report`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hierrouter.evaluate.bounds import best_route_per_dataset, oracle, random_policy
from hierrouter.evaluate.outcome import Outcome, fixed_routes, single_calls
from hierrouter.learn.trained import TrainedRouter
from hierrouter.report.build import FrontierPoint, build_report
from hierrouter.report.priced import priced_rows
from hierrouter.report.results import COST_UNIT, COST_UNIT_IN_OUT, Bootstrap, Report
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import SPLITS, RouteTree


def compare(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    swept: Sequence[TrainedRouter],
    provenance: Mapping[str, Any],
    split: str = "test",
    bootstrap: Bootstrap | None = None,
    price_lists: Mapping[str, RouteTree] | None = None,
) -> Report:
    """Evaluate every policy on one fold at one alpha.

    Args:
        tree: all folds; what is chosen from data is chosen on "train".
        alpha: cost penalty of the reward R = Q - alpha * C.
        trained: the router, or None where nothing has been trained yet.
        swept: routers trained at other alphas, for the frontier.
        provenance: where all this came from.
        split: the fold to evaluate on.
        bootstrap: how intervals are made.
        price_lists: the same tree under several price lists, by the list's name, `tree` among
            them. What is chosen under prices is chosen under each on its own; the router is the
            same one and sees the costs of each.

    Raises:
        InputError: an unknown or empty fold, or a router made for another tree.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split: {split}; known: {', '.join(SPLITS)}")
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to report on; collect more queries")
    lists = dict(price_lists or {})
    outcomes = _outcomes(tree, alpha, trained, split)
    return build_report(
        fold.datasets,
        outcomes,
        alpha=alpha,
        split=split,
        scorer=tree.scorer,
        provenance=provenance,
        bootstrap=bootstrap,
        frontier=_frontier(fold, swept),
        cost_unit=_cost_unit([tree, *lists.values()]),
        notes=[*_data_notes(tree), *_price_notes(trained, swept, lists, tree)],
        price_lists=[
            priced_rows(
                name,
                fold.datasets,
                outcomes if priced is tree else _outcomes(priced, alpha, trained, split),
                alpha,
            )
            for name, priced in lists.items()
        ],
    )


def _outcomes(
    tree: RouteTree, alpha: float, trained: TrainedRouter | None, split: str
) -> list[Outcome]:
    """Every policy on a fold, under the prices of `tree`."""
    fold = tree.split(split)
    outcomes = [*single_calls(fold), *fixed_routes(fold), *_baselines(tree, alpha, fold)]
    return [*outcomes, trained.outcome(fold)] if trained else outcomes


def _baselines(tree: RouteTree, alpha: float, fold: RouteTree) -> list[Outcome]:
    chosen_on = tree.split("train")
    informed = [best_route_per_dataset(chosen_on, alpha, fold)] if len(chosen_on) else []
    return [random_policy(fold), *informed, oracle(fold, alpha)]


def _frontier(fold: RouteTree, swept: Sequence[TrainedRouter]) -> list[FrontierPoint]:
    learned = [FrontierPoint(router.alpha, router.outcome(fold)) for router in swept]
    bound = [FrontierPoint(point.alpha, oracle(fold, point.alpha)) for point in learned]
    return learned + bound


def _cost_unit(trees: Sequence[RouteTree]) -> str:
    """The paper's unit where every model has one rate, in and out."""
    rates = np.concatenate([rate for tree in trees for rate in (tree.rate, tree.direct.rate)])
    single = bool((rates[:, 0] == rates[:, 1]).all())
    return COST_UNIT if single else COST_UNIT_IN_OUT


def _data_notes(tree: RouteTree) -> list[str]:
    """What a reader must know of the data."""
    notes = []
    if tree.context_free:
        notes.append(
            "Later hops are independent answers of the models, as imported: "
            "no model saw an earlier answer."
        )
    if tree.left_out:
        notes.append(f"{tree.left_out} queries are left out: their trees are incomplete.")
    return notes


def _price_notes(
    trained: TrainedRouter | None,
    swept: Sequence[TrainedRouter],
    lists: Mapping[str, RouteTree],
    tree: RouteTree,
) -> list[str]:
    """Which routers learned under other prices than they are shown under."""
    strange = [name for name, priced in lists.items() if trained and _other_prices(trained, priced)]
    notes = []
    if strange:
        notes.append(f"HierRouter was trained under other prices than {', '.join(strange)}.")
    elif trained and _other_prices(trained, tree):
        notes.append("HierRouter was trained under other prices than these.")
    if any(_other_prices(router, tree) for router in swept):
        notes.append("The sweep was trained under other prices than its frontier shows.")
    return notes


def _other_prices(trained: TrainedRouter, tree: RouteTree) -> bool:
    return trained.fingerprint != tree.fingerprint and tree.same_content(trained.fingerprint)

"""How a router learned, as plain values.

In: the history of a training and the tree it learned on. Out: `LearningCurve`. Not covered: the
picture (`learning_figure`), routers read off a sweep, which have no history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hierrouter.evaluate.bounds import best_fixed_route, oracle

if TYPE_CHECKING:
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class LearningCurve:
    """Net reward of the greedy router on the fold that chose its weights, while it learned.

    Attributes:
        alpha: cost penalty it was trained for; R is at this one.
        fold: "validation", or "train" where there was no validation fold.
        epochs: done at each evaluation.
        reward: mean R at each evaluation.
        chosen: the epoch whose weights were kept, that of the highest R, on a tie of the highest
            on train; None where the checkpoint does not tell.
        fixed: R of the best fixed route on these very queries.
        oracle: R of the tree oracle on them.
    """

    alpha: float
    fold: str
    epochs: tuple[int, ...]
    reward: tuple[float, ...]
    chosen: int | None
    fixed: float | None
    oracle: float | None


def learning_curve(trained: TrainedRouter, tree: RouteTree, fold: str) -> LearningCurve | None:
    """The curve of a training; None where it has no history.

    The bounds are left out where `tree` is not the one that the router learned on: under other
    prices or on other data R would be another.

    Args:
        tree: all folds.
        fold: name of the one that chose the weights.
    """
    if not trained.history:
        return None
    config, alpha = trained.origin.config, trained.alpha
    every = (config.evaluate_every * (at + 1) for at in range(len(trained.history)))
    epochs = tuple(min(epoch, config.epochs) for epoch in every)
    fixed, known = _bounds(trained, tree, fold)
    return LearningCurve(
        alpha=alpha,
        fold=fold,
        epochs=epochs,
        reward=trained.history,
        chosen=None if trained.kept is None else epochs[trained.kept],
        fixed=fixed,
        oracle=known,
    )


def _bounds(
    trained: TrainedRouter, tree: RouteTree, fold: str
) -> tuple[float, float] | tuple[None, None]:
    """Mean R of the best fixed route and of the oracle, on the fold that chose."""
    if tree.fingerprint != trained.origin.fingerprint:
        return None, None
    alpha, stop, queries = trained.alpha, trained.objective.allow_stop, tree.split(fold)
    bounds = best_fixed_route(queries, alpha, queries, stop), oracle(queries, alpha, stop)
    fixed, known = (float(bound.reward(alpha).mean()) for bound in bounds)
    return fixed, known

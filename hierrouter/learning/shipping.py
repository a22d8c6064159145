"""What a run ships: the router that it learned or, where that shows no gain, a constant choice."""

from dataclasses import replace

import numpy as np

from hierrouter.evaluation.bounds import best_ending
from hierrouter.evaluation.intervals import interval, queries_needed
from hierrouter.evaluation.outcome import fixed_route
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import WORTHWHILE, Constant, TrainedRouter
from hierrouter_cache.tree import RouteTree

PLENTY = 10_000_000  # more questions than anybody has


def shipped(trained: TrainedRouter, tree: RouteTree) -> TrainedRouter:
    """The router, and a constant choice instead of it where it shows no gain.

    The gain is that over the best fixed route, one of fewer calls where the router may stop, on
    the queries that judge the router, see `TrainedRouter.judged`; a gain is shown where the whole
    interval is above 0. Nothing is put in the place of a router with a limit on each query: a
    route has none.

    `tree`: that it learned from.
    """
    if trained.origin.config.keep_anyway or trained.objective.max_cost is not None:
        return trained
    judged, alpha = trained.judged(tree), trained.alpha
    chooses = judged if len(trained.router) > 1 else tree.split("train")
    node = best_ending(chooses, alpha, trained.objective.ends_early)
    constant = fixed_route(judged, node)
    gains = trained.outcome(judged).reward(alpha) - constant.reward(alpha)
    low, high = interval(gains, rng=np.random.default_rng(0))
    if low > 0 and len(judged) > 1:
        return trained
    spread = float(gains.std(ddof=1)) if len(judged) > 1 else 0.0
    needed = min(queries_needed(WORTHWHILE, spread), PLENTY) if spread else 0
    return replace(trained, constant=Constant(node, float(gains.mean()), low, high, needed))


def shipped_sweep(swept: TrainedSweep, tree: RouteTree) -> TrainedSweep:
    """The same for each alpha of the grid of one network."""
    return replace(
        swept, constants=tuple(shipped(swept.at(alpha), tree).constant for alpha in swept.alphas)
    )

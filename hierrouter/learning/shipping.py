"""What a run ships: the router that it learned or, where that shows no gain, a constant choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hierrouter.evaluation.bounds import best_ending
from hierrouter.evaluation.intervals import interval, queries_needed
from hierrouter.evaluation.outcome import Actions, Floats, fixed_route
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:
    from hierrouter.learning.sweep import TrainedSweep
    from hierrouter.learning.training import TrainedRouter

WORTHWHILE = 0.01  # a gain of R that one would like to be shown
PLENTY = 10_000_000  # more questions than anybody has


@dataclass(frozen=True)
class Constant:
    """One route for every question, shipped because nothing better was shown.

    Attributes:
        node: number of the node where the route ends.
        gain: mean R of the router that was learned, less that of the route.
        low, high: 95 % interval of the gain, over the queries.
        needed: questions with which a gain of `WORTHWHILE` would show; 0 where both do the same.
    """

    node: int
    gain: float
    low: float
    high: float
    needed: int

    def policy(self, actions: Actions) -> Floats:
        """float64[S, A], one-hot: the route, and off it the first action that is legal."""
        routes, at = actions.routes, 0
        choice = actions.legal().argmax(axis=1)
        path = routes.path(self.node)
        stops = actions.allow_stop and len(path) < routes.hops
        for model in path:
            reached = int(routes.child(at, model))
            choice[at] = model + (routes.models if stops and reached == self.node else 0)
            at = reached
        if actions.allow_return and not stops:
            choice[at] = actions.calls + len(path) - 1
        one_hot: Floats = np.eye(actions.count)[choice]
        return one_hot

    def sentence(self, alpha: float, actions: Actions, models: tuple[str, ...]) -> str:
        """Why it is shipped, with the figures."""
        route = actions.routes.name(self.node, models)
        said = f"nothing learnable here at alpha {alpha:g}: always {route}"
        if not self.needed:
            return f"{said}; the best router found does the same"
        more = f"about {self.needed:,} questions could show a gain of {WORTHWHILE:g}"
        return (
            f"{said}; the best router found would be {self.gain:+.4f} "
            f"[{self.low:+.4f}, {self.high:+.4f}]; {more}"
        )


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

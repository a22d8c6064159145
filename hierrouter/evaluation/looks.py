"""What one look at an answer is worth: a model is called, and how sure it was decides what follows.

The rule is fitted on the train fold, dataset by dataset: which model first, how sure it must be,
and how the episode ends in both cases. Nothing of the question is read, so this is what the look
alone adds to a perfect classifier of datasets.
"""

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluation import bounds, outcome
from hierrouter_cache.tree import Routes, RouteTree

LOOK = "best look per dataset"
CUTS = 32  # about so many thresholds are tried
ROUNDING = 1e-9  # of a sum of R: less is no gain
SMALLEST_SIDE = 5  # queries of the train fold on either side of a threshold


@dataclass(frozen=True)
class Look:
    """One rule of one dataset.

    Attributes:
        first: number of the model that is called and looked at; None where nobody is.
        least: how sure it must be.
        sure: node where the episode ends if it is that sure, or nobody is looked at.
        unsure: node where it ends else.
    """

    first: int | None
    least: float
    sure: int
    unsure: int

    def nodes(self, sureness: outcome.Floats) -> outcome.Integers:
        """int64[n]: where episodes end; `sureness`: float64[n, M], see `fit`."""
        if self.first is None:
            return np.full(len(sureness), self.sure)
        is_sure = np.nan_to_num(sureness[:, self.first], nan=-np.inf) >= self.least
        return np.where(is_sure, self.sure, self.unsure)

    def name(self, models: tuple[str, ...], routes: Routes) -> str:
        """As in `nano 0.83 sure: >nano, else nano>calc`; below 0 stands for a length."""
        sure, unsure = (routes.name(node, models) for node in (self.sure, self.unsure))
        if self.first is None:
            return sure
        how = f"{self.least:.2g} sure" if self.least >= 0 else f"up to {-self.least:.0f} tokens"
        return f"{models[self.first]} {how}: {sure}, else {unsure}"


def fit(tree: RouteTree, sureness: outcome.Floats, alpha: float, allow_stop: bool = False) -> Look:
    """The best rule for all queries of `tree`, or its best fixed route where no look is better.

    `sureness`: float64[queries, M], how sure each model was of its answer when it was called first;
    only the order counts, NaN is less than all.
    """
    reward, routes = tree.node_reward(alpha), tree.routes
    best = bounds.best_ending(tree, alpha, allow_stop)
    chosen, most = Look(None, -np.inf, best, best), float(reward[:, best].sum())
    ends = outcome.Actions(routes, allow_stop).endings
    for first in range(routes.models):
        under = np.array(
            [node for node in range(routes.nodes)[ends] if routes.path(node)[0] == first]
        )
        sure = np.nan_to_num(sureness[:, first], nan=-np.inf)
        order = np.argsort(sure, kind="stable")
        below = np.cumsum(reward[order][:, under], axis=0)
        whole, ranked = below[-1], sure[order]
        # A threshold lies before a query that is surer than the one before it.
        cuts = 1 + np.flatnonzero(ranked[1:] > ranked[:-1])
        cuts = cuts[(cuts >= SMALLEST_SIDE) & (cuts <= len(tree) - SMALLEST_SIDE)]
        cuts = cuts[:: max(1, len(cuts) // CUTS)]
        low, high = below[cuts - 1], whole - below[cuts - 1]
        earned = low.max(axis=1) + high.max(axis=1)
        if len(cuts) and earned.max() > most + ROUNDING:
            at, most = int(earned.argmax()), float(earned.max())
            ends_at = (int(under[side[at].argmax()]) for side in (high, low))
            chosen = Look(first, float(ranked[cuts[at]]), *ends_at)
    return chosen


def looks_per_dataset(
    chosen_on: tuple[RouteTree, outcome.Floats],
    shown: tuple[RouteTree, outcome.Floats],
    alpha: float,
    allow_stop: bool = False,
) -> tuple[dict[str, Look], outcome.Outcome]:
    """A rule for each dataset of one fold, fitted on another, and what the rules do there.

    `chosen_on`, `shown`: a fold and its `sureness`, see `fit`; a dataset that the first one does
    not have follows the rule of all.
    """
    (train, sure), (fold, seen) = chosen_on, shown
    known, names = np.array(train.datasets), np.array(fold.datasets)
    rules, nodes = {}, np.empty(len(fold), np.int64)
    for dataset in dict.fromkeys(fold.datasets):
        rows = np.flatnonzero(known == dataset)
        rows = rows if len(rows) else np.arange(len(train))
        here = np.flatnonzero(names == dataset)
        rules[dataset] = fit(train.select(rows), sure[rows], alpha, allow_stop)
        nodes[here] = rules[dataset].nodes(seen[here])
    return rules, outcome.at_nodes(fold, nodes, LOOK, "baseline")

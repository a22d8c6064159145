"""The worth of reading one answer: call a model, then continue by how confident it was.

The rule is fitted on the train fold, dataset by dataset: which model to call first, how confident
it must be, and how the episode ends in both cases. Nothing of the question is read, so this is what
the first answer alone adds to a perfect classifier of datasets.
"""

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluation import bounds, outcome
from hierrouter_cache.tree import Routes, RouteTree

LOOK_POLICY = "best look per dataset"
MAX_THRESHOLDS = 32  # about as many thresholds are tried for each first model
MIN_QUERIES_PER_SIDE = 5  # queries of the train fold on either side of a threshold


@dataclass(frozen=True)
class LookRule:
    """The rule of one dataset.

    Attributes:
        first: number of the model whose answer is read; None if the route is fixed.
        threshold: how confident that model must be.
        confident_node: node where the episode ends if the model is that confident, or if the route
            is fixed.
        doubtful_node: node where the episode ends otherwise.
    """

    first: int | None
    threshold: float
    confident_node: int
    doubtful_node: int

    def nodes(self, confidence: outcome.Floats) -> outcome.Integers:
        """Apply the rule.

        Args:
            confidence: float64[n, M], see `fit`.

        Returns:
            int64[n], the nodes where the episodes end.
        """
        if self.first is None:
            return np.full(len(confidence), self.confident_node)
        is_confident = _nan_as_lowest(confidence[:, self.first]) >= self.threshold
        return np.where(is_confident, self.confident_node, self.doubtful_node)

    def name(self, models: tuple[str, ...], routes: Routes) -> str:
        """Describe the rule, for example `nano 0.83 sure: >nano, else nano>calc`.

        A threshold below 0 is minus a length in tokens, see
        `hierrouter.replay.tree.first_call_confidence`.
        """
        confident_route = routes.name(self.confident_node, models)
        if self.first is None:
            return confident_route
        doubtful_route = routes.name(self.doubtful_node, models)
        if self.threshold >= 0:
            condition = f"{self.threshold:.2g} sure"
        else:
            condition = f"up to {-self.threshold:.0f} tokens"
        return f"{models[self.first]} {condition}: {confident_route}, else {doubtful_route}"


def _nan_as_lowest(confidence: outcome.Floats) -> outcome.Floats:
    """Replace NaN by -inf, so that an unknown confidence is below every threshold."""
    return np.nan_to_num(confidence, nan=-np.inf)


def fit(
    tree: RouteTree, confidence: outcome.Floats, alpha: float, allow_stop: bool = False
) -> LookRule:
    """Find the best rule for all queries of a tree.

    Args:
        tree: the queries.
        confidence: float64[queries, M], how confident each model was of its answer when it was
            called first; only the order counts, NaN is below all numbers.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        The rule; that of the best fixed route if no rule that reads an answer is better.
    """
    routes = tree.routes
    reward = tree.node_reward(alpha)
    best_ending = bounds.best_ending(tree, alpha, allow_stop)
    best_rule = LookRule(None, -np.inf, best_ending, best_ending)
    best_reward = float(reward[:, best_ending].sum())
    endings = range(routes.nodes)[outcome.Actions(routes, allow_stop).endings]
    for first in range(routes.models):
        candidates = np.array([node for node in endings if routes.path(node)[0] == first])
        first_confidence = _nan_as_lowest(confidence[:, first])
        order = np.argsort(first_confidence, kind="stable")
        ranked = first_confidence[order]
        # Row i: the reward of each ending, summed over the i + 1 least confident queries.
        cumulative = np.cumsum(reward[order][:, candidates], axis=0)
        # A threshold must separate a query from one of lower confidence.
        cuts = 1 + np.flatnonzero(ranked[1:] > ranked[:-1])
        cuts = cuts[(cuts >= MIN_QUERIES_PER_SIDE) & (cuts <= len(tree) - MIN_QUERIES_PER_SIDE)]
        cuts = cuts[:: max(1, len(cuts) // MAX_THRESHOLDS)]
        below = cumulative[cuts - 1]
        above = cumulative[-1] - below
        earned = below.max(axis=1) + above.max(axis=1)
        if len(cuts) and earned.max() > best_reward + bounds.REWARD_ROUNDING:
            best_cut = int(earned.argmax())
            best_reward = float(earned.max())
            best_rule = LookRule(
                first=first,
                threshold=float(ranked[cuts[best_cut]]),
                confident_node=int(candidates[above[best_cut].argmax()]),
                doubtful_node=int(candidates[below[best_cut].argmax()]),
            )
    return best_rule


def looks_per_dataset(
    selection: tuple[RouteTree, outcome.Floats],
    evaluation: tuple[RouteTree, outcome.Floats],
    alpha: float,
    allow_stop: bool = False,
) -> tuple[dict[str, LookRule], outcome.Outcome]:
    """Fit a rule for each dataset on one fold and apply it on another.

    Args:
        selection: the fold to fit on and its confidence, see `fit`. A dataset that it lacks gets
            the rule of all its queries.
        evaluation: the fold to apply the rules on and its confidence.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        The rule of each dataset by name, and the outcome on the second fold.
    """
    train, train_confidence = selection
    fold, fold_confidence = evaluation
    train_datasets = np.array(train.datasets)
    fold_datasets = np.array(fold.datasets)
    rules = {}
    nodes = np.empty(len(fold), np.int64)
    for dataset in dict.fromkeys(fold.datasets):
        train_rows = np.flatnonzero(train_datasets == dataset)
        if not len(train_rows):
            train_rows = np.arange(len(train))
        fold_rows = np.flatnonzero(fold_datasets == dataset)
        rule = fit(train.select(train_rows), train_confidence[train_rows], alpha, allow_stop)
        rules[dataset] = rule
        nodes[fold_rows] = rule.nodes(fold_confidence[fold_rows])
    return rules, outcome.from_nodes(fold, nodes, LOOK_POLICY, "baseline")

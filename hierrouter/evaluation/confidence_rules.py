"""Rules that read one thing: how confident the first model was of its answer.

A rule says: call model m first. If its confidence is at least t, the episode ends at node a, else
at node b. (If no such rule earns more than the best fixed route, the rule is that route.) The four
values m, t, a and b are fitted on the train fold, for each dataset. Tables call this policy "best
look per dataset". It reads nothing of the question, so its gain over the best route per dataset is
what the first answer alone adds to a perfect classifier of datasets.

Confidence is the probability of the whole answer under the model, from 0 to 1. If the engine gave
no probability for any answer, confidence is minus the number of the answer's tokens instead: a
shorter answer then counts as more confident. A rule only compares confidences with its threshold,
so it works with both. The sign of the threshold says which of the two it is: a threshold of -12
means "the answer has at most 12 tokens". `hierrouter.replay.tree.first_call_confidence` reads the
values.
"""

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluation import bounds, outcome
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree

RULE_POLICY = "best look per dataset"
MAX_THRESHOLDS = 32  # about as many thresholds are tried for each first model
MIN_QUERIES_PER_SIDE = 5  # queries of the train fold on either side of a threshold


@dataclass(frozen=True)
class ConfidenceRule:
    """The rule of one dataset.

    Attributes:
        first: number of the model whose confidence is read; None if the rule is a fixed route.
        threshold: the least confidence that counts as confident; below 0 it is a number of tokens,
            see the module's docstring.
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
            confidence: float64[n, M], see `fit_rule`.

        Returns:
            int64[n], the nodes where the episodes end.
        """
        if self.first is None:
            return np.full(len(confidence), self.confident_node)
        is_confident = _nan_as_lowest(confidence[:, self.first]) >= self.threshold
        return np.where(is_confident, self.confident_node, self.doubtful_node)

    def name(self, models: tuple[str, ...], layout: Layout) -> str:
        """Describe the rule, for example `nano 0.83 sure: >nano, else nano>calc`.

        With a threshold below 0: `nano up to 12 tokens: …`, see the module's docstring.
        """
        confident_route = layout.name(self.confident_node, models)
        if self.first is None:
            return confident_route
        doubtful_route = layout.name(self.doubtful_node, models)
        if self.threshold >= 0:
            condition = f"{self.threshold:.2g} sure"
        else:
            condition = f"up to {-self.threshold:.0f} tokens"
        return f"{models[self.first]} {condition}: {confident_route}, else {doubtful_route}"


def _nan_as_lowest(confidence: outcome.Floats) -> outcome.Floats:
    """Replace NaN by -inf, so that an unknown confidence is below every threshold."""
    return np.nan_to_num(confidence, nan=-np.inf)


def fit_rule(
    tree: RouteTree, confidence: outcome.Floats, alpha: float, allow_stop: bool = False
) -> ConfidenceRule:
    """Find the best rule for all queries of a tree.

    Args:
        tree: the queries.
        confidence: float64[queries, M], how confident each model was of its answer when it was
            called first. Only the order counts; NaN (unknown) is below all numbers.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        The rule; that of the best fixed route if no rule that reads an answer is better.
    """
    layout = tree.layout
    reward = tree.node_reward(alpha)
    best_ending = bounds.best_ending(tree, alpha, allow_stop)
    best_rule = ConfidenceRule(None, -np.inf, best_ending, best_ending)
    best_reward = float(reward[:, best_ending].sum())
    endings = range(layout.nodes)[outcome.route_ends(layout, allow_stop)]
    for first in range(layout.call_actions):
        candidates = np.array([node for node in endings if layout.path(node)[0] == first], int)
        if not len(candidates):  # it is not offered first
            continue
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
            best_rule = ConfidenceRule(
                first=first,
                threshold=float(ranked[cuts[best_cut]]),
                confident_node=int(candidates[above[best_cut].argmax()]),
                doubtful_node=int(candidates[below[best_cut].argmax()]),
            )
    return best_rule


def apply_rules_per_dataset(
    selection: tuple[RouteTree, outcome.Floats],
    evaluation: tuple[RouteTree, outcome.Floats],
    alpha: float,
    allow_stop: bool = False,
) -> tuple[dict[str, ConfidenceRule], outcome.Outcome]:
    """Fit a rule for each dataset on one fold and apply it on another.

    Args:
        selection: the fold to fit on and its confidence, see `fit_rule`. A dataset that it lacks
            gets the rule of all its queries.
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
        rule = fit_rule(train.select(train_rows), train_confidence[train_rows], alpha, allow_stop)
        rules[dataset] = rule
        nodes[fold_rows] = rule.nodes(fold_confidence[fold_rows])
    return rules, outcome.from_nodes(fold, nodes, RULE_POLICY, "baseline")

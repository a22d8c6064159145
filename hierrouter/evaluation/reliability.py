"""Whether choices are the best as often as a policy says: its probabilities against the tree."""

import numpy as np

from hierrouter.evaluation.intervals import percentile_interval, resampled_means
from hierrouter.evaluation.looks import ROUNDING
from hierrouter.evaluation.outcome import Actions, Booleans, Floats, Integers, ending_reward, greedy
from hierrouter_cache.tree import RouteTree

SURE = 0.9
EDGES = (0.0, 0.5, 0.7, SURE, np.inf)  # of the groups; each holds its lower one


def decisions(
    tree: RouteTree, actions: Actions, probabilities: Floats, alpha: float
) -> tuple[Integers, Floats, Booleans]:
    """Every decision on the greedy way of each query at which more than one action is legal.

    Args:
        actions: what the columns of the table mean.
        probabilities: float64[queries, S, A], of each action to be the best; 0 where it is illegal.

    Returns:
        int64[n], the position of the query; float64[n], the probability of what was chosen; and
        bool[n], whether no other action would have led to a higher R on this very query, all going
        on greedily: exact, but for rounding.
    """
    choice = greedy(probabilities, tree.base_rate, actions.returns).argmax(axis=2)
    legal, reward = actions.legal(), ending_reward(tree, alpha, actions.width)
    query, ahead, lost = np.arange(len(tree)), np.zeros(choice.shape), np.zeros(choice.shape)
    for state in reversed(range(actions.states)):
        choices = np.flatnonzero(legal[state])
        reached, ends, is_over = actions.after(state, choices)
        follows = np.where(is_over, reward[:, ends], ahead[:, np.where(is_over, 0, reached)])
        ahead[:, state] = follows[query, np.searchsorted(choices, choice[:, state])]
        lost[:, state] = follows.max(axis=1) - ahead[:, state]
    made, at = [], np.zeros_like(query)
    for _ in range(actions.steps):
        made.append(np.stack([query, at])[:, legal[at].sum(axis=1) > 1])
        reached, _, is_over = actions.after(at, choice[query, at])
        query, at = query[~is_over], reached[~is_over]
    query, at = np.concatenate(made, axis=1)
    return query, probabilities.max(axis=2)[query, at], lost[query, at] <= ROUNDING


def share_interval(
    query: Integers, holds: Booleans, n: int, level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Interval of the share of decisions at which something holds, by queries that have some.

    `query`: int64[decisions], at least one, drawn with all its decisions; for the other arguments
    see `hierrouter.evaluation.intervals.interval`.
    """
    _, place = np.unique(query, return_inverse=True)
    counts = np.array([np.bincount(place, holds), np.bincount(place)], np.float64)
    held, made = resampled_means(counts, n, rng)
    low, high = percentile_interval(held / made, counts.shape[1], level)
    return float(low), float(high)

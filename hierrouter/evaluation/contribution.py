"""What each model of a pool adds to what can be reached."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.outcome import Floats
from hierrouter_cache.tree import RouteTree, sub_pool

EXACT = 10  # models; 1,023 sub-pools
PERMUTATIONS = 200

# float64[queries]: what the pool of a tree is worth.
Value = Callable[[RouteTree], Floats]
Worth = Callable[[frozenset[int]], Floats]


@dataclass(frozen=True)
class Contribution:
    """What each model adds to the worth of its pool.

    Attributes:
        models: M names.
        leave_one_out: float64[M, queries], worth of the pool less its worth without the model. For
            the only model of a pool, the worth of the pool.
        shapley: float64[M, queries]; their sum is the worth of the pool.
        error: float64[M], standard error of the mean of `shapley` over the queries, from the
            draw of orders; 0 where all sub-pools were valued. It says nothing about new queries.
    """

    models: tuple[str, ...]
    leave_one_out: Floats
    shapley: Floats
    error: Floats


def oracle_reward(alpha: float, allow_stop: bool = False) -> Value:
    """A pool is worth the R of its tree oracle, float64[queries]."""
    return lambda tree: oracle(tree, alpha, allow_stop).reward(alpha)


def contributions(
    tree: RouteTree, value: Value, *, rng: np.random.Generator, permutations: int = PERMUTATIONS
) -> Contribution:
    """Leave-one-out and Shapley contribution of each model of the pool.

    `value`: what a pool is worth; `rng`: draws the orders where the pool has more than `EXACT`
    models; else not used; `permutations`: number of orders drawn, at least 2.
    """
    worth = _worth(tree, value)
    everyone = frozenset(range(len(tree.models)))
    without = [worth(everyone) - worth(everyone - {model}) for model in sorted(everyone)]
    if len(everyone) <= EXACT:
        shapley, error = _enumerated(worth, everyone), np.zeros(len(everyone))
    else:
        shapley, error = _sampled(worth, everyone, rng, permutations)
    return Contribution(tree.models, np.stack(without), shapley, error)


def _worth(tree: RouteTree, value: Value) -> Worth:
    """What some of the models, by number, are worth together; what was valued lately is kept."""
    nothing = np.zeros_like(value(tree))

    @lru_cache(maxsize=1 << EXACT)
    def worth(chosen: frozenset[int]) -> Floats:
        if not chosen:
            return nothing
        return value(sub_pool(tree, [tree.models[model] for model in sorted(chosen)]))

    return worth


def _enumerated(worth: Worth, everyone: frozenset[int]) -> Floats:
    """float64[M, queries]: the mean over all orders, from all sub-pools (Shapley 1953)."""
    total = np.zeros((len(everyone), *worth(everyone).shape))
    for model, size in itertools.product(sorted(everyone), range(len(everyone))):
        # The share of the orders in which just these models, `size` of them, came before.
        share = 1 / (len(everyone) * math.comb(len(everyone) - 1, size))
        for before in itertools.combinations(sorted(everyone - {model}), size):
            joined = frozenset(before)
            total[model] += share * (worth(joined | {model}) - worth(joined))
    return total


def _sampled(
    worth: Worth, everyone: frozenset[int], rng: np.random.Generator, permutations: int
) -> tuple[Floats, Floats]:
    """float64[M, queries] the mean over drawn orders, and float64[M] its standard error."""
    total = np.zeros((len(everyone), *worth(everyone).shape))
    gained = np.empty((permutations, len(everyone)))
    for number in range(permutations):
        joined: frozenset[int] = frozenset()
        for model in rng.permutation(len(everyone)).tolist():
            gain = worth(joined | {model}) - worth(joined)
            total[model] += gain
            gained[number, model] = gain.mean()
            joined |= {model}
    return total / permutations, gained.std(axis=0, ddof=1) / math.sqrt(permutations)

"""Trees walked route by route, in plain loops: what the arithmetic is compared with."""

import itertools
from collections.abc import Sequence
from functools import cache

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.outcome import Actions
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import random_tree

Path = tuple[int, ...]

# Multiples of 1/8: with the scores, rates and tokens of a random tree every sum is exact, and what
# ties on paper ties in the computer.
alphas = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0, 2.0])
seeds = st.integers(0, 2**16)
# Plain loops are slow, and a busy machine is no failure.
unhurried = settings(max_examples=40, deadline=None)
small_shapes = st.builds(Layout.full, st.integers(1, 3), st.integers(1, 3))
small_trees = st.builds(random_tree, small_shapes, st.integers(1, 4), seeds)


def paths(tree: RouteTree, stop: bool, models: Sequence[int] | None = None) -> list[Path]:
    """Every route that calls only some models, the shorter ones first."""
    pool = range(len(tree.models)) if models is None else models
    lengths = range(1, tree.hops + 1) if stop else [tree.hops]
    return [path for length in lengths for path in itertools.product(pool, repeat=length)]


def node(tree: RouteTree, path: Path) -> int:
    """The column of a route: levels one after the other, in the order of their paths."""
    return _numbered(len(tree.models), tree.hops)[path]


def quality(tree: RouteTree, query: int, path: Path) -> float:
    return float(tree.score[query, node(tree, path)])


def cost(tree: RouteTree, query: int, path: Path) -> float:
    """All calls on the way, token by token."""
    total = 0.0
    for length in range(1, len(path) + 1):
        column, (rate_in, rate_out) = node(tree, path[:length]), tree.rate[path[length - 1]]
        total += rate_in * tree.tokens_in[query, column] + rate_out * tree.tokens_out[query, column]
    return total


def reward(tree: RouteTree, query: int, path: Path, alpha: float) -> float:
    return quality(tree, query, path) - alpha * cost(tree, query, path)


def best_path(
    tree: RouteTree, queries: Sequence[int], alpha: float, candidates: Sequence[Path]
) -> Path:
    """The best on the whole of these queries; ties: the cheaper, then the earlier."""

    def rank(path: Path) -> tuple[float, float]:
        worth = sum(reward(tree, query, path, alpha) for query in queries)
        return -worth, sum(cost(tree, query, path) for query in queries)

    return min(candidates, key=rank)


@cache
def _numbered(models: int, hops: int) -> dict[Path, int]:
    levels = (itertools.product(range(models), repeat=length) for length in range(hops + 1))
    return {path: number for number, path in enumerate(itertools.chain(*levels))}


def oracle_break_points(tree: RouteTree, allow_stop: bool = False) -> NDArray[np.float64]:
    """The alphas at which the oracle takes another route on some query, ascending."""
    endings = Actions(tree.layout, allow_stop).endings
    return Hulls.of(tree.cost[:, endings], tree.score[:, endings]).slope[::-1]

"""Trees walked route by route, in plain loops: what the arithmetic is compared with."""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.outcome import Actions
from hierrouter_cache.layout import NEWEST, Layout
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


# Trees with draws and holes: recursion over what a query has.


@st.composite
def ragged_layouts(
    draw: st.DrawFn, max_draws: int = 2, max_hops: int = 3, max_nodes: int = 40
) -> Layout:
    """Up to two actions, some of which are not offered, with one or several draws."""
    actions = draw(st.integers(1, 2))
    hops = draw(st.integers(1, max_hops))
    counts = draw(st.lists(st.integers(1, max_draws), min_size=actions, max_size=actions))
    rng = np.random.default_rng(draw(seeds))

    def offered(path: Path) -> Sequence[int]:
        if len(path) == hops:
            return []
        chosen = np.flatnonzero(rng.random(actions) < 0.7).tolist()
        return chosen or ([0] if not path else [])

    layout = Layout.grown(actions, offered, lambda action: counts[action])
    assume(layout.nodes <= max_nodes)
    return layout


def draws(tree: RouteTree, query: int, state: int, action: int) -> list[tuple[float, int]]:
    """The draws of a call that a query has, each with its weight."""
    layout = tree.layout
    nodes = [
        child
        for child in range(1, layout.nodes)
        if (layout.parent[child], layout.action[child]) == (state, action)
    ]
    if tree.weight is None:
        return [(1.0, child) for child in nodes]
    return [(float(tree.weight[query, n]), n) for n in nodes if tree.weight[query, n] > 0]


def offers(tree: RouteTree, query: int, state: int) -> list[int]:
    """The actions that a query offers at a node."""
    return [a for a in range(tree.layout.call_actions) if draws(tree, query, state, a)]


def may_end(tree: RouteTree, query: int, state: int, stop: bool) -> bool:
    """Whether an episode may, or must, end at a node."""
    judged = tree.can_end is None or bool(tree.can_end[query, state])
    return state > 0 and (not offers(tree, query, state) or (stop and judged))


def followed(
    tree: RouteTree, query: int, path: Path, stop: bool, state: int = 0
) -> list[tuple[float, int]] | None:
    """The ends of a fixed route with their probabilities; None if it is not available."""
    offered = offers(tree, query, state)
    if not offered or (not path and may_end(tree, query, state, stop)):
        return [(1.0, state)]
    if not path or path[0] not in offered:
        return None
    ends = []
    for weight, child in draws(tree, query, state, path[0]):
        after = followed(tree, query, path[1:], stop, child)
        if after is None:
            return None
        ends += [(weight * share, end) for share, end in after]
    return ends


def ends_by_plan(
    tree: RouteTree, query: int, routes: Sequence[Path], stop: bool, path: Path = (), state: int = 0
) -> list[tuple[float, int]]:
    """The ends of the first route of several that is offered, step by step; then by chance."""
    offered = offers(tree, query, state)
    if not offered:
        return [(1.0, state)]
    judged = np.ones(tree.layout.nodes, bool) if tree.can_end is None else tree.can_end[query]
    may_return = state > 0 and NEWEST in tree.layout.give_backs and bool(judged[state])

    def may_stop(action: int) -> bool:
        table = tree.layout.draws_of_calls[state, action]
        goes_on = any(0 < child < tree.layout.inner for child in table)
        return stop and goes_on and all(judged[n] for _, n in draws(tree, query, state, action))

    def called(action: int, ends: bool) -> list[tuple[float, int]]:
        result = []
        for weight, child in draws(tree, query, state, action):
            after = [(1.0, child)]
            if not ends:
                after = ends_by_plan(tree, query, routes, stop, (*path, action), child)
            result += [(weight * share, end) for share, end in after]
        return result

    for route in routes:
        if route[: len(path)] != path:
            continue
        if route == path:
            if may_return:
                return [(1.0, state)]
        elif route[len(path)] in offered:
            action = route[len(path)]
            return called(action, len(route) == len(path) + 1 and may_stop(action))
    steps = [called(action, False) for action in offered]
    steps += [called(action, True) for action in offered if may_stop(action)]
    steps += [[(1.0, state)]] * may_return
    return [(share / len(steps), end) for step in steps for share, end in step]


def node_cost(tree: RouteTree, query: int, state: int) -> float:
    """All calls on the way, token by token."""
    total = 0.0
    for step in tree.layout.nodes_to(state):
        rate_in, rate_out = tree.rate[tree.layout.action[step]][:2]
        total += rate_in * tree.tokens_in[query, step] + rate_out * tree.tokens_out[query, step]
    return total


def node_value(tree: RouteTree, query: int, state: int, alpha: float) -> float:
    return float(tree.score[query, state]) - alpha * node_cost(tree, query, state)


def worlds(tree: RouteTree, query: int) -> Iterator[tuple[float, dict[tuple[int, int], int]]]:
    """Every way in which one draw of each call comes, with its probability."""
    calls = [(s, a) for s in range(tree.layout.inner) for a in offers(tree, query, s)]
    for drawn in itertools.product(*(draws(tree, query, *call) for call in calls)):
        probability = float(np.prod([weight for weight, _ in drawn]))
        yield probability, dict(zip(calls, [child for _, child in drawn], strict=True))


def enumerable_ends(tree: RouteTree, ends_early: bool) -> NDArray[np.bool_] | None:
    """bool[nodes]: where routes may end that make all calls, or any; None with draws or holes."""
    if tree.weight is not None or tree.can_end is not None or tree.layout.draws > 1:
        return None
    number = np.arange(tree.layout.nodes)
    return number > 0 if ends_early else number >= tree.layout.inner


def enumerated_oracle(tree: RouteTree, alpha: float, ends_early: bool) -> float | None:
    """Mean R of the best end of each question, by enumeration; None with draws or holes."""
    ends = enumerable_ends(tree, ends_early)
    if ends is None:
        return None
    reward = tree.score[:, ends] - alpha * tree.cost[:, ends]
    return float(reward.max(axis=1).mean())


def enumerated_quality(tree: RouteTree, budget: float, ends_early: bool) -> float | None:
    """The highest mean Q at a mean cost, by its dual; None with draws or holes.

    It is the least of max (Q - a C) + a * budget over all prices a of cost, summed over questions.
    """
    ends = enumerable_ends(tree, ends_early)
    if ends is None:
        return None
    quality, cost = tree.score[:, ends], tree.cost[:, ends]
    dearer = cost[:, :, None] - cost[:, None, :]
    better = quality[:, :, None] - quality[:, None, :]
    slopes = better[dearer > 0] / dearer[dearer > 0]
    prices = np.unique(np.concatenate([[0.0], slopes[slopes > 0]]))
    return min(
        float((quality - price * cost).max(axis=1).mean() + price * budget) for price in prices
    )
